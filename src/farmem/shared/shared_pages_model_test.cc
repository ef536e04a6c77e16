// Goal: FM50-FM53 with several threads: what each reads is what was written last, however pages
// come and go, within the frames, and nobody waits for ever. Method: a kernel of the test's own,
// which does what Linux does with a mapped file: a page is locked while it is read, forgetting
// waits for that lock and writes a changed page first, and pages are forgotten for no reason. The
// oracle is a plain array. STRATA_SEED=n repeats a round.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "base/latch.h"
#include "base/rng.h"
#include "base/testing/sanitized.h"
#include "farmem/node/memory_service.h"
#include "farmem/shared/shared_pages.h"
#include "transport/calls/testing/io_node.h"

namespace strata::farmem {
namespace {

using transport::test::Folder;
using transport::test::IoNode;
using transport::test::secret_of;

constexpr uint64_t kPages = 600;
constexpr uint32_t kFrames = 64;
constexpr int kThreads = 4;
const auto kStepsOfThread = static_cast<int>(testing::fewer_if_sanitized(4000, 800));

uint64_t seed() {
  const char* const given = std::getenv("STRATA_SEED");
  const uint64_t chosen =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::printf("STRATA_SEED=%llu\n", static_cast<unsigned long long>(chosen));
  return chosen;
}

// What a thread of the program, or one that forgets, waits for.
struct Reply {
  Parker done;
  bool ok = false;
  char* to = nullptr;
  std::atomic<bool>* reading = nullptr;  // until the page is filled
};

struct Message {
  enum class Kind { kRead, kWrite, kCopied, kForgotten, kStop } kind = Kind::kStop;
  Reply* reply = nullptr;
  uint64_t page = 0;
  const char* from = nullptr;
  std::vector<char> copy;
  Leave leave;
};

class Kernel {
 public:
  Kernel(std::unique_ptr<MemoryClient> client, const PolicyOptions& policy) : policy_(policy) {
    for (auto& page : pages_) page.bytes.resize(kPageBytes);
    auto made = SharedPages::make(
        std::move(client), policy,
        {.answer = [this](uint64_t request, const char* bytes) { answer(request, bytes); },
         .refuse = [](uint64_t request) { reinterpret_cast<Reply*>(request)->done.unpark(1); },
         .leave =
             [this](const Leave& leave) {
               const MutexLock lock(leaves_latch_);
               leaves_.push_back(leave);
               leaves_posted_.notify_one();
             }},
        &counters_);
    EXPECT_TRUE(made.ok());
    shared_ = *std::move(made);
    answerer_ = std::thread([this] { run_answerer(); });
    forgetter_ = std::thread([this] { run_forgetter(); });
  }

  ~Kernel() { stop(); }
  void stop() {
    if (!answerer_.joinable()) return;
    post({.kind = Message::Kind::kStop, .copy = {}, .leave = {}});
    answerer_.join();
    {
      const MutexLock lock(leaves_latch_);
      stop_ = true;
      leaves_posted_.notify_one();
    }
    forgetter_.join();
  }

  // A touch: one word of the page is compared with the oracle's, and changed, maybe. False: the
  // page cannot be had (SIGBUS).
  bool touch(uint64_t number, bool change) {
    Page& page = pages_[number];
    const MutexLock lock(page.latch);
    if (!page.cached) {
      Reply reply;
      reply.to = page.bytes.data();
      reply.reading = &page.reading;
      page.reading = true;
      post(
          {.kind = Message::Kind::kRead, .reply = &reply, .page = number, .copy = {}, .leave = {}});
      reply.done.wait();
      if (!reply.ok) return false;
      page.cached = true;
    }
    uint64_t found = 0;
    char* const at = page.bytes.data() + number % 512 * sizeof found;
    std::memcpy(&found, at, sizeof found);
    EXPECT_EQ(found, page.expected) << number;  // FM52
    if (!change) return true;
    page.expected = page.expected % 7 == 6 ? 0 : page.expected + 1;  // now and then a page of zeros
    std::memcpy(at, &page.expected, sizeof found);
    page.dirty = true;
    return true;
  }

  // Because memory is short elsewhere, or it wants changed pages written.
  bool forget(uint64_t number, bool write_only) {
    Page& page = pages_[number];
    const MutexLock lock(page.latch);
    if (!page.cached) return true;
    const bool written = !page.dirty || write(number, page);
    if (!write_only) drop(&page);
    return written;
  }

