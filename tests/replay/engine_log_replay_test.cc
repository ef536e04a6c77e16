// The log that the engine writes, replayed by the page store of a storage node in each of its
// modes: whatever page the engine reads, and whatever state a page ever had, comes out with the
// same bytes as a plain replay of the log gives. One thread, so that a seed replays exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/diag.h"
#include "base/rng.h"
#include "engine/testing/log_service.h"
#include "engine/testing/test_database.h"
#include "redo/redo.h"
#include "storenode/replay/page_store.h"

namespace strata {
namespace {

using engine::Isolation;
using engine::Kernel;
using engine::KernelSeams;
using engine::Session;
using engine::TableRef;
using engine::testing::LogService;
using engine::testing::Row;
using engine::testing::Rows;
using storenode::GetPageRequest;
using storenode::PageAnswer;
using storenode::PageStore;
using storenode::PageStoreOptions;
using storenode::ReplayMode;

constexpr StreamId kStream{1};

bool same_but_checksum(const char* a, const char* b) {
  const size_t skipped = sizeof(PageHeader::crc32c);
  return std::memcmp(a + skipped, b + skipped, kPageBytes - skipped) == 0;
}

// The log service's stream, passed on to the engine; and what of it is durable, in whole groups.
class EngineLog final : public LogSink {
 public:
  explicit EngineLog(LogSink* inner) : inner_(inner) {}

  [[nodiscard]] Lsn begin_lsn() const override { return inner_->begin_lsn(); }
  Status prepare_room(Lsn end) override { return inner_->prepare_room(end); }
  [[nodiscard]] Lsn room_end() const override { return inner_->room_end(); }
  Status append(Lsn at, Bytes bytes) override { return inner_->append(at, bytes); }
  Status sync() override {
    STRATA_RETURN_IF_ERROR(inner_->sync());
    return look();
  }
  StatusOr<size_t> read(Lsn at, char* out, size_t bytes) override {
    return inner_->read(at, out, bytes);
  }
  Status truncate_below(Lsn lsn) override { return inner_->truncate_below(lsn); }
  [[nodiscard]] bool is_stream() const override { return inner_->is_stream(); }
  Status cut_at(Lsn end) override {
    STRATA_RETURN_IF_ERROR(inner_->cut_at(end));
    const size_t kept = end.value - begin_lsn().value;
    if (kept < bytes_.size()) ++restarts;  // a database that was never finished
    bytes_.resize(std::min(bytes_.size(), kept));
    return ok_status();
  }
  // Takes in what has become durable. When nothing is appended and not synced.
  Status look() {
    std::string more(1u << 20, '\0');
    std::string unread;
    uint64_t at = begin_lsn().value + bytes_.size();
    for (;;) {
      STRATA_ASSIGN_OR_RETURN(const size_t got, inner_->read(Lsn{at}, more.data(), more.size()));
      if (got == 0) break;
      unread.append(more, 0, got);
      at += got;
    }
    for (;;) {
      const Lsn next{begin_lsn().value + bytes_.size()};
      const auto group = redo::parse_group(unread, next, nullptr);
      if (!group.ok()) return ok_status();
      bytes_.append(unread, 0, group->header.length);
      unread.erase(0, group->header.length);
    }
  }

  // --- to the page store and the oracle ---
  [[nodiscard]] const std::string& durable() const { return bytes_; }
  uint64_t restarts = 0;  // how often the log began again

 private:
  LogSink* const inner_;
  std::string bytes_;
};

class StoreLog final : public storenode::LogView {
 public:
  explicit StoreLog(const EngineLog* log, uint64_t bytes_max = UINT64_MAX)
      : log_(log), bytes_max_(bytes_max) {}
  [[nodiscard]] Lsn begin_lsn() const override { return log_->begin_lsn(); }
  [[nodiscard]] Lsn durable_lsn() const override {
    return Lsn{begin_lsn().value + std::min<uint64_t>(log_->durable().size(), bytes_max_)};
  }
  Status read(Lsn from, char* out, size_t bytes) override {
    EXPECT_LE(from.value + bytes, durable_lsn().value);
    std::memcpy(out, log_->durable().data() + (from.value - begin_lsn().value), bytes);
    return ok_status();
  }
  void notify_beyond(Lsn, std::function<void()>) override { ADD_FAILURE() << "no threads here"; }

 private:
  const EngineLog* const log_;
  const uint64_t bytes_max_;
};

// A page store driven step by step.
class Store {
 public:
  Store(ReplayMode mode, storenode::LogView* log) : mode_(mode), log_(log) { reset(); }

