// Goal: where storage makes pages from the log, a page has the bytes that its log gives, whatever
// tier it is read from and whatever happens to compute, the memory node and the calls between them;
// and no loss of a memory node ends anything (MS10). Method: many short histories, each by a seed
// (STRATA_SEED, STRATA_ROUNDS), with the log as the oracle. Storage answers as old as it may: the
// version that it was told to be needed, else that of the end of the log at the last start. A life
// of compute ends by a crash, which loses what was not durable; the next one tells what the log has
// changed since the last checkpoint, and nothing else.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "base/diag.h"
#include "base/rng.h"
#include "clients/memory/memory_page_source.h"
#include "clients/memory/replayed_below.h"
#include "clients/memory/testing/fake_pool.h"
#include "clients/memory/testing/fake_storage.h"

namespace strata::clients {
namespace {

using testing::FakeMemoryNode;
using testing::FakeNames;
using testing::FakePool;
using testing::FakeStorage;
using testing::Fate;
using testing::llsn_of;
using testing::make_page;

constexpr uint32_t kPages = 40;
constexpr uint32_t kSlots = 32;

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

PageId id_of(uint32_t page) { return {300, page}; }

struct Change {
  Lsn lsn;
  Llsn llsn;
  uint32_t page = 0;
};

// The log, and storage nodes that replay it.
class ReplayingStorage final : public PageSource {
 public:
  Status read(PageId id, Llsn at_least, char* page) override {
    ++reads;
    const auto known = known_.find(id);
    Llsn needed = std::max(at_least, newest(id.number, begin_));
    if (known != known_.end()) needed = std::max(needed, known->second);
    if (needed.is_zero()) return error_not_found("never written");
    const std::string bytes = make_page(id, newest(id.number, needed));
    std::memcpy(page, bytes.data(), kPageBytes);
    return ok_status();
  }
  Status write(PageId id, const char* page) override {
    Llsn& known = known_[id];
    known = std::max(known, Llsn{header_of(page)->llsn});
    return ok_status();
  }
  Status sync() override { return ok_status(); }
  Status create_space(SpaceId) override { return ok_status(); }
  Status delete_space(SpaceId) override { return ok_status(); }
  StatusOr<bool> space_exists(SpaceId) override { return true; }
  StatusOr<std::vector<SpaceId>> list_spaces() override { return std::vector<SpaceId>(); }
  Status grow_space(SpaceId, uint32_t) override { return ok_status(); }
  [[nodiscard]] bool needs_page_images() const override { return false; }
  [[nodiscard]] bool replays_log() const override { return true; }
  void begin_at(Llsn last) override {
    begin_ = last;
    known_.clear();
  }

  // Of that page, not newer than `at_most`.
  [[nodiscard]] Llsn newest(uint32_t page, Llsn at_most) const {
    Llsn found;
    for (const Change& change : log)
      if (change.page == page && change.llsn <= at_most) found = change.llsn;
    return found;
  }
  std::vector<Change> log;
  uint64_t reads = 0;

 private:
  Llsn begin_;
  std::map<PageId, Llsn> known_;
};

class Model {
 public:
  explicit Model(uint64_t seed) : rng_(seed), trouble_(rng_.below(3)) {
    node_.fate = [this](const char* call) { return fate(call); };
    begin_life();
  }
  const std::string& run(int steps) {
    for (step_ = 0; step_ < steps && wrong_.empty(); ++step_) step();
    trouble_ = 0;
    if (wrong_.empty()) crash();
    for (uint32_t page = 0; page < kPages && wrong_.empty(); ++page) read_one(page);
    note_counters();
    return wrong_;
  }
  uint64_t reads = 0, lives = 0, from_memory = 0, bypasses = 0, from_pool = 0, outdated = 0;

 private:
  struct Local {
    Llsn llsn;
    bool dirty = false;
    Lsn first, end;
  };

  Fate fate(const char* call) {
    if (down_ != 0) {
      --down_;
      return Fate::kNotRun;
    }
    if (trouble_ == 0 || !rng_.one_in(std::string(call) == "attach" ? 10 : 25)) return Fate::kFine;
    constexpr Fate kFates[] = {Fate::kNotRun, Fate::kReplyLost, Fate::kLost, Fate::kLate};
    return kFates[rng_.below(4)];
  }

