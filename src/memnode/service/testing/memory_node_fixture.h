// For tests: a pool service over real sockets, its storage nodes, and who calls it.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "base/clock.h"
#include "base/diag.h"
#include "base/latch.h"
#include "memnode/service/pool_service.h"
#include "proto/calls/calls.h"
#include "proto/methods.h"
#include "proto/written_messages.h"
#include "transport/calls/blocking_channel.h"
#include "transport/calls/testing/io_node.h"
#include "transport/regions/region_server.h"

namespace strata::memnode::testing {

using transport::test::Folder;
using transport::test::IoNode;
using transport::test::secret_of;

// A sealed page whose bytes follow from its id and llsn.
inline std::string page_of(PageId id, uint64_t llsn) {
  const AlignedBytes page(kPageBytes);
  std::memset(page.get(), static_cast<int>(llsn * 31 + id.number), kPageBytes);
  PageHeader header{};
  header.format = kPageFormat;
  header.type = static_cast<uint8_t>(PageType::kTree);
  header.llsn = llsn;
  header.space = id.space;
  header.number = id.number;
  header.right_sibling = kNoPage;
  std::memcpy(page.get(), &header, sizeof header);
  seal_page(page.get());
  return {page.get(), kPageBytes};
}

// Takes what is written to it, or does as it is told.
class StorageNode {
 public:
  enum class Does : uint8_t { kTakes, kRefuses, kIsSilent };
  StorageNode() {
    server_ = std::make_unique<transport::RpcServer>(node_.world(), secret_of('s'),
                                                     transport::ServerOptions{});
    proto::serve(server_.get(), proto::kWritePages,
                 [this](const transport::Request& call, transport::Responder to) {
                   take(call.payload, std::move(to));
                 });
    address_ = *server_->listen("tcp:127.0.0.1:0");
  }
  ~StorageNode() {
    release();
    server_.reset();
  }
  void will(Does does) {
    const MutexLock lock(mutex_);
    does_ = does;
  }
  // Answers what it has left unanswered.
  void release() {
    std::vector<transport::Responder> held;
    {
      const MutexLock lock(mutex_);
      held.swap(held_);
    }
    for (transport::Responder& to : held) to.reply({});
  }
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] size_t held() const {
    const MutexLock lock(mutex_);
    return held_.size();
  }
  // 0: never written.
  [[nodiscard]] uint64_t llsn_of(PageId id) const {
    const MutexLock lock(mutex_);
    const auto found = pages_.find(id.packed());
    return found == pages_.end() ? 0 : found->second;
  }
  [[nodiscard]] std::vector<proto::Writer> writers() const {
    const MutexLock lock(mutex_);
    return writers_;
  }

 private:
  void take(Bytes payload, transport::Responder to) {
    const auto request = proto::decode_write_pages(payload);
    ASSERT_TRUE(request.ok()) << request.status();
    Does does = Does::kTakes;
    {
      const MutexLock lock(mutex_);
      does = does_;
      writers_.push_back(request->writer);
      for (size_t i = 0; i < request->ids.size() && does != Does::kRefuses; ++i) {
        const std::string page(request->pages.substr(i * kPageBytes, kPageBytes));
        const uint64_t llsn = load_u64(page.data() + offsetof(PageHeader, llsn));
        EXPECT_EQ(page, page_of(request->ids[i], llsn));
        pages_[request->ids[i].packed()] = llsn;
      }
      if (does == Does::kIsSilent) held_.push_back(std::move(to));
    }
    if (does == Does::kTakes) to.reply({});
    if (does == Does::kRefuses) to.fail(error_no_session("asked for by a test"));
  }

  IoNode node_;
  std::unique_ptr<transport::RpcServer> server_;
  std::string address_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  Does does_ STRATA_GUARDED_BY(mutex_) = Does::kTakes;
  std::map<uint64_t, uint64_t> pages_ STRATA_GUARDED_BY(mutex_);
  std::vector<proto::Writer> writers_ STRATA_GUARDED_BY(mutex_);
  std::vector<transport::Responder> held_ STRATA_GUARDED_BY(mutex_);
};

struct Image {
  PageId id;
  uint64_t llsn = 0;
  uint64_t first = 0;  // 0: clean
  uint64_t end = 0;
};

class MemoryNodeFixture : public ::testing::Test {
 protected:
  MemoryNodeFixture() {
    set_diag_sink([](Severity, std::string_view) {});
  }
  ~MemoryNodeFixture() override {
    stop();
    set_diag_sink(nullptr);
  }

