// Goal: whatever happens to a compute node, its memory nodes (one, two with the pages spread over
// them, or two of which one is the other's backup), storage, and the calls between them, a page
// that is read has exactly its newest written bytes; and at any time storage and pools together
// have every page at least as new as the last checkpoint in memory promises, and storage alone,
// with what it has made durable, as new as the last one there. Method: many short histories, each
// by a seed (STRATA_SEED, STRATA_ROUNDS), in one thread, with an oracle that knows every version of
// every page and looks after each step. A life of compute ends by a crash; the next one recovers as
// the engine does: pages that the log since the checkpoint names are made anew and count as dirty.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>

#include "base/diag.h"
#include "base/rng.h"
#include "clients/memory/pool_set.h"
#include "clients/memory/testing/fake_pool.h"
#include "clients/memory/testing/fake_storage.h"

namespace strata::clients {
namespace {

using testing::FakeCopyNames;
using testing::FakeMemoryNode;
using testing::FakeNames;
using testing::FakePool;
using testing::FakeStorage;
using testing::Fate;
using testing::llsn_of;
using testing::make_page;

constexpr uint32_t kPages = 40;
constexpr uint32_t kSlots = 32;  // of all pools together
constexpr std::chrono::microseconds kTimeout{300};

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

struct Shape {
  uint32_t pools, copies;
};

class Model {
 public:
  Model(uint64_t seed, const Shape& shape)
      : rng_(seed), trouble_(rng_.below(4)), copies_(shape.copies), names_(shape.pools) {
    const uint32_t pools = shape.pools * shape.copies;
    for (uint32_t i = 0; i < pools; ++i) {
      nodes_.push_back(std::make_unique<FakeMemoryNode>(kSlots / shape.pools, 4, &storage_));
      nodes_.back()->fate = [this, i](const char* call) { return fate(i, call); };
    }
    down_.resize(pools);
    storage_.fault = [this](const char* call) { return fault(call); };
    storage_.after_sync = [this] { write_meanwhile(); };
    remote_addresses_ = !rng_.one_in(4);
    slow_ = rng_.one_in(4);
    begin_life();
  }

  // Empty: all is well.
  const std::string& run(int steps) {
    for (step_ = 0; step_ < steps && wrong_.empty(); ++step_) {
      step();
      look();
    }
    if (!wrong_.empty()) return wrong_;
    trouble_ = 0;
    if (source_ == nullptr || !source_->ended().ok()) crash();
    for (uint32_t i = 0; i < kPages && wrong_.empty(); ++i)
      if (!local_.contains(i)) read_one(i);
    note_counters();
    return wrong_;
  }

  uint64_t reads = 0, changes = 0, lives = 0, from_tier_1 = 0, ends = 0, bypasses = 0,
           storage_checkpoints = 0, memory_checkpoints = 0, from_pool = 0, lost = 0, direct = 0,
           dropped = 0, warm = 0, switches = 0;

 private:
  struct Version {
    Lsn lsn;  // of the change
    Llsn llsn;
  };
  struct Local {  // a page in the buffer pool
    Llsn llsn;
    bool dirty = false;
    Lsn first, end;
  };
  static PageId id_of(uint32_t page) { return {300 + page / 8, page}; }
  FakeMemoryNode& some_node() { return *nodes_[rng_.below(nodes_.size())]; }

  // --- what goes wrong ---
  Fate fate(uint32_t node, const char* call) {
    // Whoever waits for it has no time left then.
    if (slow_ && std::string(call) == "attach" && rng_.one_in(3))
      std::this_thread::sleep_for(kTimeout);
    if (down_[node] != 0) {
      --down_[node];
      return Fate::kNotRun;
    }
    if (trouble_ == 0 || !rng_.one_in(std::string(call) == "attach" ? 10 : 25)) return Fate::kFine;
    ++lost;
    constexpr Fate kFates[] = {Fate::kNotRun, Fate::kReplyLost, Fate::kLost, Fate::kLate};
    return kFates[rng_.below(4)];
  }
  Status fault(const char* call) {
    if (trouble_ < 2 || !rng_.one_in(30)) return ok_status();
    if (std::string(call) == "write_by_node" && rng_.one_in(2)) return error_no_space("full");
    return error_peer_down("no storage");
  }

