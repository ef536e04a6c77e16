// Goal: each promise of the store of written pages (WS1-WS6). Method: a simulated disk; threads
// where something has to wait.
#include "storenode/written/written_store.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/diag.h"
#include "storenode/written/testing/written_pages.h"

namespace strata::storenode {
namespace {

using proto::Writer;
using testing::Batch;
using testing::differs;

constexpr SpaceId kSpace{300};
constexpr PageId kPage{300, 7};

Writer writer(uint64_t session, uint64_t epoch = 4) { return {StreamId{1}, Epoch{epoch}, session}; }

class WrittenStoreTest : public ::testing::Test {
 protected:
  WrittenStoreTest() {
    set_diag_sink([](Severity, std::string_view) {});
    open();
  }
  ~WrittenStoreTest() override { set_diag_sink(nullptr); }

  Status try_open() {
    store_.reset();
    auto opened = WrittenStore::open({"/node", disk_.get(), true, 77});
    if (!opened.ok()) return opened.status();
    store_ = *std::move(opened);
    return ok_status();
  }
  void open() {
    const Status opened = try_open();
    ASSERT_TRUE(opened.ok()) << opened;
  }
  void crash(uint64_t seed = 1) {
    store_.reset();
    disk_->crash(seed);
    open();
  }
  Status begin(const Writer& by, uint64_t continues = 0) {
    const auto begun = store_->begin(by, continues);
    continued_ = begun.ok() && begun->continued;
    return begun.status();
  }
  void begin_with_space(const Writer& by) {
    ASSERT_TRUE(begin(by).ok());
    ASSERT_TRUE(store_->create_space(by, kSpace).ok());
  }
  Status write(const Writer& by, PageId id, uint64_t llsn) {
    const Batch batch = std::move(Batch().add(id, llsn));
    return store_->write(by, batch.ids(), 1, batch.pages());
  }
  StatusOr<uint32_t> take(const Writer& by, PageId id, uint64_t llsn) {
    const Batch batch = std::move(Batch().add(id, llsn));
    return store_->take(by, batch.ids(), 1, batch.pages());
  }
  // The page's llsn; 0: never written, 1: an error.
  uint64_t llsn_of(PageId id) {
    Status result;
    store_->read(&id, 1, page_.get(), &result);
    if (is_not_found(result)) return 0;
    if (!result.ok()) return 1;
    EXPECT_EQ(differs(page_.get(), id, header_of(page_.get())->llsn), "");
    return header_of(page_.get())->llsn;
  }

