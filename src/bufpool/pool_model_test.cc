// Goal: whatever is done to a tiny pool over a disk that can lose power, every group that was
// durable is there after the crash, and no page on disk is ahead of the log. Method: the oracle
// knows every version of every page and the Lsns of the group that made it. Random operations,
// failed and half writes, failed checkpoints; then the power fails and
//   1. each page on disk is a version written since the last sync, or the one synced, whose group
//      is durable (B2, K9) - or torn, if it was written since the last sync;
//   2. redo from the checkpoint (through fix_for_redo, as recovery does) rebuilds the last durable
//      version of every page, starting a torn page at an image only (CP1, CP2);
// and life goes on from there, several times per seed.
#include <cstdlib>
#include <map>
#include <set>

#include "base/diag.h"
#include "base/fault.h"
#include "base/rng.h"
#include "base/testing/sanitized.h"
#include "bufpool/checkpointer.h"
#include "bufpool/pool_test_support.h"
#include "pagefile/local_page_source.h"

namespace strata {
namespace {

using testing::check_page;
using testing::fill_page;
using testing::MemoryLogSink;
using testing::PageVersion;
using testing::tiny_pool;

constexpr uint32_t kGroupBytes = 64;
constexpr uint32_t kPagesPerSpace = 60;

struct Version {
  uint64_t number = 0;
  uint64_t llsn = 0;
  Lsn start, end;
  bool image = false;
};

struct OraclePage {
  std::vector<Version> versions;  // oldest first, 1..n
  uint64_t synced = 0;            // version on disk for sure (or a later one); 0 = none
  std::set<uint64_t> written;     // since the last sync
  bool half_written = false;      // since the last sync
};

class Model;

// Watches what reaches the disk.
class WatchedSource final : public PageSource {
 public:
  WatchedSource(Model* model, std::unique_ptr<PageSource> inner)
      : model_(model), inner_(std::move(inner)) {}
  Status read(PageId id, Llsn at_least, char* page) override {
    return inner_->read(id, at_least, page);
  }
  Status write(PageId id, const char* page) override;
  Status write_batch(const PageId* ids, uint32_t count, const char* pages, bool* ok) override;
  Status sync() override;
  Status create_space(SpaceId space) override { return inner_->create_space(space); }
  Status delete_space(SpaceId space) override { return inner_->delete_space(space); }
  StatusOr<bool> space_exists(SpaceId space) override { return inner_->space_exists(space); }
  StatusOr<std::vector<SpaceId>> list_spaces() override { return inner_->list_spaces(); }
  Status grow_space(SpaceId space, uint32_t pages) override {
    return inner_->grow_space(space, pages);
  }
  [[nodiscard]] bool needs_page_images() const override { return inner_->needs_page_images(); }

 private:
  void note(PageId id, const char* page, bool whole);
  Model* model_;
  std::unique_ptr<PageSource> inner_;
};

class Model {
 public:
  explicit Model(uint64_t seed) : rng_(seed), seed_(seed) {
    fs_ = make_sim_file_system();
    EXPECT_TRUE(fs_->make_directory("/data").ok());
    open_source();
    for (uint32_t& space : spaces_) add_space(&space);
    ControlData data;
    data.profile = "monolithic";
    data.checkpoint_lsn = Lsn{4096};
    auto control = ControlFile::create(fs_.get(), "/control", data);
    EXPECT_TRUE(control.ok()) << control.status();
    control_ = std::move(*control);
    EXPECT_TRUE(fs_->sync_directory("/").ok());
    open_pool(nullptr);
    open_log(4096, 0);
  }
  ~Model() { close(); }

  void run(int operations) {
    for (int i = 0; i < operations && !::testing::Test::HasFailure(); ++i) operate();
  }

