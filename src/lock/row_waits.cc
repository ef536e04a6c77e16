#include "lock/row_waits.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/clock.h"
#include "base/latch.h"
#include "lock/internal/exclusive_locks.h"
#include "lock/internal/exclusive_runs.h"
#include "lock/internal/range_locks.h"
#include "lock/internal/row_hash.h"
#include "lock/internal/shared_runs.h"

namespace strata {

using lock_internal::ExclusiveLocks;
using lock_internal::ExclusiveRuns;
using lock_internal::hash_row;
using lock_internal::QueueKind;
using lock_internal::RangeLocks;
using lock_internal::SharedRuns;

namespace {

constexpr size_t kBuckets = 4096;        // of queues; power of two
constexpr size_t kHolderHints = 4096;    // power of two
constexpr size_t kIndexCounters = 1024;  // power of two
constexpr size_t kSharedShards = 64;     // power of two
constexpr uint64_t kWaitUsMax = uint64_t{365} * 24 * 3600 * 1000000;

struct RowKey {  // an owned RowId
  IndexId index;
  std::string key;
  uint64_t hash = 0;
  [[nodiscard]] bool is(RowId row, uint64_t h) const noexcept {
    return hash == h && index == row.index && Bytes(key) == row.key;
  }
  [[nodiscard]] RowId row() const noexcept { return RowId{index, key}; }
};

uint64_t queue_hash(QueueKind kind, uint64_t row_hash) noexcept {
  return kind == QueueKind::kRow ? row_hash : mix64(row_hash + 1);
}

// State of a waiter: kQueued until exactly one of grant or deadlock removes it from its queue, or
// the waiter removes itself (timeout, interrupt).
enum class WaiterState : uint8_t { kQueued, kGranted, kVictim };

struct Queue;
struct Waiter {
  TrxId trx;
  WaiterState state = WaiterState::kQueued;
  bool upgrading = false;  // holds a shared lock on the row it waits for
  bool is_row = true;      // kSharedHolders: shared runs keep it waiting, too
  Queue* queue = nullptr;
  Waiter* next = nullptr;
  Waiter* prev = nullptr;
  uint64_t since_us = 0;
  CondVar wake;
};

// Waiters of one row. Exists while it has waiters or a retrier.
struct Queue {
  QueueKind kind = QueueKind::kRow;
  RowKey row;
  TrxId holder;   // whom the head waits for; the retrier itself while there is one
  TrxId retrier;  // woken head that has not settled yet, or zero
  Waiter* head = nullptr;
  Waiter* tail = nullptr;
  Queue* next_in_bucket = nullptr;

  void insert_before(Waiter* at, Waiter* w) noexcept {  // at == nullptr: at the end
    w->queue = this;
    w->next = at;
    w->prev = at == nullptr ? tail : at->prev;
    (w->prev == nullptr ? head : w->prev->next) = w;
    (at == nullptr ? tail : at->prev) = w;
  }
  void unlink(Waiter* w) noexcept {
    (w->prev == nullptr ? head : w->prev->next) = w->next;
    (w->next == nullptr ? tail : w->next->prev) = w->prev;
    w->next = w->prev = nullptr;
    w->queue = nullptr;
  }
};

}  // namespace

struct RowWaits::Impl {
  struct Bucket {
    std::atomic<uint32_t> queues{0};  // readable without the mutex
    Queue* first = nullptr;
  };
  struct SharedRow {
    RowKey row;
    std::vector<TrxId> holders;
  };
  struct RowShard {
    mutable Mutex mutex{LatchRank::kLockShard};
    std::unordered_multimap<uint64_t, SharedRow> rows STRATA_GUARDED_BY(mutex);  // by hash
  };
  struct HolderShard {
    Mutex mutex{LatchRank::kLockShard};
    std::unordered_map<TrxId, std::vector<RowKey>> held STRATA_GUARDED_BY(mutex);
  };

  // One mutex for queues and wait-for graph: it is taken only when somebody really waits.
  mutable Mutex mutex{LatchRank::kLockTable};
  std::array<Bucket, kBuckets> buckets;
  std::atomic<uint32_t> queues{0};  // in all of them; readable without the mutex
  std::unordered_map<TrxId, Waiter*> waiting
      STRATA_GUARDED_BY(mutex);  // each transaction waits once at most
  struct Elsewhere {             // a wait at the authority
    TrxId holder;                // zero: holders of shared locks
    RowId row;                   // the waiting thread's
    uint64_t since_us = 0;
  };
  std::unordered_map<TrxId, Elsewhere> elsewhere STRATA_GUARDED_BY(mutex);
  std::unordered_map<TrxId, std::vector<Queue*>> by_holder STRATA_GUARDED_BY(mutex);
  // Queues per hash of their holder. L4: a waiter adds to it and then looks at the holder's state;
  // an ending holder stores its state and then does a read-modify-write here. Whoever comes second
  // in the counter's modification order sees what the other did.
  std::array<std::atomic<uint32_t>, kHolderHints> holder_hints{};

