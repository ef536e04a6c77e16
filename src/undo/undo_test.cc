// Goal: the promises of undo_log.h. Method: one writer at a time on a small store with a simulated
// disk; a plain list of what was written is the oracle, before and after a crash. The last tests
// use threads.
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "base/fault.h"
#include "base/rng.h"
#include "space/testing/test_store.h"
#include "undo/internal/undo_page.h"
#include "undo/undo_log.h"

namespace strata {
namespace {

using testing::TestStore;

constexpr NodeId kNode{1};
const SpaceId kSpace{undo_space_of(kNode)};
TrxId trx_id(uint64_t n) { return make_trx_id(kNode, n); }
UndoSpace::Writer writer_of(TrxId id) {
  UndoSpace::Writer w;
  w.trx_id = id;
  return w;
}

struct UndoTest : ::testing::Test {
  TestStore store{{.frames = 256}};
  std::unique_ptr<UndoSpace> undo;

  void SetUp() override {
    ASSERT_TRUE(store.spaces()->create(kSpace).ok());
    make_undo();
  }
  void TearDown() override {
    disarm_faults();
    undo.reset();
  }
  void make_undo() {
    undo = std::make_unique<UndoSpace>(store.pool(), store.log(), store.spaces(), kNode);
  }
  void restart(uint64_t seed) {
    undo.reset();
    store.crash(seed);
    ASSERT_TRUE(store.recover().ok());
    ASSERT_TRUE(store.spaces()->open(kSpace, true).ok());
    make_undo();
  }

