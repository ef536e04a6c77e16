// Goal: MemoryPageSource keeps its promises with all its threads and many callers at once; for
// TSan. Method: threads that each own some pages read, change, write back and evict them, as a
// buffer pool would; others make checkpoints, restart the memory node and lose replies. Whatever is
// read must be the newest version that was written.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "base/diag.h"
#include "base/rng.h"
#include "base/stop_flag.h"
#include "clients/memory/memory_page_source.h"
#include "clients/memory/testing/fake_pool.h"
#include "clients/memory/testing/fake_storage.h"

namespace strata::clients {
namespace {

using testing::FakeMemoryNode;
using testing::FakeNames;
using testing::FakePool;
using testing::FakeStorage;
using testing::Fate;
using testing::make_page;

constexpr uint32_t kThreads = 3;
constexpr uint32_t kPagesEach = 60;
constexpr int kSteps = 1500;

class Stress : public ::testing::Test {
 protected:
  Stress() {
    set_diag_sink([](Severity, std::string_view) {});
  }
  ~Stress() override { set_diag_sink(nullptr); }

  // The pages of one thread: nobody else reads or writes them.
  void work(uint32_t thread) {
    Rng rng(thread + 1);
    std::vector<Llsn> newest(kPagesEach);
    std::string page(kPageBytes, '\0');
    for (int step = 0; step < kSteps && !wrong_; ++step) {
      const auto number = static_cast<uint32_t>(rng.below(kPagesEach));
      const PageId id{300 + thread, number};
      if (!newest[number].is_zero()) {
        const Status status = source_->read(id, Llsn{}, page.data());
        if (may_be_repeated(status)) continue;
        if (!status.ok() || page != make_page(id, newest[number])) return note(id, status);
      }
      if (rng.one_in(2)) {
        const uint64_t lsn = lsn_.fetch_add(10);
        const Llsn llsn{newest[number].value + 1};
        const PageChanges changes{Lsn{lsn}, Lsn{lsn + 5}};
        page = make_page(id, llsn);
        bool ok = false;
        for (;;) {  // it stays in the buffer pool until it is written
          const Status status = source_->write_changed(&id, &changes, 1, page.data(), &ok);
          if (ok) break;
          if (!may_be_repeated(status)) return note(id, status);
        }
        newest[number] = llsn;
      }
      if (!newest[number].is_zero()) source_->evicted(id, page.data());
    }
  }
  void note(PageId id, const Status& status) {
    if (!wrong_.exchange(true))
      ADD_FAILURE() << "page " << id.space << ":" << id.number << " " << status;
  }

  FakeStorage storage_;
  FakeNames naming_;
  FakeMemoryNode node_{128, 8, &storage_};
  FakePool pool_{&node_, 1};
  std::unique_ptr<MemoryPageSource> source_;
  std::atomic<uint64_t> lsn_{1000};
  std::atomic<bool> wrong_{false};
};

TEST_F(Stress, ManyThreadsSeeTheNewestVersions) {
  std::atomic<uint64_t> calls{0};
  node_.fate = [&](const char* call) {
    // Now and then, and never attach(): a node that is away for long is another test's.
    if (std::string_view(call) == "attach" || calls.fetch_add(1) % 150 != 149) return Fate::kFine;
    return calls.load() % 300 < 150 ? Fate::kReplyLost : Fate::kNotRun;
  };
  MemoryPagesOptions options;
  options.durable = [this] { return Lsn{lsn_.load() + 10}; };
  options.free_slots = 10;
  options.reserve_slots = 8;
  options.staged_pages_max = 32;
  options.pause_us = 500;
  auto opened = MemoryPageSource::open(options, &pool_, naming_.of(0), &storage_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  source_ = *std::move(opened);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) threads.emplace_back([this, i] { work(i); });
  StopFlag done;
  std::thread checkpoints([&] {
    Rng rng(99);
    while (!done.wait_for_us(3'000)) {
      const Lsn at{lsn_.load()};
      // Errors are what this is about; they pass.
      if (rng.one_in(2))
        (void)source_->sync_below(at);
      else
        (void)source_->publish_memory_checkpoint({at, 0});
      if (rng.one_in(10)) node_.restart();
    }
  });
  for (std::thread& thread : threads) thread.join();
  done.raise();
  checkpoints.join();
  EXPECT_TRUE(source_->ended().ok()) << source_->ended();
  source_->stop();
  source_->directory().check();
  EXPECT_FALSE(storage_.went_back);
  const auto& counters = source_->counters();
  EXPECT_GT(counters.from_pool, 100u);
  EXPECT_GT(counters.flushed, 10u);
  source_.reset();
}

}  // namespace
}  // namespace strata::clients
