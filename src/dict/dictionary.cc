#include "dict/dictionary.h"

#include "base/latch.h"

namespace strata {
namespace {

// Header slots of the system space (DI1). kUser2 belongs to the timestamp source.
constexpr HeaderSlot kTablesRoot = static_cast<HeaderSlot>(8);
constexpr HeaderSlot kJournalRoot = static_cast<HeaderSlot>(9);
constexpr HeaderSlot kNextIndexId = static_cast<HeaderSlot>(10);
constexpr SpaceId kSystem{kSystemSpace};
constexpr IndexId kTablesIndex{1};
constexpr IndexId kJournalIndex{2};
constexpr uint32_t kFirstUserIndex = 16;
constexpr size_t kInlineBytesMax = 2000;
constexpr uint32_t kSpaceIdsAtOnce = 64;
constexpr uint64_t kIdLimit = 0xfffffff0u;

}  // namespace

Status Dictionary::initialise() {
  TreeContext* tree = &context_->tree;
  STRATA_RETURN_IF_ERROR(tree->spaces->ensure_room(kSystem, 16));
  Mtr mtr(tree->pool, tree->log);
  STRATA_RETURN_IF_ERROR(mtr.begin_write());
  STRATA_ASSIGN_OR_RETURN(tables_, create_tree(tree, &mtr, kSystem, kTablesIndex));
  mtr.publish();
  STRATA_RETURN_IF_ERROR(mtr.begin_write());
  STRATA_ASSIGN_OR_RETURN(journal_, create_tree(tree, &mtr, kSystem, kJournalIndex));
  mtr.publish();
  STRATA_RETURN_IF_ERROR(mtr.begin_write());
  STRATA_RETURN_IF_ERROR(tree->spaces->write_slot(&mtr, kSystem, kTablesRoot, tables_.root.number));
  STRATA_RETURN_IF_ERROR(
      tree->spaces->write_slot(&mtr, kSystem, kJournalRoot, journal_.root.number));
  STRATA_RETURN_IF_ERROR(tree->spaces->write_slot(&mtr, kSystem, kNextIndexId, kFirstUserIndex));
  STRATA_RETURN_IF_ERROR(
      tree->spaces->write_slot(&mtr, kSystem, HeaderSlot::kRowId, kFirstUserSpace));
  STRATA_RETURN_IF_ERROR(tree->spaces->write_slot(&mtr, kSystem, HeaderSlot::kAutoIncrement, 1));
  return tree->log->persist(mtr.publish());
}

Status Dictionary::open() {
  SpaceManager* spaces = context_->tree.spaces;
  STRATA_ASSIGN_OR_RETURN(const uint64_t tables, spaces->read_slot(kSystem, kTablesRoot));
  STRATA_ASSIGN_OR_RETURN(const uint64_t journal, spaces->read_slot(kSystem, kJournalRoot));
  if (tables == 0 || journal == 0) {
    return error_corruption(
        "dictionary: the system space has no dictionary trees: the data folder was never "
        "completely "
        "initialised; remove it and start again if it holds no data");
  }
  tables_ = TreeId{kTablesIndex, PageId{kSystemSpace, static_cast<uint32_t>(tables)}};
  journal_ = TreeId{kJournalIndex, PageId{kSystemSpace, static_cast<uint32_t>(journal)}};
  return ok_status();
}

// The counter's change comes before every use of the id in the same log: what survives a crash
// never names an id that could be given out again.
StatusOr<uint64_t> Dictionary::new_id(HeaderSlot slot, uint64_t count, Lsn* end) {
  TreeContext* tree = &context_->tree;
  Mtr mtr(tree->pool, tree->log);
  STRATA_RETURN_IF_ERROR(mtr.begin_write_to_free());
  // Latched before it is read: another node may be about to take the same id.
  STRATA_RETURN_IF_ERROR(mtr.fix(PageId{kSystemSpace, 0}, LatchMode::kExclusive).status());
  STRATA_ASSIGN_OR_RETURN(const uint64_t id, tree->spaces->read_slot_in(&mtr, kSystem, slot));
  STRATA_RETURN_IF_ERROR(tree->spaces->write_slot(&mtr, kSystem, slot, id + count));
  const Lsn published = mtr.publish();
  if (end != nullptr) *end = published;
  return id;
}

StatusOr<uint64_t> Dictionary::new_table_id() {
  const MutexLock lock(id_mutex_);
  return new_id(HeaderSlot::kAutoIncrement, 1, nullptr);
}

// A space's file is made outside the log, so its id must be durable before: many at a time. The
// mutex is not held over the log's write; who loses a race leaves its range unused.
StatusOr<SpaceId> Dictionary::new_space_id() {
  uint64_t first;
  Lsn end;
  {
    const MutexLock lock(id_mutex_);
    if (next_space_ < spaces_end_) return SpaceId{next_space_++};
    STRATA_ASSIGN_OR_RETURN(first, new_id(HeaderSlot::kRowId, kSpaceIdsAtOnce, &end));
  }
  if (first + kSpaceIdsAtOnce >= kIdLimit) return error_no_space("every space id has been used");
  STRATA_RETURN_IF_ERROR(context_->tree.log->persist(end));
  const MutexLock lock(id_mutex_);
  next_space_ = static_cast<uint32_t>(first) + 1;
  spaces_end_ = static_cast<uint32_t>(first) + kSpaceIdsAtOnce;
  return SpaceId{static_cast<uint32_t>(first)};
}

StatusOr<IndexId> Dictionary::new_index_ids(uint32_t count) {
  const MutexLock lock(id_mutex_);
  STRATA_ASSIGN_OR_RETURN(const uint64_t id, new_id(kNextIndexId, count, nullptr));
  if (id + count >= kIdLimit) return error_no_space("every index id has been used");
  return IndexId{static_cast<uint32_t>(id)};
}

Status Dictionary::put(Trx* trx, TreeId tree, Bytes key, Bytes value, bool replace) {
  std::string payload;
  if (value.size() <= kInlineBytesMax) {
    payload = encode_payload({}, value);
  } else {
    STRATA_ASSIGN_OR_RETURN(const OverflowRef ref, write_overflow(context_, trx, kSystem, value));
    payload = encode_payload({ref}, Bytes());
  }
  if (!replace) return insert_record(context_, trx, tree, key, payload, 0);
  return update_record(context_, trx, tree, key, payload);
}

Status Dictionary::erase(Trx* trx, TreeId tree, Bytes key) {
  return delete_record(context_, trx, tree, key);
}

Status Dictionary::put_table(Trx* trx, const TableSpec& spec) {
  return put(trx, tables_, table_key(spec.schema, spec.name), encode_table_spec(spec), false);
}

Status Dictionary::replace_table(Trx* trx, const TableSpec& spec) {
  return put(trx, tables_, table_key(spec.schema, spec.name), encode_table_spec(spec), true);
}

Status Dictionary::erase_table(Trx* trx, Bytes schema, Bytes name) {
  return erase(trx, tables_, table_key(schema, name));
}

Status Dictionary::put_journal(Trx* trx, Bytes key, Bytes value) {
  const Status inserted = put(trx, journal_, key, value, false);
  return is_duplicate_key(inserted) ? put(trx, journal_, key, value, true) : inserted;
}

Status Dictionary::erase_journal(Trx* trx, Bytes key) {
  const Status erased = erase(trx, journal_, key);
  return is_not_found(erased) ? ok_status() : erased;
}

Status Dictionary::load_value(Bytes payload, std::string* out) {
  std::vector<OverflowRef> refs;
  Bytes inline_bytes;
  STRATA_RETURN_IF_ERROR(decode_payload(payload, &refs, &inline_bytes));
  if (refs.empty()) {
    out->assign(inline_bytes);
    return ok_status();
  }
  return read_overflow(context_, kSystem, refs[0], out);
}

StatusOr<TableSpec> Dictionary::read_table(Bytes schema, Bytes name, Cts* changed_at) {
  std::string payload;
  RecordHeader header;
  {
    Mtr mtr(context_->tree.pool, context_->tree.log);
    TreeCursor cursor(&context_->tree, tables_, &mtr);
    const std::string key = table_key(schema, name);
    STRATA_RETURN_IF_ERROR(cursor.seek(key, LatchMode::kShared));
    if (!cursor.equals(key)) return error_not_found();
    header = read_record_header(cursor.value());
    payload.assign(record_payload(cursor.value()));
  }
  *changed_at = header.cts;
  if (header.cts.is_zero()) {
    STRATA_ASSIGN_OR_RETURN(const TrxLookup writer, context_->trxs->lookup(header.trx_id));
    if (writer.state != TrxState::kCommitted)
      return error_peer_down("the definition of table " + std::string(name) +
                             " is being changed by a transaction that has not ended");
    *changed_at = writer.cts;
  }
  if (header.deleted()) return error_not_found();
  std::string value;
  STRATA_RETURN_IF_ERROR(load_value(payload, &value));
  return decode_table_spec(value);
}

Status Dictionary::scan(TreeId tree, Bytes prefix,
                        const std::function<Status(Bytes, Bytes)>& visit) {
  Trx reader;
  context_->trxs->begin(&reader);
  Status status = context_->trxs->open_view(&reader);
  std::string value;
  if (status.ok()) {
    RowCursor cursor(context_, tree);
    status = cursor.seek(&reader, RowCursor::Read::kConsistent, prefix);
    while (status.ok() && cursor.valid() && cursor.key().starts_with(prefix)) {
      status = load_value(cursor.payload(), &value);
      if (status.ok()) status = visit(cursor.key(), value);
      if (status.ok()) status = cursor.next();
    }
  }
  const Status ended = context_->trxs->commit(&reader);
  return status.ok() ? ended : status;
}

Status Dictionary::for_each_table(const std::function<Status(TableSpec)>& visit) {
  return scan(tables_, Bytes(), [&visit](Bytes, Bytes value) -> Status {
    STRATA_ASSIGN_OR_RETURN(TableSpec spec, decode_table_spec(value));
    return visit(std::move(spec));
  });
}

Status Dictionary::for_each_journal(Bytes prefix,
                                    const std::function<Status(Bytes, Bytes)>& visit) {
  return scan(journal_, prefix, visit);
}

}  // namespace strata
