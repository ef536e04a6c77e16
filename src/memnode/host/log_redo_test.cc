// Goal: LRD1-LRD5: whatever part of what several logs tell is in storage, in however little memory
// it is redone and wherever it breaks off, storage ends with the pages that the logs make; gaps,
// damaged pages and torn ends are told from each other. Method: random changes of shared pages by
// several writers, written back and checkpointed at random, against the pages that the writers
// had. STRATA_TEST_SEED=n repeats one run.
#include "memnode/host/log_redo.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/rng.h"
#include "base/wait_interrupt.h"

namespace strata::memnode {
namespace {

constexpr Lsn kBegin{4096};
constexpr uint32_t kSpaces = 3;  // 100, 101, ...
constexpr uint32_t kPages = 6;   // of each

// A stream in memory.
class Sink final : public LogSink {
 public:
  [[nodiscard]] Lsn begin_lsn() const override { return kBegin; }
  Status prepare_room(Lsn) override { return ok_status(); }
  [[nodiscard]] Lsn room_end() const override { return Lsn{kBegin.value + bytes.size()}; }
  Status append(Lsn, Bytes more) override {
    bytes += more;
    return ok_status();
  }
  Status sync() override { return ok_status(); }
  StatusOr<size_t> read(Lsn at, char* out, size_t count) override {
    ++reads;
    if (at >= room_end()) return size_t{0};
    return bytes.copy(out, count, at.value - kBegin.value);
  }
  Status truncate_below(Lsn) override { return ok_status(); }
  [[nodiscard]] bool is_stream() const override { return true; }
  Status cut_at(Lsn end) override {
    bytes.resize(end.value - kBegin.value);
    ++cuts;
    return ok_status();
  }
  std::string bytes;
  int cuts = 0;
  int reads = 0;
};

// Storage whose writes fail from the one on that is told.
class Storage final : public PageSource {
 public:
  Status read(PageId id, Llsn, char* page) override {
    const auto found = pages.find(id);
    if (found == pages.end()) return error_not_found();
    std::memcpy(page, found->second.data(), kPageBytes);
    return verify_page(page, id);
  }
  Status write(PageId id, const char* page) override {
    if (writes_left == 0) return error_peer_down("by the test");
    if (writes_left > 0) --writes_left;
    EXPECT_TRUE(verify_page(page, id).ok());
    EXPECT_TRUE(spaces.contains(SpaceId{id.space})) << id.space;
    EXPECT_TRUE(may_write);
    pages[id].assign(page, kPageBytes);
    unsynced = true;
    return ok_status();
  }
  Status sync() override {
    if (writes_left == 0) return error_peer_down("by the test");
    unsynced = false;
    return ok_status();
  }
  Status create_space(SpaceId) override { return ok_status(); }
  Status delete_space(SpaceId) override { return ok_status(); }
  StatusOr<bool> space_exists(SpaceId space) override { return spaces.contains(space); }
  StatusOr<std::vector<SpaceId>> list_spaces() override {
    return std::vector<SpaceId>(spaces.begin(), spaces.end());
  }
  Status grow_space(SpaceId, uint32_t) override { return ok_status(); }
  [[nodiscard]] bool needs_page_images() const override { return false; }

  std::map<PageId, std::string> pages;
  std::set<SpaceId> spaces;
  int64_t writes_left = -1;  // -1: all are
  bool may_write = true;
  bool unsynced = false;
};

// Writers of the same pages, each with a log.
class Writers {
 public:
  Writers(uint64_t seed, size_t count) : rng_(seed), sinks_(count), logs_(count), dirty_(count) {
    for (size_t i = 0; i < count; ++i)
      logs_[i] = {
          .stream = StreamId{static_cast<uint32_t>(i + 1)}, .sink = &sinks_[i], .from = kBegin};
    storage.spaces.insert(SpaceId{kSystemSpace});
    for (uint32_t i = 0; i < kSpaces; ++i) storage.spaces.insert(SpaceId{100 + i});
    std::string ops;
    redo::encode_init_plain(&ops, kPendingDeletesPage, PageType::kSystem, IndexId{}, 0);
    group(0, {{kPendingDeletesPage, ops}});
  }

