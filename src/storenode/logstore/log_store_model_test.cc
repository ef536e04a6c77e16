// Goal: whatever is asked and whenever the disk stops, a replica's log is one the protocol allows:
// everything acknowledged is there after a restart, promises are kept, what is refused changes
// nothing (LG1-LG5, LG8, LG9). Method: a world of logs, one per epoch, each going on from a prefix
// of an earlier one that keeps the committed bytes, as recoveries would choose them; a replica that
// is sealed, caught up, begun, appended to and truncated at random, by current and by stale
// holders; beside it a model that knows for each byte which epoch wrote it. Batches are cut short
// by a dying disk, a failing call, a full disk, a kill or a power loss; damage is repaired from the
// world. One seed per world, printed; STRATA_SEED=n replays one, STRATA_ROUNDS=n runs more.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>

#include "base/diag.h"
#include "base/rng.h"
#include "storenode/logstore/testing/faulty_file_system.h"
#include "storenode/logstore/testing/sync_store.h"

namespace strata {
namespace {

using quorum::ChangeReply;
using quorum::History;
using quorum::Tenure;

constexpr StreamId kStream{3};

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kWorlds = 20;
#else
constexpr uint64_t kWorlds = 120;
#endif

struct Byte {
  uint64_t epoch;
  char value;
  bool operator==(const Byte&) const = default;
};
using Content = std::vector<Byte>;

std::string text_of(const Content& content, uint64_t from, uint64_t to) {
  std::string out;
  for (uint64_t i = from; i < to; ++i) out += content[i].value;
  return out;
}

// The log of one epoch as its holder sees it.
struct WorldLog {
  Tenure tenure;
  Content content;
  uint64_t quorum_durable = 0;  // what its holder says
};

// What the replica should be.
struct Model {
  uint64_t promised = 0;
  uint64_t token = 0;
  Content content;  // what lies below start may be anything
  History history;
  uint64_t start = 0;
  uint64_t quorum_durable = 0;

  [[nodiscard]] uint64_t end() const { return content.size(); }
  [[nodiscard]] uint64_t readable() const { return std::min(quorum_durable, end()); }
  [[nodiscard]] uint64_t last_epoch() const {
    return quorum::last_epoch(quorum::clipped(history, Lsn{end()})).value;
  }
};

struct Op {
  enum Kind { kSeal, kBegin, kCatchUp, kAppend } kind;
  size_t log = 0;  // index into the world
  uint64_t from = 0;
  uint64_t to = 0;
  bool stranger = false;  // same epoch, another token
  // Filled by the store:
  bool answered = false;
  Status status;
  quorum::ReplicaState state;
};

class World {
 public:
  explicit World(uint64_t seed) : rng_(seed), disk_(make_sim_file_system()) {
    options_.directory = "/node";
    options_.cluster_id = seed;
    options_.segment_bytes = 4096 * (2 + rng_.below(2));
    options_.chunk_bytes_max = 1 + rng_.below(rng_.one_in(2) ? 300 : 3000);
    options_.spare_segments_max = static_cast<uint32_t>(rng_.below(3));
    options_.recent_bytes_max = rng_.one_in(2) ? 0 : rng_.below(4000);
    open();
    Status made;
    store_->make_stream(kStream, {}, [&](const ChangeReply& r) { made = r.status; });
    drain();
    EXPECT_TRUE(made.ok()) << made;
  }

  void run(int batches) {
    for (int i = 0; i < batches && !::testing::Test::HasFailure(); ++i) {
      if (worlds_.empty() || rng_.one_in(12)) new_epoch();
      grow();
      const uint64_t dice = rng_.below(20);
      if (dice < 13) {
        whole_batch();
      } else if (dice < 16) {
        dying_batch();
      } else if (dice < 17) {
        failing_call();
      } else if (dice < 18) {
        full_disk();
      } else if (dice < 19) {
        rng_.one_in(3) ? truncate() : restart();
      } else {
        damage_and_repair();
      }
      check_reads();
    }
  }

 private:
  // --- the world ---