  void start() {
    node_ = std::make_unique<IoNode>();
    workers_ = std::make_unique<daemon::WorkerPool>(2, 1u << 20);
    attachers_ = std::make_unique<daemon::WorkerPool>(2, 64);
    server_ = std::make_unique<transport::RpcServer>(node_->world(), secret_of('s'),
                                                     transport::ServerOptions{});
    regions_ = std::make_unique<transport::RegionServer>(server_.get());
    writer_ = std::make_unique<StorageWriter>(node_->world(), secret_of('s'), writer_options_);
    tenants_ = std::make_unique<Tenants>(tenant_options_, memory_bytes_);
    PoolService::Parts parts;
    parts.folder = folder_ / "";
    parts.node = number_;
    parts.persistent = persistent_;
    parts.is_named = [this](StreamId, uint64_t incarnation) { return is_named(incarnation); };
    parts.check_epoch = [this](StreamId, Epoch epoch) { return check_epoch(epoch); };
    parts.expose = [this](const std::string& name, const std::shared_ptr<transport::Region>& region,
                          transport::RegionAccess access) {
      regions_->expose(name, region, access);
    };
    parts.withdraw = [this](const std::string& name) { regions_->withdraw(name); };
    parts.offload = [this](daemon::WorkerPool::Task task) {
      return workers_->run(std::move(task));
    };
    parts.offload_attach = [this](daemon::WorkerPool::Task task) {
      return attachers_->run(std::move(task));
    };
    parts.tenants = tenants_.get();
    parts.writer = writer_.get();
    service_ = std::make_unique<PoolService>(std::move(parts));
    const Status opened = service_->open_pools();
    ASSERT_TRUE(opened.ok()) << opened;
    service_->register_on(server_.get());
    address_ = *server_->listen("unix:" + (folder_ / "socket"));
    channel_ = std::make_shared<transport::BlockingChannel>(secret_of('s'), address_,
                                                            transport::BlockingChannelOptions{});
  }
  void stop() {
    if (server_ == nullptr) return;
    channel_.reset();
    server_.reset();
    writer_->stop();
    attachers_->stop();
    workers_->stop();
    service_.reset();
    regions_.reset();
    writer_.reset();
    node_.reset();
  }
  void SetUp() override { start(); }

  Status check_epoch(Epoch epoch) {
    const MutexLock lock(mutex_);
    if (!registry_there_) return error_peer_down("asked for by a test");
    if (epoch.value < last_epoch_) return error_fenced("asked for by a test");
    return ok_status();
  }
  StatusOr<bool> is_named(uint64_t incarnation) {
    const MutexLock lock(mutex_);
    if (!registry_there_) return error_peer_down("asked for by a test");
    return incarnation == named_;
  }
  void name(uint64_t incarnation) {
    const MutexLock lock(mutex_);
    named_ = incarnation;
  }
  void registry_is(bool there) {
    const MutexLock lock(mutex_);
    registry_there_ = there;
  }
  void last_epoch_is(uint64_t epoch) {
    const MutexLock lock(mutex_);
    last_epoch_ = epoch;
  }

