// Goal: LogStore between threads: gathering, the runner, readers beside the writer.
#include <atomic>
#include <thread>

#include "io/testing/temporary_folder.h"
#include "storenode/logstore/internal/gather_policy.h"
#include "storenode/logstore/log_store_runner.h"
#include "storenode/logstore/testing/log_store_fixture.h"

namespace strata::testing {
namespace {

using quorum::ChangeReply;
using quorum::SealReply;

uint64_t a_clock_us = 0;
uint64_t read_clock() { return a_clock_us; }

struct GatheringStore : LogStoreTest {
  void SetUp() override {
    options.gather_us = 1;
    options.now_us = read_clock;
    LogStoreTest::SetUp();
    start();
  }
  void append(uint64_t at, uint64_t bytes, uint64_t quorum_durable) {
    store->store().append(kStream, {Epoch{1}, Lsn{at}, text(bytes), Lsn{quorum_durable}},
                          [this](const ChangeReply& r) { answered += r.status.ok() ? 1 : 0; });
  }
  int answered = 0;
};

TEST_F(GatheringStore, WaitsOnWhileOthersAreAWriteQuorum) {  // LG11
  append(0, 100, 0);
  append(100, 100, 100);  // the first one is quorum-durable, and not here
  store->store().gather();
  EXPECT_EQ(store->store().counters().gathered, 1u);
  EXPECT_EQ(answered, 0);
  store->drain();
  EXPECT_EQ(answered, 2);
  EXPECT_EQ(store->store().counters().syncs, 1u);
  append(200, 100, 200);
  append(300, 100, 300);
  store->store().gather();  // at once again
  EXPECT_EQ(store->store().counters().gathered, 2u);
  store->drain();
  append(400, 100, 400);  // nothing that is not here
  store->store().gather();
  EXPECT_EQ(store->store().counters().gathered, 2u);
  store->drain();
  EXPECT_EQ(answered, 5);
  append(500, 100, 500);
  append(600, 100, 600);
  store->store().gather();  // not at once again
  EXPECT_EQ(store->store().counters().gathered, 2u);
  a_clock_us += logstore::GatherPolicy::kTryUsMin;
  store->store().gather();
  EXPECT_EQ(store->store().counters().gathered, 3u);
}

TEST_F(GatheringStore, NothingButBytesWaits) {  // LG11
  options.gather_us = 3'600'000'000;
  open();
  append(0, 0, 0);  // who sends no bytes waits for the news to be known
  store->store().gather();
  store->drain();
  EXPECT_EQ(answered, 1);
  append(0, 100, 0);
  bool sealed = false;
  std::thread sealer([&] {
    store->store().seal(kStream, {{Epoch{2}, 2}}, [&](const SealReply& r) {
      EXPECT_TRUE(r.status.ok());
      EXPECT_EQ(r.state.end, Lsn{100});
      sealed = true;
    });
  });
  store->store().gather();
  sealer.join();
  store->drain();
  EXPECT_TRUE(sealed);
  EXPECT_EQ(answered, 2);
}

TEST_F(LogStoreTest, TheRunnerAnswersManyThreads) {
  options.gather_us = 1000;
  open();
  std::atomic<int> acknowledged{0};
  {
    LogStoreRunner runner(&store->store(), [] { return true; });
    std::vector<std::thread> threads;
    for (uint32_t s = 1; s <= 4; ++s) {
      threads.emplace_back([&, s] {
        LogStore& log = store->store();
        Mutex mutex(LatchRank::kLeaf);
        CondVar changed;
        int waiting = 0;
        const auto done = [&](const ChangeReply& r) {
          EXPECT_TRUE(r.status.ok()) << r.status;
          ++acknowledged;
          const MutexLock lock(mutex);
          --waiting;
          changed.notify_all();
        };
        waiting = 102;
        log.make_stream(StreamId{s}, {}, done);
        log.begin_epoch(StreamId{s}, {tenure(1, 0), Lsn{0}}, done);
        for (uint64_t i = 0; i < 100; ++i) {
          log.append(StreamId{s}, {Epoch{1}, Lsn{i * 100}, text(100), Lsn{i * 100}}, done);
          (void)log.read(StreamId{s}, {Lsn{0}, 1000, false, {}});
          (void)log.status();
        }
        MutexLock lock(mutex);
        changed.wait(lock, [&] { return waiting == 0; });
      });
    }
    for (std::thread& t : threads) t.join();
  }
  EXPECT_EQ(acknowledged, 408);
  EXPECT_LE(store->store().counters().syncs, 404u);
  crash();
  for (uint32_t s = 1; s <= 4; ++s) EXPECT_EQ(store->state(StreamId{s}).end, Lsn{10000});
}

// SG3: on a real disk, readers through the page cache see what is written around it, at once and
// whole. They ask for the last bytes again and again while more are appended to their block.
TEST_F(LogStoreTest, ReadersSeeWhatWasAppendedAroundThePageCache) {
  const TemporaryFolder folder;
  const auto disk = make_posix_file_system();
  options.directory = folder.path() + "/node";
  options.segment_bytes = 64u << 10;
  SyncStore real(disk.get(), options);
  ASSERT_TRUE(real.begin(kStream, tenure(1, 0)).status.ok());
  std::atomic<uint64_t> end{0};
  std::atomic<bool> ended{false};
  std::atomic<uint64_t> reads{0};
  const auto letter_at = [](uint64_t lsn) { return static_cast<char>('a' + lsn * 7 % 23); };
  const auto read_on = [&] {
    while (!ended) {
      const uint64_t to = end;
      const uint64_t from = to - std::min<uint64_t>(to, 6000);
      if (from == to) continue;
      const auto got = real.read(kStream, Lsn{from}, Lsn{to}, Epoch{1});
      ASSERT_TRUE(got.ok()) << got.status();
      ASSERT_EQ(got->size(), to - from);
      for (uint64_t lsn = from; lsn < to; ++lsn)
        ASSERT_EQ((*got)[lsn - from], letter_at(lsn)) << "lsn " << lsn;
      ++reads;
    }
  };
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) readers.emplace_back(read_on);
  for (uint64_t n = 0; n < 400 && !::testing::Test::HasFailure(); ++n) {
    std::string bytes(1 + n * 37 % 900, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = letter_at(end + i);
    const ChangeReply r = real.append(kStream, Epoch{1}, Lsn{end}, bytes, Lsn{end});
    ASSERT_TRUE(r.status.ok()) << r.status;
    end = r.state.end.value;
  }
  ended = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_GT(reads, 0u);
}

}  // namespace
}  // namespace strata::testing