  Tenure make_tenure(uint64_t epoch, const WorldLog* from, uint64_t start) {
    Tenure t;
    t.holder = {Epoch{epoch}, rng_.next() | 1};
    t.start = Lsn{start};
    t.base = Lsn{rng_.below(committed_ + 1)};
    t.base = std::min(t.base, t.start);
    if (from != nullptr) t.history = quorum::clipped(begun_history(*from), t.start);
    // Holders may have forgotten about epochs whose bytes nobody keeps.
    if (rng_.one_in(2)) quorum::forget_below(&t.history, t.base);
    if (t.history.empty()) {
      t.base = t.start;
    } else {
      t.base = std::max(t.base, t.history.front().start);
    }
    return t;
  }
  static History begun_history(const WorldLog& log) {
    return quorum::begun(log.tenure.history, log.tenure.holder.epoch, log.tenure.start);
  }

  // A recovery: goes on from some log that has everything committed.
  void new_epoch() {
    WorldLog made;
    const uint64_t epoch = ++last_epoch_ + rng_.below(2);
    last_epoch_ = epoch;
    if (worlds_.empty()) {
      const uint64_t first = rng_.below(3) * 100;
      made.content.resize(first);
      made.tenure = make_tenure(epoch, nullptr, first);
      committed_ = first;
    } else {
      const WorldLog* from = &worlds_.back();
      for (int tries = 0; tries < 3; ++tries) {
        const WorldLog& other = worlds_[rng_.below(worlds_.size())];
        if (has_committed(other)) from = &other;
      }
      const uint64_t start = committed_ + rng_.below(from->content.size() - committed_ + 1);
      made.content.assign(from->content.begin(),
                          from->content.begin() + static_cast<ptrdiff_t>(start));
      made.tenure = make_tenure(epoch, from, start);
    }
    made.quorum_durable = committed_;
    worlds_.push_back(std::move(made));
  }

  bool has_committed(const WorldLog& log) const {
    const Content& newest = worlds_.back().content;
    return log.content.size() >= committed_ &&
           std::equal(newest.begin(), newest.begin() + static_cast<ptrdiff_t>(committed_),
                      log.content.begin());
  }

  // The holder of the newest epoch writes; other replicas may have it.
  void grow() {
    WorldLog& log = worlds_.back();
    const uint64_t bytes = rng_.below(rng_.one_in(5) ? 2500 : 200);
    for (uint64_t i = 0; i < bytes; ++i)
      log.content.push_back({log.tenure.holder.epoch.value, static_cast<char>(rng_.next())});
    if (rng_.one_in(2)) {
      committed_ += rng_.below(log.content.size() - committed_ + 1);
      log.quorum_durable = committed_;
    }
  }

  // --- operations ---

  Op random_op() {
    Op op;
    const uint64_t dice = rng_.below(20);
    op.kind = dice < 2 ? Op::kSeal : dice < 5 ? Op::kBegin : dice < 10 ? Op::kCatchUp : Op::kAppend;
    op.log = rng_.one_in(6) ? rng_.below(worlds_.size()) : worlds_.size() - 1;
    op.stranger = rng_.one_in(40);
    const WorldLog& log = worlds_[op.log];
    const uint64_t limit = op.kind == Op::kCatchUp ? log.tenure.start.value : log.content.size();
    const uint64_t near = guess_;
    op.from = std::min<uint64_t>(
        limit,
        rng_.one_in(4)
            ? rng_.below(limit + 1)
            : (near + rng_.below(20) > 10 && !rng_.one_in(3) ? near : near + rng_.below(40)));
    op.to = op.from + rng_.below(std::min<uint64_t>(limit - op.from, 1500) + 1);
    if (op.kind == Op::kAppend || op.kind == Op::kCatchUp) guess_ = op.to;
    return op;
  }

  void enqueue(LogStore* store, Op* op) {
    const WorldLog& log = worlds_[op->log];
    Tenure tenure = log.tenure;
    if (op->stranger) ++tenure.holder.token;
    const auto done = [op](const ChangeReply& r) {
      op->answered = true;
      op->status = r.status;
      op->state = r.state;
    };
    const Lsn told{rng_.below(log.quorum_durable + 1)};
    switch (op->kind) {
      case Op::kSeal:
        return store->seal(kStream, {tenure.holder}, [op](const quorum::SealReply& r) {
          op->answered = true;
          op->status = r.status;
          op->state = r.state;
        });
      case Op::kBegin:
        return store->begin_epoch(kStream, {tenure, tenure.start}, done);
      case Op::kCatchUp:
        told_ = std::max(told_, told.value);
        return store->catch_up(
            kStream, {tenure, Lsn{op->from}, text_of(log.content, op->from, op->to), told}, done);
      case Op::kAppend:
        told_ = std::max(told_, told.value);
        return store->append(
            kStream,
            {tenure.holder.epoch, Lsn{op->from}, text_of(log.content, op->from, op->to), told},
            done);
    }
  }