  // As a grant by another thread does, whose report nobody has received yet.
  void write_meanwhile() {
    if (trouble_ == 0 || !rng_.one_in(4)) return;
    const uint64_t session = storage_.session();
    size_t which = rng_.below(pools_.size());
    // Nobody grants writes to a pool that the registry does not name (PAT2): what a copy that was
    // given up still has dirty is old.
    if (copies_ == 1 ? !names_.now[which].has_value() : !copy_names_.now.has_value()) return;
    if (mirror_ != nullptr) which = copy_names_.now->used;
    // Whatever becomes of it: what matters is that nobody takes it for durable.
    (void)pools_[which]->write(Lsn{UINT64_MAX}, 64, {{"a", session}, {"b", session}});
  }

  // --- lives ---
  void begin_life() {
    ++lives;
    storage_.new_life();
    registry_is(Registry::kThere);  // a start waits for it
    MemoryPagesOptions options;
    options.durable = [this] { return lsn_; };
    options.free_slots = 4;
    options.reserve_slots = 4;
    options.staged_pages_max = 8;
    options.timeout_us = kTimeout.count();
    options.pause_us = 50;
    options.new_pool_us = rng_.one_in(2) ? 0 : 1'000'000'000;
    options.remote_addresses = remote_addresses_;
    options.keeps_up = false;
    names_.epoch = Epoch{++epoch_};
    for (auto& pool : pools_) earlier_.push_back(std::move(pool));  // calls may be late
    pools_.clear();
    copy_names_.epoch = names_.epoch;
    std::vector<PoolSet::Member> members;
    for (const auto& node : nodes_)
      pools_.push_back(std::make_unique<FakePool>(node.get(), epoch_));
    if (copies_ == 1) {
      for (size_t i = 0; i < nodes_.size(); ++i) members.push_back({pools_[i].get(), names_.of(i)});
    } else {
      MirrorOptions mirror;
      mirror.durable = options.durable;
      mirror.timeout_us = options.timeout_us;
      mirror.retry_us = rng_.one_in(2) ? 0 : 1'000'000'000;
      mirror_ = std::make_unique<MirroredPool>(
          mirror, std::array<RemotePool*, 2>{pools_[0].get(), pools_[1].get()}, &copy_names_);
      members.push_back({mirror_.get(), mirror_->naming()});
    }
    auto opened = PoolSet::open(options, members, &storage_);
    if (!opened.ok()) return fail("open: " + opened.status().ToString());
    source_ = *std::move(opened);
    recover();
  }

  // Everything in the log is durable here, so recovery brings all changes back.
  void recover() {
    Lsn from = tier_2_;
    if (const auto found = source_->memory_checkpoint(); found.has_value() && found->lsn >= from) {
      from = found->lsn;
      ++from_tier_1;
      if (from > tier_1_) return fail("a checkpoint in memory that nobody has made");
    }
    // The oracle's view of what reads bring, from here on.
    for (uint32_t page = 0; page < kPages; ++page) {
      written_[page] = newest_below(page, from);
      Local local;
      for (const Version& version : versions_[page]) {
        if (version.lsn < from) continue;
        if (!local.dirty) local.first = version.lsn;
        local.dirty = true;
        local.end = Lsn{version.lsn.value + 1};
        local.llsn = version.llsn;
      }
      if (!local.dirty) continue;
      // Redo begins with what is there, which may have some of the changes already.
      if (const auto base = read_page(page); base.has_value() && *base < written_[page])
        fail("recovery finds page " + std::to_string(page) + " with llsn " +
             std::to_string(base->value) + ", below the checkpoint's " +
             std::to_string(written_[page].value));
      local_[page] = local;
    }
  }

