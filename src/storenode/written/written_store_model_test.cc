// Random writes, syncs, sessions, copies and power losses against what was written: after a power
// loss a page is what it was at the last sync or newer, never torn, and never older than a version
// that a later session's sync vouched for. (STRATA_SEED, STRATA_ROUNDS)
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "base/diag.h"
#include "base/rng.h"
#include "base/testing/sanitized.h"
#include "storenode/written/testing/written_pages.h"
#include "storenode/written/written_store.h"

namespace strata::storenode {
namespace {

using testing::Batch;

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class Model {
 public:
  explicit Model(uint64_t seed) : rng_(seed) { open(); }

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(::testing::Message() << "step " << i);
      step();
    }
    verify();
  }

 private:
  struct Versions {
    uint64_t now = 0;     // in this life, as far as it was acknowledged
    uint64_t synced = 0;  // survives
  };

  void open() {
    auto opened = WrittenStore::open({"/node", disk_.get(), true, 1 + rng_.below(1000)});
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
    if (number_ == 0) number_ = store_->number();
    EXPECT_EQ(store_->number(), number_);
    begin();
  }
  void begin() {
    if (rng_.one_in(4)) {
      ++epoch_;
      session_ = 0;
    }
    writer_ = {StreamId{1}, Epoch{epoch_}, ++session_};
    ASSERT_TRUE(store_->begin(writer_, 0).ok());
    for (uint32_t space = 300; space < 302; ++space)
      ASSERT_TRUE(store_->create_space(writer_, SpaceId{space}).ok());
  }
  void step() {
    switch (rng_.below(12)) {
      case 0:
        return power_loss();
      case 1:
      case 2:
        return sync();
      case 3:
        return begin();
      case 4:
        return verify();
      case 5:
      case 6:
        return copy();
      default:
        return write();
    }
  }
  Batch some_pages(uint32_t most, bool newer) {
    std::map<PageId, uint64_t> chosen;
    for (uint64_t n = 1 + rng_.below(most); n > 0; --n) {
      const PageId id{300 + static_cast<uint32_t>(rng_.below(2)),
                      static_cast<uint32_t>(rng_.below(24))};
      chosen[id] = newer ? ++llsn_ : 1 + rng_.below(llsn_ + 1);
    }
    Batch batch;
    for (const auto& [id, llsn] : chosen) batch.add(id, llsn);
    return batch;
  }
  static uint64_t llsn_in(const Batch& batch, uint32_t i) {
    return header_of(batch.pages() + size_t{i} * kPageBytes)->llsn;
  }
  void write() {
    const Batch batch = some_pages(20, true);
    const proto::Writer late{writer_.stream, writer_.epoch, writer_.session - 1};
    EXPECT_FALSE(store_->write(late, batch.ids(), batch.count(), batch.pages()).ok());
    const Status done = store_->write(writer_, batch.ids(), batch.count(), batch.pages());
    ASSERT_TRUE(done.ok()) << done;
    for (uint32_t i = 0; i < batch.count(); ++i) pages_[batch.ids()[i]].now = llsn_in(batch, i);
  }
  void copy() {
    const Batch batch = some_pages(kReadBatchPages, false);
    uint32_t newer = 0;
    for (uint32_t i = 0; i < batch.count(); ++i) {
      uint64_t& now = pages_[batch.ids()[i]].now;
      if (llsn_in(batch, i) <= now) continue;
      now = llsn_in(batch, i);
      ++newer;
    }
    const auto taken = store_->take(writer_, batch.ids(), batch.count(), batch.pages());
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_EQ(*taken, newer);
  }
  void sync() {
    ASSERT_TRUE(store_->sync(writer_).ok());
    for (auto& [id, versions] : pages_) versions.synced = versions.now;
  }
  uint64_t read(PageId id) {
    Status result;
    store_->read(&id, 1, page_.get(), &result);
    if (is_not_found(result)) return 0;
    EXPECT_TRUE(result.ok()) << result;
    const uint64_t llsn = header_of(page_.get())->llsn;
    EXPECT_EQ(testing::differs(page_.get(), id, llsn), "");
    return llsn;
  }
  void verify() {
    for (const auto& [id, versions] : pages_) EXPECT_EQ(read(id), versions.now);
  }
  void power_loss() {
    store_.reset();
    disk_->crash(rng_.next());
    open();
    for (auto& [id, versions] : pages_) {
      const uint64_t found = read(id);
      EXPECT_GE(found, versions.synced) << id.space << ":" << id.number;
      EXPECT_LE(found, versions.now);
      versions.now = found;
      versions.synced = std::min(versions.synced, found);
    }
  }

  Rng rng_;
  std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  std::unique_ptr<WrittenStore> store_;
  uint64_t number_ = 0;
  uint64_t epoch_ = 1, session_ = 0;
  proto::Writer writer_;
  uint64_t llsn_ = 1;
  std::map<PageId, Versions> pages_;
  const AlignedBytes page_{kPageBytes, 4096};
};

TEST(WrittenStoreModel, RandomWritesSessionsCopiesAndPowerLosses) {
  set_diag_sink([](Severity, std::string_view) {});
  const uint64_t first = number_from("STRATA_SEED", 1);
  const uint64_t rounds = number_from("STRATA_ROUNDS", strata::testing::fewer_if_sanitized(30, 12));
  for (uint64_t seed = first; seed < first + rounds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "STRATA_SEED=" << seed);
    Model(seed).run(150);
  }
  set_diag_sink(nullptr);
}

}  // namespace
}  // namespace strata::storenode
