// The handler: one open table of one connection at a time.
//
//   H1  `cursor_` walks the active index (or the clustered one for rnd_next), `point_` serves
//       rnd_pos. Both rest from reset() on; when the TABLE goes to another connection, that makes
//       its own.
//   H2  `at_` is the cursor whose row the server holds: update_row() and delete_row() mean that
//       row.
//   H3  Rows reach the server in buffers of any kind (record[0], record[1], lookup buffers):
//       everything works by offsets.
//   H4  BLOB pointers handed out stay valid until the handler's next row.
#pragma once

#include "mariadb/error_map.h"
#include "mariadb/row_codec.h"
#include "mariadb/share.h"
#include "mariadb/table_layout.h"

namespace strata::glue {

class ha_strata final : public handler {
 public:
  ha_strata(handlerton* hton, TABLE_SHARE* share);
  ~ha_strata() override;

  // --- what the engine can do (ha_strata.cc) ---
  Table_flags table_flags() const override;
  ulong index_flags(uint key, uint part, bool all_parts) const override;
  const char* index_type(uint) override { return "BTREE"; }
  uint max_supported_keys() const override { return MAX_KEY; }
  uint max_supported_key_length() const override { return kServerKeyBytesMost; }
  uint max_supported_key_part_length() const override { return kServerKeyBytesMost; }
  uint max_supported_key_parts() const override { return MAX_REF_PARTS; }
  uint max_supported_record_length() const override { return HA_MAX_REC_LENGTH; }
  const key_map* keys_to_use_for_scanning() override { return &key_map_full; }
  uint8 table_cache_type() override;  // query_cache.cc
  my_bool register_query_cache_table(THD* thd, const char* path, uint length,
                                     qc_engine_callback* callback, ulonglong* data) override;
  uint lock_count() const override { return 0; }

  int open(const char* name, int mode, uint test_if_locked) override;
  int close() override;
  handler* clone(const char* name, MEM_ROOT* mem_root) override;
  int external_lock(THD* thd, int lock_type) override;
  THR_LOCK_DATA** store_lock(THD* thd, THR_LOCK_DATA** to, thr_lock_type lock_type) override;
  int start_stmt(THD* thd, thr_lock_type lock_type) override;
  int extra(ha_extra_function operation) override;
  int reset() override;
  void init_table_handle_for_HANDLER() override;
  void try_semi_consistent_read(bool yes) override;
  bool was_semi_consistent_read() override { return semi_read_ == SemiRead::kDid; }
  void unlock_row() override;
  int cmp_ref(const uchar* left, const uchar* right) override;
  int discover_check_version() override;
  bool get_error_message(int error, String* text) override;

  // --- reading (ha_scan.cc) ---
  int rnd_init(bool scan) override;
  int rnd_end() override;
  int rnd_next(uchar* buffer) override;
  int rnd_pos(uchar* buffer, uchar* position) override;
  void position(const uchar* record) override;
  int index_init(uint key, bool sorted) override;
  int index_end() override;
  int index_read_map(uchar* buffer, const uchar* key, key_part_map parts,
                     ha_rkey_function mode) override;
  int index_read_last_map(uchar* buffer, const uchar* key, key_part_map parts) override;
  int index_next(uchar* buffer) override;
  int index_prev(uchar* buffer) override;
  int index_first(uchar* buffer) override;
  int index_last(uchar* buffer) override;
  int index_next_same(uchar* buffer, const uchar* key, uint key_length) override;
  int read_range_first(const key_range* start, const key_range* end, bool equal,
                       bool sorted) override;
  Item* idx_cond_push(uint key, Item* condition) override;
  int multi_range_read_init(RANGE_SEQ_IF* ranges, void* parameter, uint count, uint mode,
                            HANDLER_BUFFER* buffer) override;
  int multi_range_read_next(range_id_t* range) override;
  ha_rows multi_range_read_info_const(uint key, RANGE_SEQ_IF* ranges, void* parameter, uint count,
                                      uint* buffer_size, uint* flags, Cost_estimate* cost) override;
  ha_rows multi_range_read_info(uint key, uint count, uint keys, uint key_parts, uint* buffer_size,
                                uint* flags, Cost_estimate* cost) override;
  int multi_range_read_explain_info(uint mode, char* text, size_t size) override;

  // --- writing (ha_write.cc) ---
  int write_row(const uchar* record) override;
  int update_row(const uchar* old_record, const uchar* new_record) override;
  int delete_row(const uchar* record) override;
  bool start_bulk_update() override;
  bool start_bulk_delete() override;
  int end_bulk_delete() override;
  void get_auto_increment(ulonglong offset, ulonglong increment, ulonglong wanted, ulonglong* first,
                          ulonglong* reserved) override;