  void crash() {
    const uint64_t durable = std::max(log_start_, sink_->durable());
    const uint64_t llsn = log_->last_llsn().value;
    close();
    fs_->crash(rng_.next());
    for (auto& [id, page] : pages_) {  // what was not durable never happened
      while (!page.versions.empty() && page.versions.back().end.value > durable)
        page.versions.pop_back();
    }
    open_source();
    auto control = ControlFile::open(fs_.get(), "/control");
    ASSERT_TRUE(control.ok()) << control.status();
    control_ = std::move(*control);
    check_disk(durable);
    open_pool(nullptr);
    redo();
    open_log(durable, llsn > durable ? llsn - durable : 0);
    for (auto& [id, page] : pages_) check_cached(id, page);
  }

  std::map<PageId, OraclePage> pages_;
  MemoryLogSink* sink() { return sink_.get(); }
  bool fail_write() { return rng_.next() % 200 == 0; }
  uint64_t log_start_ = 0;

 private:
  void close() {
    disarm_faults();
    checkpointer_.reset();
    pool_.reset();
    log_.reset();
    sink_.reset();
    source_.reset();
    control_.reset();
  }
  void open_source() {
    auto source = open_local_page_source(
        fs_.get(), LocalPageSourceOptions{.directory = "/data", .direct_io = true});
    ASSERT_TRUE(source.ok()) << source.status();
    source_ = std::make_unique<WatchedSource>(this, std::move(*source));
  }
  void open_pool(Log* log) {
    auto pool = BufferPool::create(tiny_pool(48), source_.get(), no_page_lock(), log);
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = std::move(*pool);
  }
  void open_log(uint64_t start, uint64_t bias) {
    log_start_ = start;
    sink_ = std::make_unique<MemoryLogSink>();
    log_ =
        std::make_unique<Log>(LogOptions{.buffer_bytes = 1u << 16}, sink_.get(), Lsn{start}, bias);
    pool_->attach_log(log_.get());
    CheckpointerOptions options;
    options.background = false;
    checkpointer_ =
        std::make_unique<Checkpointer>(options, pool_.get(), log_.get(), control_.get());
  }
  void add_space(uint32_t* space) {
    *space = next_space_++;
    ASSERT_TRUE(source_->create_space(SpaceId{*space}).ok());
  }
  PageId random_page() {
    return PageId{
        spaces_[rng_.next() % 2],
        static_cast<uint32_t>(rng_.next() % (rng_.next() % 2 == 0 ? 10 : kPagesPerSpace))};
  }

  void operate() {
    const uint64_t dice = rng_.next() % 1000;
    if (dice < 450) return modify(random_page());
    if (dice < 800) return look(random_page());
    if (dice < 850) {
      EXPECT_TRUE(log_->persist(log_->next_lsn()).ok());
    } else if (dice < 890) {
      const uint64_t oldest = pool_->oldest_dirty_lsn().value;
      const uint64_t next = log_->next_lsn().value;
      if (oldest < next) (void)pool_->write_back_below(Lsn{oldest + rng_.next() % (next - oldest)});
      EXPECT_GE(pool_->oldest_dirty_lsn().value, oldest);
    } else if (dice < 930) {
      (void)pool_->surrender(random_page());
    } else if (dice < 950) {
      EXPECT_TRUE(source_->grow_space(SpaceId{spaces_[0]}, kPagesPerSpace).ok());
    } else if (dice < 980) {
      checkpoint();
    } else if (dice < 985) {
      drop_space(&spaces_[rng_.next() % 2]);
    } else {
      arm_fault("page_write_half:1:error");
    }
  }

  void checkpoint() {
    switch (rng_.next() % 8) {
      case 0:
        arm_fault("checkpoint_before_sync:1:error");
        break;
      case 1:
        arm_fault("checkpoint_before_publish:1:error");
        break;
      case 2:
        arm_fault("checkpoint_after_publish:1:error");
        break;
      default:
        break;
    }
    const Lsn before = checkpointer_->last_checkpoint();
    const Status status = checkpointer_->run_once();
    disarm_faults();
    EXPECT_GE(checkpointer_->last_checkpoint(), before);
    if (!status.ok()) return;
    EXPECT_GE(pool_->oldest_dirty_lsn(), checkpointer_->last_checkpoint());
    EXPECT_EQ(control_->data().checkpoint_lsn, checkpointer_->last_checkpoint());
  }