  // Everything is lost, and made again from the log.
  void reset() {
    store_.reset();
    disk_ = make_sim_file_system();
    open();
  }
  void crash(uint64_t seed) {
    std::unique_ptr<SimFileSystem> next = disk_->fork();
    next->crash(seed);
    store_.reset();
    disk_ = std::move(next);
    open();
  }
  PageStore& operator*() { return *store_; }
  PageStore* operator->() { return store_.get(); }
  [[nodiscard]] bool keeps_versions() const { return mode_ != ReplayMode::kSingle; }

  void scan() {
    while (mode_ == ReplayMode::kSingle ? replay(1) : step(store_->scan_step())) {
    }
  }
  bool replay(int steps) {
    for (; steps > 0; --steps)
      if (!step(store_->replay_step())) return false;
    return true;
  }
  Llsn scanned() { return store_->status().streams.at(0).scanned.llsn; }
  StatusOr<PageAnswer> get(PageId page, Llsn at_least, Llsn at_most) {
    std::optional<StatusOr<PageAnswer>> answer;
    GetPageRequest request;
    request.page = page;
    request.at_least = at_least;
    request.at_most = at_most;
    request.deadline_us = UINT64_MAX;
    store_->get_page(request, [&answer](StatusOr<PageAnswer> got) { answer = std::move(got); });
    while (!answer.has_value()) {
      const bool replayed = replay(1);
      if (!store_->serve_step() && !replayed) return error_internal("it waits for nothing");
    }
    return *std::move(answer);
  }

 private:
  void open() {
    PageStoreOptions options;
    options.directory = "/node";
    options.files = disk_.get();
    options.rocksdb_on_files = true;
    options.mode = mode_;
    options.page_cache_bytes = 2u << 20;
    options.log_cache_bytes = 1u << 20;
    options.map_bytes = 256u << 10;
    options.memtable_bytes = 8u << 20;
    options.leases.lease_us = 0;
    auto opened = PageStore::open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
    ASSERT_TRUE(store_->add_stream(kStream, log_, log_->begin_lsn()).ok());
  }
  static bool step(const StatusOr<bool>& some) {
    EXPECT_TRUE(some.ok()) << some.status();
    return some.ok() && *some;
  }

  const ReplayMode mode_;
  storenode::LogView* const log_;
  std::unique_ptr<SimFileSystem> disk_;
  std::unique_ptr<PageStore> store_;
};

// What the engine reads comes from the log service; the page store must say the same.
class ComparedPages final : public PageSource {
 public:
  ComparedPages(PageSource* inner, EngineLog* log, ReplayMode mode, uint64_t seed)
      : inner_(inner), log_(log), view_(log), store_(mode, &view_), rng_(seed) {}

  Status read(PageId id, Llsn at_least, char* page) override {
    const Status status = inner_->read(id, at_least, page);
    if (!status.ok() && !is_not_found(status)) return status;
    if (std::exchange(restarts_, log_->restarts) != log_->restarts) {
      old_.clear();
      store_.reset();
    }
    stir();
    SCOPED_TRACE(::testing::Message() << "page " << id.space << ":" << id.number);
    store_.scan();
    const StatusOr<PageAnswer> answer = store_.get(id, store_.scanned(), Llsn{UINT64_MAX});
    ++compared;
    if (!status.ok()) {
      EXPECT_TRUE(is_not_found(answer.status())) << answer.status();
      return status;
    }
    EXPECT_TRUE(answer.ok()) << answer.status();
    if (!answer.ok()) return status;
    EXPECT_TRUE(verify_page(answer->page->bytes, id).ok());
    EXPECT_EQ(answer->llsn.value, header_of(page)->llsn);
    EXPECT_TRUE(same_but_checksum(answer->page->bytes, page));
    check_old(id, answer->llsn, page);
    return status;
  }
  Status write(PageId id, const char* page) override { return inner_->write(id, page); }
  Status sync() override { return inner_->sync(); }
  Status create_space(SpaceId space) override { return inner_->create_space(space); }
  Status delete_space(SpaceId space) override { return inner_->delete_space(space); }
  StatusOr<bool> space_exists(SpaceId space) override { return inner_->space_exists(space); }
  StatusOr<std::vector<SpaceId>> list_spaces() override { return inner_->list_spaces(); }
  Status grow_space(SpaceId space, uint32_t pages) override {
    return inner_->grow_space(space, pages);
  }
  [[nodiscard]] bool replays_log() const override { return true; }
  void begin_at(Llsn last) override { inner_->begin_at(last); }
  [[nodiscard]] bool needs_page_images() const override { return false; }

  uint64_t compared = 0, old_states = 0;