  std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  std::unique_ptr<WrittenStore> store_;
  const AlignedBytes page_{kPageBytes, 4096};
  bool continued_ = false;
};

TEST_F(WrittenStoreTest, KeepsWhatIsWrittenAndSynced) {
  begin_with_space(writer(1));
  Batch batch;
  for (uint32_t n = 0; n < 10; ++n) batch.add({300, 3 * n}, 100 + n);
  ASSERT_TRUE(store_->grow_space(writer(1), kSpace, 40).ok());
  ASSERT_TRUE(store_->write(writer(1), batch.ids(), batch.count(), batch.pages()).ok());
  ASSERT_TRUE(store_->sync(writer(1)).ok());
  crash();
  for (uint32_t n = 0; n < 10; ++n) EXPECT_EQ(llsn_of({300, 3 * n}), 100 + n);
  EXPECT_EQ(llsn_of({300, 1}), 0u);
  EXPECT_EQ(llsn_of({301, 1}), 0u);
  EXPECT_EQ(store_->number(), 77u);
  const auto sizes = store_->list_sizes();
  ASSERT_TRUE(sizes.ok());
  ASSERT_EQ(sizes->size(), 1u);
  EXPECT_EQ((*sizes)[0].space, kSpace);
  EXPECT_GE((*sizes)[0].pages, 40u);
}

TEST_F(WrittenStoreTest, OnlyTheSessionBegunLastWrites) {  // WS1
  EXPECT_TRUE(is_no_session(write(writer(1), kPage, 5))) << "none was begun";
  begin_with_space(writer(1));
  ASSERT_TRUE(write(writer(1), kPage, 5).ok());
  ASSERT_TRUE(begin(writer(2), 1).ok());
  EXPECT_TRUE(continued_);
  EXPECT_TRUE(is_no_session(write(writer(1), kPage, 4)));
  EXPECT_TRUE(is_no_session(store_->sync(writer(1))));
  EXPECT_TRUE(is_no_session(store_->create_space(writer(1), SpaceId{301})));
  EXPECT_TRUE(is_no_session(store_->delete_space(writer(1), kSpace)));
  EXPECT_TRUE(is_no_session(store_->grow_space(writer(1), kSpace, 9)));
  EXPECT_TRUE(is_no_session(take(writer(1), kPage, 9).status()));
  EXPECT_TRUE(is_no_session(begin(writer(1))));
  EXPECT_TRUE(is_no_session(begin(writer(2))));
  EXPECT_EQ(llsn_of(kPage), 5u);
  ASSERT_TRUE(begin(writer(9), 1).ok());
  EXPECT_TRUE(continued_) << "whatever became of the answer of the one between";
  EXPECT_TRUE(write(writer(9), kPage, 6).ok());
  ASSERT_TRUE(begin(writer(10)).ok());
  ASSERT_TRUE(begin(writer(11), 9).ok());
  EXPECT_FALSE(continued_) << "one in between did not follow it";
}

TEST_F(WrittenStoreTest, ARestartForgetsTheSession) {  // WS2
  begin_with_space(writer(1));
  ASSERT_TRUE(store_->check_session(Epoch{4}, 1).ok());
  open();
  EXPECT_TRUE(is_no_session(write(writer(1), kPage, 5)));
  EXPECT_TRUE(is_no_session(store_->sync(writer(1))));
  EXPECT_TRUE(is_no_session(store_->check_session(Epoch{4}, 1)));
  EXPECT_TRUE(store_->check_session(Epoch{4}, 0).ok());
  ASSERT_TRUE(begin(writer(2), 1).ok());
  EXPECT_FALSE(continued_);
}

TEST_F(WrittenStoreTest, AnEpochThatWasTakenOverStaysOutside) {  // WS3
  begin_with_space(writer(1, 4));
  ASSERT_TRUE(begin(writer(1, 6)).ok());
  EXPECT_TRUE(is_fenced(write(writer(1, 4), kPage, 5)));
  EXPECT_TRUE(is_fenced(begin(writer(2, 5))));
  crash();
  EXPECT_TRUE(is_fenced(begin(writer(3, 5))));
  EXPECT_TRUE(begin(writer(1, 6)).ok()) << "its session was forgotten with the life";
}

TEST_F(WrittenStoreTest, ABeginningWaitsForWhatIsUnderWay) {  // WS1
  begin_with_space(writer(1));
  std::thread other([&] {
    for (uint64_t i = 0; i < 200; ++i) {
      const Status done = write(writer(1), kPage, 10 + i);
      if (!done.ok()) {
        EXPECT_TRUE(is_no_session(done)) << done;
        return;
      }
    }
  });
  ASSERT_TRUE(begin(writer(2)).ok());
  const uint64_t seen = llsn_of(kPage);
  other.join();
  EXPECT_EQ(llsn_of(kPage), seen) << "nothing lands later";
}

TEST_F(WrittenStoreTest, ReadersSeeWholePages) {  // WS4
  begin_with_space(writer(1));
  ASSERT_TRUE(write(writer(1), kPage, 10).ok());
  std::thread other([&] {
    for (uint64_t i = 11; i < 300; ++i) ASSERT_TRUE(write(writer(1), kPage, i).ok());
  });
  const AlignedBytes page(kPageBytes, 4096);
  for (uint64_t last = 0; last < 299;) {
    Status result;
    store_->read(&kPage, 1, page.get(), &result);
    ASSERT_TRUE(result.ok()) << result;
    EXPECT_GE(header_of(page.get())->llsn, last);
    last = header_of(page.get())->llsn;
  }
  other.join();
}

TEST_F(WrittenStoreTest, TakesWhatIsNewerOnly) {  // WS5
  begin_with_space(writer(1));
  ASSERT_TRUE(write(writer(1), kPage, 10).ok());
  EXPECT_EQ(*take(writer(1), kPage, 9), 0u);
  EXPECT_EQ(*take(writer(1), kPage, 10), 0u);
  EXPECT_EQ(llsn_of(kPage), 10u);
  EXPECT_EQ(*take(writer(1), kPage, 11), 1u);
  EXPECT_EQ(llsn_of(kPage), 11u);
  EXPECT_EQ(*take(writer(1), {300, 9}, 3), 1u);
  ASSERT_TRUE(store_->sync(writer(1)).ok());
  disk_->flip_bit("/node/pages/space-0000012c.pages", (7 * uint64_t{kPageBytes} + 5000) * 8);
  EXPECT_EQ(llsn_of(kPage), 1u) << "damaged";
  EXPECT_EQ(*take(writer(1), kPage, 4), 1u);
  EXPECT_EQ(llsn_of(kPage), 4u);
}

TEST_F(WrittenStoreTest, SpacesOfACopyGiveWayToThoseOfTheSession) {  // WS5
  begin_with_space(writer(1));
  ASSERT_TRUE(store_->create_space(writer(1), SpaceId{301}).ok());
  ASSERT_TRUE(begin(writer(2)).ok());
  ASSERT_TRUE(store_->create_space(writer(2), SpaceId{302}).ok());
  ASSERT_TRUE(store_->delete_space(writer(2), SpaceId{303}).ok());
  EXPECT_FALSE(*store_->prepare_space(writer(2), SpaceId{303}, 10)) << "deleted meanwhile";
  EXPECT_TRUE(*store_->prepare_space(writer(2), SpaceId{304}, 10));
  EXPECT_EQ(*take(writer(2), {304, 1}, 5), 1u);
  ASSERT_TRUE(store_->delete_space(writer(2), SpaceId{304}).ok());
  EXPECT_EQ(*take(writer(2), {304, 2}, 5), 0u);
  ASSERT_TRUE(store_->drop_spaces_but(writer(2), {kSpace}).ok());
  EXPECT_EQ(*store_->list_spaces(), (std::vector<SpaceId>{kSpace, SpaceId{302}}));
}

TEST_F(WrittenStoreTest, DamagedPagesAreNotTaken) {  // WS6
  begin_with_space(writer(1));
  Batch batch;
  batch.add({300, 1}, 5).add({300, 2}, 5);
  batch.pages()[kPageBytes + 300] ^= 1;
  EXPECT_TRUE(is_invalid_argument(store_->write(writer(1), batch.ids(), 2, batch.pages())));
  EXPECT_TRUE(is_invalid_argument(store_->take(writer(1), batch.ids(), 2, batch.pages()).status()));
  EXPECT_EQ(llsn_of({300, 1}), 0u) << "none of them";
  Batch disorderly;
  disorderly.add({300, 2}, 5).add({300, 1}, 5);
  EXPECT_TRUE(
      is_invalid_argument(store_->write(writer(1), disorderly.ids(), 2, disorderly.pages())));
}

TEST_F(WrittenStoreTest, AFullDiskIsSaidAsSuch) {
  begin_with_space(writer(1));
  disk_->set_capacity(1);
  EXPECT_TRUE(is_no_space(store_->grow_space(writer(1), kSpace, 100'000)));
}

TEST_F(WrittenStoreTest, ADamagedMarkIsNotMadeAnew) {  // SK2
  begin_with_space(writer(1));
  store_.reset();
  disk_->flip_bit("/node/store", 70);
  EXPECT_TRUE(is_corruption(try_open())) << try_open();
  ASSERT_TRUE(disk_->remove("/node/store").ok());
  EXPECT_TRUE(is_corruption(try_open())) << try_open();
}

TEST(StoreMarkTest, EveryByteCounts) {
  const std::string bytes = encode(StoreMark{0xfedcba9876543210, Epoch{9}});
  const auto mark = decode_store_mark(bytes, "store");
  ASSERT_TRUE(mark.ok());
  EXPECT_EQ(*mark, (StoreMark{0xfedcba9876543210, Epoch{9}}));
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 4);
    EXPECT_TRUE(is_corruption(decode_store_mark(changed, "store").status())) << i;
    EXPECT_FALSE(decode_store_mark(Bytes(bytes).substr(0, i), "store").ok());
  }
  EXPECT_FALSE(decode_store_mark(bytes + "x", "store").ok());
  EXPECT_FALSE(decode_store_mark(encode(StoreMark{0, Epoch{9}}), "store").ok());
}

}  // namespace
}  // namespace strata::storenode