  const PagerCounters& counters() const { return counters_; }

 private:
  struct Page {
    Mutex latch{LatchRank::kEngine};
    std::atomic<bool> reading{false};  // the kernel waits for what is in it
    bool cached = false;
    bool dirty = false;
    uint64_t expected = 0;
    std::vector<char> bytes;
  };

  void drop(Page* page) {
    page->cached = false;
    resident_.fetch_sub(1);
  }

  bool write(uint64_t number, Page& page) {
    Reply reply;
    post({.kind = Message::Kind::kWrite,
          .reply = &reply,
          .page = number,
          .from = page.bytes.data(),
          .copy = {},
          .leave = {}});
    reply.done.wait();
    page.dirty = false;
    return reply.ok;
  }

  void post(Message message) {
    const MutexLock lock(messages_latch_);
    messages_.push_back(std::move(message));
    messages_posted_.notify_one();
  }

  void answer(uint64_t request, const char* bytes) {
    auto* const reply = reinterpret_cast<Reply*>(request);
    EXPECT_LE(resident_.fetch_add(1) + 1, kFrames);  // FM50
    std::memcpy(reply->to, bytes, kPageBytes);
    *reply->reading = false;
    reply->ok = true;
    reply->done.unpark(1);
  }

  void run_answerer() {
    bool stops = false;
    for (;;) {
      Message message;
      bool rests = false;
      {
        MutexLock lock(messages_latch_);
        rests = messages_.empty();
        if (!rests) {
          message = std::move(messages_.front());
          messages_.erase(messages_.begin());
        }
      }
      if (rests) {
        shared_->rest();
        MutexLock lock(messages_latch_);
        messages_posted_.wait(
            lock, [this]() STRATA_REQUIRES(messages_latch_) { return !messages_.empty(); });
        continue;
      }
      switch (message.kind) {
        case Message::Kind::kRead:
          shared_->read(reinterpret_cast<uint64_t>(message.reply), message.page);
          break;
        case Message::Kind::kWrite:
          message.reply->ok = shared_->write(message.page, 1, message.from).ok();
          message.reply->done.unpark(1);
          break;
        case Message::Kind::kCopied:
          shared_->copied(message.page, message.copy.data());
          break;
        case Message::Kind::kForgotten:
          shared_->forgotten(message.leave);
          break;
        case Message::Kind::kStop:
          stops = true;
          break;
      }
      if (stops && shared_->leaving() == 0) return;  // what was leaving has left
      EXPECT_LE(shared_->local(), kFrames);          // FM50
    }
  }

  void run_forgetter() {
    for (;;) {
      Leave leave;
      {
        MutexLock lock(leaves_latch_);
        leaves_posted_.wait(
            lock, [this]() STRATA_REQUIRES(leaves_latch_) { return !leaves_.empty() || stop_; });
        if (leaves_.empty()) return;
        leave = leaves_.front();
        leaves_.erase(leaves_.begin());
      }
      for (uint64_t i = 0; leave.copy && i < leave.count; i++) copy(leave.first + i);
      for (uint64_t i = 0; i < leave.count; i++) (void)forget(leave.first + i, false);
      post({.kind = Message::Kind::kForgotten, .copy = {}, .leave = leave});
    }
  }

  void copy(uint64_t number) {
    Page& page = pages_[number];
    Message message{.kind = Message::Kind::kCopied, .page = number, .copy = {}, .leave = {}};
    if (page.reading.load()) {
      // Linux does not wait here, and may send what is in a page that is just being read.
      message.copy.assign(kPageBytes, 'x');
    } else {
      const MutexLock lock(page.latch);  // a read that has begun meanwhile is answered (FM51)
      if (page.cached) message.copy = page.bytes;
    }
    if (!message.copy.empty()) post(std::move(message));
  }