 private:
  void stir() {
    if (rng_.one_in(3)) (void)store_.replay(static_cast<int>(rng_.below(200)));
    if (rng_.one_in(20)) {
      EXPECT_TRUE(store_->raise_horizon().ok());
    }
    if (rng_.one_in(20)) {
      EXPECT_TRUE(store_->collect_step(20).ok());
    }
    if (rng_.one_in(50)) {
      EXPECT_TRUE(store_->checkpoint().ok());
    }
    if (rng_.one_in(60)) store_->forget_caches();
    if (rng_.one_in(100)) store_.crash(rng_.next());
  }
  // States seen before are still served, if the horizon has not let them go.
  void check_old(PageId id, Llsn llsn, const char* page) {
    if (old_.size() < 32) {
      old_.push_back({id, llsn, std::string(page, kPageBytes)});
      return;
    }
    Old& old = old_[rng_.below(old_.size())];
    const StatusOr<PageAnswer> answer = store_.get(old.id, old.llsn, old.llsn);
    if (answer.ok()) {
      EXPECT_EQ(answer->llsn, old.llsn);
      EXPECT_TRUE(same_but_checksum(answer->page->bytes, old.page.data()));
      ++old_states;
    } else {
      EXPECT_TRUE(is_out_of_range(answer.status())) << answer.status();
      EXPECT_TRUE(!store_.keeps_versions() || old.llsn < store_->status().horizon);
    }
    if (rng_.one_in(4)) old = {id, llsn, std::string(page, kPageBytes)};
  }

  struct Old {
    PageId id;
    Llsn llsn;
    std::string page;
  };
  PageSource* const inner_;
  EngineLog* const log_;
  StoreLog view_;
  Store store_;
  Rng rng_;
  uint64_t restarts_ = 0;
  std::vector<Old> old_;
};

// A kernel over the log service: lives of random work that end in crashes.
class EngineRun {
 public:
  EngineRun(uint64_t seed, ReplayMode mode)
      : rng_(seed),
        seams_(service_.seams()),
        log_(seams_.log_sink),
        pages_(seams_.page_source, &log_, mode, seed) {
    seams_.log_sink = &log_;
    seams_.page_source = &pages_;
  }

  void run(int lives, int steps) {
    for (int life = 0; life <= lives && !::testing::Test::HasFailure(); ++life) {
      SCOPED_TRACE(::testing::Message() << "life " << life);
      open();
      if (::testing::Test::HasFailure()) return;
      verify();
      for (int i = 0; i < steps && life < lives && !::testing::Test::HasFailure(); ++i) step();
      service_.crash(rng_.next());
      session_.reset();
      table_.reset();
      kernel_.reset();
    }
  }
  [[nodiscard]] const ComparedPages& pages() const { return pages_; }
  [[nodiscard]] const EngineLog& log() const { return log_; }