  void crash() {
    if (source_ != nullptr) {
      if (!source_->ended().ok()) ++ends;
      note_counters();
    }
    source_.reset();
    mirror_.reset();
    local_.clear();
    if (rng_.one_in(4)) storage_.restart();
    for (const auto& node : nodes_) {
      if (rng_.one_in(3)) node->do_late();
      if (trouble_ != 0 && rng_.one_in(4)) node->lose();
      if (trouble_ != 0 && rng_.one_in(4)) node->restart();
    }
    begin_life();
  }
  void note_counters() {
    if (source_ == nullptr) return;
    for (size_t i = 0; i < source_->size(); ++i) {
      const MemoryPageSource& pool = source_->pool(i);
      from_pool += pool.counters().from_pool;
      direct += pool.counters().written_directly;
      dropped += pool.counters().dropped;
      bypasses += pool.attachment().counters().bypassed;
      if (mirror_ != nullptr) switches += mirror_->switches();
      warm += i != 0 && pool.attachment().bypassed() != source_->pool(0).attachment().bypassed();
    }
  }

  // --- the oracle ---
  [[nodiscard]] Llsn newest_below(uint32_t page, Lsn lsn) const {
    Llsn newest;
    for (const Version& version : versions_[page])
      if (version.lsn < lsn) newest = version.llsn;
    return newest;
  }
  void fail(const std::string& what) {
    if (wrong_.empty()) wrong_ = "step " + std::to_string(step_) + ": " + what;
  }
  // The node whose pool counts for a place; nothing: none does. `backup`: the other copy, if the
  // registry names it.
  [[nodiscard]] FakeMemoryNode* named(size_t place, bool backup, uint64_t* incarnation) const {
    if (copies_ == 1) {
      if (!names_.now[place].has_value()) return nullptr;
      *incarnation = *names_.now[place];
      return nodes_[place].get();
    }
    if (!copy_names_.now.has_value()) return nullptr;
    const NamedCopies& now = *copy_names_.now;
    const uint32_t copy = backup && now.incarnations[1 - now.used] != 0 ? 1 - now.used : now.used;
    *incarnation = now.incarnations[copy];
    return nodes_[copy].get();
  }
  // Where the next life may begin, if the pools stay as they are.
  [[nodiscard]] std::optional<Lsn> promised(bool backup) const {
    std::optional<Lsn> least;
    for (size_t i = 0; i < nodes_.size() / copies_; ++i) {
      uint64_t incarnation = 0;
      const FakeMemoryNode* const node = named(i, backup, &incarnation);
      if (node == nullptr) continue;
      const Lsn noted = node->checkpoint();
      if (node->incarnation() != incarnation || noted.is_zero() ||
          node->checkpoint_epoch() < (copies_ == 1 ? names_.since : copy_names_.since_now))
        return std::nullopt;
      least = std::min(least.value_or(noted), noted);
    }
    return least;
  }
  void look() {
    for (size_t i = 0; source_ != nullptr && i < source_->size(); ++i)
      source_->pool(i).directory().check();
    for (uint32_t page = 0; page < kPages; ++page)
      if (storage_.durable_llsn(id_of(page)) < newest_below(page, tier_2_))
        fail("storage lacks page " + std::to_string(page) + " of the checkpoint there");
    look_at_pools(/*backup=*/false);
    if (copies_ > 1) look_at_pools(/*backup=*/true);
    // A backup that takes over may have an older version than storage of a page that nobody was
    // told to be written.
    if (storage_.went_back && session_ == epoch_ && copies_ == 1)
      fail("storage was given an older version");
    storage_.went_back = false;
    session_ = epoch_;
  }
  void look_at_pools(bool backup) {
    const std::optional<Lsn> promised = this->promised(backup);
    if (!promised.has_value()) return;
    if (*promised > tier_1_) fail("a checkpoint that nobody has made");
    for (uint32_t page = 0; page < kPages; ++page) {
      const PageId id = id_of(page);
      uint64_t incarnation = 0;
      const FakeMemoryNode* const node =
          named(place_of(id, static_cast<uint32_t>(nodes_.size() / copies_)), backup, &incarnation);
      const auto slot = node == nullptr ? std::nullopt : node->slot(id);
      // A clean one may be dropped: it counts for nothing.
      const bool dirty = slot.has_value() && slot->dirty_from.has_value();
      const Llsn there = dirty ? slot->llsn : storage_.durable_llsn(id);
      if (there < newest_below(page, *promised))
        fail("pool and storage lack page " + std::to_string(page) + " of the checkpoint in memory" +
             (backup ? ", in the backup" : ""));
      // What it would bring back if it took over now.
      if (backup && slot.has_value() && !local_.contains(page) && slot->llsn != written_[page])
        fail("the backup has an old version of page " + std::to_string(page));
    }
  }