  static UndoRecord make_record(Rng* rng, size_t middle_max) {
    UndoRecord r;
    r.type = static_cast<UndoType>(2 + rng->below(3));
    r.index = IndexId{static_cast<uint32_t>(rng->next())};
    r.root = PageId{static_cast<uint32_t>(rng->next()), static_cast<uint32_t>(rng->next())};
    r.key.assign(rng->below(40), static_cast<char>(rng->next()));
    if (r.type == UndoType::kUpdate) {
      r.previous = RecordHeader{TrxId{rng->next()}, Cts{rng->next()}, UndoPtr{rng->next()},
                                static_cast<uint8_t>(rng->below(4))};
      r.prefix_bytes = static_cast<uint16_t>(rng->below(500));
      r.suffix_bytes = static_cast<uint16_t>(rng->below(500));
      r.middle.assign(rng->below(middle_max + 1), static_cast<char>(rng->next()));
      for (uint64_t n = rng->below(3); n > 0; --n)
        r.free_on_purge.push_back(OverflowRef{static_cast<uint32_t>(rng->next()),
                                              static_cast<uint32_t>(rng->next()), rng->next(),
                                              TrxId{rng->next()}});
    }
    if (r.type == UndoType::kOverflow) r.overflow = OverflowRef{7, 9, rng->next(), TrxId{3}};
    return r;
  }
  static bool same(const UndoRecord& a, const UndoRecord& b) {
    const auto same_ref = [](const OverflowRef& x, const OverflowRef& y) {
      return x.first_page == y.first_page && x.ordinal == y.ordinal && x.bytes == y.bytes &&
             x.creator == y.creator;
    };
    return a.type == b.type && a.trx_id == b.trx_id && a.prev_in_trx == b.prev_in_trx &&
           a.index == b.index && a.root == b.root && a.key == b.key &&
           a.previous.trx_id == b.previous.trx_id && a.previous.cts == b.previous.cts &&
           a.previous.undo_ptr == b.previous.undo_ptr && a.previous.flags == b.previous.flags &&
           a.prefix_bytes == b.prefix_bytes && a.suffix_bytes == b.suffix_bytes &&
           a.middle == b.middle && same_ref(a.overflow, b.overflow) &&
           std::equal(a.free_on_purge.begin(), a.free_on_purge.end(), b.free_on_purge.begin(),
                      b.free_on_purge.end(), same_ref);
  }
  UndoPtr write(UndoSpace::Writer* w, UndoRecord* r) {
    EXPECT_TRUE(
        undo->prepare(w, undo_bytes_max(r->key.size(), r->middle.size(), r->free_on_purge.size()))
            .ok());
    Mtr mtr(store.pool(), store.log());
    EXPECT_TRUE(mtr.begin_write().ok());
    const StatusOr<UndoPtr> ptr = undo->append(&mtr, w, r);
    EXPECT_TRUE(ptr.ok()) << ptr.status();
    mtr.publish();
    return *ptr;
  }
  void mark(UndoSpace::Writer* w, UndoType type, Bytes body) {
    ASSERT_TRUE(undo->prepare(w, UndoSpace::kUndoMarkBytes + body.size()).ok());
    Mtr mtr(store.pool(), store.log());
    ASSERT_TRUE(mtr.begin_write().ok());
    ASSERT_TRUE(undo->append_mark(&mtr, w, type, body).ok());
    mtr.publish();
  }
  using Written = std::vector<std::pair<UndoPtr, UndoRecord>>;
  void expect_run(TrxId id, UndoPtr first, const Written& want) {
    size_t n = 0;
    const Status s = for_each_undo(store.pool(), id, first, [&](UndoPtr p, const UndoRecord& r) {
      EXPECT_LT(n, want.size());
      if (n < want.size()) {
        EXPECT_EQ(p, want[n].first);
        EXPECT_TRUE(same(r, want[n].second)) << n;
      }
      ++n;
      return ok_status();
    });
    EXPECT_TRUE(s.ok()) << s;
    EXPECT_EQ(n, want.size());
  }
  void expect_chain(const UndoSpace::Writer& w, const Written& want) {
    UndoPtr at = w.last;
    for (size_t n = want.size(); n-- > 0;) {
      ASSERT_EQ(at, want[n].first);
      UndoRecord r;
      ASSERT_TRUE(read_undo(store.pool(), at, w.trx_id, &r).ok());
      EXPECT_TRUE(same(r, want[n].second));
      at = r.prev_in_trx;
    }
    EXPECT_TRUE(at.is_zero());
  }
};

TEST(UndoPayload, DifferenceGivesTheOldPayloadBack) {
  Rng rng(5);
  for (int i = 0; i < 20000; ++i) {
    std::string before, after;
    for (uint64_t n = rng.below(30); n > 0; --n) before += static_cast<char>('a' + rng.below(2));
    for (uint64_t n = rng.below(30); n > 0; --n) after += static_cast<char>('a' + rng.below(2));
    if (rng.one_in(3)) {
      after = before;
      if (!after.empty()) after[rng.below(after.size())] = 'x';
    }
    UndoRecord r;
    set_payload_difference(&r, before, after);
    std::string back;
    ASSERT_TRUE(previous_payload(r, after, &back).ok());
    ASSERT_EQ(back, before);
  }
  UndoRecord r;
  r.prefix_bytes = 5;
  r.suffix_bytes = 6;
  std::string out;
  EXPECT_TRUE(is_corruption(previous_payload(r, "0123456789", &out)));
}

TEST_F(UndoTest, RecordsComeBackAsWritten) {  // U1
  Rng rng(1);
  UndoSpace::Writer w = writer_of(trx_id(7));
  Written written;
  for (int i = 0; i < 2000; ++i) {
    UndoRecord r = make_record(&rng, i % 10 == 0 ? 4000 : 50);
    const UndoPtr ptr = write(&w, &r);
    written.emplace_back(ptr, r);
  }
  EXPECT_GT(w.pages.size(), 10u);
  expect_run(w.trx_id, w.first, written);
  expect_chain(w, written);
  UndoRecord r;
  EXPECT_TRUE(is_not_found(read_undo(store.pool(), w.first, trx_id(8), &r)));
  const UndoPtr beside = make_undo_ptr(kNode, undo_page_number(w.first), undo_offset(w.first) + 1);
  EXPECT_TRUE(is_not_found(read_undo(store.pool(), beside, w.trx_id, &r)));
  const UndoPtr map_page = make_undo_ptr(kNode, 1, 100);
  EXPECT_TRUE(is_not_found(read_undo(store.pool(), map_page, w.trx_id, &r)));
  undo->detach(&w);
  ASSERT_TRUE(undo->forget(w.pages).ok());
  store.expect_replay_is_identical();
}

TEST_F(UndoTest, TheLargestRecordFitsAndMoreIsRefused) {
  UndoSpace::Writer w = writer_of(trx_id(1));
  UndoRecord r;
  r.type = UndoType::kUpdate;
  r.key.assign(3600, 'k');
  r.middle.assign(4060, 'm');
  r.free_on_purge.resize(4060 / kOverflowRefBytes);
  Written written;
  for (int i = 0; i < 4; ++i) {
    const UndoPtr ptr = write(&w, &r);
    written.emplace_back(ptr, r);
  }
  expect_run(w.trx_id, w.first, written);
  EXPECT_TRUE(undo->prepare(&w, kUndoPrepareBytesMax).ok());
  EXPECT_EQ(undo->prepare(&w, kUndoPrepareBytesMax + 1).code(), StatusCode::kInvalidArgument);
  undo->detach(&w);
}

TEST_F(UndoTest, OneAppendIsOneOperationOnOnePage) {
  UndoSpace::Writer w = writer_of(trx_id(1));
  Rng rng(3);
  UndoRecord r = make_record(&rng, 20);
  write(&w, &r);
  Mtr mtr(store.pool(), store.log());
  ASSERT_TRUE(undo->prepare(&w, 200).ok());
  ASSERT_TRUE(mtr.begin_write().ok());
  ASSERT_TRUE(undo->append(&mtr, &w, &r).ok());
  EXPECT_EQ(mtr.page_count(), 1u);
  mtr.publish();
  undo->detach(&w);
}

TEST_F(UndoTest, TransactionsShareAPageOneAfterTheOther) {  // U2, U4
  Rng rng(2);
  std::vector<UndoSpace::Writer> done;
  std::vector<Written> records;
  for (uint64_t n = 1; n <= 40; ++n) {
    UndoSpace::Writer w = writer_of(trx_id(n));
    Written written;
    for (int i = 0; i < 3; ++i) {
      UndoRecord r = make_record(&rng, 20);
      const UndoPtr ptr = write(&w, &r);
      written.emplace_back(ptr, r);
    }
    undo->detach(&w);
    done.push_back(w);
    records.push_back(written);
  }
  EXPECT_LE(undo->pages_in_use(), 2u);
  for (size_t n = 0; n < done.size(); ++n) expect_run(done[n].trx_id, done[n].first, records[n]);

  // Two at once do not share.
  UndoSpace::Writer a = writer_of(trx_id(100)), b = writer_of(trx_id(101));
  UndoRecord r = make_record(&rng, 20);
  write(&a, &r);
  write(&b, &r);
  EXPECT_NE(a.page, b.page);
  undo->detach(&a);
  undo->detach(&b);
  for (const auto& w : done) ASSERT_TRUE(undo->forget(w.pages).ok());
  ASSERT_TRUE(undo->forget(a.pages).ok());
  ASSERT_TRUE(undo->forget(b.pages).ok());
}

TEST_F(UndoTest, PagesAreFreedWhenNobodyNeedsThem) {  // U4
  Rng rng(4);
  const uint64_t before = *store.spaces()->used_pages(kSpace);
  std::vector<std::vector<uint32_t>> claims;
  for (uint64_t n = 1; n <= 60; ++n) {
    UndoSpace::Writer w = writer_of(trx_id(n));
    for (int i = 0; i < 30; ++i) {
      UndoRecord r = make_record(&rng, 2000);
      write(&w, &r);
    }
    undo->detach(&w);
    claims.push_back(w.pages);
  }
  EXPECT_GT(*store.spaces()->used_pages(kSpace), before + 30);
  for (const auto& pages : claims) ASSERT_TRUE(undo->forget(pages).ok());
  EXPECT_LE(undo->pages_in_use(), 65u);  // some wait as tails
  EXPECT_EQ(*store.spaces()->used_pages(kSpace), before + undo->pages_in_use());
}

TEST_F(UndoTest, RolledBackRecordsAreNotVisited) {  // U5
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Rng rng(seed);
    UndoSpace::Writer w = writer_of(trx_id(seed));
    Written live;
    for (uint64_t steps = 1 + rng.below(60); steps > 0; --steps) {
      if (rng.one_in(4)) {  // roll back to a savepoint
        const size_t keep = rng.below(live.size() + 1);
        live.resize(keep);
        undo->rewind(&w, keep == 0 ? UndoPtr{} : live.back().first);
        if (rng.one_in(8) && UndoSpace::needs_rewind_mark(w))  // a commit that failed early
          mark(&w, UndoType::kRewind, Bytes());
      } else {
        UndoRecord r = make_record(&rng, 1500);
        const UndoPtr ptr = write(&w, &r);
        live.emplace_back(ptr, r);
      }
    }
    if (w.first.is_zero()) continue;
    if (UndoSpace::needs_rewind_mark(w)) mark(&w, UndoType::kRewind, Bytes());
    EXPECT_FALSE(UndoSpace::needs_rewind_mark(w));
    if (rng.one_in(3)) mark(&w, UndoType::kPrepare, "xid");
    expect_run(w.trx_id, w.first, live);
    expect_chain(w, live);
    undo->detach(&w);
    UndoSpace::Writer adopted;
    ASSERT_TRUE(undo->adopt(w.trx_id, w.first, &adopted).ok());
    EXPECT_EQ(adopted.last, w.last);
    ASSERT_TRUE(undo->forget(adopted.pages).ok());
    ASSERT_TRUE(undo->forget(w.pages).ok());
  }
}

TEST_F(UndoTest, RunsSurviveACrashAndUnclaimedPagesAreFreed) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Rng rng(seed);
    struct Run {
      UndoSpace::Writer w;
      Written written;
    };
    std::vector<Run> runs(6);
    for (size_t n = 0; n < runs.size(); ++n) runs[n].w.trx_id = trx_id(seed * 100 + n);
    for (int i = 0; i < 200; ++i) {
      Run& run = runs[rng.below(runs.size())];
      UndoRecord r = make_record(&rng, 800);
      const UndoPtr ptr = write(&run.w, &r);
      run.written.emplace_back(ptr, r);
    }
    mark(&runs[0].w, UndoType::kPrepare, "my xid");
    if (rng.one_in(2)) {
      ASSERT_TRUE(store.checkpoint().ok());
    }
    ASSERT_TRUE(store.persist_all().ok());
    restart(seed);
    for (size_t n = 0; n < 3; ++n) {
      UndoSpace::Writer w;
      UndoSpace::Adopted found;
      ASSERT_TRUE(undo->adopt(runs[n].w.trx_id, runs[n].w.first, &w, &found).ok());
      EXPECT_EQ(w.last, runs[n].w.last);
      EXPECT_EQ(w.records, runs[n].written.size());
      EXPECT_EQ(found.xid, n == 0 ? "my xid" : "");
      std::set<uint32_t> spaces;
      for (const auto& [ptr, record] : runs[n].written) spaces.insert(record.root.space);
      EXPECT_EQ(found.spaces.size(), spaces.size());
      for (const SpaceId space : found.spaces) EXPECT_TRUE(spaces.count(space.value));
      runs[n].w = w;
      EXPECT_FALSE(undo->prepare(&w, 10).ok());  // an adopted run is not continued
    }
    ASSERT_TRUE(undo->finish_recovery().ok());
    EXPECT_EQ(*store.spaces()->used_pages(kSpace), 2 + undo->pages_in_use());
    for (size_t n = 0; n < 3; ++n) {
      expect_run(runs[n].w.trx_id, runs[n].w.first, runs[n].written);
      expect_chain(runs[n].w, runs[n].written);
    }
    // The space goes on working: new records do not disturb the adopted ones.
    UndoSpace::Writer w = writer_of(trx_id(seed * 100 + 50));
    Written written;
    for (int i = 0; i < 100; ++i) {
      UndoRecord r = make_record(&rng, 800);
      const UndoPtr ptr = write(&w, &r);
      written.emplace_back(ptr, r);
    }
    expect_run(w.trx_id, w.first, written);
    for (size_t n = 0; n < 3; ++n) expect_run(runs[n].w.trx_id, runs[n].w.first, runs[n].written);
    undo->detach(&w);
    ASSERT_TRUE(undo->forget(w.pages).ok());
    for (size_t n = 0; n < 3; ++n) ASSERT_TRUE(undo->forget(runs[n].w.pages).ok());
    // Gone: adopting again finds nothing, or the old records on a page that still is there
    // (harmless).
    UndoSpace::Writer again;
    const Status s = undo->adopt(runs[1].w.trx_id, runs[1].w.first, &again);
    EXPECT_TRUE(s.ok() || is_not_found(s)) << s;
    if (s.ok()) {
      ASSERT_TRUE(undo->forget(again.pages).ok());
    }
  }
}