 private:
  void open() {
    service_.revive();
    ASSERT_TRUE(log_.look().ok());
    disk_ = make_sim_file_system();  // nothing of the last life is needed
    engine::KernelOptions options = engine::testing::options_on(disk_.get());
    options.log_checkpoint_bytes = 1u << 20;
    auto opened = open_with_seams(options, seams_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    kernel_ = *std::move(opened);
    session_ = kernel_->new_session();
    if (!kernel_->table_exists("test", "t")) {
      session_->begin(Isolation::kRepeatableRead);
      ASSERT_TRUE(session_->create_table(engine::testing::table_spec("t"), nullptr).ok());
      ASSERT_TRUE(session_->commit().ok());
    }
    table_ = *session_->open_table("test", "t");
  }
  void verify() {
    session_->begin(Isolation::kRepeatableRead);
    for (uint32_t index = 0; index < 3; ++index) {
      const auto rows = engine::testing::scan(session_.get(), table_, index);
      ASSERT_TRUE(rows.ok()) << rows.status();
      EXPECT_TRUE(*rows == rows_) << "index " << index;
    }
    EXPECT_TRUE(session_->rollback().ok());
    engine::testing::expect_consistent(kernel_.get(), table_);
  }
  void step() {
    if (rng_.one_in(20)) {
      EXPECT_TRUE(kernel_->checkpoint().ok());
    }
    if (rng_.one_in(10)) {
      EXPECT_TRUE(kernel_->run_purge(50).ok());
    }
    if (rng_.one_in(60)) return truncate();
    session_->begin(Isolation::kRepeatableRead);
    Rows after = rows_;
    for (uint64_t count = 1 + rng_.below(12); count > 0; --count) change(&after);
    if (rng_.one_in(6)) {
      EXPECT_TRUE(session_->rollback().ok());
      return;
    }
    EXPECT_TRUE(session_->commit().ok());
    rows_ = std::move(after);
  }
  void change(Rows* rows) {
    const uint64_t id = 1 + rng_.below(400);
    const auto it = rows->find(id);
    if (it != rows->end() && rng_.one_in(3)) {
      EXPECT_TRUE(engine::testing::remove(session_.get(), table_, id, it->second).ok());
      rows->erase(it);
      return;
    }
    Row next;
    next.unique_value = id * 10 + rng_.below(3);
    next.group = static_cast<uint32_t>(rng_.below(20));
    next.text = std::string(rng_.below(rng_.one_in(5) ? 1500 : 40), 'x');
    if (rng_.one_in(12)) next.blob = std::string(rng_.below(40000), 'y');
    const Status status =
        it == rows->end()
            ? engine::testing::insert(session_.get(), table_, id, next)
            : engine::testing::update(session_.get(), table_, id, it->second, id, next);
    EXPECT_TRUE(status.ok()) << status;
    (*rows)[id] = std::move(next);
  }
  // Drops a space.
  void truncate() {
    table_.reset();
    session_->begin(Isolation::kRepeatableRead);
    EXPECT_TRUE(session_->truncate_table("test", "t", nullptr).ok());
    EXPECT_TRUE(session_->commit().ok());
    rows_.clear();
    table_ = *session_->open_table("test", "t");
  }

  Rng rng_;
  LogService service_;
  KernelSeams seams_;
  EngineLog log_;
  ComparedPages pages_;
  std::unique_ptr<SimFileSystem> disk_;
  std::unique_ptr<Kernel> kernel_;
  std::unique_ptr<Session> session_;
  TableRef table_;
  Rows rows_;
};

// A store that lets nothing go, against a plain replay of the first part of the log: pages as of
// sampled llsns while the replay stands there, and all pages as they are in the end.
void compare_history(const EngineLog& log, ReplayMode mode, uint64_t seed) {
  constexpr uint64_t kBytesMax = 256u << 10;
  constexpr uint64_t kSample = 8;
  StoreLog view(&log, kBytesMax);
  Store store(mode, &view);
  Rng rng(seed);
  store.scan();
  while (store.replay(1000)) {
  }
  std::map<PageId, std::string> pages;
  Llsn last;
  const auto compare = [&](PageId id, const std::string& page, Llsn at, Llsn at_most) {
    const StatusOr<PageAnswer> answer = store.get(id, at, at_most);
    ASSERT_TRUE(answer.ok()) << answer.status();
    ASSERT_EQ(answer->llsn.value, header_of(page.data())->llsn);
    ASSERT_TRUE(same_but_checksum(answer->page->bytes, page.data()))
        << "page " << id.space << ":" << id.number << " as of llsn " << at.value;
  };
  const Bytes all(log.durable().data(), std::min<uint64_t>(log.durable().size(), kBytesMax));
  for (size_t at = 0;;) {
    const Lsn lsn{log.begin_lsn().value + at};
    const auto group = redo::parse_group(all.substr(at), lsn, nullptr);
    if (!group.ok()) break;
    at += group->header.length;
    last = Llsn{group->header.llsn};
    ASSERT_TRUE(redo::for_each_section(*group, [&](const redo::SectionView& section) {
                  std::string& page = pages[section.page_id];
                  page.resize(kPageBytes);
                  EXPECT_TRUE(redo::apply_section(page.data(), last, section).ok());
                  if (store.keeps_versions() && rng.one_in(kSample))
                    compare(section.page_id, page, last, last);
                  return ok_status();
                }).ok());
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(pages.size(), 15u);
  for (const auto& [id, page] : pages) compare(id, page, last, Llsn{UINT64_MAX});
}

class EngineLogReplay : public ::testing::TestWithParam<ReplayMode> {
 protected:
  EngineLogReplay() {
    set_diag_sink([](Severity, std::string_view) {});  // crashes are on purpose
  }
  ~EngineLogReplay() override { set_diag_sink(nullptr); }
};

TEST_P(EngineLogReplay, PagesAreTheSameAsTheEnginesAtAnyLlsn) {
  const uint64_t first = engine::testing::environment("STRATA_SEED", 1);
  const uint64_t rounds = engine::testing::environment("STRATA_ROUNDS", 1);
  for (uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "STRATA_SEED=" << seed);
    EngineRun run(seed, GetParam());
    run.run(4, 15);
    if (HasFailure()) return;
    EXPECT_GT(run.pages().compared, 80u);
    if (GetParam() != ReplayMode::kSingle) {
      EXPECT_GT(run.pages().old_states, 5u);
    }
    compare_history(run.log(), GetParam(), seed);
  }
}

std::string name_of_mode(const ::testing::TestParamInfo<ReplayMode>& info) {
  constexpr const char* kNames[] = {"single", "eager", "filtered", "smart"};
  return kNames[static_cast<size_t>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Modes, EngineLogReplay,
                         ::testing::Values(ReplayMode::kSingle, ReplayMode::kEager,
                                           ReplayMode::kFiltered, ReplayMode::kSmart),
                         name_of_mode);

}  // namespace
}  // namespace strata
