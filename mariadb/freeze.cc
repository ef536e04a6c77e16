#include "mariadb/freeze.h"

#include <array>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/latch.h"
#include "base/thread_name.h"
#include "mariadb/connection.h"
#include "mariadb/ddl.h"
#include "mariadb/error_map.h"
#include "mariadb/metadata_lock.h"
#include "mariadb/server_thread.h"
#include "mariadb/table_locks.h"

namespace strata::glue {
namespace {

constexpr uint64_t kLookUs = 100'000;
constexpr uint64_t kAskedForUs = 3'000'000;  // FZ4; it is asked again at least once a second
constexpr double kStillWaitS = 2.0;          // for statements, and then for commits
constexpr uint64_t kGapUs = 20'000;          // for what has queued behind that
constexpr uint64_t kBeginsWaitUs = 2'000'000;
constexpr uint64_t kNameWaitUs = 600'000'000;  // then the name is asked for anew

// The global read lock, or its first half: nothing is changed, and then nothing commits either.
class StandsStill {
 public:
  // Waits; look whether it has it.
  StandsStill(THD* thd, bool commits_too)
      : lock_(thd, MDL_BACKUP_FTWRL1, MDL_key::BACKUP, "", "", kStillWaitS),
        has_it_(lock_.has_it()) {
    if (!has_it_ || !commits_too) return;
    has_it_ = !thd->mdl_context.upgrade_shared_lock(lock_.ticket(), MDL_BACKUP_FTWRL2, kStillWaitS);
    if (!has_it_) thd->clear_error();
  }
  [[nodiscard]] bool has_it() const noexcept { return has_it_; }

 private:
  MetadataLock lock_;
  bool has_it_;
};

// Waits for the name in a thread of its own, since the other one is asked for things meanwhile.
class NameWait {
 public:
  enum class Wants : uint8_t { kNothing, kUse, kExclusive };
  explicit NameWait(Bytes name) : name_(name) {}
  void start() {
    {
      const MutexLock lock(mutex_);
      stopping_ = false;
    }
    thread_ = std::thread([this] { run(); });
  }
  void stop() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      wants_ = Wants::kNothing;
      if (waiting_ != nullptr) waiting_->interrupt();
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    session_.reset();
  }
  // What it waits for from now on; what it waited for, or has, goes.
  void wants(Wants what) {
    {
      const MutexLock lock(mutex_);
      if (wants_ == what) return;
      wants_ = what;
      if (waiting_ != nullptr) waiting_->interrupt();
    }
    changed_.notify_all();
  }
  [[nodiscard]] bool has(Wants what) {
    const MutexLock lock(mutex_);
    return wants_ == what && has_ == what;
  }
  // For the start.
  bool wait_for_use(uint64_t timeout_us) {
    const uint64_t deadline_us = monotonic_us() + timeout_us;
    wants(Wants::kUse);
    MutexLock lock(mutex_);
    for (;;) {
      const uint64_t now_us = monotonic_us();
      if (has_ == Wants::kUse) return true;
      if (now_us >= deadline_us) return false;
      changed_.wait_for_us(lock, deadline_us - now_us);
    }
  }

 private:
  void run() {
    name_this_thread("freeze-name");
    for (;;) {
      Wants next = Wants::kNothing;
      {
        MutexLock lock(mutex_);
        while (!stopping_ && wants_ == has_) changed_.wait(lock);
        if (stopping_) break;
        next = wants_;
        has_ = Wants::kNothing;
      }
      Status status = error_lock_wait_timeout();
      // Out of memory: as if it had waited in vain.
      (void)guarded([&] {
        status = get(next);
        return 0;
      });
      const MutexLock lock(mutex_);
      if (status.ok())
        has_ = next;
      else if (wants_ == next && !stopping_)
        changed_.wait_for_us(mutex_, kLookUs);  // then again
      changed_.notify_all();
    }
    session_.reset();
  }

  Status get(Wants what) {
    session_.reset();  // of an exclusive name the right to use it is left
    if (what == Wants::kNothing) return ok_status();
    auto session = kernel->new_session();
    session->set_lock_wait_timeout_us(kNameWaitUs);
    session->begin(engine::Isolation::kReadCommitted);
    const Waits waits(this, session.get());
    {
      const MutexLock lock(mutex_);
      if (wants_ != what) return error_interrupted();
    }
    Status status;
    if (what == Wants::kUse) {
      status = session->open_table(name_, "").status();
      if (is_not_found(status)) status = ok_status();  // the name is used, there is no table
    } else {
      status = session->lock_name(name_, "");
    }
    if (status.ok()) session_ = std::move(session);
    return status;
  }