  void begin_life() {
    ++lives;
    MemoryPagesOptions options;
    options.durable = [this] { return durable_; };
    options.free_slots = 4;
    options.reserve_slots = 4;
    options.staged_pages_max = 8;
    options.timeout_us = 300;
    options.pause_us = 50;
    options.new_pool_us = rng_.one_in(2) ? 0 : 1'000'000'000;
    options.remote_addresses = !rng_.one_in(4);
    options.keeps_up = false;
    naming_.fails = false;
    pool_ = std::make_unique<FakePool>(&node_, ++epoch_);
    naming_.epoch = Epoch{epoch_};
    auto opened = MemoryPageSource::open(options, pool_.get(), naming_.of(0), &below_);
    if (!opened.ok()) return fail("open: " + opened.status().ToString());
    source_ = *std::move(opened);
    if (!source_->replays_log() || !source_->wants_changes_in_log()) return fail("not by the log");
    Lsn from = tier_2_;
    if (const auto found = source_->memory_checkpoint(); found.has_value() && found->lsn > from) {
      from = found->lsn;
      ++from_memory;
    }
    if (from > lsn_) return fail("a checkpoint behind the end of the log");
    for (const Change& change : storage_.log)
      if (change.lsn >= from) source_->changed_in_log(id_of(change.page), change.llsn);
    source_->begin_at(Llsn{llsn_});
    if (!source_->ended().ok()) fail("a life that cannot begin: " + source_->ended().ToString());
  }

  void crash() {
    note_counters();
    source_.reset();
    local_.clear();
    std::erase_if(storage_.log, [this](const Change& change) { return change.lsn >= durable_; });
    lsn_ = durable_;
    llsn_ = storage_.log.empty() ? 0 : storage_.log.back().llsn.value;
    if (rng_.one_in(3)) node_.do_late();
    if (trouble_ != 0 && rng_.one_in(4)) node_.lose();
    if (trouble_ != 0 && rng_.one_in(4)) node_.restart();
    begin_life();
  }
  void note_counters() {
    from_pool += source_->counters().from_pool;
    outdated += source_->counters().outdated;
    bypasses += source_->attachment().counters().bypassed;
  }
  void fail(const std::string& what) {
    if (wrong_.empty()) wrong_ = "step " + std::to_string(step_) + ": " + what;
  }

  void step() {
    if (!source_->ended().ok()) return fail("it ended: " + source_->ended().ToString());
    switch (rng_.below(20)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        return read_one(static_cast<uint32_t>(rng_.below(kPages)));
      case 5:
      case 6:
      case 7:
      case 8:
        return change();
      case 9:
      case 10:
        return write_back();
      case 11:
      case 12:
      case 13:
        return evict();
      case 14:
      case 15:
        return source_->do_work();
      case 16:
      case 17:
        return checkpoint();
      default:
        return something_happens();
    }
  }
  void something_happens() {
    switch (rng_.below(trouble_ == 0 ? 12 : 30)) {
      case 0:
      case 1:
        return crash();
      case 2:
        return node_.restart();
      case 3:
        if (trouble_ == 2) node_.lose();
        return;
      case 4:
        if (trouble_ != 0) down_ = 1 + rng_.below(40);
        return;
      case 5:
        naming_.fails = trouble_ == 2;
        return;
      case 6:
        return node_.do_late();
      default:
        naming_.fails = false;
    }
  }

