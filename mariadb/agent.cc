#include "mariadb/agent.h"

#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "base/latch.h"
#include "base/thread_name.h"
#include "mariadb/definition_files.h"
#include "mariadb/error_map.h"
#include "mariadb/freeze.h"
#include "mariadb/metadata_lock.h"
#include "mariadb/server_thread.h"

namespace strata::glue {
namespace {

constexpr uint64_t kSliceUs = 250'000;
constexpr uint64_t kForgetUsLeast = 10'000;  // for what the kernel has to wait for, however late

// As metadata locks call it.
struct PlainName {
  const std::string schema, table;
  explicit PlainName(const TableName& name)
      : schema(plain_name(name.schema)), table(plain_name(name.table)) {}
};

class TableLock : public MetadataLock {
 public:
  TableLock(THD* thd, enum_mdl_type type, const PlainName& name, uint64_t timeout_us)
      : MetadataLock(thd, type, MDL_key::TABLE, name.schema.c_str(), name.table.c_str(),
                     static_cast<double>(timeout_us) / 1e6) {}
};

// With the exclusive TableLock.
void forget_definition(THD* thd, const TableName& name, const PlainName& plain) {
  remove_definition_file(name);
  tdc_remove_table(thd, plain.schema.c_str(), plain.table.c_str());
}

TableName split(Bytes key) {
  const size_t end = key.find('\0');
  return {std::string(key.substr(0, end)),
          std::string(end == Bytes::npos ? Bytes() : key.substr(end + 1))};
}

class Agent final : public engine::TableUsers {
 public:
  Status give_up(Bytes key, uint64_t timeout_us, const Forget& forget) override {
    const Bytes of_right = engine::table_of_right(key);
    const Bytes table = of_right.empty() ? key : of_right;
    const TableName name = split(table);
    if (name.table.empty())
      if (const auto still = stand_still_for_others(name.schema, timeout_us, forget)) return *still;
    // What only statements of ours know the name of has no definition that is shared (AG6: none).
    if (name.table.empty() || name.internal() || !begin_to_give_up()) return forget(timeout_us);
    // Out of memory: nothing was given up, which is tried again.
    Status status = error_lock_wait_timeout();
    (void)guarded([&] {
      status = give_up_table(std::string(table), name, !of_right.empty(), timeout_us, forget);
      return 0;
    });
    has_given_up();
    return status;
  }

  void begins_to_wait(Bytes key) noexcept override {
    if (!is_alone_with(key)) return;
    const MutexLock lock(mutex_);
    ++waiting_[std::string(key)].statements;
  }

  // AG3: nobody else comes to the table before what was given up is known to be stale.
  void has_waited(Bytes key) noexcept override {
    if (!is_alone_with(key)) return;
    MutexLock lock(mutex_);
    const auto it = waiting_.find(key);
    STRATA_ASSERT(it != waiting_.end() && it->second.statements != 0);
    --it->second.statements;
    while (it->second.giving_up != 0) changed_.wait(lock);
    if (it->second.statements == 0) waiting_.erase(it);
  }

  void start() {
    stopped_ = false;
    thread_ = std::thread([this] { clean(); });
  }
  void stop() {
    {
      const MutexLock lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    MutexLock lock(mutex_);
    while (giving_up_ != 0) changed_.wait(lock);
  }

 private:
  struct Waiting {
    uint32_t statements = 0;  // waits of one, since its metadata lock is exclusive
    uint32_t giving_up = 0;   // AG3, under way
  };

  // False: AG6.
  bool begin_to_give_up() {
    const MutexLock lock(mutex_);
    if (stopped_) return false;
    ++giving_up_;
    return true;
  }
  void has_given_up() {
    {
      const MutexLock lock(mutex_);
      --giving_up_;
    }
    changed_.notify_all();
  }

  static bool is_alone_with(Bytes key) {
    THD* const thd = current_thd;
    const TableName name = split(key);
    if (thd == nullptr || name.table.empty() || name.internal()) return false;
    if (thd->locked_tables_mode != LTM_NONE) return false;  // it was promised more than this lock
    const PlainName plain(name);
    return thd->mdl_context.is_lock_owner(MDL_key::TABLE, plain.schema.c_str(), plain.table.c_str(),
                                          MDL_EXCLUSIVE);
  }

  // `right`: only that to change rows (AG7).
  Status give_up_table(const std::string& key, const TableName& name, bool right,
                       uint64_t timeout_us, const Forget& forget) {
    const uint64_t deadline_us = monotonic_us() + timeout_us;
    const auto left_us = [deadline_us] {
      const uint64_t now_us = monotonic_us();
      return now_us < deadline_us ? deadline_us - now_us : 0;
    };
    const PlainName plain(name);
    const ServerThread thread;
    do {
      if (std::optional<Status> given = give_up_for_statement(key, name, right, left_us(), forget))
        return *given;
      const TableLock lock(thread.thd(), right ? MDL_SHARED_READ_ONLY : MDL_EXCLUSIVE, plain,
                           std::min(kSliceUs, left_us()));
      if (!lock.has_it()) continue;
      STRATA_RETURN_IF_ERROR(forget(std::max(kForgetUsLeast, left_us())));
      if (!right) forget_definition(thread.thd(), name, plain);
      return ok_status();
    } while (left_us() != 0 && !stopped_);
    return error_lock_wait_timeout();
  }

  // AG3. Nothing: no statement of ours waits for the name like that.
  std::optional<Status> give_up_for_statement(const std::string& key, const TableName& name,
                                              bool right, uint64_t left_us, const Forget& forget) {
    {
      const MutexLock lock(mutex_);
      const auto it = waiting_.find(key);
      if (it == waiting_.end() || it->second.statements == 0) return std::nullopt;
      ++it->second.giving_up;
    }
    const Status status = forget(std::max(kForgetUsLeast, left_us));
    {
      const MutexLock lock(mutex_);
      --waiting_.find(key)->second.giving_up;
      if (status.ok() && !right) to_clean_.push_back(name);
    }
    changed_.notify_all();
    return status;
  }

  // AG3, once the statement has given its metadata lock back. Whoever comes before finds that the
  // definition is stale, but not a statement that only asks whether there is a table.
  void clean() {
    name_this_thread("table-agent");
    for (;;) {
      TableName name;
      {
        MutexLock lock(mutex_);
        while (!stopped_ && to_clean_.empty()) changed_.wait(lock);
        if (stopped_) return;
        name = std::move(to_clean_.front());
        to_clean_.pop_front();
      }
      // Out of memory: the definition stays, and is found to be stale (AG4).
      (void)guarded([&] {
        const ServerThread thread;
        const PlainName plain(name);
        const TableLock alone(thread.thd(), MDL_EXCLUSIVE, plain, kSliceUs);
        if (alone.has_it()) {
          forget_definition(thread.thd(), name, plain);
        } else {
          const MutexLock lock(mutex_);
          to_clean_.push_back(name);
        }
        return 0;
      });
    }
  }

  std::atomic<bool> stopped_{true};
  Mutex mutex_{LatchRank::kServer};
  CondVar changed_;
  std::map<std::string, Waiting, std::less<>> waiting_ STRATA_GUARDED_BY(mutex_);
  std::deque<TableName> to_clean_ STRATA_GUARDED_BY(mutex_);
  uint32_t giving_up_ STRATA_GUARDED_BY(mutex_) = 0;  // tables, for other servers, right now
  std::thread thread_;
};

Agent agent;

}  // namespace

engine::TableUsers* table_users() { return &agent; }
void start_agent() { agent.start(); }
void stop_agent() { agent.stop(); }

}  // namespace strata::glue