  // Others may end the wait of the session meanwhile.
  class Waits {
   public:
    Waits(NameWait* name, engine::Session* session) : name_(name) {
      const MutexLock lock(name_->mutex_);
      name_->waiting_ = session;
    }
    ~Waits() {
      const MutexLock lock(name_->mutex_);
      name_->waiting_ = nullptr;
    }
    Waits(const Waits&) = delete;

   private:
    NameWait* const name_;
  };

  const Bytes name_;
  Mutex mutex_{LatchRank::kServer};
  CondVar changed_;
  bool stopping_ STRATA_GUARDED_BY(mutex_) = false;
  Wants wants_ STRATA_GUARDED_BY(mutex_) = Wants::kNothing;
  Wants has_ STRATA_GUARDED_BY(mutex_) = Wants::kNothing;
  engine::Session* waiting_ STRATA_GUARDED_BY(mutex_) = nullptr;
  // Of the thread: has the name as has_ says, in a transaction. So what it uses is not given up
  // between a look at has() and what follows from that.
  std::unique_ptr<engine::Session> session_;
  std::thread thread_;
};

// Somebody wants something of the thread below.
class Call {
 public:
  void raise() {
    {
      const MutexLock lock(mutex_);
      raised_ = true;
    }
    changed_.notify_all();
  }
  void wait_for_us(uint64_t us) {
    MutexLock lock(mutex_);
    if (!raised_) changed_.wait_for_us(lock, us);
    raised_ = false;
  }

 private:
  Mutex mutex_{LatchRank::kServer};
  CondVar changed_;
  bool raised_ STRATA_GUARDED_BY(mutex_) = false;
};

// FZ2. One of the two steps of that statement. Where nothing else is said: of the thread.
class Step {
 public:
  struct Kind {
    Bytes name;
    enum_mdl_type guard;  // that the statement waits for
    bool commits_too;     // what it keeps away
  };
  Step(const Kind& kind, Call* call) : kind_(kind), call_(call), name_(kind.name) {}

  // Before the thread. FZ1: uses the name, or FZ6; so also if it may not ask for it yet.
  void start(bool may_use) {
    {
      const MutexLock lock(mutex_);
      runs_ = true;
      is_still_ = false;
      asked_until_us_ = 0;
    }
    name_.start();
    const bool used = may_use && name_.wait_for_use(kBeginsWaitUs);
    if (used) name_.wants(NameWait::Wants::kNothing);
    const MutexLock lock(mutex_);
    given_up_ = begins_without_ = !used;
  }
  // Of any thread: nobody stands still any more.
  void end() {
    {
      const MutexLock lock(mutex_);
      runs_ = is_still_ = begins_without_ = false;
    }
    changed_.notify_all();
  }
  // After the thread.
  void stop() { name_.stop(); }

  // Waits for no name, and for no metadata lock for long. `may_use`: it uses the names before this
  // one; `has_leave`: all of them.
  void serve(THD* thd, bool may_use, bool has_leave) {
    serve_others(thd, may_use);
    serve_own(thd, has_leave);
    changed_.notify_all();
  }
  void let_go() {
    guard_.reset();
    still_.reset();
    name_.wants(NameWait::Wants::kNothing);
  }
  [[nodiscard]] bool is_guarded() {
    const MutexLock lock(mutex_);
    return guard_.has_value() && guard_->has_it();
  }
  [[nodiscard]] bool begins_without() {
    const MutexLock lock(mutex_);
    return begins_without_;
  }
  [[nodiscard]] bool must_become_still() {
    const MutexLock lock(mutex_);
    return wants_still() && !begins_without_ && !is_still_ && monotonic_us() >= try_at_us_;
  }

