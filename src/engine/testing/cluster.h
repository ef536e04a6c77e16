// Several kernels in one process on the same database, each with its own log and undo space, and
// what a cluster's services are for them: one object each, called directly. Everything here blocks
// and is thread-safe, so the kernels run at once.
//
// A page is in one pool at a time, or in several that only read it. Who wants it otherwise takes
// it from the others: they write its log and the page itself first (PL2). A node that has crashed
// keeps the pages it had exclusively until it has redone its log (PL3); who wants one waits. Those
// it only read are anybody's at once.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "bufpool/page_lock.h"
#include "engine/internal/kernel_impl.h"
#include "engine/testing/merged_logs.h"
#include "engine/testing/test_database.h"
#include "lock/testing/shared_locks.h"
#include "pagefile/local_page_source.h"

namespace strata::engine::testing {

constexpr uint8_t kNodesMax = 8;  // numbered from 1 on

class SharedClock : public TimestampSource {
 public:
  StatusOr<Cts> next() override { return Cts{last_.fetch_add(1) + 1}; }
  StatusOr<Cts> current() override { return Cts{last_.load()}; }
  Status raise_to(Cts at_least) override {
    uint64_t last = last_.load();
    while (last < at_least.value && !last_.compare_exchange_weak(last, at_least.value)) {
    }
    return ok_status();
  }

 private:
  std::atomic<uint64_t> last_{1};
};

// The page locks of all nodes. Whoever wants a page takes it from its holders on its own thread.
class PageLocks {
 public:
  class Client : public PageLock {
   public:
    Client(PageLocks* locks, uint8_t node) : locks_(locks), node_(node) {}
    Status acquire(PageId id, LatchMode mode, Llsn* newest) override {
      *newest = Llsn{};
      return locks_->acquire(node_, id, mode);
    }
    Status try_acquire(PageId id, LatchMode mode, Llsn* newest) override {
      *newest = Llsn{};
      return locks_->try_acquire(node_, id, mode);
    }
    [[nodiscard]] bool seems_held(PageId id, LatchMode mode) const noexcept override {
      return locks_->seems_held(node_, id, mode);
    }
    void forget(PageId id) override { locks_->forget(node_, id); }
    bool needs_redo(PageId id) override { return locks_->holds_exclusively(node_, id); }
    void serve(BufferPool* pool) override { locks_->serve(node_, pool); }

   private:
    PageLocks* const locks_;
    const uint8_t node_;
  };

  // After its pool has gone.
  void node_crashed(uint8_t node) {
    const std::lock_guard lock(mutex_);
    for (auto& [id, entry] : entries_)
      if (!entry.exclusive) entry.holders &= ~bit(node);
    changed_.notify_all();
  }
  // It has written everything back.
  void node_ended(uint8_t node) {
    const std::lock_guard lock(mutex_);
    for (auto& [id, entry] : entries_) entry.holders &= ~bit(node);
    changed_.notify_all();
  }
  [[nodiscard]] uint64_t transfers() const noexcept { return transfers_.load(); }

 private:
  struct Entry {
    uint32_t holders = 0;  // by node
    bool exclusive = false;
    bool moving = false;  // one thread takes it from its holders
  };
  struct Node {
    BufferPool* pool = nullptr;  // while it serves
    uint32_t busy = 0;           // pages being taken from it
  };
  static constexpr uint32_t bit(uint8_t node) noexcept { return 1u << node; }