  void step() {
    const size_t who = rng_.below(logs_.size());
    if (rng_.one_in(12)) return checkpoint(who);
    if (rng_.one_in(6)) return write_back(random_page());
    std::map<PageId, std::string> changes;
    for (uint64_t n = 1 + rng_.below(3); n > 0; --n) {
      const PageId id = random_page();
      if (dropped_.contains(id.space)) continue;
      std::string& ops = changes[id];
      if (!now.contains(id) || rng_.one_in(30))
        redo::encode_init_plain(&ops, id, PageType::kUndo, IndexId{1}, rng_.next());
      std::string bytes(1 + rng_.below(rng_.one_in(5) ? 3000 : 40), '\0');
      for (char& c : bytes) c = static_cast<char>(rng_.next());
      redo::encode_write(&ops, static_cast<uint16_t>(64 + rng_.below(4000)), bytes);
    }
    if (!changes.empty()) group(who, changes);
  }

  // Nobody writes what it has of it any more; its file goes now, or later.
  void drop(uint32_t space) {
    std::string ops;
    redo::encode_pending_delete_add(&ops, SpaceId{space});
    group(rng_.below(logs_.size()), {{kPendingDeletesPage, ops}});
    dropped_.insert(space);
    for (auto& pages : dirty_) std::erase_if(pages, [&](PageId id) { return id.space == space; });
    if (rng_.one_in(2)) return;
    storage.spaces.erase(SpaceId{space});
    std::erase_if(storage.pages, [&](const auto& page) { return page.first.space == space; });
    if (rng_.one_in(2)) return;
    ops.clear();
    redo::encode_pending_delete_remove(&ops, SpaceId{space});
    group(rng_.below(logs_.size()), {{kPendingDeletesPage, ops}});
    for (size_t who = 0; who < logs_.size(); ++who)
      if (rng_.one_in(2)) checkpoint(who);  // a log that speaks of it still may be alone with it
  }

  void checkpoint(size_t who) {
    const std::set<PageId> pages = std::exchange(dirty_[who], {});
    for (const PageId id : pages) write_back(id);
    logs_[who].from = end(who);
    logs_[who].bias = bias_.at(who);
  }
  void write_back(PageId id) {
    if (!now.contains(id) || dropped_.contains(id.space)) return;
    std::string page = now[id];
    seal_page(page.data());
    storage.pages[id] = page;
  }
  // By hand: what was logged is not what the pages had.
  void group(size_t who, const std::map<PageId, std::string>& changes, uint64_t prev_off_by = 0) {
    uint64_t llsn_min = 0;
    std::string body;
    for (const auto& [id, ops] : changes) {
      std::string& page = page_of(id);
      const uint64_t prev = header_of(page.data())->llsn;
      llsn_min = std::max(llsn_min, prev + 1);
      put32(&body, id.space);
      put32(&body, id.number);
      put64(&body, prev + prev_off_by);
      put32(&body, static_cast<uint32_t>(ops.size()));
      body += ops;
    }
    body.resize((body.size() + 7) / 8 * 8, '\0');
    redo::GroupHeader header{};
    header.magic = redo::kGroupMagic;
    header.length = static_cast<uint32_t>(sizeof header + body.size());
    header.lsn = end(who).value;
    const uint64_t group_end = header.lsn + header.length;
    if (bias_.at(who) + group_end < llsn_min) bias_[who] = llsn_min - group_end + rng_.below(50);
    header.llsn = group_end + bias_[who];
    header.node = static_cast<uint8_t>(who + 1);
    header.section_count = static_cast<uint16_t>(changes.size());
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    bytes += body;
    redo::seal_group(bytes.data());
    sinks_[who].bytes += bytes;
    for (const auto& [id, ops] : changes) {
      std::string& page = page_of(id);
      ASSERT_TRUE(redo::apply_ops(page.data(), ops).ok());
      header_of(page.data())->llsn = header.llsn;
      dirty_[who].insert(id);
    }
  }
  [[nodiscard]] Lsn end(size_t who) const { return sinks_[who].room_end(); }