  // --- the model ---

  struct Fit {
    uint64_t next;
    bool reset;
  };
  static Fit fit(const Model& m, const WorldLog& log) {
    const uint64_t start = log.tenure.start.value;
    const uint64_t base = log.tenure.base.value;
    uint64_t same = std::min(m.start, start);
    while (same < m.end() && same < start && m.content[same] == log.content[same]) ++same;
    if (m.start > start || same < base) return {base, true};
    return {same, false};
  }

  // What the operation should answer, and make of the replica.
  static Error apply(const Op& op, const std::vector<WorldLog>& worlds, Model* m) {
    const WorldLog& log = worlds[op.log];
    const uint64_t epoch = log.tenure.holder.epoch.value;
    const uint64_t token = log.tenure.holder.token + (op.stranger ? 1 : 0);
    if (op.kind == Op::kAppend) {
      if (epoch < m->promised) return Error::fenced;
      if (epoch != m->last_epoch()) return Error::conflict;
      return extend(op, log, m);
    }
    if (epoch < m->promised || (epoch == m->promised && token != m->token)) return Error::fenced;
    if (op.kind == Op::kSeal) {
      m->promised = epoch;
      m->token = token;
      return Error::ok;
    }
    const bool begun = m->last_epoch() == epoch;
    if (op.kind == Op::kBegin && begun) return Error::ok;
    if (op.kind == Op::kCatchUp && begun) return extend(op, log, m);
    const Fit fit = World::fit(*m, log);
    if (op.kind == Op::kBegin ? fit.next < log.tenure.start.value : op.from > fit.next)
      return Error::out_of_range;
    m->promised = epoch;
    m->token = token;
    m->history = log.tenure.history;
    if (op.kind == Op::kBegin) m->history = begun_history(log);
    if (fit.reset) {
      m->start = fit.next;
      m->quorum_durable = std::max(m->quorum_durable, fit.next);
    }
    m->content.assign(log.content.begin(), log.content.begin() + static_cast<ptrdiff_t>(fit.next));
    return op.kind == Op::kBegin ? Error::ok : extend(op, log, m);
  }
  static Error extend(const Op& op, const WorldLog& log, Model* m) {
    if (op.from > m->end()) return Error::out_of_range;
    for (uint64_t i = m->end(); i < op.to; ++i) m->content.push_back(log.content[i]);
    return Error::ok;
  }

  // --- batches ---

  // Nothing fails: every answer is known.
  void whole_batch() {
    std::vector<Op> ops(1 + rng_.below(8));
    for (Op& op : ops) op = random_op();
    for (Op& op : ops) enqueue(store_.get(), &op);
    drain();
    for (const Op& op : ops) {
      ASSERT_TRUE(op.answered);
      expect(op);
    }
    compare();
  }

  void expect(const Op& op) {
    Model next = model_;
    const Error expected = apply(op, worlds_, &next);
    ASSERT_EQ(error_of(op.status), expected) << describe(op) << ": " << op.status;
    if (next.end() != model_.end() || next.content != model_.content) junk_.clear();
    model_ = std::move(next);
  }

  // From a random call on the disk does nothing any more; then the machine goes down.
  void dying_batch() {
    if (!junk_.empty()) restart();
    std::vector<Op> ops(1 + rng_.below(5));
    for (Op& op : ops) op = random_op();
    for (Op& op : ops) enqueue(store_.get(), &op);
    uint64_t calls_left = rng_.below(1 + 4 * ops.size());
    bool gone = false;
    faulty_->judge = [&](const char*, const std::string&) {
      if (calls_left > 0) {
        --calls_left;
        return ok_status();
      }
      faulty_->half_writes = !std::exchange(gone, true);
      return error_internal("the disk is gone");
    };
    drain();
    // The state after the last operation that said OK and changed something is certain.
    std::vector<Model> chain = {model_};
    size_t certain = 0;
    for (size_t i = 0; i < ops.size(); ++i) {
      Model next = chain.back();
      const Error expected = apply(ops[i], worlds_, &next);
      if (ops[i].status.ok() && expected == Error::ok && differs(next, chain.back()))
        certain = i + 1;
      chain.push_back(std::move(next));
    }
    restart_machine();
    settle(chain, certain);
  }