  // Whether `node` has or gets the page without anybody else's doing.
  static bool grant(Entry* entry, uint8_t node, LatchMode mode) noexcept {
    if (entry->moving) return false;
    const uint32_t others = entry->holders & ~bit(node);
    const bool exclusive = mode == LatchMode::kExclusive;
    if (others != 0 && (exclusive || entry->exclusive)) return false;
    // What it holds exclusively it keeps so: the page may have been changed.
    const bool had_exclusive = entry->exclusive && entry->holders == bit(node);
    entry->exclusive = exclusive || had_exclusive;
    entry->holders |= bit(node);
    return true;
  }
  Status acquire(uint8_t node, PageId id, LatchMode mode) {
    std::unique_lock lock(mutex_);
    for (;;) {
      Entry& entry = entries_[id];  // stays where it is
      if (grant(&entry, node, mode)) return ok_status();
      const uint32_t others = entry.holders & ~bit(node);
      bool all_serve = true;
      for (uint8_t other = 1; other < kNodesMax; ++other)
        if ((others & bit(other)) != 0 && nodes_[other].pool == nullptr) all_serve = false;
      if (entry.moving || !all_serve) {
        changed_.wait(lock);
        continue;
      }
      entry.moving = true;
      Status status;
      for (uint8_t other = 1; other < kNodesMax && status.ok(); ++other) {
        if ((others & bit(other)) == 0) continue;
        BufferPool* const pool = nodes_[other].pool;
        if (pool == nullptr) break;  // it went meanwhile: look again
        ++nodes_[other].busy;
        lock.unlock();
        status = pool->surrender(id);
        transfers_.fetch_add(1);
        lock.lock();
        --nodes_[other].busy;
        if (status.ok()) entry.holders &= ~bit(other);
      }
      if (entry.holders == 0) entry.exclusive = false;
      entry.moving = false;
      changed_.notify_all();
      if (!status.ok()) return status;
    }
  }
  Status try_acquire(uint8_t node, PageId id, LatchMode mode) {
    const std::lock_guard lock(mutex_);
    return grant(&entries_[id], node, mode) ? ok_status() : error_peer_down();
  }
  void forget(uint8_t node, PageId id) {
    const std::lock_guard lock(mutex_);
    entries_[id].holders &= ~bit(node);
    changed_.notify_all();
  }
  bool seems_held(uint8_t node, PageId id, LatchMode mode) {
    const std::lock_guard lock(mutex_);
    const Entry& entry = entries_[id];
    return !entry.moving && (entry.holders & bit(node)) != 0 &&
           (entry.exclusive || mode == LatchMode::kShared);
  }
  bool holds_exclusively(uint8_t node, PageId id) {
    const std::lock_guard lock(mutex_);
    const Entry& entry = entries_[id];
    return entry.exclusive && (entry.holders & bit(node)) != 0;
  }
  void serve(uint8_t node, BufferPool* pool) {
    std::unique_lock lock(mutex_);
    nodes_[node].pool = pool;
    changed_.notify_all();
    if (pool == nullptr) changed_.wait(lock, [&] { return nodes_[node].busy == 0; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<PageId, Entry> entries_;
  Node nodes_[kNodesMax];
  std::atomic<uint64_t> transfers_{0};
};

// Asks every node that has joined. What a node has heard is its own: as old as its last heartbeat.
class SharedHorizon {
 public:
  class Client : public ViewHorizon {
   public:
    explicit Client(SharedHorizon* horizon) : horizon_(horizon) {}
    Status join(NodeId node, const OwnViews* views) override {
      const std::lock_guard lock(horizon_->mutex_);
      horizon_->nodes_[node.value] = views;
      known_.store(horizon_->least_);
      return ok_status();
    }
    void leave(NodeId node) noexcept override {
      const std::lock_guard lock(horizon_->mutex_);
      horizon_->nodes_.erase(node.value);
    }
    [[nodiscard]] Cts known() const noexcept override { return Cts{known_.load()}; }
    StatusOr<Cts> newest() override {
      const std::lock_guard lock(horizon_->mutex_);
      return Cts{horizon_->least_};
    }
    void hear() {
      const std::lock_guard lock(horizon_->mutex_);
      horizon_->ask_all();
      known_.store(horizon_->least_);
    }

   private:
    SharedHorizon* const horizon_;
    std::atomic<uint64_t> known_{1};
  };

 private:
  void ask_all() {
    uint64_t least = UINT64_MAX;
    for (const auto& [node, views] : nodes_)
      least = std::min(least, views->oldest_own_view().value);
    if (!nodes_.empty()) least_ = std::max(least_, least);  // MW1
  }
  std::mutex mutex_;
  std::map<uint8_t, const OwnViews*> nodes_;
  uint64_t least_ = 1;  // what anybody has been told is not newer (MW2)
};

// Asks the node whose transaction it is. What was heard of its bound is as old as the heartbeat.
class SharedTransactions {
 public:
  class Client : public TitSource {
   public:
    explicit Client(SharedTransactions* all) : all_(all) {}
    Status join(NodeId node, OwnTransactions* own) override {
      const std::unique_lock lock(all_->mutex_);
      all_->nodes_[node.value] = own;
      return ok_status();
    }
    void leave(NodeId node) noexcept override {
      const std::unique_lock lock(all_->mutex_);  // nobody is asking it
      all_->nodes_.erase(node.value);
    }
    StatusOr<TrxLookup> read(TrxId id) override {
      reads_.fetch_add(1);
      return all_->ask(id, [&](OwnTransactions* own) { return own->own_state(sequence_of(id)); });
    }
    StatusOr<TrxLookup> wait_decided(TrxId id) override {
      return all_->ask(id, [&](OwnTransactions* own) { return own->own_outcome(sequence_of(id)); });
    }
    void hear() {
      const std::shared_lock lock(all_->mutex_);
      for (const auto& [node, own] : all_->nodes_) raise_bound(NodeId{node}, own->own_bound());
    }
    [[nodiscard]] uint64_t reads() const noexcept { return reads_.load(); }

   private:
    SharedTransactions* const all_;
    std::atomic<uint64_t> reads_{0};
  };

 private:
  template <typename Ask>
  StatusOr<TrxLookup> ask(TrxId id, const Ask& ask) {
    const std::shared_lock lock(mutex_);
    const auto it = nodes_.find(node_of(id).value);
    if (it == nodes_.end()) return error_not_found();
    return ask(it->second);
  }
  std::shared_mutex mutex_;
  std::map<uint8_t, OwnTransactions*> nodes_;
};

// A round asks the others for their marks at once.
class SharedReuse {
 public:
  class Client : public PageReuse {
   public:
    Client(SharedReuse* all, uint8_t node) : all_(all), node_(node) {}
    Status join(NodeId node, OwnOperations* own) override {
      const std::lock_guard lock(all_->mutex_);
      all_->nodes_[node.value] = Node{own, ++all_->lives_};
      return ok_status();
    }
    void leave(NodeId node) noexcept override {
      const std::lock_guard lock(all_->mutex_);
      all_->nodes_.erase(node.value);
    }
    StatusOr<uint64_t> begin_round() override {
      const std::lock_guard lock(all_->mutex_);
      Round round;
      for (const auto& [node, there] : all_->nodes_)
        if (node != node_) round[node] = {there.life, there.own->mark()};
      rounds_.push_back(std::move(round));
      return rounds_.size() - 1;
    }
    StatusOr<bool> round_ended(uint64_t number) override {
      const std::lock_guard lock(all_->mutex_);
      for (const auto& [node, asked] : rounds_[number]) {
        const auto it = all_->nodes_.find(node);
        if (it == all_->nodes_.end() || it->second.life != asked.first) continue;  // MW14
        if (!it->second.own->ended(asked.second)) return false;
      }
      return true;
    }

   private:
    using Round = std::map<uint8_t, std::pair<uint64_t, uint64_t>>;  // node -> life, mark
    SharedReuse* const all_;
    const uint8_t node_;
    std::vector<Round> rounds_;
  };

 private:
  struct Node {
    OwnOperations* own = nullptr;
    uint64_t life = 0;
  };
  std::mutex mutex_;
  std::map<uint8_t, Node> nodes_;
  uint64_t lives_ = 0;
};

// Locks on names. Whoever wants one asks the others to give it up on its own thread; an exclusive
// one that is waited for keeps others from coming in. A node that is away keeps what it had, and is
// waited for, until its next life has recovered (MW23), or has_ended().
class SharedSchema : public SchemaChanges {
 public:
  Status join(NodeId node, SchemaUser* user) override {
    const std::lock_guard lock(mutex_);
    for (auto& [name, entry] : names_)
      entry.holders.erase(node.value);  // its life before used them
    users_[node.value] = user;
    return ok_status();
  }
  Status has_recovered(NodeId node) override {
    const std::lock_guard lock(mutex_);
    away_.erase(node.value);
    for (auto& [name, entry] : names_)
      if (entry.exclusive == node.value) entry.exclusive = 0;
    changed_.notify_all();
    return ok_status();
  }
  void leave(NodeId node) noexcept override {
    std::unique_lock lock(mutex_);
    users_.erase(node.value);
    away_.insert(node.value);
    changed_.notify_all();
    changed_.wait(lock, [this] { return asking_ == 0; });
  }
  void has_ended(uint8_t node) {
    const std::lock_guard lock(mutex_);
    give_back(node);
  }
  Status use(NodeId node, Bytes name, uint64_t timeout_us, WaitInterrupt* interrupt) override {
    std::unique_lock lock(mutex_);
    Entry& entry = names_[std::string(name)];
    const uint64_t deadline_us = monotonic_us() + timeout_us;
    const auto free = [&] {
      return entry.asked != node.value && (entry.exclusive == 0 || entry.exclusive == node.value) &&
             (entry.waiting == 0 || entry.holders.contains(node.value));
    };
    while (!free()) STRATA_RETURN_IF_ERROR(wait(&lock, deadline_us, interrupt));
    entry.holders.insert(node.value);
    return ok_status();
  }
  Status lock(NodeId node, Bytes name, uint64_t timeout_us, WaitInterrupt* interrupt) override {
    std::unique_lock lock(mutex_);
    Entry& entry = names_[std::string(name)];
    const uint64_t deadline_us = monotonic_us() + timeout_us;
    ++entry.waiting;
    Status status;
    while (status.ok()) {
      // One at a time asks for a name; of this node's own sessions there may be several.
      const bool inherited = entry.exclusive == node.value && away_.contains(node.value);  // MW23
      if ((entry.exclusive != 0 && !inherited) || entry.asked != 0) {
        status = wait(&lock, deadline_us, interrupt);
        continue;
      }
      uint8_t other = 0;
      for (const uint8_t holder : entry.holders)
        if (holder != node.value) other = holder;
      if (other == 0) {
        entry.holders.insert(node.value);
        entry.exclusive = node.value;
        break;
      }
      if (!users_.contains(other)) {
        status = wait(&lock, deadline_us, interrupt);
        continue;
      }
      entry.asked = other;
      ++asking_;
      SchemaUser* const user = users_[other];
      lock.unlock();
      const uint64_t now_us = monotonic_us();
      const uint64_t left_us = now_us < deadline_us ? deadline_us - now_us : 0;
      const Status gone = user->give_up(name, std::min<uint64_t>(left_us, 20'000));
      lock.lock();
      entry.asked = 0;
      --asking_;
      if (gone.ok()) entry.holders.erase(other);
      changed_.notify_all();
      if (!gone.ok() && monotonic_us() >= deadline_us) status = error_lock_wait_timeout();
      if (is_interrupted_now(interrupt)) status = error_interrupted();
    }
    --entry.waiting;
    changed_.notify_all();
    return status;
  }
  // One node at a time, which is less than what is promised.
  Status share(NodeId node, Bytes name, uint64_t timeout_us, WaitInterrupt* interrupt) override {
    return lock(node, name, timeout_us, interrupt);
  }
  void unlock(NodeId node, Bytes name) noexcept override {
    const std::lock_guard lock(mutex_);
    names_[std::string(name)].exclusive = 0;
    changed_.notify_all();
  }
  Status space_dropped(NodeId node, SpaceId space) override {
    std::vector<SchemaUser*> others;
    {
      const std::lock_guard lock(mutex_);
      if (!away_.empty()) return error_peer_down("a node is away");
      for (const auto& [other, user] : users_)
        if (other != node.value) others.push_back(user);
      ++asking_;
    }
    Status status;
    for (SchemaUser* const user : others)
      if (status.ok()) status = user->leave_space(space);
    const std::lock_guard lock(mutex_);
    --asking_;
    changed_.notify_all();
    return status;
  }

 private:
  struct Entry {
    std::set<uint8_t> holders;  // of `use`
    uint8_t exclusive = 0;
    uint32_t waiting = 0;  // for an exclusive lock
    uint8_t asked = 0;     // who is being asked to give it up
  };
  void give_back(uint8_t node) {
    away_.erase(node);
    for (auto& [name, entry] : names_) {
      entry.holders.erase(node);
      if (entry.exclusive == node) entry.exclusive = 0;
    }
    changed_.notify_all();
  }
  Status wait(std::unique_lock<std::mutex>* lock, uint64_t deadline_us, WaitInterrupt* interrupt) {
    const uint64_t now_us = monotonic_us();
    if (is_interrupted_now(interrupt)) return error_interrupted();
    if (now_us >= deadline_us) return error_lock_wait_timeout();
    changed_.wait_for(*lock,
                      std::chrono::microseconds(std::min<uint64_t>(deadline_us - now_us, 50'000)));
    return ok_status();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint8_t, SchemaUser*> users_;
  std::set<uint8_t> away_;
  std::map<std::string, Entry> names_;
  uint32_t asking_ = 0;
};

// Timestamps, views, other nodes' transactions, row locks, pages and names by other means than the
// objects above. A test that is built with such means sets cluster_services before it begins.
class ClusterServices {
 public:
  struct Seams {
    TimestampSource* timestamps = nullptr;
    ViewHorizon* horizon = nullptr;
    TitSource* others = nullptr;
    LockAuthority* locks = nullptr;
    // Both or none: page locks, and the pages that go with them.
    PageLock* page_lock = nullptr;
    PageSource* pages = nullptr;
    // Both or none: names of tables, and when pages may be used again.
    SchemaChanges* schema = nullptr;
    PageReuse* page_reuse = nullptr;
  };
  virtual ~ClusterServices() = default;
  // For a new life of the node; they last until ended(). `storage`: of all nodes.
  virtual Seams start(uint8_t node, PageSource* storage) = 0;
  virtual void ended(uint8_t node, bool crashed) = 0;  // its kernel has gone
  virtual void hear(uint8_t node) = 0;
  [[nodiscard]] virtual uint64_t reads_of_others(uint8_t node) = 0;
  // Of some node that is there.
  [[nodiscard]] virtual LockAuthority* any_locks() = 0;
  // Storage has every page then, as far as the nodes have written it back.
  virtual Status store_all() = 0;
  [[nodiscard]] virtual uint64_t page_transfers() = 0;
};
inline std::function<std::unique_ptr<ClusterServices>(uint8_t nodes)> cluster_services;

// A session that ends rolls back, which a crash does not: it is put here before its node crashes.
// Reachable for ever, for the sanitizers.
inline void bury(std::unique_ptr<Session> session) {
  static std::mutex mutex;
  static auto* const graveyard = new std::vector<std::unique_ptr<Session>>;
  const std::lock_guard lock(mutex);
  graveyard->push_back(std::move(session));
}

class Cluster {
 public:
  // The first node makes the database and `tables`; the others find them.
  explicit Cluster(uint8_t nodes, const std::vector<std::string>& tables = {"t"},
                   bool background = true, uint64_t pool_bytes = 4u << 20)
      : background_(background),
        pool_bytes_(pool_bytes),
        services_(cluster_services ? cluster_services(nodes) : nullptr) {
    EXPECT_TRUE(disk_->make_directory("/shared").ok());
    auto source = open_local_page_source(disk_.get(), {"/shared", false});
    EXPECT_TRUE(source.ok()) << source.status();
    source_ = std::move(source).value();
    for (uint8_t node = 1; node <= nodes; ++node) {
      locks_.push_back(std::make_unique<PageLocks::Client>(&page_locks_, node));
      horizons_.push_back(std::make_unique<SharedHorizon::Client>(&horizon_));
      others_.push_back(std::make_shared<SharedTransactions::Client>(&transactions_));
      reuses_.push_back(std::make_unique<SharedReuse::Client>(&reuse_, node));
    }
    kernels_.resize(nodes);
    start(1);
    exists_ = true;
    auto session = kernel(1)->new_session();
    session->begin(Isolation::kRepeatableRead);
    for (const std::string& name : tables)
      EXPECT_TRUE(session->create_table(table_spec(name), nullptr).ok());
    EXPECT_TRUE(session->commit().ok());
    for (uint8_t node = 2; node <= nodes; ++node) start(node);
  }
  ~Cluster() {
    for (uint8_t node = 1; node <= nodes(); ++node)
      if (kernels_[node - 1] != nullptr) stop(node);
  }

  [[nodiscard]] uint8_t nodes() const noexcept { return static_cast<uint8_t>(kernels_.size()); }
  [[nodiscard]] Kernel* kernel(uint8_t node) const noexcept { return kernels_[node - 1].get(); }
  [[nodiscard]] KernelImpl* impl(uint8_t node) const noexcept { return kernel(node)->impl(); }
  // How often one node has given a page up to another.
  [[nodiscard]] uint64_t page_transfers() const {
    return page_locks_.transfers() + (services_ != nullptr ? services_->page_transfers() : 0);
  }
  LockAuthority* row_locks() {
    LockAuthority* const other = services_ != nullptr ? services_->any_locks() : nullptr;
    return other != nullptr ? other : &row_locks_;
  }
  [[nodiscard]] uint64_t reads_of_others(uint8_t node) const {
    return services_ != nullptr ? services_->reads_of_others(node) : others(node)->reads();
  }
  // What a heartbeat brings: the node hears the horizon and the bounds of now.
  void hear(uint8_t node) {
    if (services_ != nullptr) return services_->hear(node);
    horizons_[node - 1]->hear();
    others(node)->hear();
  }
  Status store_all() { return services_ != nullptr ? services_->store_all() : ok_status(); }
  SimFileSystem* disk() noexcept { return disk_.get(); }
  PageSource* source() noexcept { return source_.get(); }

  void start(uint8_t node) {
    // What the last life had heard of the others the next one does not know.
    {
      const std::lock_guard lock(others_mutex_);  // a heartbeat may hear for the last life
      others_[node - 1] = std::make_shared<SharedTransactions::Client>(&transactions_);
    }
    KernelOptions options = options_on(disk_.get(), "/node" + std::to_string(node));
    options.node = node;
    options.background = background_;
    options.buffer_pool_bytes = pool_bytes_;
    options.log_segment_bytes = background_ ? 16u << 20 : 4u << 20;  // restarts read to its end
    options.log_checkpoint_bytes = 1u << 30;  // the whole log is kept, to be merged
    options.checkpoint_interval_us = UINT64_MAX / 2;
    KernelSeams seams;
    seams.schema = &schema_;
    seams.above = above[node - 1];
    seams.page_reuse = reuses_[node - 1].get();
    seams.page_source = source_.get();
    seams.page_lock = locks_[node - 1].get();
    seams.timestamps = &clock_;
    seams.attach = node != 1 || exists_;
    seams.horizon = horizons_[node - 1].get();
    seams.others = others(node).get();
    if (services_ != nullptr) {
      const ClusterServices::Seams other = services_->start(node, source_.get());
      seams.timestamps = other.timestamps;
      seams.horizon = other.horizon;
      seams.others = other.others;
      seams.locks = other.locks;
      if (other.page_lock != nullptr) {
        seams.page_lock = other.page_lock;
        seams.page_source = other.pages;
      }
      if (other.schema != nullptr) {
        seams.schema = other.schema;
        seams.page_reuse = other.page_reuse;
      }
    } else {
      seams.locks = &row_locks_;
    }
    auto opened = open_with_seams(options, seams);
    ASSERT_TRUE(opened.ok()) << opened.status();
    kernels_[node - 1] = std::move(opened).value();
  }
  // No session of the node is left.
  void stop(uint8_t node) {
    EXPECT_TRUE(kernel(node)->shutdown().ok());
    kernels_[node - 1].reset();
    if (services_ != nullptr) services_->ended(node, false);
    schema_.has_ended(node);
    page_locks_.node_ended(node);
  }
  // As kill -9: what is in memory only is lost. Its sessions' transactions stay undecided.
  void crash(uint8_t node) {
    kernels_[node - 1].reset();
    if (services_ != nullptr) services_->ended(node, true);
    page_locks_.node_crashed(node);
    if (services_ == nullptr) row_locks_.node_gone(NodeId{node});
  }
  TableRef table(Session* session, const std::string& name = "t") {
    auto table = session->open_table("test", name);
    EXPECT_TRUE(table.ok()) << table.status();
    return table.ok() ? *table : nullptr;
  }
  // Of nodes that start from then on: who remembers tables above their kernels.
  std::vector<TableUsers*> above = std::vector<TableUsers*>(16, nullptr);
  // On every node, as far as the horizon lets them.
  void purge() {
    for (uint8_t node = 1; node <= nodes(); ++node) {
      hear(node);
      EXPECT_TRUE(kernel(node)->run_purge(1000000).ok());
    }
  }

 private:
  const bool background_;
  const uint64_t pool_bytes_;
  const std::unique_ptr<ClusterServices> services_;
  bool exists_ = false;
  std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  std::unique_ptr<PageSource> source_;
  SharedClock clock_;
  PageLocks page_locks_;
  SharedHorizon horizon_;
  std::vector<std::unique_ptr<PageLocks::Client>> locks_;
  SharedTransactions transactions_;
  strata::testing::SharedLocks row_locks_;
  SharedReuse reuse_;
  SharedSchema schema_;
  std::vector<std::unique_ptr<SharedHorizon::Client>> horizons_;
  [[nodiscard]] std::shared_ptr<SharedTransactions::Client> others(uint8_t node) const {
    const std::lock_guard lock(others_mutex_);
    return others_[node - 1];
  }
  mutable std::mutex others_mutex_;
  std::vector<std::shared_ptr<SharedTransactions::Client>> others_;  // of each one's life
  std::vector<std::unique_ptr<SharedReuse::Client>> reuses_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
};

inline void expect_merged_logs_make_pages(Cluster* cluster) {
  std::vector<LogSink*> sinks;
  for (uint8_t node = 1; node <= cluster->nodes(); ++node) {
    KernelImpl* k = cluster->impl(node);
    ASSERT_TRUE(k->log->persist(k->log->next_lsn()).ok());
    ASSERT_TRUE(k->pool->write_back_below(k->log->next_lsn()).ok());
    sinks.push_back(k->sink);
  }
  const Status stored = cluster->store_all();
  ASSERT_TRUE(stored.ok()) << stored;
  std::set<uint32_t> dropped;
  {
    KernelImpl* const k = cluster->impl(1);
    const auto list = k->pool->fix(kPendingDeletePage, LatchMode::kShared);
    ASSERT_TRUE(list.ok()) << list.status();
    for (const SpaceId space : redo::read_pending_deletes(list->page()))
      dropped.insert(space.value);
  }
  std::map<uint32_t, bool> known;
  const Replayed replayed = replay_merged(sinks, [&](uint32_t space) {
    const auto [it, is_new] = known.try_emplace(space, dropped.contains(space));
    if (is_new && !it->second) {
      const auto exists = cluster->source()->space_exists(SpaceId{space});
      EXPECT_TRUE(exists.ok()) << exists.status();
      it->second = exists.ok() && !*exists;
    }
    return it->second;
  });
  EXPECT_GT(replayed.groups, 0u);
  expect_stored(cluster->source(), replayed, dropped);
}

inline StatusOr<Row> get_row(Session* session, const TableRef& table, uint64_t id, LockMode mode) {
  TableCursor cursor(session, table, 0);
  cursor.set_lock_mode(mode);
  bool gone = false;
  STRATA_RETURN_IF_ERROR(cursor.get(be64(id), &gone));
  if (gone) return error_not_found();
  Row row;
  STRATA_RETURN_IF_ERROR(decode(&cursor, &row));
  return row;
}

}  // namespace strata::engine::testing
