// E32: tables of statements that were killed before they had filled them.
#include "base/diag.h"
#include "engine/internal/kernel_impl.h"

namespace strata::engine {
namespace {

// Rows of the journal: this, and the table's key.
constexpr std::string_view kPrefix = "half-made/";
// What others do with the name is no reason to keep the start waiting for longer.
constexpr uint64_t kWaitUs = 2'000'000;

std::string mark_of(Bytes schema, Bytes name) {
  return std::string(kPrefix) + table_key(schema, name);
}

// By the latest view: what is to be rolled back does not count.
StatusOr<bool> has_rows(Session* session, const TableRef& table) {
  TableCursor cursor(session, table, 0);
  STRATA_RETURN_IF_ERROR(cursor.seek(Bytes()));
  while (cursor.valid()) {
    bool gone = true;
    STRATA_RETURN_IF_ERROR(cursor.fetch(&gone));
    if (!gone) return true;
    STRATA_RETURN_IF_ERROR(cursor.next());
  }
  return false;
}

// Nothing else would go on either, and this opening is tried again. Whatever is wrong with one
// table is no reason to keep a node from starting.
bool is_of_this_node(const Status& status) {
  return is_fenced(status) || is_lease_lost(status) || is_peer_down(status) ||
         is_interrupted(status);
}

}  // namespace

struct KernelImpl::HalfMade {
  std::string schema, name;
  uint64_t table_id = 0;
};

Status Session::begin_making(const TableRef& table) {
  KernelImpl* const k = impl_->kernel;
  if (!k->shares_tables()) return ok_status();
  const TableSpec& spec = table->spec();
  std::string value(1, static_cast<char>(k->options.node));
  append_be64(&value, spec.table_id);
  return k->dictionary->put_journal(impl_->trx.get(), mark_of(spec.schema, spec.name), value);
}

Status Session::end_making(Bytes schema, Bytes name) {
  return impl_->kernel->unmark(impl_.get(), schema, name);
}

Status KernelImpl::unmark(Session::Impl* session, Bytes schema, Bytes name) {
  if (!shares_tables()) return ok_status();
  return dictionary->erase_journal(session->trx.get(), mark_of(schema, name));
}

Status KernelImpl::drop_half_made(const HalfMade& mark) {
  const std::unique_ptr<Session> session = new_session();
  session->set_lock_wait_timeout_us(kWaitUs);
  session->set_foreign_key_checks(false);
  session->begin(Isolation::kReadCommitted);
  const auto drop = [&]() -> Status {
    // First, since a prepared transaction that has filled the table has taken the mark away: then
    // somebody has yet to decide.
    STRATA_RETURN_IF_ERROR(session->end_making(mark.schema, mark.name));
    STRATA_RETURN_IF_ERROR(session->lock_name(mark.schema, mark.name));
    const StatusOr<TableRef> table = session->open_table(mark.schema, mark.name);
    if (is_not_found(table.status())) return ok_status();
    STRATA_RETURN_IF_ERROR(table.status());
    if ((*table)->spec().table_id != mark.table_id) return ok_status();  // another one
    STRATA_ASSIGN_OR_RETURN(const bool used, has_rows(session.get(), *table));
    if (used) {
      diag(Severity::kWarning, "%s/%s is kept: it has rows", mark.schema.c_str(),
           mark.name.c_str());
      return ok_status();
    }
    return session->drop_table(mark.schema, mark.name);
  };
  Status status = drop();
  if (status.ok()) return session->commit();
  // If that fails it is done in the background; the mark stays either way, and why is said.
  session->rollback().IgnoreError();
  return status;
}

Status KernelImpl::drop_half_made() {
  if (!shares_tables()) return ok_status();
  std::vector<HalfMade> marks;
  STRATA_RETURN_IF_ERROR(dictionary->for_each_journal(kPrefix, [&](Bytes key, Bytes value) {
    if (value.size() != 1 + sizeof(uint64_t)) return ok_status();
    if (static_cast<uint8_t>(value[0]) != options.node) return ok_status();
    const Bytes table = key.substr(kPrefix.size());
    const size_t end = table.find('\0');
    marks.push_back({std::string(table.substr(0, end)), std::string(table.substr(end + 1)),
                     load_be64(value.data() + 1)});
    return ok_status();
  }));
  for (const HalfMade& mark : marks) {
    const Status dropped = drop_half_made(mark);
    if (is_of_this_node(dropped)) return dropped;
    diag(dropped.ok() ? Severity::kInfo : Severity::kWarning,
         "%s/%s, left by a statement that was killed before it was done%s%s", mark.schema.c_str(),
         mark.name.c_str(), dropped.ok() ? ": recovered" : ", stays until the next start: ",
         dropped.ok() ? "" : text_of(dropped).c_str());
  }
  return ok_status();
}

Status Kernel::drop_half_made() { return impl_->drop_half_made(); }

}  // namespace strata::engine
