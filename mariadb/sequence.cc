// Sequences (CREATE SEQUENCE): tables of one row, which the server's own handler writes through
// ours.
//
//   SEQ1  update_first_row() is a transaction of its own, durable when it returns: a ROLLBACK of
//         the connection does not take numbers back, and neither does a crash, so none is given out
//         twice.
//   SEQ2  The row is never locked by the connection's own transaction, and it is read as it is now:
//        SEQ1 would wait for the first, and a snapshot would show old numbers.
//   SEQ3  The server's handler passes external_lock() on, but not start_stmt(), and it writes the
//         first row of a temporary sequence without either. So reads and writes begin the
//         statement.
#include "mariadb/ddl.h"
#include "mariadb/error_map.h"
#include "mariadb/ha_strata.h"
#include "mariadb/settings.h"

namespace strata::glue {

bool ha_strata::is_sequence() const noexcept { return table->s->sequence != nullptr; }

Status ha_strata::write_sequence_row(engine::Session* own, const uchar* record) {
  engine::TableCursor cursor(own, table_, 0);
  cursor.set_lock_mode(engine::LockMode::kExclusive);
  STRATA_RETURN_IF_ERROR(cursor.seek(Bytes()));
  bool gone = true;
  if (cursor.valid()) STRATA_RETURN_IF_ERROR(cursor.fetch(&gone));
  if (gone) return error_corruption("a sequence without its row");
  uchar* const old_record = table->record[1];
  STRATA_RETURN_IF_ERROR(rows_.decode(&cursor, nullptr, old_record));
  RowUpdate update;
  STRATA_RETURN_IF_ERROR(rows_.build_update(&cursor, old_record, record, &update));
  if (update.unchanged) return ok_status();
  uint32_t conflict = 0;
  return own->update_row(table_.get(), update.old_key, update.image, update.old_entries,
                         update.old_entry_count, &conflict);
}

// SEQ1
int ha_strata::update_first_row(const uchar* record) {
  return guarded([&]() -> int {
    THD* const thd = ha_thd();
    bind(thd);
    const std::unique_ptr<engine::Session> own = home_->new_session();
    own->set_lock_wait_timeout_us(lock_wait_timeout_us(thd));
    own->begin(engine::Isolation::kReadCommitted);
    Status status;
    {
      const KillReaches reaches(connection_, own.get());
      status = write_sequence_row(own.get(), record);
    }
    if (!status.ok()) {
      own->rollback().IgnoreError();  // at once or in the background (engine E18)
      return fail(status);
    }
    status = own->commit(setting_flush_log_at_commit == 1 ? engine::Durability::kSync
                                                          : engine::Durability::kNoSync);
    close_if_outcome_unknown(status, thd);
    return status.ok() ? 0 : fail(status);
  });
}

}  // namespace strata::glue