  // --- definition (ddl.cc, create.cc, alter_inplace.cc) ---
  int create(const char* name, TABLE* form, HA_CREATE_INFO* info) override;
  int delete_table(const char* name) override;
  int rename_table(const char* from, const char* to) override;
  int truncate() override;
  void update_create_info(HA_CREATE_INFO* info) override;
  enum_alter_inplace_result check_if_supported_inplace_alter(TABLE* altered,
                                                             Alter_inplace_info* info) override;
  bool prepare_inplace_alter_table(TABLE* altered, Alter_inplace_info* info) override;
  bool inplace_alter_table(TABLE* altered, Alter_inplace_info* info) override;
  bool commit_inplace_alter_table(TABLE* altered, Alter_inplace_info* info, bool commit) override;

  // --- statistics and administration (statistics.cc) ---
  int info(uint flags) override;
  row_type get_row_type() const override { return ROW_TYPE_DYNAMIC; }
  ha_rows records_in_range(uint key, const key_range* low, const key_range* high,
                           page_range* pages) override;
  ha_rows estimate_rows_upper_bound() override;
  double scan_time() override;
  double read_time(uint key, uint ranges, ha_rows rows) override;
  int analyze(THD* thd, HA_CHECK_OPT* options) override;
  int optimize(THD*, HA_CHECK_OPT*) override { return HA_ADMIN_TRY_ALTER; }
  int check(THD* thd, HA_CHECK_OPT* options) override;

 private:
  static constexpr uint kServerKeyBytesMost = 3072;
  static constexpr uint kRefLengthBytes = 2;  // ref: length of the clustered key, key, zeros

  enum class Direction : uint8_t { kForward, kBackward };
  // READ COMMITTED (HC2): kTry: rows are shown before they are locked; kDid: the last one was.
  enum class SemiRead : uint8_t { kOff, kTry, kDid };

  engine::Session* session() const { return connection_->session.get(); }
  int bind(THD* thd);
  int prepare_for_lock_tables(THD* thd, int lock_type);
  int fail(const Status& status) const { return handler_error(status, ha_thd()); }
  void drop_cursors() noexcept;
  [[nodiscard]] bool checks_after_write() const;
  [[nodiscard]] bool checks_uniqueness() const;
  void note_isolation(THD* thd);
  void apply_auto_increment_start();
  static constexpr uint32_t kBuilt = UINT32_MAX;  // an index that ALTER has to build
  bool map_indexes(TABLE* altered, const Alter_inplace_info* info, std::vector<uint32_t>* from);
  bool report_alter(int error);
  int report_duplicate(TABLE* altered, Alter_inplace_info* info, const engine::IndexBuild& build);

  // Scanning.
  engine::TableCursor* make_cursor(std::unique_ptr<engine::TableCursor>* slot, uint32_t index);
  void limit_scan(Bytes low, Bytes high);
  void limit_scan_to_prefix();
  void limit_scan_to_range();
  int walk(uchar* buffer, Direction direction);  // from where the cursor stands
  int step(uchar* buffer, Direction direction);  // one entry on, then walk
  bool reads_key_only();
  int reposition(Direction direction);
  int step_from_miss(uchar* buffer, Direction direction);
  int step_from_end(uchar* buffer, Direction direction);
  void save_place();
  void forget_place();
  bool decode_entry(const engine::TableCursor::Entry& entry, uchar* record);
  bool condition_applies(const uchar* buffer) const noexcept;
  int check_condition(const engine::TableCursor::Entry& entry, uchar* buffer, bool* skip,
                      bool* stop);
  int evaluate_condition(bool* skip, bool* stop);
  int give_back_row();
  const MY_BITMAP* wanted_columns();
  const MY_BITMAP* columns_of_entry();
  int deliver(engine::TableCursor* cursor, uchar* buffer, const MY_BITMAP* columns);
  int read_point(uchar* buffer, Bytes key);
  double look_up_cost(uint key, uint mrr_flags, ha_rows rows) const;
  static void make_successor(Buffer* key, bool* infinite);

  // Keys that are cut (TL3), in order (ha_long_keys.cc).
  struct Group;
  Status seek_at_least(Bytes key);
  Status seek_below(Bytes key, bool infinite);
  void leave_group() noexcept;
  void forget_search_limits() noexcept;
  Status seek_behind(Bytes start, Direction direction);
  [[nodiscard]] bool scan_is_in_group() const noexcept;
  int settle(Direction direction);
  [[nodiscard]] bool is_behind_limits(Bytes stored, bool forward) const;
  int enter_group(Direction direction);
  Status next_run(Direction direction);
  int step_into_group(Direction direction);
  int whole_key(std::string* whole, bool* gone);
  [[nodiscard]] Bytes whole_of(const engine::TableCursor::Entry& entry) const;
  void make_search_key(const uchar* key, uint length, bool exact);

