// Goal: PoolClient tells truly how calls ended, and hands on no page but the one that was wanted
// (PCL1, PCL2, RPL2, RPL3). Method: a server that answers as the test says over a unix socket, with
// a region of slots that the test writes, read through a mapping and by calls.
#include "clients/memory/pool_client.h"

#include <gtest/gtest.h>

#include <mutex>

#include "base/clock.h"
#include "clients/memory/testing/pages.h"
#include "proto/calls/calls.h"
#include "proto/methods.h"
#include "transport/calls/rpc_server.h"
#include "transport/calls/testing/io_node.h"
#include "transport/regions/region.h"
#include "transport/regions/region_server.h"

namespace strata::clients {
namespace {

using testing::make_page;
using transport::RegionPath;
using transport::test::Folder;
using transport::test::IoNode;
using transport::test::secret_of;

constexpr uint32_t kSlots = 32;
constexpr uint64_t kHeadersAt = 4096;
constexpr uint64_t kPagesAt = 8192;

class PoolClients : public ::testing::TestWithParam<RegionPath> {
 protected:
  PoolClients() {
    server_ = std::make_unique<transport::RpcServer>(node_.world(), secret_of('s'),
                                                     transport::ServerOptions());
    regions_ = std::make_unique<transport::RegionServer>(server_.get(), nullptr);
    for (uint16_t method = proto::kPoolAttach; method <= proto::kPoolPutStaged; ++method)
      proto::serve(server_.get(), method,
                   [this](const transport::Request& request, transport::Responder responder) {
                     answer(request, std::move(responder));
                   });
    address_ = *server_->listen("unix:" + (folder_ / "socket"));
    auto region = transport::Region::create(folder_ / "region", kPagesAt + kSlots * kPageBytes, 1);
    EXPECT_TRUE(region.ok()) << region.status();
    region_ = *std::move(region);
    regions_->expose("pool-17", region_);
    PoolClientOptions options;
    options.stream = StreamId{3};
    options.epoch = Epoch{9};
    options.token = "open sesame";
    options.slots_max = kSlots;
    options.path = GetParam();
    options.call_timeout_us = 10'000'000;
    client_ = std::make_unique<PoolClient>(secret_of('s'), address_, options);
  }
  ~PoolClients() override { server_.reset(); }  // before regions_

  void answer(const transport::Request& request, transport::Responder responder) {
    const std::lock_guard lock(mutex_);
    last_request_ = std::string(request.payload);
    if (request.method == proto::kPoolAttach) {
      const auto asked = proto::decode_pool_attach(request.payload);
      if (!asked.ok()) return responder.fail(asked.status());
      attached_ = *asked;
      if (!attach_error_.ok()) return responder.fail(attach_error_);
      proto::PoolAttachReply reply;
      reply.incarnation = 77;
      reply.region = "pool-17";
      reply.slots = kSlots;
      reply.headers_at = headers_at_;
      reply.pages_at = kPagesAt;
      reply.checkpoint_epoch = Epoch{8};
      reply.checkpoint = Lsn{500};
      reply.bias = 4;
      return responder.reply(proto::encode(reply));
    }
    if (!error_.ok()) return responder.fail(error_);
    responder.reply(reply_);
  }
  void attach() {
    const auto attached = client_->attach(0, true, monotonic_us() + 10'000'000);
    ASSERT_TRUE(attached.ok()) << attached.status();
    EXPECT_EQ(attached->incarnation, 77u);
    EXPECT_EQ(attached->slots, kSlots);
    EXPECT_EQ(attached->checkpoint, Lsn{500});
    EXPECT_EQ(attached->bias, 4u);
  }
  void fill(uint32_t slot, uint64_t generation, const std::string& page) {
    std::memcpy(region_->data() + kHeadersAt + 64 * slot, &generation, 8);
    std::memcpy(region_->data() + kPagesAt + size_t{slot} * kPageBytes, page.data(), kPageBytes);
  }
  Status read(PageId id, const proto::PoolSlot& at) {
    page_.assign(kPageBytes, 'x');
    SlotRead read{id, at, page_.data(), {}};
    client_->read_slots(absl::MakeSpan(&read, 1));
    return read.status;
  }

