// The handler: one open table of one connection at a time. It answers the server's calls, each by
// a few calls of others: `Scan` for where entries come from, `RowBuilder` for what records become,
// the connection's session for changes.
//
//   H1  The scan's cursors rest from reset() on (SCN1).
//   H2  update_row() and delete_row() mean the row that the scan stands on (SCN2); after a write
//       it may have to be found again.
//   H3  Rows reach the server in buffers of any kind (record[0], record[1], lookup buffers):
//       everything works by offsets.
//   H4  BLOB pointers handed out stay valid until the handler's next row.
//   H5  What a statement has opened that was killed meanwhile is not kept for others: the server
//       parses a table's triggers once it has opened it, and nothing for who is killed. It may have
//       forgotten the KILL before it gives the table back, so these are counted.
#pragma once

#include "mariadb/error_map.h"
#include "mariadb/row_builder.h"
#include "mariadb/scan.h"
#include "mariadb/share.h"

namespace strata::glue {

// Whether such a statement copies rows, or builds indexes of them (AG5).
bool alters_tables(int command);
bool changes_triggers(int command);

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
  bool was_semi_consistent_read() override { return scan_.did_semi_read(); }
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
  int update_first_row(const uchar* record) override;  // sequence.cc
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

  // --- foreign keys (ha_foreign_keys.cc) ---
  int get_foreign_key_list(THD* thd, List<FOREIGN_KEY_INFO>* list) override;
  int get_parent_foreign_key_list(THD* thd, List<FOREIGN_KEY_INFO>* list) override;
  bool referenced_by_foreign_key() const noexcept override;
  char* get_foreign_key_create_info() override;
  void free_foreign_key_create_info(char* text) override;
  bool can_switch_engines() override;
  bool is_fk_defined_on_table_or_index(uint index) override;
  bool get_foreign_dup_key(char* table, uint table_bytes, char* index, uint index_bytes) override;

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

  // Which locks reads take, and what else follows from isolation and the kind of statement.
  struct Locks {
    engine::LockMode requested = engine::LockMode::kNone;  // by store_lock()
    engine::LockMode in_force = engine::LockMode::kNone;
    engine::LockMode of_locked_tables = engine::LockMode::kNone;
    bool taken = false;  // external_lock() was called
    bool skip_locked = false;
    bool needs_limits = false;   // of locking reads, the kernel is told how far they go (SCN5)
    bool releases_rows = false;  // READ COMMITTED and below

    [[nodiscard]] bool none() const noexcept { return in_force == engine::LockMode::kNone; }
    [[nodiscard]] bool to_change() const noexcept {
      return in_force == engine::LockMode::kExclusive;
    }
  };

  [[nodiscard]] bool is_temporary() const noexcept { return home_ != kernel; }
  engine::Session* session() const {
    return (is_temporary() ? connection_->temporary : connection_->session).get();
  }
  [[nodiscard]] bool is_sequence() const noexcept;
  // TT4, SEQ2: no snapshot, no locks of readers.
  [[nodiscard]] bool reads_what_is_there() const noexcept {
    return is_temporary() || is_sequence();
  }
  Status write_sequence_row(engine::Session* own, const uchar* record);
  Status take_sequence_block(engine::Session* own, const longlong* least, bool fill,
                             SequenceBlock* taken, longlong* first);
  Status take_next_block(engine::Session* own, SequenceBlock* taken, longlong* first);
  Status redefine_sequence(engine::Session* own);
  int write_sequence(const std::function<Status(engine::Session*)>& body);
  void use_sequence_block(const SequenceBlock& taken, longlong first);
  int prepare_sequence(THD* thd);
  int begin_on_table();  // a statement
  int create_temporary(const TableName& path, TABLE* form, const HA_CREATE_INFO& info);
  int bind(THD* thd);
  void begin_to_watch_for_kills(THD* thd);  // H5
  void look_for_kills();                    // H5
  int keep_others_away(THD* thd);
  int lock_name_to_alter(THD* thd);
  int lock_for_all(THD* thd);
  int ask_to_change(THD* thd);
  int lock(THD* thd, int lock_type);  // external_lock() but for F_UNLCK
  bool is_the_same(engine::Session* session);
  void let_go_of_altered();
  int prepare_for_lock_tables(THD* thd, int lock_type);
  int fail(const Status& status) const;
  [[nodiscard]] bool checks_after_write() const;
  [[nodiscard]] bool checks_uniqueness() const;
  void note_isolation(THD* thd);
  void apply_auto_increment_start();
  static constexpr uint32_t kBuilt = UINT32_MAX;  // an index that ALTER has to build
  bool map_indexes(TABLE* altered, const Alter_inplace_info* info, std::vector<uint32_t>* from);
  bool report_alter(int error);
  int report_duplicate(TABLE* altered, Alter_inplace_info* info, const engine::IndexBuild& build);