  std::atomic<uint64_t> shared_total{0};
  std::array<std::atomic<uint32_t>, kIndexCounters> index_shared{};
  std::array<RowShard, kSharedShards> row_shards;
  std::array<HolderShard, kSharedShards> holder_shards;
  WaitListener* listener = nullptr;
  std::function<void*(TrxId)> owner_of;
  std::function<void(const DeadlockReport&)> deadlock_call;
  mutable std::atomic<uint32_t> reports{0};  // being made, under the mutex (L14)
  ExclusiveLocks exclusive;
  ExclusiveRuns runs;
  SharedRuns shared_runs;  // counted in index_shared, too: each of them
  RangeLocks ranges;       // counted in index_shared, too: once per holder and index

  static size_t hint_of(TrxId id) noexcept { return mix64(id.value) & (kHolderHints - 1); }
  Bucket& bucket_of(uint64_t hash) noexcept { return buckets[hash & (kBuckets - 1)]; }
  RowShard& row_shard(uint64_t hash) noexcept { return row_shards[(hash >> 16) % kSharedShards]; }
  HolderShard& holder_shard(TrxId id) noexcept {
    return holder_shards[mix64(id.value) % kSharedShards];
  }
  std::atomic<uint32_t>& index_counter(IndexId index) noexcept {
    return index_shared[index.value & (kIndexCounters - 1)];
  }

  // --- queues ---
  Queue* find(RowId row, uint64_t hash, QueueKind kind) noexcept STRATA_REQUIRES(mutex) {
    for (Queue* q = bucket_of(queue_hash(kind, hash)).first; q != nullptr; q = q->next_in_bucket)
      if (q->kind == kind && q->row.is(row, hash)) return q;
    return nullptr;
  }

  Queue* create(RowId row, uint64_t hash, QueueKind kind) STRATA_REQUIRES(mutex) {
    auto* q = new Queue;
    q->kind = kind;
    q->row = RowKey{row.index, std::string(row.key), hash};
    Bucket& b = bucket_of(queue_hash(kind, hash));
    q->next_in_bucket = b.first;
    b.first = q;
    b.queues.fetch_add(1, std::memory_order_acq_rel);
    queues.fetch_add(1, std::memory_order_acq_rel);
    return q;
  }

  void set_holder(Queue* q, TrxId holder) STRATA_REQUIRES(mutex) {
    if (q->holder == holder) return;
    if (!q->holder.is_zero()) {
      auto it = by_holder.find(q->holder);
      std::erase(it->second, q);
      if (it->second.empty()) by_holder.erase(it);
      holder_hints[hint_of(q->holder)].fetch_sub(1, std::memory_order_acq_rel);
    }
    q->holder = holder;
    if (!holder.is_zero()) {
      by_holder[holder].push_back(q);
      holder_hints[hint_of(holder)].fetch_add(1, std::memory_order_acq_rel);
    }
  }

  void erase_if_idle(Queue* q) STRATA_REQUIRES(mutex) {
    if (q->head != nullptr || !q->retrier.is_zero()) return;
    set_holder(q, TrxId{});
    Bucket& b = bucket_of(queue_hash(q->kind, q->row.hash));
    Queue** link = &b.first;
    while (*link != q) link = &(*link)->next_in_bucket;
    *link = q->next_in_bucket;
    b.queues.fetch_sub(1, std::memory_order_acq_rel);
    queues.fetch_sub(1, std::memory_order_acq_rel);
    delete q;
  }

  void leave(Waiter* w) STRATA_REQUIRES(mutex) {
    w->queue->unlink(w);
    waiting.erase(w->trx);
  }

  // The head may try again; until it settles it counts as the holder. Erases a queue without
  // waiters.
  void pass_turn(Queue* q) STRATA_REQUIRES(mutex) {
    q->retrier = TrxId{};
    Waiter* w = q->head;
    if (w == nullptr) return erase_if_idle(q);
    leave(w);
    q->retrier = w->trx;
    set_holder(q, w->trx);
    w->state = WaiterState::kGranted;
    w->wake.notify_all();
  }

  // A waiter leaves ungranted. If it was next in line, its successor's case may be different (a
  // shared request behind an exclusive one): it looks for itself.
  void give_up(Waiter* w) STRATA_REQUIRES(mutex) {
    Queue* q = w->queue;
    const bool was_head = q->head == w;
    leave(w);
    if (was_head && q->retrier.is_zero()) {
      pass_turn(q);
    } else {
      erase_if_idle(q);
    }
  }

  void enqueue(Queue* q, Waiter* w, bool again, bool upgrading) STRATA_REQUIRES(mutex) {
    w->upgrading = upgrading;
    Waiter* at = nullptr;
    if (upgrading || again) {
      at = q->head;
      // Who holds the shared lock already must come first: nobody ahead of it could ever be served.
      while (!upgrading && at != nullptr && at->upgrading) at = at->next;
    }
    q->insert_before(at, w);
    waiting.emplace(w->trx, w);
  }