  IoNode node_;
  Folder folder_;
  std::string address_;
  std::shared_ptr<transport::Region> region_;
  std::unique_ptr<transport::RegionServer> regions_;
  std::unique_ptr<transport::RpcServer> server_;
  std::unique_ptr<PoolClient> client_;
  std::string page_;
  std::mutex mutex_;
  proto::PoolAttachRequest attached_;
  Status attach_error_, error_;
  std::string reply_, last_request_;
  uint64_t headers_at_ = kHeadersAt;
};

TEST_P(PoolClients, EveryAttachHasItsNumberAndCallsNameTheLastOne) {  // RPL1
  attach();
  EXPECT_EQ(attached_.token, "open sesame");
  EXPECT_EQ(attached_.slots_max, kSlots);
  EXPECT_EQ(attached_.user, (proto::PoolUser{StreamId{3}, Epoch{9}, 1, 0}));
  attach();
  EXPECT_EQ(attached_.user.number, 2u);
  attach_error_ = error_not_found("another one");
  EXPECT_TRUE(is_not_found(client_->attach(5, false, monotonic_us() + 10'000'000).status()));
  EXPECT_EQ(attached_.user, (proto::PoolUser{StreamId{3}, Epoch{9}, 3, 5}));
  EXPECT_TRUE(client_->checkpoint(Lsn{9}, 1).ok());
  EXPECT_EQ(proto::decode_pool_checkpoint(last_request_)->user,
            (proto::PoolUser{StreamId{3}, Epoch{9}, 2, 77}));
  EXPECT_EQ(client_->one_sided(), GetParam() == RegionPath::kMapped);
}

TEST_P(PoolClients, APoolThatItsMemoryDoesNotHoldIsRefused) {
  headers_at_ = kPagesAt + kSlots * kPageBytes - 64;
  EXPECT_TRUE(is_corruption(client_->attach(0, true, monotonic_us() + 10'000'000).status()));
}

TEST_P(PoolClients, AReplyThatCannotBeReadCountsAsLost) {  // PCL1
  attach();
  reply_ = "nonsense";
  const PageId id{300, 1};
  EXPECT_TRUE(is_outcome_unknown(
      client_->put({{id, false, {}, {}}}, make_page(id, Llsn{1}), Lsn{1}).status()));
  EXPECT_TRUE(is_outcome_unknown(client_->drop({id}).status()));
  EXPECT_TRUE(is_outcome_unknown(client_->write(Lsn{1}, 8, {{"a", 1}}).status()));
  EXPECT_TRUE(is_corruption(client_->lookup({id}).status()));
  reply_ = proto::encode(proto::PoolPutReply{{{ok_status(), 1, 2}, {ok_status(), 2, 2}}});
  EXPECT_TRUE(is_outcome_unknown(
      client_->put({{id, false, {}, {}}}, make_page(id, Llsn{1}), Lsn{1}).status()));
  error_ = error_fenced("another user");
  EXPECT_TRUE(is_fenced(client_->drop({id}).status()));
}

TEST_P(PoolClients, ALostNodeIsTold) {  // RPL2, RPL3
  attach();
  const PageId id{300, 1};
  fill(3, 6, make_page(id, Llsn{9}));
  server_.reset();
  const Status dropped = client_->drop({id}).status();  // sent, perhaps, before it was closed
  EXPECT_TRUE(is_peer_down(dropped) || is_outcome_unknown(dropped)) << dropped;
  const Status status = read(id, {3, 6, Llsn{9}, false});
  EXPECT_EQ(status.ok(), GetParam() == RegionPath::kMapped) << status;
}

TEST_P(PoolClients, OnlyTheWantedContentOfASlotIsHandedOn) {  // PCL2
  attach();
  const PageId id{300, 1};
  fill(3, 6, make_page(id, Llsn{9}));
  ASSERT_TRUE(read(id, {3, 6, Llsn{9}, false}).ok());
  EXPECT_EQ(page_, make_page(id, Llsn{9}));
  EXPECT_TRUE(is_conflict(read(id, {3, 4, Llsn{9}, false})));
  EXPECT_TRUE(is_corruption(read(id, {3, 6, Llsn{8}, false})));
  EXPECT_TRUE(is_corruption(read({300, 2}, {3, 6, Llsn{9}, false})));
  fill(3, 7, make_page(id, Llsn{9}));
  EXPECT_TRUE(is_conflict(read(id, {3, 7, Llsn{9}, false})));
  std::string damaged = make_page(id, Llsn{9});
  damaged[9000] ^= 1;
  fill(3, 8, damaged);
  EXPECT_TRUE(is_corruption(read(id, {3, 8, Llsn{9}, false})));
  fill(3, 8, std::string(kPageBytes, '\0'));
  EXPECT_TRUE(is_corruption(read(id, {3, 8, Llsn{9}, false})));
  EXPECT_FALSE(read(id, {kSlots + 5, 8, Llsn{9}, false}).ok());
}

TEST_P(PoolClients, ManySlotsAreReadInBatches) {
  attach();
  std::vector<SlotRead> reads;
  std::string pages(20 * size_t{kPageBytes}, '\0');
  for (uint32_t i = 0; i < 20; ++i) {
    fill(i, 2 + 2 * i, make_page({300, i}, Llsn{i + 1}));
    reads.push_back({{300, i},
                     {i, i == 7 ? 2u : 2 + 2 * i, Llsn{i + 1}, false},
                     pages.data() + size_t{i} * kPageBytes,
                     {}});
  }
  client_->read_slots(absl::MakeSpan(reads));
  for (uint32_t i = 0; i < 20; ++i) {
    if (i == 7) {
      EXPECT_TRUE(is_conflict(reads[i].status));
      continue;
    }
    EXPECT_TRUE(reads[i].status.ok()) << reads[i].status;
    EXPECT_EQ(std::string(reads[i].page, kPageBytes), make_page({300, i}, Llsn{i + 1}));
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, PoolClients,
                         ::testing::Values(RegionPath::kMapped, RegionPath::kCalls));

}  // namespace
}  // namespace strata::clients
