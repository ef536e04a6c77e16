// Goal: a copy brings every page of the peer that is newer, and nothing else (CW1), ends with its
// session (CW2), and makes the spaces first (CW3). Method: two stores on simulated disks, one of
// them served over a socket.
#include "storenode/written/page_copier.h"

#include <gtest/gtest.h>

#include "base/diag.h"
#include "base/testing/wait_until.h"
#include "daemon/worker_pool.h"
#include "storenode/written/testing/written_pages.h"
#include "storenode/written/written_service.h"
#include "transport/calls/testing/io_node.h"

namespace strata::storenode {
namespace {

using proto::CopyPagesReply;
using strata::testing::wait_until;
using testing::Batch;

const transport::Secret kSecret = transport::test::secret_of('s');
constexpr Epoch kEpoch{4};
const proto::Writer kPeerWriter{StreamId{1}, kEpoch, 5};
const proto::Writer kWriter{StreamId{1}, kEpoch, 9};

class Copies : public ::testing::Test {
 protected:
  Copies() {
    set_diag_sink([](Severity, std::string_view) {});
    peer_ = *WrittenStore::open({"/peer", peer_disk_.get(), true, 1});
    own_ = *WrittenStore::open({"/own", own_disk_.get(), true, 2});
    EXPECT_TRUE(peer_->begin(kPeerWriter, 0).ok());
    EXPECT_TRUE(own_->begin(kWriter, 0).ok());
    peer_copier_ = std::make_unique<PageCopier>(peer_.get(), kSecret);
    service_ = std::make_unique<WrittenService>(
        peer_.get(), peer_copier_.get(), [](StreamId, Epoch) { return ok_status(); },
        [this](absl::AnyInvocable<void()> task) { return workers_.run(std::move(task)); });
    server_ =
        std::make_unique<transport::RpcServer>(io_.world(), kSecret, transport::ServerOptions{});
    service_->register_on(server_.get());
    address_ = *server_->listen("unix:" + (folder_ / "peer"));
    copier_ = std::make_unique<PageCopier>(own_.get(), kSecret);
  }
  ~Copies() override {
    server_.reset();
    workers_.stop();
    set_diag_sink(nullptr);
  }
  static void fill(WrittenStore* store, const proto::Writer& writer, uint32_t space, uint32_t pages,
                   uint64_t llsn) {
    ASSERT_TRUE(store->create_space(writer, SpaceId{space}).ok());
    for (uint32_t i = 0; i < pages; ++i) {
      const Batch batch = std::move(Batch().add({space, 2 * i}, llsn));
      ASSERT_TRUE(store->write(writer, batch.ids(), 1, batch.pages()).ok());
    }
  }
  CopyPagesReply copy(uint64_t peer_session = 5) {
    CopyPagesReply reply;
    EXPECT_TRUE(wait_until([&] {
      reply = copier_->order({own_->session(), address_, peer_session});
      return reply.state != CopyPagesReply::State::kRunning;
    }));
    return reply;
  }
  uint64_t llsn_of(PageId id) {
    Status result;
    own_->read(&id, 1, page_.get(), &result);
    return result.ok() ? header_of(page_.get())->llsn : 0;
  }

  transport::test::Folder folder_;
  transport::test::IoNode io_;
  daemon::WorkerPool workers_{2, 100};
  std::unique_ptr<SimFileSystem> peer_disk_ = make_sim_file_system();
  std::unique_ptr<SimFileSystem> own_disk_ = make_sim_file_system();
  std::unique_ptr<WrittenStore> peer_, own_;
  std::unique_ptr<PageCopier> peer_copier_, copier_;
  std::unique_ptr<WrittenService> service_;
  std::unique_ptr<transport::RpcServer> server_;
  std::string address_;
  const AlignedBytes page_{kPageBytes, 4096};
};

TEST_F(Copies, BringWhatIsNewerAndRemoveWhatIsGone) {  // CW1
  fill(peer_.get(), kPeerWriter, 300, 100, 50);
  fill(peer_.get(), kPeerWriter, 301, 3, 50);
  fill(own_.get(), kWriter, 300, 10, 60);
  fill(own_.get(), kWriter, 302, 2, 60);  // dropped while this node was away
  ASSERT_TRUE(own_->begin({StreamId{1}, kEpoch, 10}, 0).ok());
  fill(own_.get(), {StreamId{1}, kEpoch, 10}, 303, 2, 60);  // made meanwhile
  const CopyPagesReply done = copy();
  EXPECT_EQ(done.state, CopyPagesReply::State::kDone) << done.why;
  EXPECT_EQ(done.pages_seen, 103u);
  EXPECT_EQ(done.pages_taken, 93u);
  EXPECT_EQ(*own_->list_spaces(), (std::vector<SpaceId>{SpaceId{300}, SpaceId{301}, SpaceId{303}}));
  own_.reset();
  own_disk_->crash(3);
  own_ = *WrittenStore::open({"/own", own_disk_.get(), true, 2});
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(llsn_of({300, 2 * i}), i < 10 ? 60u : 50u) << i;
  EXPECT_EQ(llsn_of({301, 4}), 50u) << "durable";
}

TEST_F(Copies, APeerThatWasRestartedIsNotBelieved) {
  fill(peer_.get(), kPeerWriter, 300, 3, 50);
  fill(own_.get(), kWriter, 302, 2, 60);
  const CopyPagesReply refused = copy(/*peer_session=*/4);
  EXPECT_EQ(refused.state, CopyPagesReply::State::kFailed);
  EXPECT_EQ(own_->list_spaces()->size(), 1u);
  EXPECT_EQ(llsn_of({302, 2}), 60u);
}

TEST_F(Copies, MakeAllSpacesBeforeTheFirstPage) {  // CW3
  fill(peer_.get(), kPeerWriter, 300, 3, 50);
  fill(peer_.get(), kPeerWriter, 301, 3, 50);
  peer_disk_->flip_bit("/peer/pages/space-0000012c.pages", uint64_t{5000} * 8);
  const CopyPagesReply failed = copy();
  EXPECT_EQ(failed.state, CopyPagesReply::State::kFailed);
  EXPECT_EQ(failed.pages_seen, 0u);
  EXPECT_EQ(*own_->list_spaces(), (std::vector<SpaceId>{SpaceId{300}, SpaceId{301}}));
  // What compute writes meanwhile finds its place.
  const Batch batch = std::move(Batch().add({301, 2}, 60));
  EXPECT_TRUE(own_->write(kWriter, batch.ids(), 1, batch.pages()).ok());
}

TEST_F(Copies, EndWithTheirSession) {  // CW2
  fill(peer_.get(), kPeerWriter, 300, 100, 50);
  const proto::CopyPagesRequest old{kWriter, address_, 5};
  ASSERT_TRUE(own_->begin({StreamId{1}, kEpoch, 10}, 0).ok());
  CopyPagesReply reply;
  EXPECT_TRUE(wait_until([&] {
    reply = copier_->order(old);
    return reply.state != CopyPagesReply::State::kRunning;
  }));
  EXPECT_EQ(reply.state, CopyPagesReply::State::kFailed);
  EXPECT_TRUE(own_->list_spaces()->empty());
  EXPECT_EQ(copy().state, CopyPagesReply::State::kDone) << "the next session's";
}

TEST_F(Copies, NobodyThere) {
  server_.reset();
  EXPECT_EQ(copy().state, CopyPagesReply::State::kFailed);
  copier_->stop();
  EXPECT_EQ(copier_->order({kWriter, address_, 6}).state, CopyPagesReply::State::kFailed);
}

}  // namespace
}  // namespace strata::storenode