  // --- deadlock detection (L3) ---
  // Whom does `trx` wait for? Its queue's holder, or every shared holder (of the row or of a range
  // around it) if that is one of them; and the head. The waiters between have no edges that these
  // two have not.
  void edges_of(TrxId trx, std::vector<TrxId>* out) STRATA_REQUIRES(mutex) {
    out->clear();
    const auto it = waiting.find(trx);
    if (it == waiting.end()) return;
    const Queue* q = it->second->queue;
    const auto is_edge = [&](const std::vector<TrxId>& list) {
      return std::find(list.begin(), list.end(), q->holder) != list.end();
    };
    const bool for_all = q->kind == QueueKind::kSharedHolders;
    {
      RowShard& shard = row_shard(q->row.hash);
      MutexLock lock(shard.mutex);
      const SharedRow* shared = find_shared(shard, q->row.row(), q->row.hash);
      if (shared != nullptr && (for_all || is_edge(shared->holders))) *out = shared->holders;
    }
    if (for_all && it->second->is_row) shared_runs.holders_of(q->row.row(), out);
    if (for_all) ranges.holders_of(q->row.index, q->row.key, out);
    if (!is_edge(*out)) out->push_back(q->holder);
    std::erase(*out, trx);
    if (q->head->trx != trx) out->push_back(q->head->trx);
  }

  // --- reports (L14, L15) ---
  void report_wait(const Waiter& w, TrxId holder) STRATA_REQUIRES(mutex) {
    if (holder.is_zero() || holder == w.trx) return;
    void* const waiter = owner_of(w.trx);
    if (listener->wants_reports(waiter)) listener->waits_for(waiter, owner_of(holder));
  }

  // `w` has just joined its queue.
  void report(const Waiter& w) STRATA_REQUIRES(mutex) {
    reports.fetch_add(1, std::memory_order_seq_cst);
    const Queue& q = *w.queue;
    if (listener->wants_reports(owner_of(w.trx))) {
      std::vector<TrxId> blockers;
      edges_of(w.trx, &blockers);
      for (const TrxId blocker : blockers) report_wait(w, blocker);
      for (const Waiter* before = q.head; before != &w; before = before->next)
        if (before != q.head) report_wait(w, before->trx);  // the head is an edge
    }
    for (const Waiter* behind = w.next; behind != nullptr; behind = behind->next) {
      report_wait(*behind, w.trx);
      if (q.head == &w) report_wait(*behind, q.holder);
    }
    reports.fetch_sub(1, std::memory_order_seq_cst);
  }

  // For people; L14 as in report().
  [[nodiscard]] RowWait describe(const Waiter& w, TrxId holder) const STRATA_REQUIRES(mutex) {
    return describe(w.trx, holder, w.queue->row.row(), w.since_us);
  }
  [[nodiscard]] RowWait describe(TrxId waiter, TrxId holder, RowId row, uint64_t since_us) const
      STRATA_REQUIRES(mutex) {
    RowWait out{.waiter = waiter,
                .holder = holder,
                .index = row.index,
                .key = std::string(row.key),
                .waited_us = monotonic_us() - since_us,
                .waiter_owner = {},
                .holder_owner = {}};
    add_owners(&out);
    return out;
  }
  void add_owners(RowWait* wait) const STRATA_REQUIRES(mutex) {
    if (listener == nullptr) return;
    reports.fetch_add(1, std::memory_order_seq_cst);
    if (void* const owner = owner_of(wait->waiter)) wait->waiter_owner = listener->describe(owner);
    void* const owner = wait->holder.is_zero() ? nullptr : owner_of(wait->holder);
    if (owner != nullptr) wait->holder_owner = listener->describe(owner);
    reports.fetch_sub(1, std::memory_order_seq_cst);
  }

  // L16, of the cycle that is the path's end from `first` on.
  template <typename Path>
  DeadlockReport describe_cycle(const Path& path, TrxId first, TrxId victim)
      STRATA_REQUIRES(mutex) {
    DeadlockReport report;
    report.victim = victim;
    bool inside = false;
    for (size_t i = 0; i < path.size(); ++i) {
      inside |= path[i].trx == first;
      if (!inside) continue;
      const TrxId next = i + 1 < path.size() ? path[i + 1].trx : first;
      report.waits.push_back(describe(*waiting.find(path[i].trx)->second, next));
    }
    return report;
  }

  // Of the cycle that is the path's end from `first` on.
  template <typename Path>
  TrxId victim_of(const Path& path, TrxId first, TrxId usual) STRATA_REQUIRES(mutex) {
    if (listener == nullptr) return usual;
    TrxId victim = usual;
    for (auto step = path.rbegin(); step != path.rend(); ++step) {
      if (listener->preferred_victim(owner_of(victim), owner_of(step->trx)) > 0) victim = step->trx;
      if (step->trx == first) break;
    }
    return victim;
  }