  // As recovery sees it: a drop is durable before its pages are forgotten and its file goes (K2).
  void drop_space(uint32_t* space) {
    ASSERT_TRUE(log_->persist(log_->next_lsn()).ok());
    pool_->discard_space(SpaceId{*space});
    ASSERT_TRUE(source_->delete_space(SpaceId{*space}).ok());
    std::erase_if(pages_, [space](const auto& entry) { return entry.first.space == *space; });
    add_space(space);
  }

  void modify(PageId id) {
    OraclePage& oracle = pages_[id];
    ASSERT_TRUE(log_->reserve_capacity(kGroupBytes, false).ok());
    const bool fresh = oracle.versions.empty();
    auto guard = fresh ? pool_->fix_new(id) : pool_->fix(id, LatchMode::kExclusive);
    ASSERT_TRUE(guard.ok()) << guard.status();
    if (!fresh) expect_version(guard->page(), id, oracle.versions.back());
    Version v;
    v.number = fresh ? 1 : oracle.versions.back().number + 1;
    LogReservation r;
    for (;;) {  // as Mtr::publish does (M3)
      const Lsn floor = log_->image_floor();
      v.image = fresh || rng_.next() % 16 == 0 || pool_->image_lsn(*guard) < floor;
      if (log_->reserve(kGroupBytes, floor, Llsn{header_of(guard->page())->llsn}, &r)) break;
    }
    log_->copy(r, std::string(kGroupBytes, 'g'));
    v.llsn = r.llsn.value;
    v.start = r.start;
    v.end = r.end;
    fill_page(guard->mutable_page(), id, v.llsn, PageVersion{v.number, v.end.value});
    pool_->note_modified(*guard, r.start, r.end, v.image);
    log_->complete(r);
    oracle.versions.push_back(v);
    EXPECT_LE(pool_->oldest_dirty_lsn(), r.start);
  }

  void look(PageId id) {
    const auto it = pages_.find(id);
    auto guard = pool_->fix(id, LatchMode::kShared);
    if (it == pages_.end() || it->second.versions.empty()) {
      EXPECT_TRUE(is_not_found(guard.status())) << guard.status();
      return;
    }
    ASSERT_TRUE(guard.ok()) << guard.status();
    expect_version(guard->page(), id, it->second.versions.back());
  }

  static void expect_version(const char* page, PageId id, const Version& want) {
    PageVersion v;
    ASSERT_EQ(check_page(page, id, &v), "");
    ASSERT_EQ(v.version, want.number) << "page " << id.number;
    ASSERT_EQ(header_of(page)->llsn, want.llsn);
  }

  void check_cached(PageId id, const OraclePage& page) {
    auto guard = pool_->fix(id, LatchMode::kShared);
    if (page.versions.empty()) {
      EXPECT_TRUE(is_not_found(guard.status())) << guard.status();
      return;
    }
    ASSERT_TRUE(guard.ok()) << guard.status() << " page " << id.number << " seed " << seed_;
    expect_version(guard->page(), id, page.versions.back());
  }

  // 1.
  void check_disk(uint64_t durable) {
    alignas(4096) static char bytes[kPageBytes];
    for (auto& [id, page] : pages_) {
      const Status status = source_->read(id, Llsn{}, bytes);
      const bool in_doubt = !page.written.empty() || page.half_written;
      if (status.ok()) {
        PageVersion v;
        EXPECT_EQ(check_page(bytes, id, &v), "");
        EXPECT_TRUE(v.version == page.synced || page.written.count(v.version) != 0)
            << "page " << id.number << " version " << v.version << " synced " << page.synced;
        EXPECT_LE(v.group_end, durable) << "B2";
        page.synced = v.version;
      } else if (is_not_found(status)) {
        EXPECT_EQ(page.synced, 0u) << status;
      } else {
        EXPECT_TRUE(is_corruption(status) && in_doubt) << status;
        page.synced = 0;
        page.half_written = true;  // still torn until it is written again
        page.written.clear();
        continue;
      }
      page.written.clear();
      page.half_written = false;
    }
  }

