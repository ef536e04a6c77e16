#include "mariadb/information.h"

#include "mariadb/connection.h"
#include "mariadb/error_map.h"
#include "mariadb/temporary.h"
#include "sql_acl.h"
#include "sql_i_s.h"
#include "sql_show.h"

namespace strata::glue {
namespace {

constexpr size_t kWaitsMost = 10'000;
constexpr uint kStatementCharacters = 1024;
constexpr uint kNameCharacters = NAME_CHAR_LEN;
constexpr uint kKeyCharacters = 80;

// One row of such a table, filled from the left.
class Row {
 public:
  explicit Row(TABLE* table) : table_(table) { restore_record(table, s->default_values); }
  Row& operator<<(uint64_t number) {
    next()->store(static_cast<longlong>(number), true);
    return *this;
  }
  Row& operator<<(const std::string& text) {
    next()->store(text.data(), text.size(), system_charset_info);
    return *this;
  }
  // NULL for what is not known.
  Row& known(uint64_t number) {
    if (number != 0) return *this << number;
    next()->set_null();
    return *this;
  }
  Row& known(const std::string& text) {
    if (!text.empty()) return *this << text;
    next()->set_null();
    return *this;
  }
  int store(THD* thd) { return schema_table_store_record(thd, table_) ? 1 : 0; }

