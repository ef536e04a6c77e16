// For tests: a page store on a simulated disk, fed by logs in memory, driven by one thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/diag.h"
#include "storenode/replay/page_store.h"
#include "storenode/replay/testing/test_log.h"

namespace strata::storenode::testing {

constexpr StreamId kStream{1};

class TestStore {
 public:
  explicit TestStore(ReplayMode mode, bool every = false) : disk_(make_sim_file_system()) {
    set_diag_sink([](Severity, std::string_view) {});  // damage and crashes are on purpose
    options_.directory = "/node";
    options_.files = disk_.get();
    options_.rocksdb_on_files = true;
    options_.mode = mode;
    options_.store_every_version = every;
    options_.leases.lease_us = 0;
    options_.now_us = [this] { return now_; };
    streams_.emplace_back(std::make_unique<MemoryLog>());
    writers_.push_back(std::make_unique<LogWriter>(&log()));
  }
  ~TestStore() {
    store_.reset();
    set_diag_sink(nullptr);
  }

  void open() {
    auto opened = PageStore::open(options_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
    added_.assign(streams_.size(), false);
    for (size_t i = 0; i < streams_.size(); ++i)
      if (!streams_come_late_ || streams_[i]->end().value != MemoryLog::kBegin) add_stream(i);
  }
  // Streams in which nothing was written yet are not known to a store that is opened.
  void let_streams_come_late() { options_.streams_come = streams_come_late_ = true; }
  [[nodiscard]] bool has_stream(size_t i) const { return added_[i]; }
  void add_stream(size_t i) {
    if (added_[i]) return;
    added_[i] = true;
    ASSERT_TRUE(store_
                    ->add_stream(StreamId{static_cast<uint32_t>(i) + 1}, streams_[i].get(),
                                 Lsn{MemoryLog::kBegin})
                    .ok());
  }
  void add_log() { streams_.emplace_back(std::make_unique<MemoryLog>()); }
  [[nodiscard]] size_t logs() const { return streams_.size(); }
  void close() { store_.reset(); }
  void crash(uint64_t seed) {
    // What the old life still does while it is closed must not reach the disk of the new one.
    std::unique_ptr<SimFileSystem> next = disk_->fork();
    next->crash(seed);
    store_.reset();
    disk_ = std::move(next);
    options_.files = disk_.get();
  }

  MemoryLog& log(size_t i = 0) { return *streams_[i]; }
  LogWriter& writer(size_t i = 0) { return *writers_[i]; }
  PageStore& store() { return *store_; }
  [[nodiscard]] bool is_open() const { return store_ != nullptr; }
  SimFileSystem& disk() { return *disk_; }
  PageStoreOptions& options() { return options_; }
  void pass_time(uint64_t us) { now_ += us; }
  [[nodiscard]] uint64_t now() const { return now_; }
  ReplayMode mode() const { return options_.mode; }

  // A group that changes each of these pages, made durable.
  Llsn write(Rng* rng, const std::vector<PageId>& pages) {
    std::vector<WrittenSection> sections;
    for (const PageId page : pages) sections.push_back({page, writer().change_ops(rng, page)});
    const Llsn llsn = writer().write(sections);
    log().make_durable(log().end());
    return llsn;
  }

  // The same, and no page's chain is restarted.
  Llsn write_next(Rng* rng, const std::vector<PageId>& pages) {
    std::vector<WrittenSection> sections;
    for (const PageId page : pages) sections.push_back({page, writer().next_ops(rng, page)});
    const Llsn llsn = writer().write(sections);
    log().make_durable(log().end());
    return llsn;
  }

  void scan_all() {
    for (;;) {
      auto some = store_->scan_step();
      ASSERT_TRUE(some.ok()) << some.status();
      if (!*some) return;
    }
  }
  void replay_all() {
    for (;;) {
      auto some = store_->replay_step();
      ASSERT_TRUE(some.ok()) << some.status();
      if (!*some) return;
    }
  }
  void serve_all() {
    while (store_->serve_step()) {
    }
  }
  void collect_all() {
    for (;;) {
      auto more = store_->collect_step(10);
      ASSERT_TRUE(more.ok()) << more.status();
      if (!*more) return;
    }
  }

  using Answer = std::shared_ptr<std::optional<StatusOr<PageAnswer>>>;
  // Waits as long as the deadline says (default: for ever).
  Answer ask(PageId page, Llsn at_least, Llsn at_most, uint64_t deadline_us = UINT64_MAX,
             std::vector<GetPageRequest::Position> scanned_to = {}) {
    auto answer = std::make_shared<std::optional<StatusOr<PageAnswer>>>();
    GetPageRequest request;
    request.page = page;
    request.at_least = at_least;
    request.at_most = at_most;
    request.deadline_us = deadline_us;
    request.scanned_to = std::move(scanned_to);
    store_->get_page(std::move(request),
                     [answer](StatusOr<PageAnswer> got) { *answer = std::move(got); });
    return answer;
  }
  StatusOr<PageAnswer> get_now(PageId page, Llsn at_least, Llsn at_most) {
    const Answer answer = ask(page, at_least, at_most, 0);
    EXPECT_TRUE(answer->has_value());
    return **answer;
  }
  // For a peer that copies: as of `at` or later, without waiting.
  StatusOr<PageAnswer> get_for_peer(PageId page, Llsn at) {
    GetPageRequest request;
    request.page = page;
    request.at_least = at;
    request.from_peer = true;
    return store_->get_page(std::move(request));
  }
  StatusOr<PageAnswer> get_now(PageId page, Llsn at) { return get_now(page, at, at); }
  // What the writer had at that llsn.
  [[nodiscard]] bool is_right(const StatusOr<PageAnswer>& answer, PageId page, Llsn at) const {
    const std::string* const want = writers_[0]->at(page, at);
    if (!answer.ok()) return want == nullptr && is_not_found(answer.status());
    return want != nullptr && verify_page(answer->page->bytes, page).ok() &&
           answer->llsn.value == header_of(want->data())->llsn &&
           same_but_checksum(answer->page->bytes, want->data());
  }

 private:
  std::unique_ptr<SimFileSystem> disk_;
  PageStoreOptions options_;
  uint64_t now_ = 1;
  std::vector<std::unique_ptr<MemoryLog>> streams_;
  bool streams_come_late_ = false;
  std::vector<bool> added_;
  std::vector<std::unique_ptr<LogWriter>> writers_;
  std::unique_ptr<PageStore> store_;
};

}  // namespace strata::storenode::testing