  // 2.
  void redo() {
    struct Step {
      Version version;
      PageId id;
    };
    std::map<uint64_t, Step> steps;
    const Lsn from = control_->data().checkpoint_lsn;
    for (auto& [id, page] : pages_)
      for (const Version& v : page.versions)
        if (v.start >= from) steps[v.start.value] = Step{v, id};
    for (const auto& [lsn, step] : steps) {
      const auto& [v, id] = step;
      bool damaged = false;
      auto guard = pool_->fix_for_redo(id, &damaged);
      ASSERT_TRUE(guard.ok()) << guard.status();
      const PageHeader* header = header_of(guard->page());
      if (header->llsn >= v.llsn) continue;
      if (!v.image) {
        PageVersion now;
        std::memcpy(&now, guard->page() + kPageHeaderBytes, sizeof now);
        ASSERT_FALSE(damaged) << "CP2: torn page " << id.number << " has no image, seed " << seed_;
        ASSERT_EQ(now.version + 1, v.number) << "gap at page " << id.number << " seed " << seed_;
      }
      fill_page(guard->mutable_page(), id, v.llsn, PageVersion{v.number, v.end.value});
      pool_->note_modified(*guard, v.start, v.end, v.image);
    }
  }

  std::unique_ptr<SimFileSystem> fs_;
  std::unique_ptr<WatchedSource> source_;
  std::unique_ptr<MemoryLogSink> sink_;
  std::unique_ptr<Log> log_;
  std::unique_ptr<BufferPool> pool_;
  std::unique_ptr<ControlFile> control_;
  std::unique_ptr<Checkpointer> checkpointer_;
  Rng rng_;
  uint64_t seed_;
  uint32_t next_space_ = kFirstUserSpace;
  uint32_t spaces_[2] = {};
};

void WatchedSource::note(PageId id, const char* page, bool whole) {
  PageVersion v;
  ASSERT_EQ(check_page(page, id, &v), "");
  ASSERT_TRUE(verify_page(page, id).ok());
  // During redo there is no sink yet: everything comes from the durable log.
  if (model_->sink() != nullptr) {
    ASSERT_LE(v.group_end, std::max(model_->log_start_, model_->sink()->durable())) << "B2";
  }
  OraclePage& oracle = model_->pages_[id];
  oracle.written.insert(v.version);
  if (!whole) oracle.half_written = true;
}

Status WatchedSource::write(PageId id, const char* page) {
  if (model_->fail_write()) return error_no_space("by order");
  const Status status = inner_->write(id, page);
  note(id, page, status.ok());
  return status;
}

Status WatchedSource::write_batch(const PageId* ids, uint32_t count, const char* pages, bool* ok) {
  std::fill(ok, ok + count, false);
  if (model_->fail_write()) return error_no_space("by order");
  const Status status = inner_->write_batch(ids, count, pages, ok);
  for (uint32_t i = 0; i < count; ++i) note(ids[i], pages + size_t{i} * kPageBytes, ok[i]);
  return status;
}

Status WatchedSource::sync() {
  // Single-threaded: what was written last is what the sync makes durable. A page half written
  // since stays in doubt until it is written whole.
  const Status status = inner_->sync();
  if (!status.ok()) return status;
  for (auto& [id, page] : model_->pages_) {
    if (page.written.empty() || page.half_written) continue;
    page.synced = *page.written.rbegin();
    page.written.clear();
  }
  return status;
}

TEST(PoolModel, DurableGroupsSurvivePowerLossWhateverThePoolDid) {
  set_diag_sink([](Severity, std::string_view) {});
  const char* many = std::getenv("STRATA_MODEL_SEEDS");
  const uint64_t seeds = many != nullptr ? std::strtoull(many, nullptr, 10)
                                         : strata::testing::fewer_if_sanitized(40, 15);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    Model model(seed);
    for (int life = 0; life < 5 && !HasFailure(); ++life) {
      model.run(300 + static_cast<int>(seed * 37 % 700));
      model.crash();
    }
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  set_diag_sink(nullptr);
}

}  // namespace
}  // namespace strata