 private:
  Field* next() {
    Field* const field = table_->field[column_++];
    field->set_notnull();
    return field;
  }
  TABLE* const table_;
  uint column_ = 0;
};

bool may_look(THD* thd) {
  return kernel != nullptr && !check_global_access(thd, PROCESS_ACL, true);
}

int fill_trx(THD* thd, TABLE_LIST* tables, Item*) {
  return guarded([&] {
    if (!may_look(thd)) return 0;
    for (const engine::Kernel::TransactionInfo& trx : kernel->transactions()) {
      Row row(tables->table);
      row << trx.id << trx.state << trx.age_us / 1000;
      row.known(trx.connection).known(trx.statement);
      if (const int error = row.store(thd)) return error;
    }
    return 0;
  });
}

int fill_lock_waits(THD* thd, TABLE_LIST* tables, Item*) {
  return guarded([&] {
    if (!may_look(thd)) return 0;
    for (const engine::Kernel::LockWaitInfo& wait : kernel->lock_waits(kWaitsMost)) {
      Row row(tables->table);
      row << wait.waiter;
      row.known(wait.waiter_connection).known(wait.waiter_statement);
      row.known(wait.holder).known(wait.holder_connection).known(wait.holder_statement);
      row << wait.waited_us / 1000;
      row.known(wait.schema).known(wait.table).known(wait.index);
      row << wait.key;
      row.known(kernel->shares_tables() ? node_of(TrxId{wait.holder}).value : 0);
      if (const int error = row.store(thd)) return error;
    }
    return 0;
  });
}

// The kernel's counters of these names, in this order.
int store_counters(THD* thd, engine::Kernel* of, Row* row,
                   std::initializer_list<const char*> names) {
  const std::vector<engine::Kernel::Counter> counters = of->counters();
  for (const char* const name : names) {
    const auto counter = std::find_if(
        counters.begin(), counters.end(),
        [name](const engine::Kernel::Counter& c) { return std::strcmp(c.name, name) == 0; });
    *row << (counter == counters.end() ? 0 : counter->value);
  }
  return row->store(thd);
}

int fill_pool(THD* thd, TABLE_LIST* tables, Item*) {
  return guarded([&] {
    if (!may_look(thd)) return 0;
    for (engine::Kernel* const of : {kernel, open_temporary_kernel()}) {
      if (of == nullptr) continue;
      Row row(tables->table);
      row << std::string(of == kernel ? "database" : "temporary tables");
      if (const int error = store_counters(
              thd, of, &row,
              {"buffer_pool_frames", "buffer_pool_free", "buffer_pool_dirty", "buffer_pool_hits",
               "buffer_pool_misses", "buffer_pool_reads", "buffer_pool_read_ahead",
               "buffer_pool_writes", "buffer_pool_evictions", "buffer_pool_write_errors"}))
        return error;
    }
    return 0;
  });
}

int fill_log(THD* thd, TABLE_LIST* tables, Item*) {
  return guarded([&] {
    if (!may_look(thd)) return 0;
    Row row(tables->table);
    return store_counters(
        thd, kernel, &row,
        {"log_lsn", "log_durable_lsn", "log_checkpoint_lsn", "log_groups", "log_bytes",
         "log_image_bytes", "log_syncs", "log_sync_us", "log_waits"});
  });
}

using Show::CEnd;
using Show::Column;
using Show::ULonglong;
using Show::Varchar;

ST_FIELD_INFO trx_columns[] = {Column("TRX_ID", ULonglong(), NOT_NULL),
                               Column("STATE", Varchar(16), NOT_NULL),
                               Column("AGE_MS", ULonglong(), NOT_NULL),
                               Column("CONNECTION_ID", ULonglong(), NULLABLE),
                               Column("STATEMENT", Varchar(kStatementCharacters), NULLABLE),
                               CEnd()};

ST_FIELD_INFO lock_wait_columns[] = {
    Column("WAITING_TRX_ID", ULonglong(), NOT_NULL),
    Column("WAITING_CONNECTION_ID", ULonglong(), NULLABLE),
    Column("WAITING_STATEMENT", Varchar(kStatementCharacters), NULLABLE),
    Column("BLOCKING_TRX_ID", ULonglong(), NULLABLE),
    Column("BLOCKING_CONNECTION_ID", ULonglong(), NULLABLE),
    Column("BLOCKING_STATEMENT", Varchar(kStatementCharacters), NULLABLE),
    Column("WAITED_MS", ULonglong(), NOT_NULL),
    Column("TABLE_SCHEMA", Varchar(kNameCharacters), NULLABLE),
    Column("TABLE_NAME", Varchar(kNameCharacters), NULLABLE),
    Column("INDEX_NAME", Varchar(kNameCharacters), NULLABLE),
    Column("LOCK_KEY", Varchar(kKeyCharacters), NOT_NULL),
    Column("BLOCKING_NODE", ULonglong(), NULLABLE),
    CEnd()};

ST_FIELD_INFO pool_columns[] = {Column("POOL", Varchar(32), NOT_NULL),
                                Column("FRAMES", ULonglong(), NOT_NULL),
                                Column("FREE_FRAMES", ULonglong(), NOT_NULL),
                                Column("DIRTY_FRAMES", ULonglong(), NOT_NULL),
                                Column("HITS", ULonglong(), NOT_NULL),
                                Column("MISSES", ULonglong(), NOT_NULL),
                                Column("PAGES_READ", ULonglong(), NOT_NULL),
                                Column("PAGES_READ_AHEAD", ULonglong(), NOT_NULL),
                                Column("PAGES_WRITTEN", ULonglong(), NOT_NULL),
                                Column("EVICTIONS", ULonglong(), NOT_NULL),
                                Column("WRITE_ERRORS", ULonglong(), NOT_NULL),
                                CEnd()};

ST_FIELD_INFO log_columns[] = {Column("LSN", ULonglong(), NOT_NULL),
                               Column("DURABLE_LSN", ULonglong(), NOT_NULL),
                               Column("CHECKPOINT_LSN", ULonglong(), NOT_NULL),
                               Column("GROUPS_WRITTEN", ULonglong(), NOT_NULL),
                               Column("BYTES_WRITTEN", ULonglong(), NOT_NULL),
                               Column("PAGE_IMAGE_BYTES", ULonglong(), NOT_NULL),
                               Column("SYNCS", ULonglong(), NOT_NULL),
                               Column("SYNC_US", ULonglong(), NOT_NULL),
                               Column("WAITS_FOR_SYNC", ULonglong(), NOT_NULL),
                               CEnd()};

int init(void* schema_table, ST_FIELD_INFO* columns, int (*fill)(THD*, TABLE_LIST*, Item*)) {
  auto* const schema = static_cast<ST_SCHEMA_TABLE*>(schema_table);
  schema->fields_info = columns;
  schema->fill_table = fill;
  return 0;
}

}  // namespace

st_mysql_information_schema information_descriptor = {MYSQL_INFORMATION_SCHEMA_INTERFACE_VERSION};

int init_strata_trx(void* table) { return init(table, trx_columns, fill_trx); }
int init_strata_lock_waits(void* table) { return init(table, lock_wait_columns, fill_lock_waits); }
int init_strata_pool(void* table) { return init(table, pool_columns, fill_pool); }
int init_strata_log(void* table) { return init(table, log_columns, fill_log); }

}  // namespace strata::glue