  void expect_stored() {
    for (const auto& [id, page] : now) {
      if (dropped_.contains(id.space)) continue;
      const std::string& stored = storage.pages[id];
      ASSERT_EQ(stored.size(), kPageBytes);
      EXPECT_EQ(std::memcmp(stored.data() + 4, page.data() + 4, kPageBytes - 4), 0)
          << id.space << ":" << id.number;
    }
    EXPECT_FALSE(storage.unsynced);
  }
  PageId random_page() {
    return {static_cast<uint32_t>(100 + rng_.below(kSpaces)),
            static_cast<uint32_t>(rng_.below(kPages))};
  }
  Rng* rng() { return &rng_; }
  std::vector<LogToRedo>& logs() { return logs_; }
  Sink* sink(size_t who) { return &sinks_[who]; }

  Storage storage;
  std::map<PageId, std::string> now;

 private:
  static void put32(std::string* to, uint32_t v) {
    to->append(reinterpret_cast<const char*>(&v), sizeof v);
  }
  static void put64(std::string* to, uint64_t v) {
    to->append(reinterpret_cast<const char*>(&v), sizeof v);
  }
  std::string& page_of(PageId id) {
    std::string& page = now[id];
    if (page.empty()) page.resize(kPageBytes, '\0');
    return page;
  }
  Rng rng_;
  std::vector<Sink> sinks_;
  std::vector<LogToRedo> logs_;
  std::vector<std::set<PageId>> dirty_;
  std::map<size_t, uint64_t> bias_ = {{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}};
  std::set<uint32_t> dropped_;
};

uint64_t first_seed() {
  const char* given = std::getenv("STRATA_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : monotonic_us() % 1000000;
}
int runs(int usual) { return std::getenv("STRATA_TEST_SEED") != nullptr ? 1 : usual; }

Status run(LogRedo* redo) {
  STRATA_RETURN_IF_ERROR(redo->read());
  return redo->apply();
}

TEST(LogRedo, StorageEndsWithWhatAllLogsMakeWhereverItBreaksOff) {  // LRD1, LRD3-LRD5
  const uint64_t first = first_seed();
  for (uint64_t seed = first; seed < first + static_cast<uint64_t>(runs(150)); ++seed) {
    SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed));
    Writers writers(seed, 1 + seed % 4);
    Rng* const rng = writers.rng();
    const uint64_t steps = 20 + rng->below(400);
    const uint64_t drop_at = rng->below(2 * steps);
    for (uint64_t i = 0; i < steps; ++i) {
      if (i == drop_at) writers.drop(101);
      writers.step();
    }
    const LogRedo::Options options{.dirty_pages_max = rng->one_in(2) ? 1 + rng->below(8) : 1000};
    for (int breaks = 0; breaks < 3; ++breaks) {
      writers.storage.writes_left = static_cast<int64_t>(rng->below(12));
      LogRedo broken(&writers.storage, writers.logs(), options);
      if (run(&broken).ok()) break;
    }
    writers.storage.writes_left = -1;
    LogRedo redo(&writers.storage, writers.logs(), options);
    const Status done = run(&redo);
    ASSERT_TRUE(done.ok()) << done;
    writers.expect_stored();
    // Some checkpoints were published before it broke off, not all.
    const auto before = writers.storage.pages;
    for (size_t i = 0; i < writers.logs().size(); ++i) {
      const LogToRedo& did = redo.logs()[i];
      EXPECT_EQ(did.end, writers.end(i));
      if (!rng->one_in(2)) continue;
      writers.logs()[i].from = did.end;
      writers.logs()[i].bias = did.bias_at_end;
    }
    LogRedo again(&writers.storage, writers.logs(), options);
    const Status twice = run(&again);
    ASSERT_TRUE(twice.ok()) << twice;
    EXPECT_EQ(again.counters().applied, 0u);
    EXPECT_EQ(writers.storage.pages, before);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(LogRedo, LogsThatAreLongerThanWhatIsReadAtOnce) {
  Writers writers(17, 3);
  std::string big(kPageBytes - 100, 'b');
  for (int i = 0; i < 1500; ++i) {
    std::string ops;
    const PageId id{100, static_cast<uint32_t>(i % 40)};
    if (!writers.now.contains(id))
      redo::encode_init_plain(&ops, id, PageType::kUndo, IndexId{1}, 0);
    big[static_cast<size_t>(i)] = static_cast<char>(i);
    redo::encode_write(&ops, 64, big);
    writers.group(static_cast<size_t>(i) % 3, {{id, ops}});
  }
  LogRedo redo(&writers.storage, writers.logs(), {.dirty_pages_max = 7});
  const Status done = run(&redo);
  ASSERT_TRUE(done.ok()) << done;
  writers.expect_stored();
  EXPECT_GT(writers.sink(0)->reads, 4);
}

TEST(LogRedo, ATornEndIsCutOffBeforeAnythingIsWritten) {  // LRD2
  Writers writers(5, 2);
  for (int i = 0; i < 50; ++i) writers.step();
  const Lsn end = writers.end(1);
  writers.sink(1)->bytes.append(writers.sink(1)->bytes.substr(0, 30));
  writers.storage.may_write = false;
  LogRedo redo(&writers.storage, writers.logs(), {});
  ASSERT_TRUE(redo.read().ok());
  EXPECT_EQ(writers.sink(0)->cuts, 1);
  EXPECT_EQ(writers.sink(1)->cuts, 1);
  EXPECT_EQ(writers.end(1), end);
  EXPECT_EQ(redo.logs()[1].end, end);
  writers.storage.may_write = true;
  ASSERT_TRUE(redo.apply().ok());
  writers.expect_stored();
}

TEST(LogRedo, AGapIsToldWithLogPositionAndPage) {  // LRD1
  Writers writers(5, 2);
  std::string ops;
  redo::encode_init_plain(&ops, {100, 3}, PageType::kUndo, IndexId{1}, 0);
  writers.group(0, {{PageId{100, 3}, ops}});
  const Lsn at = writers.end(1);
  ops.clear();
  redo::encode_write(&ops, 64, "x");
  writers.group(1, {{PageId{100, 3}, ops}}, 1);
  LogRedo redo(&writers.storage, writers.logs(), {});
  const Status gap = run(&redo);
  EXPECT_TRUE(is_corruption(gap)) << gap;
  for (const std::string& part : {std::string("log of server 2"), std::to_string(at.value),
                                  std::string("100:3"), std::string("a change in between")})
    EXPECT_NE(gap.message().find(part), std::string::npos) << gap;
}

TEST(LogRedo, ADamagedPageNeedsAnImage) {
  for (const bool image : {false, true}) {
    SCOPED_TRACE(image);
    Writers writers(5, 1);
    std::string ops;
    const PageId id{100, 3};
    redo::encode_init_plain(&ops, id, PageType::kUndo, IndexId{1}, 0);
    writers.group(0, {{id, ops}});
    writers.checkpoint(0);
    writers.storage.pages[id][100] = 'd';
    if (!image) ops.clear();
    redo::encode_write(&ops, 64, "x");
    writers.group(0, {{id, ops}});
    LogRedo redo(&writers.storage, writers.logs(), {});
    const Status done = run(&redo);
    EXPECT_EQ(done.ok(), image) << done;
    if (image) writers.expect_stored();
    if (!image) {
      EXPECT_NE(done.message().find("the stored page is damaged"), std::string::npos);
    }
  }
}

TEST(LogRedo, AnInterruptEndsIt) {
  Writers writers(5, 2);
  for (int i = 0; i < 50; ++i) writers.step();
  WaitInterrupt interrupt;
  const InterruptScope scope(&interrupt);
  LogRedo redo(&writers.storage, writers.logs(), {});
  ASSERT_TRUE(redo.read().ok());
  interrupt.interrupt();
  EXPECT_TRUE(is_interrupted(redo.apply()));
}

}  // namespace
}  // namespace strata::memnode