  static bool differs(const Model& a, const Model& b) {
    return a.promised != b.promised || a.end() != b.end() || a.start != b.start ||
           a.last_epoch() != b.last_epoch() || a.content != b.content;
  }

  // One call fails; what it was asked for did not happen, as far as this life goes.
  void failing_call() {
    if (!junk_.empty()) restart();
    Op op = random_op();
    enqueue(store_.get(), &op);
    uint64_t calls_left = rng_.below(6);
    faulty_->judge = [&](const char*, const std::string&) {
      return calls_left-- == 0 ? error_internal("this call fails") : ok_status();
    };
    drain();
    faulty_->judge = nullptr;
    after_failure(op, Error::internal);
  }

  void full_disk() {
    if (!junk_.empty()) restart();
    disk_->set_capacity(0);
    Op op = random_op();
    enqueue(store_.get(), &op);
    drain();
    disk_->set_capacity(~uint64_t{0});
    after_failure(op, Error::no_space);
  }

  void after_failure(const Op& op, Error code) {
    if (error_of(op.status) != code) {
      expect(op);
      return compare();
    }
    Model next = model_;
    apply(op, worlds_, &next);
    if (rng_.one_in(2)) {
      restart_machine();
      return settle({model_, next}, 0);
    }
    const WorldLog& log = worlds_[op.log];
    if (op.kind == Op::kCatchUp && model_.last_epoch() != log.tenure.holder.epoch.value) {
      // It may have cut and promised before its bytes failed.
      Op no_bytes = op;
      no_bytes.from = no_bytes.to = std::min(op.from, fit(model_, log).next);
      Model cut = model_;
      apply(no_bytes, worlds_, &cut);
      if (op.state.promised.value == cut.promised && op.state.end.value == cut.end() &&
          op.state.last_epoch.value == cut.last_epoch())
        model_ = std::move(cut);
    }
    if (next.end() > model_.end()) junk_ = next.content;
    compare();
    settle_promise(op);
  }

  // After a failed publish the disk may hold the old state or the new one until the next change:
  // the holder of the promise asks once more. If nobody had one, who asked in vain does.
  void settle_promise(const Op& failed) {
    if (model_.promised == 0) {
      Op seal = failed;
      seal.kind = Op::kSeal;
      apply(seal, worlds_, &model_);
    }
    Status sealed;
    store_->seal(kStream, {{Epoch{model_.promised}, model_.token}},
                 [&](const quorum::SealReply& r) { sealed = r.status; });
    drain();
    ASSERT_TRUE(sealed.ok()) << sealed;
    compare();
  }

  void truncate() {
    const auto status = store_->status(kStream);
    ASSERT_TRUE(status.ok()) << status.status();
    const uint64_t readable = status->state.quorum_durable.value;
    const bool too_far = rng_.one_in(4);
    const uint64_t lsn = too_far ? readable + 1 + rng_.below(100) : rng_.below(readable + 1);
    Status done;
    store_->truncate_prefix(kStream, Lsn{lsn}, [&](const ChangeReply& r) { done = r.status; });
    drain();
    ASSERT_EQ(error_of(done), too_far ? Error::out_of_range : Error::ok);
    if (!too_far) model_.start = std::max(model_.start, lsn);
    compare();
  }

  // --- restarts ---

  void restart() {
    const uint64_t dice = rng_.below(3);
    if (dice == 0) {
      EXPECT_TRUE(store_->close().ok());
    }
    if (dice != 1) {
      store_.reset();
      open();  // a kill: the page cache survives
    } else {
      restart_machine();
    }
    std::vector<Model> chain = {model_};
    if (junk_.size() > model_.end()) {
      chain.push_back(model_);
      chain.back().content = junk_;
    }
    settle(chain, 0);
  }