  // Depth first from `start`. Cycles that do not contain it (they arise when a queue's holder
  // changes under its waiters) lose a waiter of theirs here. Returns true if `start` itself is in a
  // cycle then.
  bool resolve_cycles(TrxId start, std::atomic<uint64_t>* deadlocks,
                      std::vector<DeadlockReport>* found) STRATA_REQUIRES(mutex) {
    struct Step {
      TrxId trx;
      std::vector<TrxId> edges;
      size_t next = 0;
    };
    for (;;) {
      bool start_in_cycle = false;
      std::erase_if(*found, [start](const DeadlockReport& r) { return r.victim == start; });
      TrxId victim;
      std::unordered_map<TrxId, bool> on_path;  // visited; true while on the path
      std::vector<Step> path;
      const auto enter = [&](TrxId trx) STRATA_REQUIRES(mutex) {
        on_path[trx] = true;
        path.push_back(Step{trx, {}, 0});
        edges_of(trx, &path.back().edges);
      };
      enter(start);
      while (!path.empty() && victim.is_zero()) {
        Step& step = path.back();
        if (step.next == step.edges.size()) {
          on_path[step.trx] = false;
          path.pop_back();
          continue;
        }
        const TrxId to = step.edges[step.next++];
        const auto seen = on_path.find(to);
        if (seen == on_path.end()) {
          enter(to);
        } else if (seen->second) {
          const TrxId loser = victim_of(path, to, to == start ? start : step.trx);
          if (deadlock_call) found->push_back(describe_cycle(path, to, loser));
          if (loser == start) {
            start_in_cycle = true;
          } else {
            victim = loser;
          }
        }
      }
      if (victim.is_zero()) return start_in_cycle;
      Waiter* w = waiting.find(victim)->second;
      w->state = WaiterState::kVictim;
      give_up(w);
      w->wake.notify_all();
      deadlocks->fetch_add(1, std::memory_order_relaxed);
    }
  }

  // --- shared locks; under the shard's mutex ---
  static SharedRow* find_shared(RowShard& shard, RowId row, uint64_t hash) noexcept
      STRATA_REQUIRES(shard.mutex) {
    const auto [first, last] = shard.rows.equal_range(hash);
    for (auto it = first; it != last; ++it)
      if (it->second.row.is(row, hash)) return &it->second;
    return nullptr;
  }

  bool holds_shared(TrxId trx, RowId row, uint64_t hash) {
    if (shared_total.load(std::memory_order_acquire) == 0) return false;
    RowShard& shard = row_shard(hash);
    MutexLock lock(shard.mutex);
    const SharedRow* shared = find_shared(shard, row, hash);
    return shared != nullptr &&
           std::find(shared->holders.begin(), shared->holders.end(), trx) != shared->holders.end();
  }

  // Reads of the row are protected for `trx`, by a lock on the row or on a range around it.
  bool protects(TrxId trx, RowId row, uint64_t hash) {
    return holds_shared(trx, row, hash) || ranges.settled(trx, row.index, row.key);
  }

  // Wakes who waits for `holder` at this row, and takes no turn away that `holder` itself may have
  // on it: lockers that register in vain would otherwise wake each other for ever.
  void let_waiters_look(TrxId holder, RowId row, uint64_t hash) {
    if (holder_hints[hint_of(holder)].fetch_add(0, std::memory_order_acq_rel) == 0) return;  // L4
    MutexLock lock(mutex);
    for (const QueueKind kind : {QueueKind::kRow, QueueKind::kSharedHolders}) {
      Queue* q = find(row, hash, kind);
      if (q != nullptr && q->holder == holder && q->retrier != holder) pass_turn(q);
    }
  }

