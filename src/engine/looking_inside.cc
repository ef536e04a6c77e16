// What people may see of the transactions that run: who waits for whom, and with which statements.
#include <ctime>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/diag.h"
#include "engine/internal/kernel_impl.h"

namespace strata::engine {
namespace {

// Deadlocks may come in hundreds a second, each with its statements.
constexpr uint64_t kLogDeadlockEveryUs = 1'000'000;
constexpr size_t kKeyBytesShown = 32;

std::string in_hexadecimal(Bytes key) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : key.substr(0, kKeyBytesShown)) {
    const auto byte = static_cast<uint8_t>(c);
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return key.size() > kKeyBytesShown ? out + "..." : out;
}

const char* name_of(TrxState state) noexcept {
  switch (state) {
    case TrxState::kPrepared:
      return "PREPARED";
    case TrxState::kCommitting:
      return "COMMITTING";
    case TrxState::kActive:
    case TrxState::kNone:
    case TrxState::kCommitted:
    case TrxState::kAborted:
      break;
  }
  return "ACTIVE";
}

// `own`: this server, which knows the statements of its own transactions only.
std::string describe(uint64_t trx, uint64_t connection, const std::string& statement, NodeId own) {
  std::string out = "transaction " + std::to_string(trx);
  const NodeId node = node_of(TrxId{trx});
  if (node != own) out += " of server " + std::to_string(node.value);
  if (connection != 0) out += ", connection " + std::to_string(connection);
  return statement.empty() ? out : out + ": " + statement;
}

std::string describe_place(const Kernel::LockWaitInfo& wait) {
  const std::string table = wait.table.empty()
                                ? "a table that is gone"
                                : wait.schema + "." + wait.table + ", index " + wait.index;
  return table + ", key " + wait.key;
}

std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  char text[32];
  if (::localtime_r(&now, &parts) == nullptr ||
      std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts) == 0)
    return "";
  return text;
}

}  // namespace

std::vector<Kernel::LockWaitInfo> KernelImpl::with_names(const std::vector<RowWait>& waits) {
  struct Name {
    std::string schema, table, index;
  };
  std::map<uint32_t, Name> names;
  for (const RowWait& wait : waits) names[wait.index.value];
  {
    const MutexLock lock(tables_mutex);
    for (const auto& [key, table] : tables)
      for (const IndexSpec& index : table->spec().indexes)
        if (const auto wanted = names.find(index.index_id); wanted != names.end())
          wanted->second = {table->spec().schema, table->spec().name, index.name};
  }
  std::vector<Kernel::LockWaitInfo> out;
  for (const RowWait& wait : waits) {
    const Name& name = names[wait.index.value];
    out.push_back({.waiter = wait.waiter.value,
                   .holder = wait.holder.value,
                   .waiter_connection = wait.waiter_owner.connection,
                   .holder_connection = wait.holder_owner.connection,
                   .waiter_statement = wait.waiter_owner.statement,
                   .holder_statement = wait.holder_owner.statement,
                   .waited_us = wait.waited_us,
                   .schema = name.schema,
                   .table = name.table,
                   .index = name.index,
                   .key = in_hexadecimal(wait.key)});
  }
  return out;
}

// L16. Each statement is that of one who waits, so all of this server's are there.
void KernelImpl::note_deadlock(const DeadlockReport& report) {
  const NodeId own{options.node};
  std::string text;
  for (const Kernel::LockWaitInfo& wait : with_names(report.waits)) {
    text += "  " + describe(wait.waiter, wait.waiter_connection, wait.waiter_statement, own) + "\n";
    text += "    waits for transaction " + std::to_string(wait.holder) + " at " +
            describe_place(wait) + "\n";
  }
  text += "  transaction " + std::to_string(report.victim.value) + " is rolled back\n";
  uint64_t untold = 0;
  {
    const MutexLock lock(deadlock_mutex);
    last_deadlock = "  at " + local_time() + "\n" + text;
    const uint64_t now_us = monotonic_us();
    if (deadlock_logged_us != 0 && now_us - deadlock_logged_us < kLogDeadlockEveryUs) {
      ++deadlocks_not_logged;
      return;
    }
    deadlock_logged_us = now_us;
    untold = std::exchange(deadlocks_not_logged, 0);
  }
  const std::string more =
      untold == 0 ? "" : " (" + std::to_string(untold) + " others before it were not reported)";
  diag(Severity::kInfo, "deadlock%s\n%s", more.c_str(), text.c_str());
}

std::vector<Kernel::TransactionInfo> Kernel::transactions() {
  std::vector<TransactionInfo> out;
  for (const TrxSystem::Undecided& trx : impl_->trxs->list_undecided())
    out.push_back({.id = trx.id.value,
                   .state = name_of(trx.state),
                   .age_us = trx.age_us,
                   .connection = trx.owner.connection,
                   .statement = trx.owner.statement});
  return out;
}

std::vector<Kernel::LockWaitInfo> Kernel::lock_waits(size_t most) {
  return impl_->with_names(impl_->waits->list_waits(most));
}

}  // namespace strata::engine