  [[nodiscard]] Bytes name() const noexcept { return kind_.name; }
  // FZ3. Of any thread.
  Status stand_still(uint64_t timeout_us, const engine::TableUsers::Forget& forget) {
    const uint64_t deadline_us = monotonic_us() + timeout_us;
    {
      const MutexLock lock(mutex_);
      asked_until_us_ = monotonic_us() + kAskedForUs;
    }
    call_->raise();
    {
      MutexLock lock(mutex_);
      while (runs_ && !is_still_) {
        const uint64_t now_us = monotonic_us();
        if (now_us >= deadline_us) return error_lock_wait_timeout();
        changed_.wait_for_us(lock, deadline_us - now_us);
      }
      if (runs_) giving_up_ = true;  // it stays still
    }
    const uint64_t now_us = monotonic_us();
    const Status status = forget(now_us < deadline_us ? deadline_us - now_us : 0);
    const MutexLock lock(mutex_);
    giving_up_ = false;
    given_up_ |= status.ok();
    return status;
  }

 private:
  [[nodiscard]] bool wants_still() const STRATA_REQUIRES(mutex_) {
    return given_up_ || giving_up_ || monotonic_us() < asked_until_us_;
  }

  // FZ3, FZ4
  void serve_others(THD* thd, bool may_use) {
    // Only what was given up is asked for, and what is here exclusively is not given up.
    const bool has_it = name_.has(NameWait::Wants::kUse) || name_.has(NameWait::Wants::kExclusive);
    bool wanted = false, used_again = false, waits_for_use = false, begins_without = false;
    {
      const MutexLock lock(mutex_);
      used_again = given_up_ && has_it;
      if (used_again) given_up_ = begins_without_ = false;
      if (used_again) asked_until_us_ = 0;
      begins_without = begins_without_;
      wanted = wants_still();
      if (!wanted) is_still_ = false;
      waits_for_use = given_up_ && !own_ && may_use;
    }
    if (used_again && !own_) name_.wants(NameWait::Wants::kNothing);
    if (!wanted) return still_.reset();
    if (waits_for_use) name_.wants(NameWait::Wants::kUse);
    if (begins_without || (still_.has_value() && still_->has_it())) return;
    if (monotonic_us() < try_at_us_) return;
    if (mysqld_server_started) still_.emplace(thd, kind_.commits_too);  // FZ6
    if (!still_.has_value() || !still_->has_it()) {  // statements that queue go on; then again
      still_.reset();
      try_at_us_ = monotonic_us() + kGapUs;
      return;
    }
    const MutexLock lock(mutex_);
    is_still_ = true;
  }

  // FZ2, FZ6
  void serve_own(THD* thd, bool has_leave) {
    if (!guard_.has_value() || !guard_->has_it()) {
      // Without a wait: who has the first half may wait for our other guard (a circle).
      guard_.emplace(thd, kind_.guard, MDL_key::BACKUP, "", "", 0);
      if (!guard_->has_it()) return;  // somebody has the global read lock
    }
    own_ = has_leave && guard_->ticket()->has_pending_conflicting_lock();
    if (own_ && name_.has(NameWait::Wants::kExclusive)) return guard_.reset();
    if (own_) return name_.wants(NameWait::Wants::kExclusive);
    bool given_up = false;
    {
      const MutexLock lock(mutex_);
      given_up = given_up_;
    }
    if (!given_up) name_.wants(NameWait::Wants::kNothing);
  }

  const Kind kind_;
  Call* const call_;
  NameWait name_;
  std::optional<MetadataLock> guard_;
  std::optional<StandsStill> still_;
  uint64_t try_at_us_ = 0;  // to stand still
  bool own_ = false;        // somebody here wants the others to stand still
  Mutex mutex_{LatchRank::kServer};
  CondVar changed_;
  bool runs_ STRATA_GUARDED_BY(mutex_) = false;
  bool is_still_ STRATA_GUARDED_BY(mutex_) = false;        // for others
  bool giving_up_ STRATA_GUARDED_BY(mutex_) = false;       // the name; under way
  bool given_up_ STRATA_GUARDED_BY(mutex_) = false;        // this server does not use it
  bool begins_without_ STRATA_GUARDED_BY(mutex_) = false;  // FZ6
  uint64_t asked_until_us_ STRATA_GUARDED_BY(mutex_) = 0;
};

class Freezer {
 public:
  void start() {
    {
      const MutexLock lock(mutex_);
      stopping_ = ready_ = false;
    }
    steps_[0].start(true);
    steps_[1].start(!steps_[0].begins_without());
    look_whether_it_begins();
    thread_ = std::thread([this] { run(); });
    MutexLock lock(mutex_);
    while (!ready_) changed_.wait(lock);
  }