  bool remove_shared_holder(TrxId holder, RowId row, uint64_t hash) {
    RowShard& shard = row_shard(hash);
    MutexLock lock(shard.mutex);
    const auto [first, last] = shard.rows.equal_range(hash);
    for (auto it = first; it != last; ++it) {
      if (!it->second.row.is(row, hash)) continue;
      if (std::erase(it->second.holders, holder) == 0) return false;
      if (it->second.holders.empty()) shard.rows.erase(it);
      index_counter(row.index).fetch_sub(1, std::memory_order_acq_rel);
      shared_total.fetch_sub(1, std::memory_order_acq_rel);
      return true;
    }
    return false;
  }
};

RowWaits::RowWaits(LockAuthority* authority)
    : authority_(authority), impl_(std::make_unique<Impl>()) {}

RowWaits::~RowWaits() {
  STRATA_ASSERT(impl_->waiting.empty());
  for (Impl::Bucket& b : impl_->buckets)
    for (Queue* q = b.first; q != nullptr;) delete std::exchange(q, q->next_in_bucket);
}

void RowWaits::set_listener(WaitListener* listener, std::function<void*(TrxId)> owner_of) {
  impl_->listener = listener;
  impl_->owner_of = std::move(owner_of);
}

void RowWaits::on_deadlock(std::function<void(const DeadlockReport&)> call) {
  impl_->deadlock_call = std::move(call);
  if (authority_ == nullptr) return;
  if (!impl_->deadlock_call) return authority_->on_deadlock(nullptr, nullptr);
  const auto add_owners = [impl = impl_.get()](DeadlockReport* report) {
    const MutexLock lock(impl->mutex);
    for (RowWait& wait : report->waits) impl->add_owners(&wait);
  };
  authority_->on_deadlock(add_owners, impl_->deadlock_call);
}

void RowWaits::with_owners(const std::function<void(WaitListener* listener)>& body) const {
  const MutexLock lock(impl_->mutex);
  impl_->reports.fetch_add(1, std::memory_order_seq_cst);
  body(impl_->listener);
  impl_->reports.fetch_sub(1, std::memory_order_seq_cst);
}

std::vector<RowWait> RowWaits::list_waits(size_t limit) const {
  std::vector<RowWait> out;
  const MutexLock lock(impl_->mutex);
  for (const auto& [trx, w] : impl_->waiting) {
    if (out.size() == limit) break;
    out.push_back(impl_->describe(*w, w->queue->holder));
  }
  for (const auto& [trx, wait] : impl_->elsewhere) {
    if (out.size() == limit) break;
    out.push_back(impl_->describe(trx, wait.holder, wait.row, wait.since_us));
  }
  return out;
}

void RowWaits::let_reports_end() noexcept {
  if (impl_->reports.load(std::memory_order_seq_cst) == 0) return;
  const MutexLock lock(impl_->mutex);
}

Status RowWaits::wait(TrxId waiter, TrxId holder, RowId row, uint64_t timeout_us,
                      WaitInterrupt* interrupt, const std::function<bool()>& still_held) {
  if (authority_ != nullptr)
    return with_authority(waiter, holder, row, timeout_us, [&] {
      return authority_->wait(waiter, holder, row, timeout_us, interrupt, still_held);
    });
  return wait_in(QueueKind::kRow, waiter, holder, row, true, timeout_us, interrupt, still_held);
}

// Counts the wait, lists it, and tells the listener of it.
template <typename Wait>
Status RowWaits::with_authority(TrxId waiter, TrxId holder, RowId row, uint64_t timeout_us,
                                const Wait& wait) {
  WaitListener* const listener = timeout_us == 0 ? nullptr : impl_->listener;
  void* const owner = listener == nullptr ? nullptr : impl_->owner_of(waiter);
  const uint64_t start_us = monotonic_us();
  if (listener != nullptr) listener->wait_begins(owner);
  if (timeout_us != 0) {
    const MutexLock lock(impl_->mutex);
    impl_->elsewhere[waiter] = {holder, row, start_us};
  }
  Status result = wait();
  if (timeout_us != 0) {
    const MutexLock lock(impl_->mutex);
    impl_->elsewhere.erase(waiter);
  }
  if (listener != nullptr) listener->wait_ends(owner);
  counters_.waits.fetch_add(1, std::memory_order_relaxed);
  counters_.wait_us.fetch_add(monotonic_us() - start_us, std::memory_order_relaxed);
  if (is_deadlock(result)) counters_.deadlocks.fetch_add(1, std::memory_order_relaxed);
  if (is_lock_wait_timeout(result)) counters_.timeouts.fetch_add(1, std::memory_order_relaxed);
  return result;
}

Status RowWaits::wait_for_shared(TrxId waiter, RowId row, uint64_t timeout_us,
                                 WaitInterrupt* interrupt, bool is_row) {
  if (authority_ != nullptr)
    return with_authority(waiter, TrxId{}, row, timeout_us, [&] {
      return authority_->wait_for_shared(waiter, row, timeout_us, interrupt);
    });
  const uint64_t start_us = monotonic_us();
  uint64_t left_us = timeout_us;
  for (;;) {
    const TrxId holder = shared_conflict(waiter, row, is_row);
    if (holder.is_zero()) return ok_status();
    STRATA_RETURN_IF_ERROR(wait_in(QueueKind::kSharedHolders, waiter, holder, row, is_row, left_us,
                                   interrupt,
                                   [&] { return shared_conflict(waiter, row, is_row) == holder; }));
    settle_in(QueueKind::kSharedHolders, waiter, row, TrxId{});
    const uint64_t passed_us = monotonic_us() - start_us;
    left_us = passed_us < timeout_us ? timeout_us - passed_us : 0;
  }
}

Status RowWaits::wait_in(QueueKind kind, TrxId waiter, TrxId holder, RowId row, bool is_row,
                         uint64_t timeout_us, WaitInterrupt* interrupt,
                         const std::function<bool()>& still_held) {
  const uint64_t hash = hash_row(row);
  const uint64_t start_us = monotonic_us();
  const uint64_t deadline_us = start_us + std::min(timeout_us, kWaitUsMax);
  Waiter w;
  w.trx = waiter;
  w.since_us = start_us;
  w.is_row = is_row;

  // Unregisters last, after the queue mutex was given back (lock order).
  CondVarSleep alarm(&impl_->mutex, &w.wake);
  const WaitInterrupt::Asleep asleep(interrupt, &alarm);

  // Tells the listener last, too.
  struct Told {
    WaitListener* listener;
    void* owner;
    ~Told() {
      if (listener != nullptr) listener->wait_ends(owner);
    }
  } told{timeout_us == 0 ? nullptr : impl_->listener, nullptr};
  if (told.listener != nullptr) {
    told.owner = impl_->owner_of(waiter);
    told.listener->wait_begins(told.owner);
  }

  // And of deadlocks.
  struct Found {
    const std::function<void(const DeadlockReport&)>* call;
    std::vector<DeadlockReport> reports;
    ~Found() {
      for (const DeadlockReport& report : reports) (*call)(report);
    }
  } found{&impl_->deadlock_call, {}};

  MutexLock lock(impl_->mutex);
  Queue* q = impl_->find(row, hash, kind);
  const bool again = q != nullptr && q->retrier == waiter;
  const bool upgrading =
      kind == QueueKind::kRow && q != nullptr &&
      (impl_->protects(waiter, row, hash) || impl_->shared_runs.holds(waiter, row));
  // A shared holder need not queue for a row nobody else keeps from it.
  if (upgrading && !again && !still_held()) return ok_status();
  if (timeout_us == 0) {
    const bool free = (q == nullptr || again) && !still_held();
    if (again && !free) impl_->pass_turn(q);
    if (free) return ok_status();
    counters_.timeouts.fetch_add(1, std::memory_order_relaxed);
    return error_lock_wait_timeout();
  }
  if (q == nullptr) q = impl_->create(row, hash, kind);
  if (again) q->retrier = TrxId{};
  impl_->enqueue(q, &w, again, upgrading);
  if (q->head == &w && q->retrier.is_zero()) {
    impl_->set_holder(q, holder);
    if (!still_held()) {  // L4
      impl_->pass_turn(q);
      // Nobody else is interested: no turn to settle.
      if (q->head == nullptr) {
        q->retrier = TrxId{};
        impl_->erase_if_idle(q);
      }
      return ok_status();
    }
  } else if (again) {
    impl_->pass_turn(q);  // gave its turn up to one that must come first
  }
  if (w.state == WaiterState::kQueued && impl_->listener != nullptr) impl_->report(w);
  if (w.state == WaiterState::kQueued &&
      impl_->resolve_cycles(waiter, &counters_.deadlocks, &found.reports)) {
    counters_.deadlocks.fetch_add(1, std::memory_order_relaxed);
    impl_->give_up(&w);
    return error_deadlock();
  }

  counters_.waits.fetch_add(1, std::memory_order_relaxed);
  Status result;
  while (w.state == WaiterState::kQueued) {
    const uint64_t now_us = monotonic_us();
    if (is_interrupted_now(interrupt)) {
      result = error_interrupted();
    } else if (now_us >= deadline_us) {
      counters_.timeouts.fetch_add(1, std::memory_order_relaxed);
      result = error_lock_wait_timeout();
    }
    if (!result.ok()) {
      impl_->give_up(&w);
      break;
    }
    w.wake.wait_for_us(lock, deadline_us - now_us);
  }
  if (w.state == WaiterState::kVictim) result = error_deadlock();
  counters_.wait_us.fetch_add(monotonic_us() - start_us, std::memory_order_relaxed);
  return result;
}

bool RowWaits::has_waiters(RowId row) const noexcept {
  if (authority_ != nullptr) return authority_->has_waiters(row);
  if (impl_->queues.load(std::memory_order_acquire) == 0) return false;
  const uint64_t hash = hash_row(row);
  if (impl_->bucket_of(hash).queues.load(std::memory_order_acquire) == 0) return false;
  MutexLock lock(impl_->mutex);
  return impl_->find(row, hash, QueueKind::kRow) != nullptr;
}

void RowWaits::settled(TrxId waiter, RowId row, TrxId holder) {
  if (authority_ != nullptr) return authority_->settled(waiter, row, holder);
  settle_in(QueueKind::kRow, waiter, row, holder);
}

void RowWaits::settle_in(QueueKind kind, TrxId waiter, RowId row, TrxId holder) {
  const uint64_t hash = hash_row(row);
  const Impl::Bucket& bucket = impl_->bucket_of(queue_hash(kind, hash));
  if (bucket.queues.load(std::memory_order_acquire) == 0) return;
  MutexLock lock(impl_->mutex);
  Queue* q = impl_->find(row, hash, kind);
  if (q == nullptr) return;
  const bool had_turn = q->retrier == waiter;
  if (holder == waiter) {
    if (had_turn) q->retrier = TrxId{};
    if (q->retrier.is_zero()) impl_->set_holder(q, waiter);
    impl_->erase_if_idle(q);
  } else if (had_turn) {
    // Another holder may end at any moment without seeing this queue: the next head checks for
    // itself.
    impl_->pass_turn(q);
  }
}

void RowWaits::holder_ended(TrxId holder) {
  if (authority_ != nullptr) {
    authority_->holder_ended(holder);
    return let_reports_end();
  }
  // L4: a read-modify-write, see holder_hints.
  if (impl_->holder_hints[Impl::hint_of(holder)].fetch_add(0, std::memory_order_acq_rel) == 0)
    return let_reports_end();
  MutexLock lock(impl_->mutex);
  const auto it = impl_->by_holder.find(holder);
  if (it == impl_->by_holder.end()) return;
  const std::vector<Queue*> queues = it->second;  // pass_turn changes the original
  for (Queue* q : queues) impl_->pass_turn(q);
}

TrxId RowWaits::add_exclusive(HeldRows* held, TrxId holder, RowId row, Cts written) {
  STRATA_ASSERT(authority_ == nullptr);
  // A run cannot come meanwhile: it needs the leaf exclusively.
  if (impl_->runs.any_in(row.index)) {
    const TrxId before = exclusive_holder(row, written);
    if (!before.is_zero()) return before;
  }
  return impl_->exclusive.add(held, holder, row, hash_row(row));
}

TrxId RowWaits::exclusive_holder(RowId row, Cts written) const noexcept {
  if (impl_->exclusive.any_in(row.index)) {
    const TrxId holder = impl_->exclusive.holder_of(row, hash_row(row));
    if (!holder.is_zero()) return holder;
  }
  return impl_->runs.any_in(row.index) ? impl_->runs.holder_of(row, written) : TrxId{};
}

void RowWaits::drop_exclusive(HeldRows* held, TrxId holder, RowId row) {
  const uint64_t hash = hash_row(row);
  if (impl_->exclusive.drop(held, row, hash)) impl_->let_waiters_look(holder, row, hash);
}

void RowWaits::forget_changed(HeldRows* held, RowId row) {
  if (held->size() != 0) impl_->exclusive.drop_last(held, row, hash_row(row));
}

void RowWaits::release_exclusive(HeldRows* held) {
  impl_->exclusive.release(held);
  if (held->run_count() != 0) impl_->runs.release(held);
  if (held->shared_run_count() == 0) return;
  impl_->shared_runs.release(held, [this](IndexId index) {
    impl_->index_counter(index).fetch_sub(1, std::memory_order_acq_rel);
  });
}

RowWaits::Run RowWaits::add_run(HeldRows* held, TrxId holder, IndexId index, Bytes low, Bytes high,
                                Cts now) {
  Run run;
  if (authority_ != nullptr) return run;
  bool had = false;
  run.taken = impl_->runs.add(held, holder, index, low, high, now, &had);
  run.held = had || run.taken != nullptr;
  return run;
}

RowWaits::Run RowWaits::add_shared_run(HeldRows* held, TrxId holder, IndexId index, Bytes low,
                                       Bytes high) {
  Run run;
  if (authority_ != nullptr) return run;
  bool had = false;
  run.taken = impl_->shared_runs.add(held, holder, index, low, high, &had);
  run.held = had || run.taken != nullptr;
  if (run.taken != nullptr) impl_->index_counter(index).fetch_add(1, std::memory_order_seq_cst);
  return run;
}

bool RowWaits::shared_run_holds(TrxId holder, RowId row) const {
  return impl_->shared_runs.any_in(row.index) && impl_->shared_runs.holds(holder, row);
}

bool RowWaits::extend_run(lock_internal::HeldRun* run, Bytes high, Cts now) {
  return run->shared ? impl_->shared_runs.extend(run, high) : impl_->runs.extend(run, high, now);
}

void RowWaits::drop_run(HeldRows* held, lock_internal::HeldRun* run) {
  const TrxId holder = run->holder;
  if (run->shared) {
    const IndexId index = run->index;
    impl_->shared_runs.drop(held, run);
    impl_->index_counter(index).fetch_sub(1, std::memory_order_acq_rel);
  } else {
    impl_->runs.drop(held, run);
  }
  holder_ended(holder);
}

void RowWaits::trim_run(lock_internal::HeldRun* run, Bytes high) {
  if (run->shared)
    impl_->shared_runs.trim(run, high);
  else
    impl_->runs.trim(run, high);
  holder_ended(run->holder);  // who waits for one of the rows looks again
}

void RowWaits::add_shared(TrxId holder, RowId row) {
  if (authority_ != nullptr) return authority_->add_shared(holder, row);
  const uint64_t hash = hash_row(row);
  {
    Impl::RowShard& shard = impl_->row_shard(hash);
    MutexLock lock(shard.mutex);
    Impl::SharedRow* shared = Impl::find_shared(shard, row, hash);
    if (shared == nullptr) {
      Impl::SharedRow fresh{RowKey{row.index, std::string(row.key), hash}, {}};
      shared = &shard.rows.emplace(hash, std::move(fresh))->second;
    } else if (std::find(shared->holders.begin(), shared->holders.end(), holder) !=
               shared->holders.end()) {
      return;
    }
    shared->holders.push_back(holder);
    impl_->index_counter(row.index).fetch_add(1, std::memory_order_seq_cst);
    impl_->shared_total.fetch_add(1, std::memory_order_acq_rel);
  }
  Impl::HolderShard& shard = impl_->holder_shard(holder);
  MutexLock lock(shard.mutex);
  shard.held[holder].push_back(RowKey{row.index, std::string(row.key), hash});
}

bool RowWaits::index_has_shared(IndexId index) const noexcept {
  if (authority_ != nullptr) return authority_->index_has_shared(index);
  return impl_->index_counter(index).load(std::memory_order_seq_cst) != 0;
}

TrxId RowWaits::shared_conflict(TrxId self, RowId row, bool is_row) const {
  if (authority_ != nullptr) return authority_->shared_conflict(self, row);
  if (is_row && impl_->shared_runs.any_in(row.index)) {
    const TrxId holder = impl_->shared_runs.conflict(self, row);
    if (!holder.is_zero()) return holder;
  }
  const uint64_t hash = hash_row(row);
  Impl::RowShard& shard = impl_->row_shard(hash);
  MutexLock lock(shard.mutex);
  const Impl::SharedRow* shared = Impl::find_shared(shard, row, hash);
  if (shared != nullptr) {
    for (TrxId holder : shared->holders)
      if (holder != self) return holder;
  }
  lock.unlock();
  return impl_->ranges.conflict(self, row.index, row.key);
}

bool RowWaits::holds_shared(TrxId holder, RowId row) const {
  if (authority_ != nullptr) return authority_->holds_shared(holder, row);
  return impl_->holds_shared(holder, row, hash_row(row));
}

void RowWaits::drop_shared(TrxId holder, RowId row) {
  if (authority_ != nullptr) return authority_->drop_shared(holder, row);
  const uint64_t hash = hash_row(row);
  if (!impl_->remove_shared_holder(holder, row, hash)) return;
  {
    Impl::HolderShard& shard = impl_->holder_shard(holder);
    MutexLock lock(shard.mutex);
    const auto it = shard.held.find(holder);
    STRATA_ASSERT(it != shard.held.end());
    std::erase_if(it->second, [&](const RowKey& k) { return k.is(row, hash); });
    if (it->second.empty()) shard.held.erase(it);
  }
  impl_->let_waiters_look(holder, row, hash);
}

bool RowWaits::add_range(TrxId holder, IndexId index, const KeyRange& range) {
  if (authority_ != nullptr) return authority_->add_range(holder, index, range);
  const RangeLocks::Added added = impl_->ranges.add(holder, index, range);
  if (added.first) impl_->index_counter(index).fetch_add(1, std::memory_order_seq_cst);
  return added.grew;
}

void RowWaits::settle_range(TrxId holder, IndexId index, const KeyRange& range) {
  if (authority_ != nullptr) return authority_->settle_range(holder, index, range);
  impl_->ranges.settle(holder, index, range);
}

bool RowWaits::range_settled(TrxId holder, IndexId index, const KeyRange& range) const {
  if (authority_ != nullptr) return authority_->range_settled(holder, index, range);
  return impl_->ranges.settled(holder, index, range);
}

bool RowWaits::protects(TrxId holder, RowId row) const {
  if (authority_ != nullptr) return authority_->protects(holder, row);
  return impl_->protects(holder, row, hash_row(row));
}

void RowWaits::drop_range_key(TrxId holder, RowId row) {
  if (authority_ != nullptr) return authority_->drop_range_key(holder, row);
  impl_->ranges.drop_key(holder, row.index, row.key);
  impl_->let_waiters_look(holder, row, hash_row(row));
}

void RowWaits::release_shared(TrxId holder) {
  if (authority_ != nullptr) return authority_->release_shared(holder);
  for (const IndexId index : impl_->ranges.release(holder))
    impl_->index_counter(index).fetch_sub(1, std::memory_order_acq_rel);
  if (impl_->shared_total.load(std::memory_order_acquire) == 0) return;
  std::vector<RowKey> rows;
  {
    Impl::HolderShard& shard = impl_->holder_shard(holder);
    MutexLock lock(shard.mutex);
    const auto it = shard.held.find(holder);
    if (it == shard.held.end()) return;
    rows = std::move(it->second);
    shard.held.erase(it);
  }
  for (const RowKey& k : rows) impl_->remove_shared_holder(holder, k.row(), k.hash);
}

std::string RowWaits::describe(size_t limit) const {
  if (authority_ != nullptr) return authority_->describe(limit);
  std::string out;
  MutexLock lock(impl_->mutex);
  const uint64_t now_us = monotonic_us();
  size_t shown = 0;
  for (const auto& [trx, w] : impl_->waiting) {
    if (shown++ == limit) break;
    const Queue* q = w->queue;
    out += "trx " + std::to_string(trx.value) + " waits " +
           std::to_string((now_us - w->since_us) / 1000) + " ms for trx " +
           std::to_string(q->holder.value) + ", index " + std::to_string(q->row.index.value) +
           ", key ";
    constexpr char kHex[] = "0123456789abcdef";
    const size_t shown_bytes = std::min<size_t>(q->row.key.size(), 32);
    for (size_t i = 0; i < shown_bytes; ++i) {
      const auto byte = static_cast<uint8_t>(q->row.key[i]);
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
    out += shown_bytes < q->row.key.size() ? "...\n" : "\n";
  }
  return out;
}

}  // namespace strata