  // --- steps ---
  void step() {
    if (!source_->ended().ok()) return crash();
    switch (rng_.below(20)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return read_one(static_cast<uint32_t>(rng_.below(kPages)));
      case 4:
        return read_some();
      case 5:
      case 6:
      case 7:
      case 8:
        return change();
      case 9:
      case 10:
      case 11:
        return write_back();
      case 12:
      case 13:
        return evict();
      case 14:
      case 15:
        if (rng_.one_in(2)) source_->look_after_pools();
        return source_->do_work();
      case 16:
        return checkpoint_in_memory();
      case 17:
        return rng_.one_in(2) ? checkpoint_in_storage() : checkpoint_in_memory();
      default:
        return something_happens();
    }
  }
  void something_happens() {
    if (trouble_ == 0) return;
    switch (rng_.below(30)) {
      case 0:
        return crash();
      case 1:
      case 2:
        return some_node().restart();
      case 3:
        if (trouble_ == 3) some_node().lose();
        return;
      case 4:
        down_[rng_.below(down_.size())] = 1 + rng_.below(40);
        return;
      case 5:
      case 6:
        if (trouble_ >= 2) storage_.restart();
        return;
      case 7:
        if (trouble_ == 3) registry_is(rng_.one_in(2) ? Registry::kAway : Registry::kLosesReplies);
        return;
      case 8:
        some_node().do_late();
        return;
      default:
        registry_is(Registry::kThere);
    }
  }
  enum class Registry : uint8_t { kThere, kAway, kLosesReplies };
  void registry_is(Registry what) {
    names_.fails = copy_names_.fails = what == Registry::kAway;
    names_.reply_lost = copy_names_.reply_lost = what == Registry::kLosesReplies;
  }

