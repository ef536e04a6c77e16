#include "mariadb/lock_waits.h"

#include "mariadb/server.h"
#include "rpl_rli.h"

// sql_class.cc of the server; no header of it declares them.
extern "C" int thd_need_wait_reports(const MYSQL_THD thd);
extern "C" int thd_rpl_deadlock_check(MYSQL_THD thd, MYSQL_THD other_thd);
extern "C" size_t thd_query_safe(MYSQL_THD thd, char* buf, size_t buflen);
extern "C" int thd_deadlock_victim_preference(const MYSQL_THD thd1, const MYSQL_THD thd2);

namespace strata::glue {
namespace {

THD* thd_of(void* owner) { return static_cast<THD*>(owner); }

// The server's part of it takes mutexes under which the engine is never called, and has the kill
// done by a thread of its own: it arrives by kill_query() later.
class ServerHearsOfWaits final : public engine::WaitListener {
 public:
  void wait_begins(void* waiter) noexcept override {
    if (waiter == nullptr) return;
    thd_wait_begin(thd_of(waiter), THD_WAIT_ROW_LOCK);
    // Marks the transaction as one that has waited, for replicas that apply it (FL_WAITED).
    if (thd_need_wait_reports(thd_of(waiter)) != 0)
      (void)thd_rpl_deadlock_check(thd_of(waiter), nullptr);  // nobody is killed for nobody
  }
  void wait_ends(void* waiter) noexcept override {
    if (waiter != nullptr) thd_wait_end(thd_of(waiter));
  }
  // The server says "yes" for everybody as soon as it writes a binary log; it then looks at the two
  // cases below.
  bool wants_reports(void* waiter) noexcept override {
    if (waiter == nullptr) return false;
    const rpl_group_info* const group = thd_of(waiter)->rgi_slave;
    return opt_binlog_commit_wait_count != 0 || (group != nullptr && group->is_parallel_exec);
  }
  void waits_for(void* waiter, void* holder) noexcept override {
    // Whether the holder is killed makes no difference to the waiter.
    if (holder != nullptr) (void)thd_rpl_deadlock_check(thd_of(waiter), thd_of(holder));
  }
  int preferred_victim(void* first, void* second) noexcept override {
    return thd_deadlock_victim_preference(thd_of(first), thd_of(second));
  }
  // An empty statement: none, or the server is just about to change it.
  engine::WaitOwner describe(void* owner) noexcept override {
    constexpr size_t kStatementBytesMost = 1024;
    char text[kStatementBytesMost];
    const size_t bytes = thd_query_safe(thd_of(owner), text, sizeof text);
    return {thd_of(owner)->thread_id, std::string(text, std::min(bytes, sizeof text))};
  }
};

ServerHearsOfWaits listener;

}  // namespace

engine::WaitListener* wait_listener() { return &listener; }

}  // namespace strata::glue
