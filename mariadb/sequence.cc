// Sequences (CREATE SEQUENCE): tables of one row, which the server's own handler writes through
// ours.
//
//   SEQ1  update_first_row() is a transaction of its own, durable when it returns: a ROLLBACK of
//         the connection does not take numbers back, and neither does a crash, so none is given out
//         twice.
//   SEQ2  The row is never locked by the connection's own transaction, and it is read as it is now:
//         SEQ1 would wait for the first, and a snapshot would show old numbers.
//   SEQ3  The server's handler passes external_lock() on, but not start_stmt(), and it writes the
//         first row of a temporary sequence without either. So reads and writes begin the
//         statement.
//   SEQ4  Where several servers write, each gives numbers out of a block that it has taken in the
//         row for itself, at the first use of the definition, and the next one with the last number
//         of a block: what the server has fixed as its result before it asks for more is its own
//         then. So NOCACHE has one number in hand, too. What a definition that goes has left of its
//         block is never given out.
//   SEQ5  ALTER SEQUENCE, and a row that is inserted, have the sequence's name exclusively: all
//         servers read the row anew. SETVAL is heard of by others when they take their next block.
//   SEQ6  Of a sequence with INCREMENT BY 0 each server gives numbers of its own turn, whoever took
//         the block before: those that auto_increment_increment and _offset say.
#include <limits>
#include <utility>

#include "mariadb/ddl.h"
#include "mariadb/error_map.h"
#include "mariadb/ha_strata.h"
#include "mariadb/settings.h"
// After the other headers of the server.
#include "sql_sequence.h"

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

namespace {

// Protected in the server's class.
struct OpenSequence : sequence_definition {
  static longlong& next_of(SEQUENCE* sequence) {
    return sequence->*(&OpenSequence::next_free_value);
  }
  static longlong increment_of(SEQUENCE* sequence) {
    return sequence->*(&OpenSequence::real_increment);
  }
};

enum SequenceColumn : uint { kNextNotCached = 0, kRound = 7 };

longlong value_in(const TABLE* table, const uchar* record, SequenceColumn column) {
  Field* const field = table->field[column];
  return field->val_int(record + field->offset(table->record[0]));
}

struct Block {
  longlong first, last, end;
  ulonglong round;
  bool is_empty;
};

// SEQ6. The first number from `base` on that this server may give.
longlong in_turn(SEQUENCE* sequence, longlong base) {
  const longlong step = OpenSequence::increment_of(sequence);
  if (sequence->increment != 0 || step <= 1) return base;
  const auto offset = static_cast<longlong>(global_system_variables.auto_increment_offset) % step;
  const longlong skipped = ((offset - base % step) % step + step) % step;
  constexpr longlong kBeyondAll = std::numeric_limits<longlong>::max();  // no sequence gets there
  return base > kBeyondAll - skipped ? kBeyondAll : base + skipped;
}

// Of `cache` numbers from `base` on, or what there is.
Block block_from(SEQUENCE* sequence, longlong base, ulonglong round) {
  const longlong step = OpenSequence::increment_of(sequence);
  const bool up = step > 0;
  const auto is_beyond = [&](longlong value) {
    return up ? value > sequence->max_value : value < sequence->min_value;
  };
  base = in_turn(sequence, base);
  Block block{base, base, base, round, false};
  if (is_beyond(base)) {
    block.is_empty = !sequence->cycle;
    if (block.is_empty) return block;
    block.first = in_turn(sequence, up ? sequence->min_value : sequence->max_value);
    ++block.round;
  }
  block.last = block.first;
  block.end = sequence->increment_value(block.last);
  for (longlong count = std::max<longlong>(sequence->cache, 1); count > 1 && !is_beyond(block.end);
       --count) {
    block.last = block.end;
    block.end = sequence->increment_value(block.last);
  }
  return block;
}

// Whether the server writes what it knows: NEXTVAL, SETVAL. Else it is a new definition (SEQ5).
bool is_of_sequence(const TABLE* table) {
  const SEQUENCE* const sequence = table->s->sequence;
  const longlong known[] = {sequence->reserved_until, sequence->min_value,
                            sequence->max_value,      sequence->start,
                            sequence->increment,      sequence->cache,
                            sequence->cycle,          static_cast<longlong>(sequence->round)};
  for (uint i = 0; i < std::size(known); ++i)
    if (table->field[i]->val_int() != known[i]) return false;
  return thd_sql_command(table->in_use) != SQLCOM_ALTER_SEQUENCE;
}

}  // namespace

