// The handler's frame: capabilities, opening, locking, statement life cycle.
#include "mariadb/ha_strata.h"

#include <mysys_err.h>

#include "mariadb/cluster.h"
#include "mariadb/collected_statistics.h"
#include "mariadb/ddl.h"
#include "mariadb/definition_files.h"
#include "mariadb/foreign_keys.h"
#include "mariadb/freeze.h"
#include "mariadb/object_files.h"
#include "mariadb/server_tables.h"
#include "mariadb/settings.h"
#include "mariadb/table_locks.h"
#include "mariadb/temporary.h"

namespace strata::glue {

namespace {

// Nobody else sees the table that such a statement fills.
bool fills_new_table(int command) {
  switch (command) {
    case SQLCOM_ALTER_TABLE:
    case SQLCOM_CREATE_INDEX:
    case SQLCOM_DROP_INDEX:
    case SQLCOM_CREATE_TABLE:
    case SQLCOM_OPTIMIZE:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool changes_triggers(int command) {
  return command == SQLCOM_CREATE_TRIGGER || command == SQLCOM_DROP_TRIGGER;
}

bool alters_tables(int command) {
  return command == SQLCOM_ALTER_TABLE || command == SQLCOM_CREATE_INDEX ||
         command == SQLCOM_DROP_INDEX || command == SQLCOM_OPTIMIZE || changes_triggers(command);
}

ha_strata::ha_strata(handlerton* hton, TABLE_SHARE* share) : handler(hton, share) {}
ha_strata::~ha_strata() = default;

// The server checks unique keys that are hashes itself (long ones, USING HASH, WITHOUT OVERLAPS):
// before it writes the row, unless we say otherwise. What it finds decides which row ON DUPLICATE
// KEY UPDATE means, so we say what InnoDB does. Checking first is only right while nobody can put
// a duplicate in between (checks_uniqueness()); below REPEATABLE READ nothing protects gaps, so the
// row is written first and the check waits for whoever wrote the same.
bool ha_strata::checks_after_write() const {
  THD* const thd = ha_thd();
  return thd != nullptr && isolation_of(thd) <= engine::Isolation::kReadCommitted &&
         !fills_new_table(thd_sql_command(thd));
}

// Whether the server is looking for a duplicate that it would have to see afterwards, too.
bool ha_strata::checks_uniqueness() const {
  if (!locks_.to_change() || locks_.releases_rows || active_index == MAX_KEY) return false;
  const KEY& key = table->key_info[active_index];
  if (key.algorithm != HA_KEY_ALG_LONG_HASH && !(key.without_overlaps && keyread_)) return false;
  return !fills_new_table(thd_sql_command(ha_thd()));
}

// HA_REUSES_FILE_NAMES: an ALTER to another engine renames the table through the engine, so that
// its swap is one of the dictionary (D2).
handler::Table_flags ha_strata::table_flags() const {
  return HA_REC_NOT_IN_SEQ | HA_NULL_IN_KEY | HA_CAN_INDEX_BLOBS | HA_PRIMARY_KEY_IN_READ_INDEX |
         HA_PRIMARY_KEY_REQUIRED_FOR_POSITION | HA_TABLE_SCAN_ON_INDEX | HA_PARTIAL_COLUMN_READ |
         HA_REQUIRES_KEY_COLUMNS_FOR_DELETE | HA_CAN_VIRTUAL_COLUMNS | HA_CAN_SQL_HANDLER |
         HA_BINLOG_ROW_CAPABLE | HA_CAN_SKIP_LOCKED | HA_ONLINE_ANALYZE | HA_CAN_GEOMETRY |
         HA_CRASH_SAFE | HA_CONCURRENT_OPTIMIZE | HA_REUSES_FILE_NAMES | HA_CAN_ONLINE_BACKUPS |
         HA_CAN_FORCE_BULK_UPDATE | HA_CAN_FORCE_BULK_DELETE | HA_CAN_TABLES_WITHOUT_ROLLBACK |
         (checks_after_write() ? HA_CHECK_UNIQUE_AFTER_WRITE : 0);
}

ulong ha_strata::index_flags(uint key, uint part, bool all_parts) const {
  ulong flags = HA_READ_NEXT | HA_READ_PREV | HA_READ_ORDER | HA_READ_RANGE;
  if (table_share == nullptr || key >= table_share->keys) return flags | HA_KEYREAD_ONLY;
  if (key == table_share->primary_key) return flags | HA_CLUSTERED_INDEX | HA_KEYREAD_ONLY;
  flags |= HA_DO_INDEX_COND_PUSHDOWN;
  // Entries of one value come in the order of whole primary keys, row ids are compared as stored.
  const TableLayout& layout = rows_.layout();
  if (layout.index_count() != 0 && layout.clustered_may_be_cut()) flags |= HA_KEY_SCAN_NOT_ROR;
  const KEY& info = table_share->key_info[key];
  for (uint i = all_parts ? 0 : part; i <= part && i < info.user_defined_key_parts; ++i) {
    const Field* const field = info.key_part[i].field;
    if (field == nullptr) continue;
    const bool whole =
        (field->flags & BLOB_FLAG) == 0 && field->key_length() == info.key_part[i].length;
    if (!whole) return flags;
  }
  return flags | HA_KEYREAD_ONLY;
}

int ha_strata::bind(THD* thd) {
  connection_ = connection_of(thd);
  return 0;
}

int ha_strata::open(const char* name, int, uint) {
  return guarded([&] {
    THD* const thd = ha_thd() != nullptr ? ha_thd() : current_thd;
    const TableName path = parse_path(name);
    home_ = is_temporary_path(name) ? open_temporary_kernel() : kernel;
    if (home_ == nullptr) return HA_ERR_NO_SUCH_TABLE;
    std::unique_ptr<engine::Session> own;
    engine::Session* look_up = nullptr;
    if (thd != nullptr) bind(thd);
    if (thd != nullptr && !is_temporary()) {
      look_up = session();
      if (kernel->shares_tables() && !look_up->in_transaction()) {  // the name may be waited for
        look_up->set_lock_wait_timeout_us(lock_wait_timeout_us(thd));
        renew_interrupt(thd, look_up);
      }
    } else {
      own = home_->new_session();
      look_up = own.get();
    }
    StatusOr<engine::TableRef> found = look_up->open_table(path.schema, path.table);
    if (!found.ok())
      return is_not_found(found.status()) ? HA_ERR_NO_SUCH_TABLE : fail(found.status());
    // The server may have the definition from a file: opening is a claim that it is of now (MA8).
    if (!is_temporary()) {
      if (const Status may = may_answer(); !may.ok()) return fail(may);
    }
    const engine::TableSpec& spec = (*found)->spec();
    const LEX_CUSTRING& version = table->s->tabledef_version;
    if (version.length != 0 &&
        spec.version != Bytes(reinterpret_cast<const char*>(version.str), version.length))
      return HA_ERR_TABLE_DEF_CHANGED;
    rows_.open(table, key_form(spec));
    TableLayout& layout = rows_.layout();
    if (spec.indexes.size() != layout.index_count()) return HA_ERR_TABLE_DEF_CHANGED;
    scan_.open(rows_.scan_indexes(), &rows_);
    table_ = std::move(found).value();
    cached_ = is_temporary() ? nullptr : cached_table(spec.schema + "/" + spec.name);
    apply_auto_increment_start();
    const size_t key_bytes = layout.hidden_key() ? 8 : layout.index(0).stored_bytes_most();
    ref_length = static_cast<uint>(kRefLengthBytes + key_bytes);
    // Tells the server that an update of the primary key moves rows in front of a running scan.
    key_used_on_scan = table->s->primary_key;
    lock_shared_ha_data();
    share_ = static_cast<StrataShare*>(get_ha_share_ptr());
    if (share_ == nullptr) {
      share_ = new StrataShare();
      set_ha_share_ptr(share_);
    }
    unlock_shared_ha_data();
    begin_to_watch_for_kills(thd);
    return info(HA_STATUS_NO_LOCK | HA_STATUS_VARIABLE | HA_STATUS_CONST | HA_STATUS_OPEN);
  });
}

int ha_strata::close() {
  scan_.drop_cursors();
  table_.reset();
  connection_ = nullptr;
  return 0;
}

handler* ha_strata::clone(const char* name, MEM_ROOT* mem_root) {
  auto* const copy = static_cast<ha_strata*>(handler::clone(name, mem_root));
  if (copy == nullptr) return nullptr;
  copy->connection_ = connection_;
  copy->locks_ = locks_;
  return copy;
}

int ha_strata::discover_check_version() {
  return table_ == nullptr || table_->stale() ? HA_ERR_TABLE_DEF_CHANGED : 0;
}

// Which lock plain reads of the statement take; writes decide in external_lock().
THR_LOCK_DATA** ha_strata::store_lock(THD* thd, THR_LOCK_DATA** to, thr_lock_type type) {
  look_for_kills();
  const int command = thd_sql_command(thd);
  if (type == TL_IGNORE || command == SQLCOM_DROP_TABLE) return to;
  locks_.skip_locked = type == TL_READ_SKIP_LOCKED || type == TL_WRITE_SKIP_LOCKED;
  const bool in_lock_tables = thd_in_lock_tables(thd);
  const bool locking = ((type == TL_READ || type == TL_READ_HIGH_PRIORITY) && in_lock_tables) ||
                       type == TL_READ_WITH_SHARED_LOCKS || type == TL_READ_SKIP_LOCKED ||
                       type == TL_READ_NO_INSERT || command != SQLCOM_SELECT;
  locks_.requested = engine::LockMode::kNone;
  if (!locking) return to;
  // The server reads accounts, routines and events for itself in the middle of any statement. Who
  // changes them may do so in another order, and is not to end in a deadlock with it (ST6, CK3).
  if (type == TL_READ && !thd_test_options(thd, OPTION_TABLE_LOCK) &&
      (is_server_table(table_->spec()) || has_collected_statistics(table_->spec())))
    return to;
  switch (command) {
    case SQLCOM_CHECKSUM:
      return to;
    case SQLCOM_ANALYZE:
      if (type == TL_READ) return to;
      break;
    case SQLCOM_INSERT_SELECT:
    case SQLCOM_REPLACE_SELECT:
    case SQLCOM_UPDATE:
    case SQLCOM_CREATE_TABLE:
      if (isolation_of(thd) <= engine::Isolation::kReadCommitted &&
          (type == TL_READ || type == TL_READ_NO_INSERT))
        return to;
      break;
    case SQLCOM_ALTER_TABLE:
    case SQLCOM_CREATE_INDEX:
    case SQLCOM_DROP_INDEX:
    case SQLCOM_OPTIMIZE:
      // The metadata lock keeps writers out, and the copy was not made before prepared transactions
      // without a connection had ended: a snapshot is complete.
      return to;
    default:
      break;
  }
  locks_.requested = engine::LockMode::kShared;
  return to;
}

// DF2: under LOCK TABLES ... WRITE the server drops a table without that file before this
// connection has closed it, and waits for itself for ever.
int ha_strata::prepare_for_lock_tables(THD* thd, int lock_type) {
  const bool lock_tables = thd->in_lock_tables || thd_sql_command(thd) == SQLCOM_LOCK_TABLES ||
                           thd->locked_tables_mode == LTM_LOCK_TABLES ||
                           thd->locked_tables_mode == LTM_PRELOCKED_UNDER_LOCK_TABLES;
  const engine::TableSpec& spec = table_->spec();
  if (!lock_tables || lock_type != F_WRLCK || spec.internal_name || write_definition_file(spec))
    return 0;
  my_error(EE_CANTCREATEFILE, MYF(0), (spec.schema + "/" + spec.name + reg_ext).c_str(), errno);
  return HA_ERR_GENERIC;
}

// No second, made-up text after an error of our own that says it all.
bool ha_strata::get_error_message(int error, String* text) {
  if ((error == HA_ERR_GENERIC || error == ENAMETOOLONG) && ha_thd()->is_error()) return true;
  if (last_foreign_key_text(error, text)) return false;
  return last_error_text(error, text);
}

int ha_strata::fail(const Status& status) const {
  const bool about_a_key = is_row_is_referenced(status) || is_no_referenced_row(status) ||
                           is_cascade_too_deep(status) || is_cascaded_duplicate(status);
  if (about_a_key && connection_ != nullptr)
    remember_foreign_key_error(ha_thd(), session()->foreign_key_error());
  if (table_ != nullptr && kernel->shares_tables() && is_server_table(table_->spec()))
    tell_of_server_table(status);
  return handler_error(status, ha_thd());
}

int ha_strata::external_lock(THD* thd, int lock_type) {
  return guarded([&] {
    bind(thd);
    if (lock_type == F_UNLCK) {
      if (connection_->tables_in_use > 0) --connection_->tables_in_use;
      if (std::exchange(reads_accounts_, false)) server_table_was_read(connection_);
      // HANDLER reads go on in the next transaction from where they are.
      if (const Status saved = scan_.save_place(inited != NONE); !saved.ok()) fail(saved);
      locks_.in_force = locks_.requested = engine::LockMode::kNone;
      locks_.taken = false;
      scan_.change_later(false);
      let_go_of_altered();
      // Not when a statement under LOCK TABLES closes its table, and opens it again.
      if (std::exchange(locked_for_all_, false) && thd->locked_tables_mode == LTM_NONE)
        unlock_tables_for_all(connection_);
      return 0;
    }
    int error = lock(thd, lock_type);
    // The last, since it is ended when the table is unlocked, which one is not that failed.
    if (error == 0 && lock_type != F_WRLCK && thd->locked_tables_mode == LTM_NONE)
      error = read_server_table_again(connection_, table_->spec(), &reads_accounts_);
    if (error != 0 && std::exchange(locked_for_all_, false) && thd->locked_tables_mode == LTM_NONE)
      unlock_tables_for_all(connection_);
    return error;
  });
}

int ha_strata::lock(THD* thd, int lock_type) {
  if (const int error = keep_others_away(thd)) return error;
  if (const int error = prepare_for_lock_tables(thd, lock_type)) return error;
  if (const int error = begin_on_table()) return error;
  if (lock_type == F_WRLCK)
    if (const int error = ask_to_change(thd)) return error;
  if (const int error = use_server_table(connection_, table_->spec(), lock_type == F_WRLCK))
    return error;
  if (is_sequence() && lock_type == F_WRLCK)
    if (const int error = prepare_sequence(thd)) return error;
  ++connection_->tables_in_use;
  if (lock_type == F_WRLCK && cached_ != nullptr) connection_->writes.add(cached_);
  auto_increment_rows_left_ = 0;
  scan_.change_later(false);
  locks_.in_force = lock_type == F_WRLCK ? engine::LockMode::kExclusive : locks_.requested;
  if (reads_what_is_there()) {
    if (lock_type != F_WRLCK) locks_.in_force = engine::LockMode::kNone;
  } else if (locks_.in_force == engine::LockMode::kNone &&
             isolation_of(thd) == engine::Isolation::kSerializable &&
             thd_test_options(thd, OPTION_NOT_AUTOCOMMIT | OPTION_BEGIN)) {
    locks_.in_force = engine::LockMode::kShared;
  }
  locks_.of_locked_tables = locks_.in_force;
  note_isolation(thd);
  locks_.taken = true;
  return 0;
}

// A statement under LOCK TABLES or inside a stored function: external_lock() was long ago.
int ha_strata::start_stmt(THD* thd, thr_lock_type type) {
  return guarded([&] {
    bind(thd);
    if (const int error = keep_others_away(thd)) return error;
    if (const int error = begin_on_table()) return error;
    if (type >= TL_WRITE_ALLOW_WRITE)
      if (const int error = ask_to_change(thd)) return error;
    if (const int error =
            use_server_table(connection_, table_->spec(), type >= TL_WRITE_ALLOW_WRITE))
      return error;
    auto_increment_rows_left_ = 0;
    scan_.change_later(false);
    if (!locks_.taken || type >= TL_WRITE_ALLOW_WRITE) {
      locks_.in_force = engine::LockMode::kExclusive;
      if (cached_ != nullptr) connection_->writes.add(cached_);
    } else if (reads_what_is_there()) {
      locks_.in_force = engine::LockMode::kNone;
    } else if (thd_sql_command(thd) == SQLCOM_SELECT && type == TL_READ &&
               isolation_of(thd) != engine::Isolation::kSerializable) {
      locks_.in_force = engine::LockMode::kNone;
    } else {
      locks_.in_force = locks_.of_locked_tables;
    }
    note_isolation(thd);
    return 0;
  });
}

// Where other servers change tables, too. The metadata lock keeps them from this one (AG1), but for
// what a statement of this connection has let go while it waited (AG3).
int ha_strata::keep_others_away(THD* thd) {
  if (is_temporary() || !kernel->shares_tables()) return 0;
  unlock_tables_that_are_gone(thd, connection_);
  if (locks_tables(thd))
    if (const int error = lock_for_all(thd)) return error;
  if (table_->stale()) return HA_ERR_TABLE_DEF_CHANGED;  // AG4
  const MDL_ticket* const ticket = table->mdl_ticket;
  const bool altered = alters_tables(thd_sql_command(thd)) && ticket != nullptr &&
                       ticket->get_type() >= MDL_SHARED_NO_WRITE && !table_->spec().internal_name;
  return altered ? lock_name_to_alter(thd) : 0;
}

// LKT1. Like AG5, the name may have been given up meanwhile.
int ha_strata::lock_for_all(THD* thd) {
  if (const int error = lock_tables_for_all(thd, connection_)) return error;
  locked_for_all_ = connection_->table_locks != nullptr;
  return table_->stale() && locked_for_all_ && !is_the_same(connection_->table_locks.get())
             ? HA_ERR_TABLE_DEF_CHANGED
             : 0;
}

// AG7. The metadata lock is there, and lasts as long as the transaction.
int ha_strata::ask_to_change(THD* thd) {
  if (is_temporary() || !kernel->shares_tables()) return 0;
  if (const Status may = wait_for_leave_to_change(thd); !may.ok()) return fail(may);
  if (table_->may_be_changed() || table_->spec().internal_name) return 0;
  const WaitShown shown(thd, "Waiting for LOCK TABLES of another server");
  const Status may = session()->may_change(table_);
  return may.ok() ? 0 : fail(may);
}

// AG5. Readers of this server may come again while rows are copied; those of others have to wait.
int ha_strata::lock_name_to_alter(THD* thd) {
  const TableName name{table_->spec().schema, table_->spec().name};
  // The server refuses that by the file <table>.frm, which is not there before the first use here.
  if (is_sequence() && thd_sql_command(thd) == SQLCOM_CREATE_TRIGGER) {
    my_error(ER_TRG_ON_VIEW_OR_TEMP_TABLE, MYF(0), table->s->table_name.str);
    return HA_ERR_GENERIC;
  }
  if (connection_->alter_hold != nullptr) {
    if (connection_->alter_hold->statement == thd->query_id) return 0;
    end_alter_hold(connection_);
  }
  MDL_ticket* const ticket = table->mdl_ticket;
  const enum_mdl_type before = ticket->get_type();
  if (thd->mdl_context.upgrade_shared_lock(ticket, MDL_EXCLUSIVE, thd->variables.lock_wait_timeout))
    return HA_ERR_GENERIC;  // reported
  auto hold = std::make_unique<AlterHold>(
      AlterHold{.session = kernel->new_session(),
                .table = name,
                .statement = thd->query_id,
                .changes_triggers = changes_triggers(thd_sql_command(thd))});
  prepare_ddl(thd, hold->session.get());
  hold->session->begin(engine::Isolation::kReadCommitted);
  Status locked;
  {
    const KillReaches reaches(connection_, hold->session.get());
    locked = hold->session->lock_name(name.schema, name.table);
  }
  if (before != MDL_EXCLUSIVE) ticket->downgrade_lock(before);
  if (!locked.ok()) return fail(locked);
  if (table_->stale() && !is_the_same(hold->session.get())) return HA_ERR_TABLE_DEF_CHANGED;
  if (hold->changes_triggers) {  // the server has read those that the table had when it was opened
    const StatusOr<bool> current = has_current_triggers(name);
    if (!current.ok()) return fail(current.status());
    if (!*current) return HA_ERR_TABLE_DEF_CHANGED;
  }
  connection_->alter_hold = std::move(hold);
  return 0;
}

// The name was given up while this statement waited for it, but nobody has changed the table.
bool ha_strata::is_the_same(engine::Session* session) {
  const engine::TableSpec& old = table_->spec();
  StatusOr<engine::TableRef> now = session->open_table(old.schema, old.name);
  if (!now.ok() || (*now)->spec().version != old.version ||
      (*now)->spec().table_id != old.table_id || (*now)->spec().space_id != old.space_id)
    return false;
  scan_.drop_cursors();
  table_ = *std::move(now);
  return true;
}

// Either the statement has failed, or what it does with the table's name is about to follow: the
// server has to say then how it ends.
void ha_strata::let_go_of_altered() {
  if (connection_->alter_hold == nullptr || is_temporary()) return;
  const TableName name{table_->spec().schema, table_->spec().name};
  if (!(connection_->alter_hold->table == name)) return;
  connection_->alter_hold->table_is_locked = false;
  // A statement that has its result, and was committed before: nothing comes any more that would
  // end it (DROP TRIGGER of one that another server has dropped a moment ago).
  const bool is_over = connection_->alter_hold->commit_seen && ha_thd()->get_stmt_da()->is_set();
  if (is_over || ha_thd()->is_error() || ha_thd()->killed != NOT_KILLED)
    end_alter_hold(connection_);
  else
    (void)begin_statement(connection_);
}

int ha_strata::begin_on_table() {
  return is_temporary() ? begin_temporary_statement(connection_) : begin_statement(connection_);
}

void ha_strata::note_isolation(THD* thd) {
  session()->set_foreign_key_checks(checks_foreign_keys(thd));
  scan_.try_semi_read(false);
  if (reads_what_is_there()) {
    locks_.needs_limits = locks_.releases_rows = false;
    return;
  }
  const engine::Isolation isolation = isolation_of(thd);
  locks_.needs_limits = locks_.in_force != engine::LockMode::kNone &&
                        (isolation == engine::Isolation::kSerializable ||
                         (isolation == engine::Isolation::kRepeatableRead &&
                          session_setting_snapshot_isolation(thd)));
  locks_.releases_rows = isolation <= engine::Isolation::kReadCommitted;
}

void ha_strata::try_semi_consistent_read(bool yes) {
  scan_.try_semi_read(yes && locks_.releases_rows && locks_.to_change());
}

// The row read last does not qualify.
int ha_strata::give_back_row() {
  const Status status = scan_.give_back_row(locks_.releases_rows && !locks_.none());
  return status.ok() ? 0 : fail(status);
}

void ha_strata::unlock_row() {
  (void)guarded([&] { return give_back_row(); });
}

int ha_strata::extra(ha_extra_function operation) {
  switch (operation) {
    case HA_EXTRA_KEYREAD:
      keyread_ = true;
      break;
    case HA_EXTRA_NO_KEYREAD:
      keyread_ = false;
      break;
    // REPLACE and ON DUPLICATE KEY UPDATE go on to change the row that has the key.
    case HA_EXTRA_WRITE_CAN_REPLACE:
    case HA_EXTRA_INSERT_WITH_UPDATE:
      changes_duplicates_ = true;
      break;
    case HA_EXTRA_WRITE_CANNOT_REPLACE:
    case HA_EXTRA_NO_IGNORE_DUP_KEY:
      changes_duplicates_ = false;
      break;
    default:
      break;
  }
  return 0;
}

int ha_strata::reset() {
  ds_mrr_.dsmrr_close();
  scan_.reset();
  keyread_ = changes_duplicates_ = false;
  look_for_kills();
  if (std::exchange(opened_for_killed_, false)) table->internal_set_needs_reopen(true);  // H5
  return 0;
}

void ha_strata::begin_to_watch_for_kills(THD* thd) {
  opened_for_killed_ = false;
  kills_at_open_.reset();
  if (thd == nullptr || is_temporary()) return;  // no triggers
  // Counted first: a KILL marks the connection, then it is counted.
  kills_at_open_ = connection_->kills.load();
  opened_for_killed_ = thd->killed != NOT_KILLED;
}

// The first call after open() that has to do with the table: its triggers have been parsed.
void ha_strata::look_for_kills() {
  if (!kills_at_open_.has_value()) return;
  const THD* const thd = ha_thd();
  const Connection* const connection = thd == nullptr ? nullptr : existing_connection(ha_thd());
  if (connection != nullptr &&
      (thd->killed != NOT_KILLED || connection->kills.load() != *kills_at_open_))
    opened_for_killed_ = true;
  kills_at_open_.reset();
}

void ha_strata::init_table_handle_for_HANDLER() {
  (void)guarded([&] {
    bind(ha_thd());
    // Refused only while the transaction has to roll back; then every read is refused, too.
    (void)begin_on_table();
    locks_.in_force = engine::LockMode::kNone;
    note_isolation(ha_thd());
    return 0;
  });
}

int ha_strata::cmp_ref(const uchar* left, const uchar* right) {
  const size_t a = load_u16(left);
  const size_t b = load_u16(right);
  const int order = std::memcmp(left + kRefLengthBytes, right + kRefLengthBytes, std::min(a, b));
  if (order != 0) return order;
  return a == b ? 0 : a < b ? -1 : 1;
}

}  // namespace strata::glue