TEST_F(UndoTest, AFailedNewPageLeavesNothingClaimed) {
  arm_fault("undo_page_added:1:error");
  UndoSpace::Writer w = writer_of(trx_id(1));
  EXPECT_FALSE(undo->prepare(&w, 100).ok());
  EXPECT_TRUE(w.pages.empty());
  ASSERT_TRUE(undo->prepare(&w, 100).ok());
  EXPECT_EQ(undo->pages_in_use(), 1u);
  undo->detach(&w);
}

TEST_F(UndoTest, ThreadsWriteReadAndForgetAtOnce) {
  constexpr size_t kThreads = 4;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::vector<std::pair<UndoSpace::Writer, Written>> committed;  // to be read and purged by anyone
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(t + 77);
      for (uint64_t n = 1; n <= 150; ++n) {
        UndoSpace::Writer w = writer_of(trx_id(t * 1000 + n));
        Written written;
        for (uint64_t k = 1 + rng.below(12); k > 0; --k) {
          UndoRecord r = make_record(&rng, 300);
          const UndoPtr ptr = write(&w, &r);
          written.emplace_back(ptr, r);
        }
        undo->detach(&w);
        std::pair<UndoSpace::Writer, Written> old;
        {
          const std::lock_guard lock(mutex);
          committed.emplace_back(std::move(w), std::move(written));
          if (committed.size() < 20) continue;
          const size_t pick = rng.below(committed.size());
          old = std::move(committed[pick]);
          committed.erase(committed.begin() + static_cast<ptrdiff_t>(pick));
        }
        expect_run(old.first.trx_id, old.first.first, old.second);
        EXPECT_TRUE(undo->forget(old.first.pages).ok());
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (auto& [w, written] : committed) {
    expect_run(w.trx_id, w.first, written);
    EXPECT_TRUE(undo->forget(w.pages).ok());
  }
  store.expect_replay_is_identical();
}

}  // namespace
}  // namespace strata