  void stop() {
    stopping_ = true;
    for (Step& step : steps_) step.end();
    call_.raise();
    if (!thread_.joinable()) return;
    thread_.join();
    for (Step& step : steps_) step.stop();
  }

  Status wait_for_leave(THD* thd) {
    if (!begins_without_.load(std::memory_order_acquire)) return ok_status();
    const WaitShown shown(thd, "Waiting for FLUSH TABLES WITH READ LOCK of another server");
    const uint64_t deadline_us = monotonic_us() + ddl_timeout_us(thd);
    MutexLock lock(mutex_);
    while (begins_without_.load(std::memory_order_acquire)) {
      if (thd_kill_level(thd) != THD_IS_NOT_KILLED) return error_interrupted();
      const uint64_t now_us = monotonic_us();
      if (now_us >= deadline_us) return error_lock_wait_timeout();
      changed_.wait_for_us(lock, std::min(kLookUs, deadline_us - now_us));
    }
    return ok_status();
  }

  Step* step_of(Bytes name) {
    for (Step& step : steps_)
      if (step.name() == name) return &step;
    return nullptr;
  }

 private:
  void serve() {
    const ServerThread thread;
    while (!stopping_) {
      if (!steps_[0].must_become_still() && !steps_[1].must_become_still())
        call_.wait_for_us(is_ready() ? kLookUs : kGapUs);
      if (stopping_) break;
      // Out of memory: what was begun goes on at the next look.
      (void)guarded([&] {
        serve_steps(thread.thd());
        return 0;
      });
      look_whether_it_begins();
      if (steps_[0].is_guarded() && steps_[1].is_guarded()) becomes_ready();
    }
    for (Step& step : steps_) step.let_go();
  }
  void serve_steps(THD* thd) {
    const bool has_leave = !begins_without_.load(std::memory_order_acquire);
    steps_[0].serve(thd, true, has_leave);
    steps_[1].serve(thd, !steps_[0].begins_without(), has_leave);
  }
  void run() {
    name_this_thread("freezer");
    // Out of memory for the server's thread: it begins anew. Until then no client comes, and no
    // name is given up: a server without this thread would go on under others' locks.
    while (!stopping_) {
      (void)guarded([&] {
        serve();
        return 0;
      });
      if (!stopping_) call_.wait_for_us(kLookUs);
    }
    for (Step& step : steps_) step.end();
    // Nobody waits in vain.
    look_whether_it_begins();
    becomes_ready();
  }
  [[nodiscard]] bool is_ready() {
    const MutexLock lock(mutex_);
    return ready_;
  }
  void becomes_ready() {
    {
      const MutexLock lock(mutex_);
      ready_ = true;
    }
    changed_.notify_all();
  }
  // FZ6
  void look_whether_it_begins() {
    const bool without = steps_[0].begins_without() || steps_[1].begins_without();
    {
      const MutexLock lock(mutex_);
      begins_without_.store(without, std::memory_order_release);
    }
    if (!without) changed_.notify_all();
  }

  Call call_;
  std::array<Step, 2> steps_{
      Step({.name = "#freeze", .guard = MDL_BACKUP_TRANS_DML, .commits_too = false}, &call_),
      Step({.name = "#freeze-commits", .guard = MDL_BACKUP_COMMIT, .commits_too = true}, &call_)};
  std::atomic<bool> stopping_{false};
  Mutex mutex_{LatchRank::kServer};
  CondVar changed_;
  bool ready_ STRATA_GUARDED_BY(mutex_) = false;  // clients may come
  std::atomic<bool> begins_without_{false};       // FZ6; changed under mutex_
  std::thread thread_;
};

Freezer freezer;

}  // namespace

void start_freezing() { freezer.start(); }
void stop_freezing() { freezer.stop(); }

std::optional<Status> stand_still_for_others(Bytes name, uint64_t timeout_us,
                                             const engine::TableUsers::Forget& forget) {
  Step* const step = freezer.step_of(name);
  if (step == nullptr) return std::nullopt;
  return step->stand_still(timeout_us, forget);
}

Status wait_for_leave_to_change(THD* thd) {
  // What the server itself does while it starts goes on.
  const bool of_clients = mysqld_server_started || thd->slave_thread || thd->bootstrap;
  return of_clients ? freezer.wait_for_leave(thd) : ok_status();
}

}  // namespace strata::glue
