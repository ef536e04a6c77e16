#include "mariadb/prepared_here.h"

#include <set>
#include <utility>

#include "base/latch.h"

namespace strata::glue {
namespace {

// A connection that ends has little left to do by then.
constexpr uint64_t kWaitUs = 10'000'000;

Mutex mutex{LatchRank::kServer};
CondVar let_go;
std::set<std::string> had STRATA_GUARDED_BY(mutex);

}  // namespace

PreparedHere::PreparedHere(std::string xid) : xid_(std::move(xid)) {
  const MutexLock lock(mutex);
  had.insert(xid_);
}

PreparedHere::~PreparedHere() {
  {
    const MutexLock lock(mutex);
    had.erase(xid_);
  }
  let_go.notify_all();
}

Status wait_until_let_go(const std::string& xid) {
  MutexLock lock(mutex);
  const auto is_free = [&xid]() STRATA_REQUIRES(mutex) { return !had.contains(xid); };
  if (let_go.wait_for_us(lock, kWaitUs, is_free)) return ok_status();
  return error_busy("the connection that has prepared the transaction is still about to end");
}

}  // namespace strata::glue