  void restart_machine() {
    if (rng_.one_in(4)) {
      store_.reset();
    } else {
      disk_->crash(rng_.next());
      store_.reset();
    }
    open();
    if (rng_.one_in(3)) {  // and again, right after
      disk_->crash(rng_.next());
      open();
    }
  }

  // The replica is as one of the models from `certain` on says, or between two neighbours.
  void settle(const std::vector<Model>& chain, size_t certain) {
    junk_.clear();
    const auto status = store_->status(kStream);
    ASSERT_TRUE(status.ok()) << status.status();
    ASSERT_TRUE(status->failure.ok()) << status->failure;
    ASSERT_TRUE(status->damages.empty()) << status->damages[0].what;
    const quorum::ReplicaState& s = status->state;
    ASSERT_GE(s.promised.value, chain[certain].promised) << "a promise was forgotten";
    const std::string here = content_here(s);
    for (size_t i = certain; i < chain.size(); ++i) {
      for (size_t j = i; j < std::min(i + 2, chain.size()); ++j) {
        if (!could_be(chain[i], chain[j], s, here)) continue;
        Model found = chain[j];
        found.promised = s.promised.value;
        found.token = s.promised.value == chain[i].promised ? chain[i].token : chain[j].token;
        found.start = s.start.value;
        if (s.end.value < found.end()) found.content.resize(s.end.value);
        found.quorum_durable = s.quorum_durable.value;
        model_ = std::move(found);
        guess_ = model_.end();
        return;
      }
    }
    std::ostringstream models;
    for (const Model& m : chain)
      models << "\n  [" << m.start << ", " << m.end() << "), last epoch " << m.last_epoch()
             << ", promised " << m.promised << ", history " << quorum::describe(m.history);
    FAIL() << "here [" << s.start.value << ", " << s.end.value << "), last epoch "
           << s.last_epoch.value << ", promised " << s.promised.value << ", history "
           << quorum::describe(status->history) << "; expected from " << certain
           << " on:" << models.str();
  }

  // The replica got from `before` some way towards `after`.
  bool could_be(const Model& before, const Model& after, const quorum::ReplicaState& s,
                const std::string& here) const {
    if (s.promised.value != before.promised && s.promised.value != after.promised) return false;
    // A replica that cannot tell (its holder forgot old epochs) may start anew at the base.
    bool same_start = s.start.value == before.start || s.start.value == after.start;
    for (const WorldLog& log : worlds_)
      same_start |= s.start == log.tenure.base && s.start.value > before.start;
    if (!same_start || s.end.value > after.end() || s.end.value < s.start.value) return false;
    const uint64_t last = quorum::last_epoch(quorum::clipped(after.history, s.end)).value;
    if (s.last_epoch.value != last) return false;
    // What both have is never given up on the way; what `before` has more was to be cut off.
    uint64_t common = std::max(before.start, after.start);
    while (common < before.end() && common < after.end() &&
           before.content[common] == after.content[common])
      ++common;
    if (s.end.value < std::min({common, before.end(), after.end()})) return false;
    return here == text_of(after.content, s.start.value, s.end.value);
  }

  std::string content_here(const quorum::ReplicaState& s) {
    std::string all;
    for (Lsn at = s.start; at < s.end;) {
      const auto got = store_->read(
          kStream, {at, static_cast<uint32_t>(1 + rng_.below(4000)), true, s.promised});
      EXPECT_TRUE(got.status.ok()) << got.status;
      if (!got.status.ok() || got.bytes.empty()) break;
      all += got.bytes;
      at.value += got.bytes.size();
    }
    return all;
  }

  // --- checks ---

  void compare() {
    const auto status = store_->status(kStream);
    ASSERT_TRUE(status.ok()) << status.status();
    const quorum::ReplicaState& s = status->state;
    ASSERT_EQ(s.promised.value, model_.promised);
    ASSERT_EQ(s.end.value, model_.end());
    ASSERT_EQ(s.last_epoch.value, model_.last_epoch());
    // A replica that cannot tell (its holder forgot old epochs) may start anew at the base.
    ASSERT_GE(s.start.value, model_.start);
    model_.start = s.start.value;
    ASSERT_LE(s.quorum_durable.value, std::max(told_, model_.quorum_durable));
    ASSERT_GE(s.quorum_durable.value, model_.readable());
    model_.quorum_durable = std::max(model_.quorum_durable, s.quorum_durable.value);
    guess_ = model_.end();
  }