  // What is read must be the newest that was written, and whole. Nothing: the read failed.
  std::optional<Llsn> read_page(uint32_t page) {
    std::string bytes(kPageBytes, 'x');
    const Status status = source_->read(id_of(page), Llsn{}, bytes.data());
    return judge(page, status, bytes);
  }
  std::optional<Llsn> judge(uint32_t page, const Status& status, const std::string& bytes) {
    if (is_not_found(status)) return Llsn{};
    ++reads;
    if (is_corruption(status)) {
      fail("reading page " + std::to_string(page) + ": " + status.ToString());
      return std::nullopt;
    }
    if (!status.ok()) return std::nullopt;
    const Llsn llsn = llsn_of(bytes);
    if (bytes != make_page(id_of(page), llsn)) fail("other bytes than were written");
    return llsn;
  }
  void take(uint32_t page, std::optional<Llsn> found) {
    if (!found.has_value()) return;
    if (*found != written_[page])
      return fail("page " + std::to_string(page) + " was read with llsn " +
                  std::to_string(found->value) + ", written " +
                  std::to_string(written_[page].value));
    if (found->is_zero()) return;
    local_[page] = Local{*found, false, {}, {}};
  }
  void read_one(uint32_t page) {
    if (!local_.contains(page)) take(page, read_page(page));
  }
  void read_some() {
    std::vector<PageId> ids;
    for (uint32_t page = static_cast<uint32_t>(rng_.below(kPages)); page < kPages && ids.size() < 8;
         ++page)
      if (!local_.contains(page)) ids.push_back(id_of(page));
    if (ids.empty()) return;
    const AlignedBytes pages(ids.size() * size_t{kPageBytes});
    std::vector<Status> results(ids.size());
    bool done = false;
    source_->start_read_batch(ids.data(), static_cast<uint32_t>(ids.size()), pages.get(),
                              results.data(), [&] { done = true; });
    if (!done) return fail("a batch that does not end");
    for (size_t i = 0; i < ids.size(); ++i) {
      // A batch may fail where read() does not.
      if (!results[i].ok() && !is_not_found(results[i])) continue;
      take(ids[i].number,
           judge(ids[i].number, results[i], std::string(pages.get() + i * kPageBytes, kPageBytes)));
    }
  }

  void change() {
    const auto page = static_cast<uint32_t>(rng_.below(kPages));
    if (!local_.contains(page)) {
      if (!written_[page].is_zero()) read_one(page);
      if (!local_.contains(page) && !written_[page].is_zero()) return;
    }
    ++changes;
    Local& local = local_[page];
    const Lsn lsn = lsn_;
    lsn_ = Lsn{lsn.value + 10};
    local.llsn = Llsn{++llsn_};
    if (!local.dirty) local.first = lsn;
    local.dirty = true;
    local.end = lsn_;
    versions_[page].push_back({lsn, local.llsn});
  }

  void write_back() {
    std::vector<PageId> ids;
    std::vector<PageChanges> changes;
    std::string pages;
    const uint64_t skip = rng_.below(3);
    for (const auto& [page, local] : local_) {
      if (!local.dirty || rng_.below(3) < skip || ids.size() == 16) continue;
      ids.push_back(id_of(page));
      changes.push_back({local.first, local.end});
      pages += make_page(id_of(page), local.llsn);
    }
    if (!ids.empty()) write(ids, changes, pages);
  }
  void write(const std::vector<PageId>& ids, const std::vector<PageChanges>& changes,
             const std::string& pages) {
    bool ok[kWriteBatchPages] = {};
    const Status status = source_->write_changed(
        ids.data(), changes.data(), static_cast<uint32_t>(ids.size()), pages.data(), ok);
    if (is_corruption(status)) fail("writing: " + status.ToString());
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!ok[i]) continue;
      local_[ids[i].number].dirty = false;
      written_[ids[i].number] = local_[ids[i].number].llsn;
    }
  }
  void evict() {
    for (int i = 0; i < 16; ++i) {
      const auto page = static_cast<uint32_t>(rng_.below(kPages));
      const auto found = local_.find(page);
      if (found == local_.end() || found->second.dirty) continue;
      source_->evicted(id_of(page), make_page(id_of(page), found->second.llsn).data());
      local_.erase(found);
    }
  }

  [[nodiscard]] Lsn floor() const {
    Lsn floor = lsn_;
    for (const auto& [page, local] : local_)
      if (local.dirty) floor = std::min(floor, local.first);
    return floor;
  }
  void checkpoint_in_memory() {
    if (rng_.one_in(2)) write_back();
    const Lsn at = floor();
    tier_1_ = std::max(tier_1_, at);  // it may be made although the reply is lost
    const auto kept = source_->publish_memory_checkpoint({at, 0});
    if (!kept.ok() || !*kept) return;
    ++memory_checkpoints;
    confirmed_ = at;
  }
  void checkpoint_in_storage() {
    const Lsn at = floor();
    if (!source_->sync_below(at).ok()) return;
    ++storage_checkpoints;
    tier_2_ = std::max(tier_2_, at);
  }