// SEQ4. In the transaction `own`; `least`: not before it (SETVAL). Under the lock of the sequence;
// *taken is ours once the transaction is committed.
Status ha_strata::take_sequence_block(engine::Session* own, const longlong* least, bool fill,
                                      SequenceBlock* taken, longlong* first) {
  SEQUENCE* const sequence = table->s->sequence;
  engine::TableCursor cursor(own, table_, 0);
  cursor.set_lock_mode(engine::LockMode::kExclusive);
  STRATA_RETURN_IF_ERROR(cursor.seek(Bytes()));
  bool gone = true;
  if (cursor.valid()) STRATA_RETURN_IF_ERROR(cursor.fetch(&gone));
  if (gone) return error_corruption("a sequence without its row");
  uchar* const stored = table->record[1];
  STRATA_RETURN_IF_ERROR(rows_.decode(&cursor, nullptr, stored));
  longlong base = value_in(table, stored, kNextNotCached);
  if (least != nullptr)
    base =
        OpenSequence::increment_of(sequence) > 0 ? std::max(base, *least) : std::min(base, *least);
  const Block block =
      block_from(sequence, base, static_cast<ulonglong>(value_in(table, stored, kRound)));
  *taken = {!block.is_empty, block.last};
  *first = block.first;
  if (fill) std::memcpy(table->record[0], stored, table->s->reclength);
  (void)table->field[kNextNotCached]->store(block.end, false);
  (void)table->field[kRound]->store(static_cast<longlong>(block.round), true);
  RowUpdate update;
  STRATA_RETURN_IF_ERROR(rows_.build_update(&cursor, stored, table->record[0], &update));
  sequence->round = block.round;
  if (update.unchanged) return ok_status();
  uint32_t conflict = 0;
  return own->update_row(table_.get(), update.old_key, update.image, update.old_entries,
                         update.old_entry_count, &conflict);
}

// NEXTVAL, SETVAL.
Status ha_strata::take_next_block(engine::Session* own, SequenceBlock* taken, longlong* first) {
  SEQUENCE* const sequence = table->s->sequence;
  const SequenceBlock& before = share_->block;
  const longlong next = OpenSequence::next_of(sequence);
  const bool is_next = before.is_ours && next == sequence->increment_value(before.last);
  return take_sequence_block(own, is_next ? nullptr : &next, false, taken, first);
}

// SEQ5
Status ha_strata::redefine_sequence(engine::Session* own) {
  SEQUENCE* const sequence = table->s->sequence;
  STRATA_RETURN_IF_ERROR(own->lock_name(table_->spec().schema, table_->spec().name));
  if (table_->stale() && !is_the_same(own)) return error_definition_changed();
  // What it says to be reserved is what this server knows of, unless it starts again.
  if (table->field[kNextNotCached]->val_int() == sequence->reserved_until) {
    SequenceBlock unused;
    longlong first = 0;
    return take_sequence_block(own, nullptr, false, &unused, &first);
  }
  return write_sequence_row(own, table->record[0]);
}

// SEQ1. Under the sequence's lock.
int ha_strata::write_sequence(const std::function<Status(engine::Session*)>& body) {
  THD* const thd = ha_thd();
  const std::unique_ptr<engine::Session> own = home_->new_session();
  own->set_lock_wait_timeout_us(lock_wait_timeout_us(thd));
  own->begin(engine::Isolation::kReadCommitted);
  Status status;
  {
    const KillReaches reaches(connection_, own.get());
    status = body(own.get());
  }
  if (!status.ok()) {
    own->rollback().IgnoreError();  // at once or in the background (engine E18)
    return fail(status);
  }
  status = own->commit(setting_flush_log_at_commit == 1 ? engine::Durability::kSync
                                                        : engine::Durability::kNoSync);
  close_if_outcome_unknown(status, thd);
  return status.ok() ? 0 : fail(status);
}

void ha_strata::use_sequence_block(const SequenceBlock& taken, longlong first) {
  SEQUENCE* const sequence = table->s->sequence;
  share_->block = taken;
  OpenSequence::next_of(sequence) = first;
  sequence->reserved_until = taken.is_ours ? taken.last : first;
}

// SEQ4: before the statement takes its first number.
int ha_strata::prepare_sequence(THD* thd) {
  SEQUENCE* const sequence = table->s->sequence;
  if (!kernel->shares_tables() || is_temporary() ||
      sequence->initialized != SEQUENCE::SEQ_READY_TO_USE ||
      thd_sql_command(thd) == SQLCOM_ALTER_SEQUENCE || alters_tables(thd_sql_command(thd)))
    return 0;
  sequence->write_lock(table);
  int error = 0;
  if (!share_->block.is_ours) {
    SequenceBlock taken;
    longlong first = 0;
    MY_BITMAP* const read = std::exchange(table->read_set, &table->s->all_set);
    MY_BITMAP* const written = std::exchange(table->write_set, &table->s->all_set);
    error = write_sequence([&](engine::Session* own) {
      return take_sequence_block(own, nullptr, true, &taken, &first);
    });
    table->read_set = read;
    table->write_set = written;
    if (error == 0) use_sequence_block(taken, first);
  }
  sequence->write_unlock(table);
  return error;
}

// SEQ1
int ha_strata::update_first_row(const uchar* record) {
  return guarded([&]() -> int {
    bind(ha_thd());
    if (!kernel->shares_tables() || is_temporary() || record != table->record[0])
      return write_sequence([&](engine::Session* own) { return write_sequence_row(own, record); });
    if (!is_of_sequence(table)) {
      const int error =
          write_sequence([&](engine::Session* own) { return redefine_sequence(own); });
      if (error == 0) share_->block = {};  // the server takes over what it has written
      return error;
    }
    SequenceBlock taken;
    longlong first = 0;
    const int error =
        write_sequence([&](engine::Session* own) { return take_next_block(own, &taken, &first); });
    if (error == 0) use_sequence_block(taken, first);
    return error;
  });
}

}  // namespace strata::glue
