#include "minitxn/mtr.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <thread>

#include "base/rng.h"
#include "page/record.h"
#include "wal/log_reader.h"
#include "wal/testing/test_sink.h"

namespace strata {
namespace {

constexpr uint32_t kSpace = 256;

// A leaf value: redo wants room for the record header.
std::string record(Bytes text) { return std::string(kRecordHeaderBytes, 'h').append(text); }

// Pages in a map; nothing fails.
class MapSource final : public PageSource {
 public:
  explicit MapSource(bool needs_images) : needs_images_(needs_images) {}
  Status read(PageId id, Llsn, char* page) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = pages_.find(id);
    if (it == pages_.end()) return error_not_found();
    std::memcpy(page, it->second.data(), kPageBytes);
    return ok_status();
  }
  Status write(PageId id, const char* page) override {
    std::lock_guard<std::mutex> lock(mutex_);
    pages_[id].assign(page, kPageBytes);
    return ok_status();
  }
  Status sync() override { return ok_status(); }
  Status create_space(SpaceId) override { return ok_status(); }
  Status delete_space(SpaceId) override { return ok_status(); }
  StatusOr<bool> space_exists(SpaceId) override { return true; }
  StatusOr<std::vector<SpaceId>> list_spaces() override { return std::vector<SpaceId>{}; }
  Status grow_space(SpaceId, uint32_t) override { return ok_status(); }
  bool needs_page_images() const override { return needs_images_; }

 private:
  const bool needs_images_;
  std::mutex mutex_;
  std::map<PageId, std::string> pages_;
};

struct MtrTest : testing::Test {
  void open(bool needs_images) {
    pool.reset();
    log.reset();
    sink = std::make_unique<TestSink>();
    source = std::make_unique<MapSource>(needs_images);
    log = std::make_unique<Log>(LogOptions{.buffer_bytes = 2u << 20, .node = NodeId{1}}, sink.get(),
                                Lsn{4096}, 0);
    auto made = BufferPool::create({.bytes = 8u << 20, .partitions = 2, .writers = 0}, source.get(),
                                   no_page_lock(), log.get());
    ASSERT_TRUE(made.ok()) << made.status();
    pool = std::move(*made);
  }
  void SetUp() override { open(true); }

  static TreePageInit leaf(uint32_t number) {
    return {.page_id = {kSpace, number},
            .index_id = IndexId{5},
            .flags = kHighIsInfinity,
            .low_fence = Bytes()};
  }
  Lsn make_leaf(uint32_t number) {
    Mtr mtr(pool.get(), log.get());
    EXPECT_TRUE(mtr.begin_write().ok());
    const StatusOr<MtrPage*> page = mtr.fix_new({kSpace, number});
    EXPECT_TRUE(page.ok()) << page.status();
    mtr.init_tree(*page, leaf(number));
    return mtr.publish();
  }
  // Every page as a replay of the whole log makes it.
  std::map<PageId, std::string> replay() {
    EXPECT_TRUE(log->persist(log->next_lsn()).ok());
    std::map<PageId, std::string> pages;
    LogReader reader(sink.get(), Lsn{4096});
    redo::GroupView group;
    for (;;) {
      const StatusOr<bool> more = reader.next(&group);
      EXPECT_TRUE(more.ok()) << more.status();
      if (!more.ok() || !*more) break;
      const Status applied = redo::for_each_section(group, [&](const redo::SectionView& s) {
        std::string& page = pages[s.page_id];
        if (page.empty()) page.assign(kPageBytes, '\0');
        STRATA_ASSIGN_OR_RETURN(const redo::Applied how,
                                redo::apply_section(page.data(), Llsn{group.header.llsn}, s));
        EXPECT_EQ(static_cast<int>(how), static_cast<int>(redo::Applied::kApplied));
        return ok_status();
      });
      EXPECT_TRUE(applied.ok()) << applied;
    }
    EXPECT_EQ(reader.end_lsn(), log->next_lsn());
    return pages;
  }
  void expect_replay_gives_memory() {  // M2, RD1
    const std::map<PageId, std::string> replayed = replay();
    for (const auto& [id, bytes] : replayed) {
      const StatusOr<PageGuard> guard = pool->fix(id, LatchMode::kShared);
      ASSERT_TRUE(guard.ok()) << guard.status();
      EXPECT_EQ(std::memcmp(guard->page() + 4, bytes.data() + 4, kPageBytes - 4), 0)
          << "page " << id.number;
    }
  }
  // Kinds of the first op of each section of the newest group.
  std::vector<redo::Kind> last_group_kinds() {
    EXPECT_TRUE(log->persist(log->next_lsn()).ok());
    LogReader reader(sink.get(), Lsn{4096});
    redo::GroupView group;
    std::vector<redo::Kind> kinds;
    while (*reader.next(&group)) {
      kinds.clear();
      EXPECT_TRUE(redo::for_each_section(group, [&](const redo::SectionView& s) {
                    kinds.push_back(static_cast<redo::Kind>(s.ops[0]));
                    return ok_status();
                  }).ok());
    }
    return kinds;
  }
  void insert(uint32_t number, Bytes key, Bytes value) {
    Mtr mtr(pool.get(), log.get());
    ASSERT_TRUE(mtr.begin_write().ok());
    const StatusOr<MtrPage*> page = mtr.fix({kSpace, number}, LatchMode::kExclusive);
    ASSERT_TRUE(page.ok()) << page.status();
    bool equal = false;
    const uint16_t slot = (*page)->view().lower_bound(key, &equal);
    ASSERT_FALSE(equal);
    mtr.insert(*page, slot, key, record(value));
    mtr.publish();
  }