  // Writing.
  struct EntryPlan {
    size_t key = 0, key_bytes = 0, covering = 0, covering_bytes = 0;
    bool has_null = false;
  };
  int make_clustered_key(const uchar* record, Buffer* out);
  int key_too_long();
  void make_entry(size_t index, const uchar* record, size_t clustered_bytes, Buffer* bytes,
                  EntryPlan* plan);
  static Bytes key_of(const EntryPlan& plan, const Buffer& bytes);
  static Bytes covering_of(const EntryPlan& plan, const Buffer& bytes);
  bool index_may_change(size_t index) const;
  int find_current_row(const uchar* record);
  [[nodiscard]] bool may_change_later() const;
  [[nodiscard]] bool changes_current_row_later() const noexcept;
  int at_end_of_scan(int error);
  int complete_index_columns(const uchar** old_record, const uchar** new_record,
                             bool only_changing);
  int duplicate(uint32_t kernel_index);
  uint64_t used_auto_increment(const uchar* record) const;
  void count_auto_increment_row() noexcept;
  void raise_auto_increment(uint64_t used) noexcept;
  [[nodiscard]] bool duplicate_uses_auto_increment() const noexcept;

  // Statistics.
  void sample_indexes();
  void tell_rows_per_key();
  void tell_sizes();

  engine::TableRef table_;
  std::shared_ptr<CachedTable> cached_;  // QY2
  StrataShare* share_ = nullptr;
  TableLayout layout_;
  RowCodec row_;
  LoadExternal load_;
  Connection* connection_ = nullptr;

  engine::LockMode requested_lock_ = engine::LockMode::kNone;  // by store_lock
  engine::LockMode statement_lock_ = engine::LockMode::kNone;  // in force
  engine::LockMode locked_tables_lock_ = engine::LockMode::kNone;
  bool has_been_locked_ = false;
  bool skip_locked_ = false;
  bool protects_ranges_ = false;  // locking reads at SERIALIZABLE
  bool releases_rows_ = false;    // READ COMMITTED and below
  SemiRead semi_read_ = SemiRead::kOff;

  std::unique_ptr<engine::TableCursor> cursor_;
  std::unique_ptr<engine::TableCursor> point_;
  engine::TableCursor* at_ = nullptr;  // H2
  uint32_t cursor_index_ = 0;
  uint64_t cursor_generation_ = 0;
  bool scan_starts_ = false;
  bool keyread_ = false;
  bool changes_later_ = false;       // HW1
  bool changes_duplicates_ = false;  // the statement, of rows that have the key of a new one
  bool unique_read_ = false;         // one row at most
  bool prefix_only_ = false;         // entries must start with prefix_
  bool missed_ = false;  // no entry starts with prefix_: a step goes on from where one would be
  bool range_limited_ = false;  // ... must be below range_end_
  bool in_read_range_first_ = false;
  Buffer search_key_;
  Buffer prefix_;
  Buffer range_end_;
  Buffer prefix_end_;
  bool in_order_ = false;         // the scan may meet cut keys and has to put them in order
  bool as_stored_ = false;        // prefix_ is compared with entries as they are stored
  std::unique_ptr<Group> group_;  // not before it is needed
  // Where a cursor stood when its transaction ended (HANDLER): the whole key.
  std::string saved_entry_;
  // ... or behind the last entry, or before the first.
  enum class AtEnd : uint8_t { kNo, kBehind, kBefore } at_end_ = AtEnd::kNo;
  std::string row_id_;  // hidden clustered key of the row the server holds

  Buffer key_;
  Buffer old_key_;
  Buffer entries_;
  Buffer old_entries_;
  std::vector<EntryPlan> plans_;
  std::vector<EntryPlan> old_plans_;
  std::vector<engine::EntryImage> images_;
  std::vector<engine::EntryImage> old_images_;
  std::vector<uchar> old_image_;  // records completed with columns the server did not ask for
  std::vector<uchar> new_image_;
  std::vector<my_bitmap_map> known_storage_;
  MY_BITMAP known_{};  // scratch: a set of columns
  uint duplicate_key_ = MAX_KEY;
  ulonglong auto_increment_rows_left_ = 0;  // of the statement's rows, as announced

  uint64_t statistics_number_ = 0;
  std::vector<IndexStatistics> index_statistics_;

  DsMrr_impl ds_mrr_;
};

}  // namespace strata::glue