  // Scanning.
  [[nodiscard]] bool needs_limits() const { return locks_.needs_limits || checks_uniqueness(); }
  [[nodiscard]] ScanTerms terms() const;
  int walk(uchar* buffer, Direction direction);  // from where the scan stands
  int step(uchar* buffer, Direction direction);  // one entry on, then walk
  int walk_from(const Status& sought, uchar* buffer, Direction direction);
  int end_of_scan(int error);
  [[nodiscard]] bool reads_key_only();
  [[nodiscard]] bool condition_applies(const uchar* buffer) const noexcept;
  int evaluate_condition(bool* skip, bool* stop);
  int deliver_entry(const engine::TableCursor::Entry& entry, uchar* buffer);
  int deliver_for_entry(uchar* buffer, bool has_condition);
  int deliver(engine::TableCursor* cursor, uchar* buffer, const MY_BITMAP* columns);
  int give_back_row();
  double look_up_cost(uint key, uint mrr_flags, ha_rows rows) const;

  // Writing.
  int refused(const Status& status);  // by the row builder
  int key_too_long();
  int find_current_row(const uchar* record);
  int make_later_changes();
  [[nodiscard]] bool may_change_later() const;
  int duplicate(uint32_t kernel_index);
  void count_auto_increment_row() noexcept;
  void raise_auto_increment(uint64_t used) noexcept;
  [[nodiscard]] bool duplicate_uses_auto_increment() const noexcept;

  // Statistics.
  void sample_indexes();
  [[nodiscard]] bool shares_statistics() const noexcept;
  void follow_shared_statistics();
  void take_shared_statistics(const StatisticsRecord& record);
  void share_what_was_found(const engine::Sampled& sampled, std::vector<IndexStatistics> indexes,
                            uint64_t sampled_rows);
  void tell_rows_per_key();
  void tell_sizes();

  // From open() to close(), or to the TRUNCATE that makes another table.
  engine::Kernel* home_ = kernel;  // of the table: the one of temporary tables for those (TT1)
  engine::TableRef table_;
  std::shared_ptr<CachedTable> cached_;  // QY2
  StrataShare* share_ = nullptr;         // the server's: lives as long as the definition is used
  RowBuilder rows_;                      // its memory is reused from row to row
  // While one connection uses the table; see there which part ends earlier.
  Connection* connection_ = nullptr;
  Scan scan_;
  DsMrr_impl ds_mrr_;
  std::optional<uint64_t> kills_at_open_;  // H5: until it is known whether there were more
  bool opened_for_killed_ = false;         // H5
  bool locked_for_all_ = false;            // by LOCK TABLES (LKT4 in table_locks.h)
  bool reads_accounts_ = false;            // FLUSH PRIVILEGES (ST7 in server_tables.h)
  // From store_lock() and external_lock() to the end of the statement.
  Locks locks_;
  bool keyread_ = false;
  bool changes_duplicates_ = false;         // of rows that have the key of a new one
  ulonglong auto_increment_rows_left_ = 0;  // of the statement's rows, as announced
  Status auto_increment_status_;            // why the last value was refused
  uint duplicate_key_ = MAX_KEY;            // until the server asks for it: info(HA_STATUS_ERRKEY)
  // What the server was told last, as long as nobody has newer ones.
  uint64_t statistics_number_ = 0;
  std::vector<IndexStatistics> index_statistics_;
};

}  // namespace strata::glue