  std::unique_ptr<TestSink> sink;
  std::unique_ptr<MapSource> source;
  std::unique_ptr<Log> log;
  std::unique_ptr<BufferPool> pool;
};
using MtrDeathTest = MtrTest;

TEST_F(MtrTest, PublishSetsOneLlsnOnAllPages) {
  make_leaf(10);
  make_leaf(11);
  Mtr mtr(pool.get(), log.get());
  ASSERT_TRUE(mtr.begin_write().ok());
  MtrPage* a = *mtr.fix({kSpace, 10}, LatchMode::kExclusive);
  MtrPage* b = *mtr.fix({kSpace, 11}, LatchMode::kExclusive);
  EXPECT_EQ(*mtr.fix({kSpace, 10}, LatchMode::kShared), a);  // M5
  mtr.insert(a, 0, "key", record("value"));
  mtr.set_right(b, 10);
  const Lsn end = mtr.publish();
  EXPECT_EQ(end, log->next_lsn());
  EXPECT_EQ(mtr.page_count(), 0u);
  for (const uint32_t number : {10u, 11u}) {
    const StatusOr<PageGuard> guard = pool->fix({kSpace, number}, LatchMode::kShared);
    EXPECT_EQ(header_of(guard->page())->llsn, mtr.published_llsn().value);
  }
  expect_replay_gives_memory();
}

TEST_F(MtrTest, NothingChangedMakesNoGroup) {
  make_leaf(10);
  const Lsn before = log->next_lsn();
  Mtr mtr(pool.get(), log.get());
  ASSERT_TRUE(mtr.begin_write().ok());
  MtrPage* page = *mtr.fix({kSpace, 10}, LatchMode::kExclusive);
  mtr.release(page);
  EXPECT_EQ(mtr.page_count(), 0u);
  ASSERT_TRUE(mtr.fix({kSpace, 10}, LatchMode::kShared).ok());
  EXPECT_EQ(mtr.publish(), before);
  EXPECT_FALSE(mtr.can_write());
  ASSERT_TRUE(mtr.begin_write().ok());
  mtr.abandon();
  // All capacity is back: half of the ring can be had twice.
  ASSERT_TRUE(log->persist(log->next_lsn()).ok());
  ASSERT_TRUE(log->reserve_capacity(1u << 20, false).ok());
  ASSERT_TRUE(log->reserve_capacity(1u << 20, false).ok());
  log->return_capacity(2u << 20);
}

TEST_F(MtrTest, FirstChangeAfterACheckpointLogsAnImage) {  // M3, CP2
  make_leaf(10);
  insert(10, "a", "1");
  EXPECT_EQ(last_group_kinds(), std::vector{redo::Kind::kInsert}) << "the init restarts the chain";
  log->raise_image_floor();
  insert(10, "b", "2");
  EXPECT_EQ(last_group_kinds(), std::vector{redo::Kind::kImage});
  insert(10, "c", "3");
  EXPECT_EQ(last_group_kinds(), std::vector{redo::Kind::kInsert});
  expect_replay_gives_memory();
}

TEST_F(MtrTest, SourcesThatCannotTearGetNoImages) {
  open(false);
  make_leaf(10);
  log->raise_image_floor();
  insert(10, "b", "2");
  EXPECT_EQ(last_group_kinds(), std::vector{redo::Kind::kInsert});
  EXPECT_EQ(log->counters().image_bytes.load(), 0u);
}

TEST_F(MtrTest, LongChangesBecomeAnImage) {  // M6
  open(false);
  make_leaf(10);
  insert(10, "k", std::string(1000, 'v'));
  Mtr mtr(pool.get(), log.get());
  ASSERT_TRUE(mtr.begin_write(Mtr::kGroupLogBytes + Mtr::kPageLogBytesMax).ok());
  MtrPage* page = *mtr.fix({kSpace, 10}, LatchMode::kExclusive);
  for (int i = 0; i < 40; i++) mtr.replace(page, 0, std::string(1000, static_cast<char>('A' + i)));
  mtr.publish();
  EXPECT_EQ(last_group_kinds(), std::vector{redo::Kind::kImage});
  expect_replay_gives_memory();
}

TEST_F(MtrTest, LlsnExceedsThatOfEveryPage) {  // W1 through M3
  make_leaf(10);
  {
    Mtr mtr(pool.get(), log.get());
    ASSERT_TRUE(mtr.begin_write().ok());
    MtrPage* page = *mtr.fix({kSpace, 10}, LatchMode::kExclusive);
    header_of(page->guard.mutable_page())->llsn = 1u << 30;  // as another node's stream left it
    mtr.insert(page, 0, "x", record("y"));
    mtr.publish();
    EXPECT_GT(mtr.published_llsn().value, 1u << 30);
  }
}

TEST_F(MtrTest, ImageReplacesThePageButNotItsIdentity) {
  make_leaf(10);
  make_leaf(11);
  insert(11, "from", "eleven");
  Mtr mtr(pool.get(), log.get());
  ASSERT_TRUE(mtr.begin_write().ok());
  MtrPage* to = *mtr.fix({kSpace, 10}, LatchMode::kExclusive);
  MtrPage* from = *mtr.fix({kSpace, 11}, LatchMode::kShared);
  mtr.image(to, from->page());
  EXPECT_EQ(page_id_of(to->page()), (PageId{kSpace, 10}));
  EXPECT_EQ(to->view().value(0), record("eleven"));
  mtr.publish();
  expect_replay_gives_memory();
}

TEST_F(MtrDeathTest, UnpublishedChangesAssert) {  // M4
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  make_leaf(10);
  EXPECT_DEATH(
      {
        Mtr mtr(pool.get(), log.get());
        mtr.begin_write().IgnoreError();
        mtr.set_flags(*mtr.fix({kSpace, 10}, LatchMode::kExclusive), kHighIsInfinity);
      },
      "modified_count_");
}

// Goal: memory and replay agree whatever the interleaving of threads, checkpoints and images.
// Method: threads change one or two of a few pages at random; another raises the image floor.
TEST_F(MtrTest, RandomChangesFromManyThreadsReplayToTheSameBytes) {
  constexpr uint32_t kPages = 4;
  for (uint32_t n = 0; n < kPages; n++) make_leaf(10 + n);
  const auto change = [](Mtr* mtr, MtrPage* page, Rng* rng) {
    char key[8];
    std::snprintf(key, sizeof(key), "k%03u", static_cast<unsigned>(rng->below(60)));
    const std::string value = record(std::string(rng->below(300), static_cast<char>(rng->next())));
    bool equal = false;
    const uint16_t slot = page->view().lower_bound(key, &equal);
    if (!equal) {
      if (page->view().fits_insert(key, value.size())) mtr->insert(page, slot, key, value);
    } else if (rng->one_in(3)) {
      mtr->erase(page, slot);
    } else if (page->view().fits_replace(slot, value.size())) {
      mtr->replace(page, slot, value);
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; t++) {
    threads.emplace_back([&, t] {
      Rng rng(t);
      for (int i = 0; i < 2000; i++) {
        Mtr mtr(pool.get(), log.get());
        ASSERT_TRUE(mtr.begin_write(Mtr::kGroupLogBytes + 2 * Mtr::kPageLogBytesMax).ok());
        const auto first = static_cast<uint32_t>(rng.below(kPages));
        MtrPage* a = *mtr.fix({kSpace, 10 + first}, LatchMode::kExclusive);
        for (uint64_t n = 1 + rng.below(3); n > 0; n--) change(&mtr, a, &rng);
        if (first + 1 < kPages && rng.one_in(3))
          change(&mtr, *mtr.fix({kSpace, 11 + first}, LatchMode::kExclusive), &rng);
        mtr.publish();
        if (rng.one_in(20)) log->raise_image_floor();
        if (!rng.one_in(50)) continue;
        EXPECT_TRUE(log->persist(log->next_lsn()).ok());
      }
    });
  }
  for (std::thread& t : threads) t.join();
  expect_replay_gives_memory();
  EXPECT_GT(log->counters().image_bytes.load(), 0u);
}

}  // namespace
}  // namespace strata