  void read_one(uint32_t page) {
    if (local_.contains(page)) return;
    std::string bytes(kPageBytes, 'x');
    const Llsn newest = storage_.newest(page, Llsn{llsn_});
    const Status status = source_->read(id_of(page), Llsn{}, bytes.data());
    if (is_not_found(status)) {
      if (!newest.is_zero()) fail("page " + std::to_string(page) + " is not there");
      return;
    }
    ++reads;
    if (is_corruption(status)) return fail("reading: " + status.ToString());
    if (!status.ok()) return;  // for now
    if (bytes != make_page(id_of(page), newest))
      return fail("page " + std::to_string(page) + " was read with llsn " +
                  std::to_string(llsn_of(bytes).value) + ", its log gives " +
                  std::to_string(newest.value));
    local_[page] = Local{newest, false, {}, {}};
  }
  void change() {
    const auto page = static_cast<uint32_t>(rng_.below(kPages));
    read_one(page);
    if (!local_.contains(page) && !storage_.newest(page, Llsn{llsn_}).is_zero()) return;
    Local& local = local_[page];
    if (!local.dirty) local.first = lsn_;
    local.dirty = true;
    local.llsn = Llsn{++llsn_};
    storage_.log.push_back({lsn_, local.llsn, page});
    lsn_ = local.end = Lsn{lsn_.value + 10};
  }
  void write_back() {
    std::vector<PageId> ids;
    std::vector<PageChanges> changes;
    std::string pages;
    const uint64_t skip = rng_.below(3);
    for (const auto& [page, local] : local_) {
      if (!local.dirty || rng_.below(3) < skip || ids.size() == 16) continue;
      durable_ = std::max(durable_, local.end);  // K9
      ids.push_back(id_of(page));
      changes.push_back({local.first, local.end});
      pages += make_page(id_of(page), local.llsn);
    }
    if (ids.empty()) return;
    bool ok[kWriteBatchPages] = {};
    const Status status = source_->write_changed(
        ids.data(), changes.data(), static_cast<uint32_t>(ids.size()), pages.data(), ok);
    if (is_corruption(status)) fail("writing: " + status.ToString());
    for (size_t i = 0; i < ids.size(); ++i)
      if (ok[i]) local_[ids[i].number].dirty = false;
  }
  void evict() {
    for (int i = 0; i < 16; ++i) {
      const auto found = local_.find(static_cast<uint32_t>(rng_.below(kPages)));
      if (found == local_.end() || found->second.dirty) continue;
      const PageId id = id_of(found->first);
      source_->evicted(id, make_page(id, found->second.llsn).data());
      local_.erase(found);
    }
  }
  // As both checkpointers do: what was changed before it has been written, and is durable.
  void checkpoint() {
    if (rng_.one_in(2)) write_back();
    Lsn at = lsn_;
    for (const auto& [page, local] : local_)
      if (local.dirty) at = std::min(at, local.first);
    durable_ = std::max(durable_, at);
    const auto kept = source_->publish_memory_checkpoint({at, 0});
    if (!kept.ok()) return;
    if (rng_.one_in(3) && source_->sync_below(at).ok()) tier_2_ = std::max(tier_2_, at);
  }

  Rng rng_;
  uint64_t trouble_;  // 0: none; 1: calls; 2: everything
  ReplayingStorage storage_;
  ReplayedBelow below_{&storage_};
  FakeStorage unused_;
  FakeNames naming_;
  FakeMemoryNode node_{kSlots, 4, &unused_};
  std::unique_ptr<FakePool> pool_;
  std::unique_ptr<MemoryPageSource> source_;
  uint64_t epoch_ = 0, llsn_ = 0, down_ = 0;
  Lsn lsn_{1000}, durable_{1000}, tier_2_{1000};
  std::map<uint32_t, Local> local_;
  int step_ = 0;
  std::string wrong_;
};

TEST(MemoryCopiesModel, APageHasTheBytesThatItsLogGives) {
  set_diag_sink([](Severity, std::string_view) {});
  const uint64_t first = number_from("STRATA_SEED", 1);
  const uint64_t rounds = number_from("STRATA_ROUNDS", 60);
  uint64_t reads = 0, lives = 0, from_memory = 0, bypasses = 0, from_pool = 0, outdated = 0;
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    Model model(seed);
    ASSERT_EQ(model.run(400), "") << "STRATA_SEED=" << seed << " STRATA_ROUNDS=1";
    reads += model.reads, lives += model.lives, from_memory += model.from_memory;
    bypasses += model.bypasses, from_pool += model.from_pool, outdated += model.outdated;
  }
  std::printf(
      "%lu reads (%lu from pools), %lu lives (%lu from memory), %lu bypasses, %lu outdated\n",
      reads, from_pool, lives, from_memory, bypasses, outdated);
  set_diag_sink(nullptr);
  if (rounds < 60) return;
  EXPECT_GT(from_pool * 5, reads);
  EXPECT_GT(from_memory, 20u);
  EXPECT_GT(bypasses, 5u);
  EXPECT_GT(outdated, 20u);
}

}  // namespace
}  // namespace strata::clients