  StatusOr<std::string> call(uint16_t method, Bytes request, uint64_t timeout_us = 20'000'000) {
    return call(proto::call_of(method, monotonic_us() + timeout_us), request);
  }
  StatusOr<std::string> call(const transport::CallOptions& options, Bytes request) {
    transport::BlockingReply reply;
    STRATA_RETURN_IF_ERROR(channel_->call(options, request, &reply));
    return std::move(reply.payload);
  }
  // Of the transport's own methods.
  StatusOr<std::string> call_region(uint16_t method, Bytes request) {
    transport::CallOptions options;
    options.method = method;
    options.deadline_us = monotonic_us() + 20'000'000;
    return call(options, request);
  }
  StatusOr<proto::PoolAttachReply> attach(const proto::PoolAttachRequest& request) {
    STRATA_ASSIGN_OR_RETURN(const std::string reply,
                            call(proto::kPoolAttach, proto::encode(request)));
    return proto::decode_pool_attach_reply(reply);
  }
  // As the stream's user from now on, whoever there was.
  proto::PoolAttachReply attached(uint64_t epoch = 1, uint64_t number = 1, bool fresh = false) {
    user_ = {StreamId{1}, Epoch{epoch}, number, 0};
    const auto reply = attach({user_, fresh, 64, token_});
    EXPECT_TRUE(reply.ok()) << reply.status();
    if (!reply.ok()) return {};
    user_.incarnation = reply->incarnation;
    return *reply;
  }
  static std::string put_request(const proto::PoolUser& user, const std::vector<Image>& images,
                                 uint64_t durable, std::string* pages) {
    proto::PoolPutRequest request{user, Lsn{durable}, {}, {}};
    const bool make = pages->empty();
    for (const Image& image : images) {
      request.images.push_back({image.id, image.first != 0, Lsn{image.first}, Lsn{image.end}});
      if (make) *pages += page_of(image.id, image.llsn);
    }
    request.pages = *pages;
    return proto::encode(request);
  }
  StatusOr<proto::PoolPutReply> put(const std::vector<Image>& images, uint64_t durable = 1'000'000,
                                    std::string pages = {}) {
    STRATA_ASSIGN_OR_RETURN(const std::string reply,
                            call(proto::kPoolPut, put_request(user_, images, durable, &pages)));
    return proto::decode_pool_put_reply(reply);
  }
  // That one alone.
  Status put_one(const Image& image, uint64_t durable = 1'000'000, const std::string& page = {}) {
    const auto reply = put({image}, durable, page);
    return reply.ok() ? reply->taken.at(0).status : reply.status();
  }
  StatusOr<proto::PoolLookupReply::Found> lookup(PageId id) {
    STRATA_ASSIGN_OR_RETURN(
        const std::string bytes,
        call(proto::kPoolLookup, proto::encode(proto::PoolPagesRequest{user_, {id}})));
    STRATA_ASSIGN_OR_RETURN(const auto reply, proto::decode_pool_lookup_reply(bytes));
    return reply.found.at(0);
  }
  Status drop(PageId id) {
    STRATA_ASSIGN_OR_RETURN(
        const std::string bytes,
        call(proto::kPoolDrop, proto::encode(proto::PoolPagesRequest{user_, {id}})));
    STRATA_ASSIGN_OR_RETURN(const auto reply, proto::decode_pool_drop_reply(bytes));
    return reply.dropped.at(0);
  }
  std::vector<proto::PoolTarget> targets(uint64_t session = 9) const {
    std::vector<proto::PoolTarget> targets;
    for (const auto& node : storage_) targets.push_back({node->address(), session});
    return targets;
  }
  StatusOr<proto::PoolWriteReply> write(const std::vector<proto::PoolTarget>& targets,
                                        uint64_t below = UINT64_MAX, uint32_t pages_max = 64,
                                        uint64_t timeout_us = 20'000'000) {
    STRATA_ASSIGN_OR_RETURN(
        const std::string reply,
        call(proto::kPoolWrite,
             proto::encode(proto::PoolWriteRequest{user_, Lsn{below}, pages_max, targets}),
             timeout_us));
    return proto::decode_pool_write_reply(reply);
  }
  StatusOr<proto::PoolWriteAgainReply> write_again(uint32_t from, const proto::PoolTarget& target) {
    STRATA_ASSIGN_OR_RETURN(const std::string reply,
                            call(proto::kPoolWriteAgain,
                                 proto::encode(proto::PoolWriteAgainRequest{user_, from, target})));
    return proto::decode_pool_write_again_reply(reply);
  }
  StatusOr<proto::PoolSyncedReply> synced(uint64_t report) {
    STRATA_ASSIGN_OR_RETURN(
        const std::string reply,
        call(proto::kPoolSynced, proto::encode(proto::PoolSyncedRequest{user_, report})));
    return proto::decode_pool_synced_reply(reply);
  }
  Status forget(uint32_t space, uint64_t timeout_us = 20'000'000) {
    return call(proto::kPoolForget, proto::encode(proto::PoolForgetRequest{user_, SpaceId{space}}),
                timeout_us)
        .status();
  }
  Status checkpoint(uint64_t lsn, uint64_t bias = 0) {
    return call(proto::kPoolCheckpoint,
                proto::encode(proto::PoolCheckpointRequest{user_, Lsn{lsn}, bias}))
        .status();
  }
  PoolStatus pool_status() { return service_->status().pools.at(0); }
  const PoolCounters& counters() { return service_->counters(); }

  Folder folder_;
  StorageWriterOptions writer_options_;
  std::vector<TenantOptions> tenant_options_;
  uint64_t memory_bytes_ = 8u << 20;
  std::string token_;
  uint64_t number_ = 77;
  bool persistent_ = false;
  std::vector<std::unique_ptr<StorageNode>> storage_;
  std::unique_ptr<IoNode> node_;
  std::unique_ptr<daemon::WorkerPool> workers_, attachers_;
  std::unique_ptr<transport::RpcServer> server_;
  std::unique_ptr<transport::RegionServer> regions_;
  std::unique_ptr<StorageWriter> writer_;
  std::unique_ptr<Tenants> tenants_;
  std::unique_ptr<PoolService> service_;
  std::string address_;
  std::shared_ptr<transport::BlockingChannel> channel_;
  proto::PoolUser user_;

 private:
  Mutex mutex_{LatchRank::kLeaf};
  bool registry_there_ STRATA_GUARDED_BY(mutex_) = true;
  uint64_t last_epoch_ STRATA_GUARDED_BY(mutex_) = 0;
  uint64_t named_ STRATA_GUARDED_BY(mutex_) = 0;
};

}  // namespace strata::memnode::testing