  const PolicyOptions policy_;
  PagerCounters counters_;
  std::array<Page, kPages> pages_;
  std::atomic<uint32_t> resident_{0};
  std::unique_ptr<SharedPages> shared_;
  Mutex messages_latch_{LatchRank::kLeaf};
  CondVar messages_posted_;
  std::vector<Message> messages_;
  Mutex leaves_latch_{LatchRank::kLeaf};
  CondVar leaves_posted_;
  std::vector<Leave> leaves_;
  bool stop_ = false;
  std::thread answerer_, forgetter_;
};

class SharedPagesModelTest : public ::testing::Test {
 protected:
  SharedPagesModelTest() {
    server_ = std::make_unique<transport::RpcServer>(node_.world(), secret_of('s'),
                                                     transport::ServerOptions{});
    service_ = std::make_unique<MemoryService>(node_.world(), server_.get(), ServiceOptions{});
    tcp_ = *server_->listen("tcp:127.0.0.1:0");
    unix_ = *server_->listen("unix:" + (folder_ / "socket"));
  }
  ~SharedPagesModelTest() override { server_.reset(); }
  std::unique_ptr<MemoryClient> client(bool mapped) const {
    auto opened = MemoryClient::open(secret_of('s'), {.address = mapped ? unix_ : tcp_,
                                                      .name = "test",
                                                      .pages = kPages,
                                                      .timeout_us = 60'000'000});
    EXPECT_TRUE(opened.ok());
    return *std::move(opened);
  }

  Folder folder_;
  IoNode node_;
  std::unique_ptr<transport::RpcServer> server_;
  std::unique_ptr<MemoryService> service_;
  std::string tcp_, unix_;
};

// Threads that go along pages, jump, and meet at a few; false: one was refused a page.
bool run_program(Kernel* kernel, uint64_t seed, int steps) {
  std::atomic<bool> refused{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; t++) {
    threads.emplace_back([kernel, seed, t, steps, &refused] {
      Rng rng(seed + static_cast<uint64_t>(t));
      uint64_t at = rng.below(kPages);
      for (int step = 0; step < steps && !refused.load(); step++) {
        const uint64_t kind = rng.below(8);
        at = kind < 4 ? (at + 1) % kPages : kind < 6 ? rng.below(kPages) : rng.below(kFrames / 2);
        if (!kernel->touch(at, rng.one_in(3))) refused.store(true);
        if (rng.one_in(20) && !kernel->forget(rng.below(kPages), rng.one_in(2)))
          refused.store(true);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return !refused.load();
}

TEST_F(SharedPagesModelTest, ThreadsReadWhatWasWrittenLastWithinTheFrames) {
  const uint64_t first_seed = seed();
  const std::vector<std::pair<const char*, uint32_t>> policies{
      {"fifo", 0},    {"fifo", 15},   {"second-chance", 0}, {"second-chance", 7},
      {"assoc:1", 0}, {"assoc:1", 3}, {"assoc:16", 63}};
  for (const bool mapped : {true, false}) {
    for (size_t i = 0; i < policies.size(); i++) {
      SCOPED_TRACE(std::string(policies[i].first) + "+" + std::to_string(policies[i].second));
      PolicyOptions policy{.frames = kFrames, .prefetch = policies[i].second};
      ASSERT_TRUE(parse_policy(policies[i].first, &policy).ok());
      Kernel kernel(client(mapped), policy);
      EXPECT_TRUE(run_program(&kernel, first_seed + i * kThreads, kStepsOfThread));
      kernel.stop();
      const PagerCounters& counters = kernel.counters();
      EXPECT_GT(counters.fetched.load(), 0u);
      EXPECT_GT(counters.evicted_dirty.load(), 0u);
      EXPECT_EQ(counters.faults.load(),
                counters.soft_hits.load() + counters.zero_filled.load() + counters.fetched.load());
      EXPECT_LE(counters.local_max.load(), kFrames);
      EXPECT_EQ(counters.prefetched.load() > 0, policy.prefetch > 0);
      EXPECT_TRUE(policy.replacement != Replacement::kSecondChance ||
                  counters.soft_hits.load() > 0);
    }
  }
}

TEST_F(SharedPagesModelTest, WhenTheNodeGoesEverybodyIsRefused) {
  Kernel kernel(client(false), {.frames = kFrames, .prefetch = 3});
  EXPECT_TRUE(run_program(&kernel, seed(), 200));
  server_.reset();
  EXPECT_FALSE(run_program(&kernel, 1, kStepsOfThread));  // FM53: and ends
}

}  // namespace
}  // namespace strata::farmem