  void check_reads() {
    if (model_.promised == 0 || ::testing::Test::HasFailure()) return;
    const auto status = store_->status(kStream);
    ASSERT_TRUE(status.ok());
    const quorum::ReplicaState s = status->state;
    if (rng_.one_in(10)) {
      EXPECT_TRUE(content_here(s) == text_of(model_.content, s.start.value, s.end.value));
    }
    const uint64_t from = s.start.value + rng_.below(s.quorum_durable.value - s.start.value + 1);
    const auto got = store_->read(kStream, {Lsn{from}, 3000, false, {}});
    ASSERT_TRUE(got.status.ok()) << got.status;
    ASSERT_LE(from + got.bytes.size(), s.quorum_durable.value);
    EXPECT_TRUE(got.bytes == text_of(model_.content, from, from + got.bytes.size()));
  }

  void damage_and_repair() {
    ASSERT_TRUE(store_->close().ok());  // so that damage of the tail is known for what it is
    open();
    const auto names = disk_->list("/node");
    ASSERT_TRUE(names.ok());
    std::vector<std::string> files;
    for (const std::string& name : *names)
      if (name.rfind("log-", 0) == 0) files.push_back("/node/" + name);
    if (files.empty()) return;
    for (uint64_t n = 1 + rng_.below(2); n > 0; --n) {
      const std::string& path = files[rng_.below(files.size())];
      const auto file = disk_->open(path, {});
      const auto size = (*file)->size();
      disk_->flip_bit(path, rng_.below(*size * 8));
    }
    open();  // this life knows the headers by heart
    (void)store_->verify(kStream);
    for (int tries = 0; tries < 10; ++tries) {
      const auto status = store_->status(kStream);
      ASSERT_TRUE(status.ok());
      if (status->damages.empty()) break;
      const LogDamage& d = status->damages[rng_.below(status->damages.size())];
      Status repaired;
      store_->repair(kStream, d.from, text_of(model_.content, d.from.value, d.to.value),
                     [&](const ChangeReply& r) { repaired = r.status; });
      drain();
      ASSERT_TRUE(repaired.ok()) << repaired << " " << d.what;
    }
    ASSERT_TRUE(store_->verify(kStream).ok());
    if (rng_.one_in(2)) restart_machine();
    settle({model_}, 0);
  }

  static std::string describe(const Op& op) {
    return "operation " + std::to_string(op.kind) + " of log " + std::to_string(op.log) + ", " +
           std::to_string(op.from) + " to " + std::to_string(op.to);
  }

  void open() {
    store_.reset();
    faulty_ = std::make_unique<testing::FaultyFileSystem>(disk_.get());
    auto opened = LogStore::open(faulty_.get(), options_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = std::move(*opened);
  }
  void drain() {
    while (store_->persist_pending()) {
    }
  }

  Rng rng_;
  std::unique_ptr<SimFileSystem> disk_;
  std::unique_ptr<testing::FaultyFileSystem> faulty_;
  LogStoreOptions options_;
  std::unique_ptr<LogStore> store_;
  std::vector<WorldLog> worlds_;
  uint64_t last_epoch_ = 0;
  uint64_t committed_ = 0;
  Model model_;
  uint64_t guess_ = 0;  // where the replica's log probably ends
  uint64_t told_ = 0;   // the most any request said to be quorum-durable
  Content junk_;        // of an append that failed: may appear after a restart
};

TEST(LogStoreModel, AReplicaIsAlwaysWhereTheProtocolAllows) {
  set_diag_sink([](Severity, std::string_view) {});
  const char* fixed = std::getenv("STRATA_SEED");
  const char* rounds = std::getenv("STRATA_ROUNDS");
  std::random_device entropy;
  const uint64_t first = fixed != nullptr ? std::strtoull(fixed, nullptr, 10) : entropy();
  const uint64_t worlds =
      rounds != nullptr ? std::strtoull(rounds, nullptr, 10) : (fixed != nullptr ? 1 : kWorlds);
  std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + worlds - 1));
  for (uint64_t i = 0; i < worlds && !HasFailure(); ++i) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(first + i));
    World(first + i).run(120);
  }
}

}  // namespace
}  // namespace strata