  Rng rng_;
  uint64_t trouble_;  // 0: none; 1: calls; 2: storage, too; 3: everything
  const uint32_t copies_;
  FakeStorage storage_;
  FakeNames names_;
  FakeCopyNames copy_names_;  // of two copies
  std::vector<std::unique_ptr<FakeMemoryNode>> nodes_;
  std::vector<std::unique_ptr<FakePool>> pools_, earlier_;
  std::unique_ptr<MirroredPool> mirror_;
  std::unique_ptr<PoolSet> source_;
  bool remote_addresses_ = true, slow_ = false;
  uint64_t epoch_ = 0, session_ = 0, llsn_ = 0;
  std::vector<uint64_t> down_;
  Lsn lsn_{1000}, tier_1_, tier_2_, confirmed_;
  std::map<uint32_t, Local> local_;
  std::vector<Version> versions_[kPages];
  Llsn written_[kPages];
  int step_ = 0;
  std::string wrong_;
};

class MemoryPagesModel : public ::testing::TestWithParam<Shape> {};

TEST_P(MemoryPagesModel, EveryPlaceHasTheNewestBytesAndCheckpointsKeepTheirPromise) {
  set_diag_sink([](Severity, std::string_view) {});
  const uint64_t first = number_from("STRATA_SEED", 1);
  const uint64_t rounds = number_from("STRATA_ROUNDS", 60);
  uint64_t reads = 0, changes = 0, lives = 0, tier_1 = 0, ends = 0, bypasses = 0, in_storage = 0,
           in_memory = 0, from_pool = 0, lost = 0, direct = 0, dropped = 0, warm = 0, switches = 0;
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    Model model(seed, GetParam());
    ASSERT_EQ(model.run(400), "") << "STRATA_SEED=" << seed << " STRATA_ROUNDS=1";
    reads += model.reads, changes += model.changes, lives += model.lives;
    tier_1 += model.from_tier_1, ends += model.ends, bypasses += model.bypasses;
    in_storage += model.storage_checkpoints, in_memory += model.memory_checkpoints;
    from_pool += model.from_pool, lost += model.lost;
    direct += model.direct, dropped += model.dropped, warm += model.warm;
    switches += model.switches;
  }
  std::printf(
      "%lu reads (%lu from pools), %lu changes, %lu calls lost, %lu lives (%lu from memory, %lu "
      "ended, %lu with some of the pools), %lu bypasses, %lu switches, %lu checkpoints in "
      "memory, %lu in storage, %lu pages written directly, %lu dropped\n",
      reads, from_pool, changes, lost, lives, tier_1, ends, warm, bypasses, switches, in_memory,
      in_storage, direct, dropped);
  set_diag_sink(nullptr);
  if (rounds < 60) return;
  EXPECT_GT(from_pool * 4, reads);
  EXPECT_GT(tier_1, 10u);
  EXPECT_GT(ends, GetParam().copies == 1 ? 5u : 0u);
  EXPECT_GT(bypasses, GetParam().copies == 1 ? 5u : 0u);
  EXPECT_GT(direct, 50u);
  EXPECT_GT(dropped, 50u);
  if (GetParam().pools > 1) {
    EXPECT_GT(warm, 5u);
  }
  if (GetParam().copies > 1) {
    EXPECT_GT(switches, 20u);
  }
}

INSTANTIATE_TEST_SUITE_P(Pools, MemoryPagesModel,
                         ::testing::Values(Shape{1, 1}, Shape{2, 1}, Shape{1, 2}),
                         [](const auto& shape) {
                           return "Of" + std::to_string(shape.param.pools) + "In" +
                                  std::to_string(shape.param.copies) + "Copies";
                         });

}  // namespace
}  // namespace strata::clients
