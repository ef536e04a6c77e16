// For tests: a memory node that serves several servers over real sockets, its authority stream and
// its storage in memory, where a test can make them fail or keep silent.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/aligned.h"
#include "base/clock.h"
#include "base/diag.h"
#include "base/latch.h"
#include "daemon/worker_pool.h"
#include "memnode/fusion/fusion_service.h"
#include "page/page.h"
#include "proto/calls/calls.h"
#include "proto/calls/testing/other_build.h"
#include "transport/calls/blocking_channel.h"
#include "transport/calls/testing/io_node.h"
#include "transport/regions/region_server.h"
#include "transport/regions/remote_region.h"

namespace strata::memnode::testing {

using transport::test::Folder;
using transport::test::IoNode;
using transport::test::secret_of;

// A sealed page whose bytes follow from its id and llsn.
inline std::string fusion_page(PageId id, uint64_t llsn) {
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

// Takes every record, or does as it is told.
class TestStream final : public AuthorityStream {
 public:
  enum class Does : uint8_t { kTakes, kHolds, kFails, kIsSealed };
  void append(std::string record, Done done) override {
    Does does = Does::kTakes;
    {
      const MutexLock lock(mutex_);
      does = does_;
      if (does == Does::kTakes) last_ = std::move(record);
      if (does == Does::kHolds) held_.push_back(std::move(done));
    }
    if (does == Does::kTakes) done(ok_status());
    if (does == Does::kFails) done(error_outcome_unknown("asked for by a test"));
    if (does == Does::kIsSealed) done(error_fenced("asked for by a test"));
  }
  // What was held before fails.
  void will(Does does) {
    std::vector<Done> held;
    {
      const MutexLock lock(mutex_);
      does_ = does;
      held.swap(held_);
    }
    for (Done& done : held) done(error_outcome_unknown("asked for by a test"));
  }
  // As whoever seals the stream reads it.
  [[nodiscard]] std::optional<fusion::AuthorityRecord> last() const {
    const MutexLock lock(mutex_);
    if (last_.empty()) return std::nullopt;
    return *fusion::decode_authority_record(last_);
  }

 private:
  mutable Mutex mutex_{LatchRank::kLeaf};
  Does does_ STRATA_GUARDED_BY(mutex_) = Does::kTakes;
  std::vector<Done> held_ STRATA_GUARDED_BY(mutex_);
  std::string last_ STRATA_GUARDED_BY(mutex_);
};

class TestStore final : public PageStore {
 public:
  void write(absl::Span<const Image> images, absl::Span<Status> results) override {
    MutexLock lock(mutex_);
    while (holds_) changed_.wait(lock);
    for (size_t i = 0; i < images.size(); ++i) {
      results[i] = fails_ ? error_peer_down("asked for by a test") : ok_status();
      if (fails_) continue;
      std::string& page = pages_[images[i].page.packed()];
      const bool newer =
          page.empty() || header_of(page.data())->llsn < header_of(images[i].bytes)->llsn;
      if (newer) page.assign(images[i].bytes, kPageBytes);
    }
  }
  void will_fail(bool fails) {
    const MutexLock lock(mutex_);
    fails_ = fails;
  }
  // A write that has begun waits until it is let go on.
  void hold(bool holds) {
    const MutexLock lock(mutex_);
    holds_ = holds;
    changed_.notify_all();
  }
  // Empty: never written.
  [[nodiscard]] std::string page(PageId id) const {
    const MutexLock lock(mutex_);
    const auto found = pages_.find(id.packed());
    return found == pages_.end() ? std::string() : found->second;
  }
  [[nodiscard]] uint64_t llsn_of(PageId id) const {
    const std::string found = page(id);
    return found.empty() ? 0 : header_of(found.data())->llsn;
  }

 private:
  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  bool fails_ STRATA_GUARDED_BY(mutex_) = false;
  bool holds_ STRATA_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, std::string> pages_ STRATA_GUARDED_BY(mutex_);
};

// The node: its sockets, and one service after the other.
class FusionNode {
 public:
  FusionNode() {
    blocking_ = std::make_unique<daemon::WorkerPool>(2, 1u << 20);
    options.time.authority.lease_us = 60'000'000;  // nobody loses it because the machine is busy
    options.time.authority.takeover_wait_us = 1'000;
    options.pages.slots = 64;
    options.table_slots = 128;
    options.tick_us = 2'000;
    options.write_age_us = 0;  // pages are on their way to storage at once: more can go wrong
    options.join_us_max = 1'000'000;
    options.slot_wait_us = 10'000;
  }
  ~FusionNode() { stop(); }
  FusionNode(const FusionNode&) = delete;
  FusionNode& operator=(const FusionNode&) = delete;

  // Whether the next service hears what servers of the one before have, and which places nobody
  // has left in order (FV11).
  bool recovers = false;
  std::vector<NodeId> unsettled;
  // Methods that it lays out as another build does.
  std::set<uint16_t> other_layouts;

  // Listens, and serves under that epoch, after what the stream says.
  void start(uint64_t epoch = 1) {
    node_ = std::make_unique<IoNode>();
    server_ = std::make_unique<transport::RpcServer>(node_->world(), secret_of('s'),
                                                     transport::ServerOptions{});
    regions_ = std::make_unique<transport::RegionServer>(server_.get());
    door_.give_handlers([this](uint16_t method, transport::Handler handler) {
      if (other_layouts.contains(method))
        proto::testing::serve_as_other_build(server_.get(), method, std::move(handler));
      else
        proto::serve(server_.get(), method, std::move(handler));
    });
    address_ = *server_->listen("unix:" + (folder_ / "socket"));
    serve(epoch);
  }
  void serve(uint64_t epoch) {
    FusionService::Parts parts;
    parts.epoch = Epoch{epoch};
    parts.last = stream.last();
    parts.sealed_us = now_us();
    parts.recovers = recovers;
    parts.unsettled = unsettled;
    parts.stream = &stream;
    const bool is_written = !options.pages.storage_replays && options.pages.slots != 0;
    parts.store = !is_written ? nullptr : other_store != nullptr ? other_store : &store;
    parts.expose = [this](const std::string& name, const std::shared_ptr<transport::Region>& region,
                          transport::RegionAccess access) {
      regions_->expose(name, region, access);
    };
    parts.withdraw = [this](const std::string& name) { regions_->withdraw(name); };
    parts.offload = run_in(node_->world().executor);
    parts.offload_blocking = [this](daemon::WorkerPool::Task task) {
      return blocking_->run(std::move(task));
    };
    parts.seal = seal;
    parts.tenants = tenants;
    auto started = FusionService::start(options, std::move(parts));
    ASSERT_TRUE(started.ok()) << started.status();
    service_ = *std::move(started);
    door_.open(service_);
  }
  // As at the end of the epoch: who calls hears that nobody serves.
  void end_service() {
    if (service_ == nullptr) return;
    door_.open(nullptr);
    service_->stop();
    service_.reset();
  }
  void stop() {
    store.hold(false);
    end_service();
    server_.reset();
    blocking_->stop();
    regions_.reset();
    node_.reset();
  }
  [[nodiscard]] std::shared_ptr<transport::BlockingChannel> channel() const {
    return std::make_shared<transport::BlockingChannel>(secret_of('s'), address_,
                                                        transport::BlockingChannelOptions{});
  }
  [[nodiscard]] FusionService* service() const noexcept { return service_.get(); }
  [[nodiscard]] const FusionServiceCounters& counters() const { return service_->counters(); }
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  [[nodiscard]] static uint64_t now_us() {
    timespec now{};
    clock_gettime(CLOCK_BOOTTIME, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000 +
           static_cast<uint64_t>(now.tv_nsec) / 1000;
  }

  FusionServiceOptions options;  // before start() or serve()
  TestStream stream;
  TestStore store;
  PageStore* other_store = nullptr;  // in its place
  Tenants* tenants = nullptr;
  std::function<void(NodeId, uint64_t, absl::AnyInvocable<void(const Status&)>)> seal;

 private:
  Folder folder_;
  std::unique_ptr<daemon::WorkerPool> blocking_;
  std::unique_ptr<IoNode> node_;
  std::unique_ptr<transport::RpcServer> server_;
  std::unique_ptr<transport::RegionServer> regions_;
  FusionDoor door_;
  std::shared_ptr<FusionService> service_;
  std::string address_;
};

// A server that makes its calls by hand.
class WireServer {
 public:
  WireServer(const FusionNode* node, uint8_t id, uint64_t life)
      : channel_(node->channel()), caller{NodeId{id}, life, Epoch{}} {}

  StatusOr<std::string> call(uint16_t method, const std::string& request,
                             uint64_t timeout_us = 20'000'000) {
    transport::BlockingReply reply;
    const auto options = proto::call_of(method, monotonic_us() + timeout_us);
    STRATA_RETURN_IF_ERROR(channel_->call(options, request, &reply));
    return std::move(reply.payload);
  }
  Status join(bool alone = false, const std::string& token = {}) {
    STRATA_ASSIGN_OR_RETURN(
        const std::string bytes,
        call(proto::kFusionJoin,
             proto::encode(proto::FusionJoinRequest{caller.server, caller.life, alone, token})));
    STRATA_ASSIGN_OR_RETURN(joined, proto::decode_fusion_join_reply(bytes));
    caller.epoch = joined.epoch;
    return ok_status();
  }
  // At the next memory node (FV11): it is under that epoch once resume_ended() was called.
  Status resume() {
    STRATA_ASSIGN_OR_RETURN(
        const std::string bytes,
        call(proto::kFusionResume, proto::encode(proto::FusionResumeRequest{caller, {}})));
    STRATA_ASSIGN_OR_RETURN(joined, proto::decode_fusion_join_reply(bytes));
    return ok_status();
  }
  Status say_pages(const std::vector<proto::HeldPage>& pages) {
    return call(proto::kReportHeldPages,
                proto::encode(proto::ReportHeldPagesRequest{next_caller(), pages}))
        .status();
  }
  Status say_names(const std::vector<proto::HeldName>& names) {
    return call(proto::kReportHeldNames,
                proto::encode(proto::ReportHeldNamesRequest{next_caller(), names}))
        .status();
  }
  Status end_resume(uint64_t numbers) {
    return call(proto::kResumeEnded,
                proto::encode(proto::ResumeEndedRequest{next_caller(), Lsn{}, numbers, numbers, 0}))
        .status();
  }
  void go_on() { caller = next_caller(); }
  StatusOr<proto::FusionRenewReply> renew(uint64_t oldest_view = 0, uint64_t bound = 0) {
    proto::FusionRenewRequest request;
    request.beat.server = caller.server;
    request.beat.life = caller.life;
    request.beat.epoch = caller.epoch;
    request.beat.fences_heard = fences_heard;
    request.beat.has_views = oldest_view != 0;
    request.beat.oldest_view = Cts{oldest_view};
    request.beat.bound = bound;
    request.members = members_heard;
    request.placement = placement;
    STRATA_ASSIGN_OR_RETURN(const std::string bytes,
                            call(proto::kFusionRenew, proto::encode(request)));
    auto reply = proto::decode_fusion_renew_reply(bytes);
    if (!reply.ok()) return reply;
    for (const proto::Fence& fence : reply->reply.fences)
      fences_heard = std::max(fences_heard, fence.number);
    members_heard = reply->members;
    return reply;
  }
  Status leave() {
    return call(proto::kFusionLeave, proto::encode(proto::FusionLeaveRequest{caller, {}})).status();
  }
  StatusOr<std::vector<proto::PageGrant>> ask(PageId page, proto::PageMode mode, uint64_t ask,
                                              bool redo = false, uint32_t wait_us = 0) {
    STRATA_ASSIGN_OR_RETURN(
        const std::string bytes,
        call(proto::kAskPages,
             proto::encode(proto::AskPagesRequest{caller, {{page, mode, ask, redo}}, wait_us})));
    STRATA_ASSIGN_OR_RETURN(proto::AskPagesReply reply, proto::decode_ask_pages_reply(bytes));
    return std::move(reply.grants);
  }
  Status report(const std::vector<proto::PageReport>& reports) {
    return call(proto::kReportPages, proto::encode(proto::ReportPagesRequest{caller, reports}))
        .status();
  }
  StatusOr<std::vector<uint32_t>> take_slots(uint64_t request, uint32_t wanted,
                                             uint32_t wait_us = 0) {
    STRATA_ASSIGN_OR_RETURN(const std::string bytes,
                            call(proto::kTakePageSlots, proto::encode(proto::TakePageSlotsRequest{
                                                            caller, request, wanted, wait_us})));
    STRATA_ASSIGN_OR_RETURN(proto::TakePageSlotsReply reply,
                            proto::decode_take_page_slots_reply(bytes));
    return std::move(reply.slots);
  }
  StatusOr<std::vector<PageId>> adopt(NodeId place) {
    std::vector<PageId> pages;
    proto::AdoptPagesRequest request{caller, place, {}};
    for (;;) {
      STRATA_ASSIGN_OR_RETURN(const std::string bytes,
                              call(proto::kAdoptPages, proto::encode(request)));
      STRATA_ASSIGN_OR_RETURN(const proto::AdoptPagesReply reply,
                              proto::decode_adopt_pages_reply(bytes));
      pages.insert(pages.end(), reply.pages.begin(), reply.pages.end());
      if (!reply.more) return pages;
      request.from = PageId::unpack(reply.pages.back().packed() + 1);
    }
  }
  Status adoption_ended(NodeId place, const proto::StreamPosition& end = {}) {
    const proto::AdoptionEndedRequest request{caller, place, end};
    return call(proto::kAdoptionEnded, proto::encode(request)).status();
  }
  StatusOr<Lsn> write_back(uint32_t stream, uint64_t below, uint32_t wait_us) {
    STRATA_ASSIGN_OR_RETURN(
        const std::string bytes,
        call(proto::kWriteBackPages, proto::encode(proto::WriteBackPagesRequest{
                                         caller, StreamId{stream}, Lsn{below}, wait_us})));
    STRATA_ASSIGN_OR_RETURN(const auto reply, proto::decode_write_back_pages_reply(bytes));
    return reply.oldest;
  }
  Status forget_space(uint32_t space) {
    return call(proto::kForgetSpacePages,
                proto::encode(proto::ForgetSpacePagesRequest{caller, SpaceId{space}}))
        .status();
  }
  StatusOr<proto::FusionEventsReply> events(uint32_t wait_us) {
    STRATA_ASSIGN_OR_RETURN(
        const std::string bytes,
        call(proto::kFusionEvents, proto::encode(proto::FusionEventsRequest{caller, wait_us})));
    return proto::decode_fusion_events_reply(bytes);
  }
  Status ask_name(const std::string& name, proto::NameMode mode, uint64_t ask) {
    return call(proto::kAskNames,
                proto::encode(proto::AskNamesRequest{caller, {{name, mode, ask}}}))
        .status();
  }
  Status report_name(const std::string& name, uint64_t number, proto::NameMode keeps) {
    return call(proto::kReportNames,
                proto::encode(proto::ReportNamesRequest{caller, {{name, number, keeps}}}))
        .status();
  }
  Status names_adopted(NodeId place) {
    return call(proto::kNamesAdopted, proto::encode(proto::AdoptionEndedRequest{caller, place, {}}))
        .status();
  }
  StatusOr<bool> space_dropped(uint32_t space) {
    STRATA_ASSIGN_OR_RETURN(const std::string bytes,
                            call(proto::kSpaceDropped, proto::encode(proto::SpaceDroppedRequest{
                                                           caller, SpaceId{space}})));
    STRATA_ASSIGN_OR_RETURN(const auto reply, proto::decode_space_dropped_reply(bytes));
    return reply.is_left;
  }
  Status left_space(uint32_t space) {
    return call(proto::kLeftSpaces,
                proto::encode(proto::LeftSpacesRequest{caller, {SpaceId{space}}}))
        .status();
  }
  StatusOr<uint64_t> begin_round() {
    STRATA_ASSIGN_OR_RETURN(
        const std::string bytes,
        call(proto::kBeginReuseRound, proto::encode(proto::FusionCallerRequest{caller})));
    STRATA_ASSIGN_OR_RETURN(const auto reply, proto::decode_begin_reuse_round_reply(bytes));
    return reply.round;
  }
  StatusOr<bool> round_ended(uint64_t round) {
    STRATA_ASSIGN_OR_RETURN(
        const std::string bytes,
        call(proto::kReuseRoundEnded, proto::encode(proto::ReuseRoundRequest{caller, round})));
    STRATA_ASSIGN_OR_RETURN(const auto reply, proto::decode_reuse_round_ended_reply(bytes));
    return reply.ended;
  }
  Status report_round(uint64_t round) {
    return call(proto::kReportReuseRound, proto::encode(proto::ReuseRoundRequest{caller, round}))
        .status();
  }
  StatusOr<proto::TrxOutcome> ask_owner(TrxId trx, bool decided, uint32_t wait_us) {
    STRATA_ASSIGN_OR_RETURN(const std::string bytes,
                            call(proto::kAskOwner, proto::encode(proto::AskOwnerRequest{
                                                       caller, trx, decided, wait_us})));
    return proto::decode_ask_owner_reply(bytes);
  }
  Status answer(const proto::OwnerAnswer& answer) {
    return call(proto::kAnswerAskers, proto::encode(proto::AnswerAskersRequest{caller, {answer}}))
        .status();
  }
  StatusOr<proto::LockReply> locks(uint64_t number, std::vector<proto::LockRequest> requests) {
    STRATA_ASSIGN_OR_RETURN(const std::string bytes,
                            call(proto::kRowLocks, proto::encode(proto::LockBatch{
                                                       caller.server, caller.life, caller.epoch,
                                                       number, locks_heard, std::move(requests)})));
    return heard(proto::decode_row_locks_reply(bytes));
  }
  StatusOr<proto::LockReply> lock_events(uint32_t wait_us) {
    STRATA_ASSIGN_OR_RETURN(const std::string bytes,
                            call(proto::kRowLockEvents, proto::encode(proto::RowLockEventsRequest{
                                                            caller, locks_heard, wait_us})));
    return heard(proto::decode_row_locks_reply(bytes));
  }
  std::unique_ptr<transport::RemoteRegion> open(
      const std::string& name, transport::RegionPath path = transport::RegionPath::kMapped) {
    auto opened = transport::open_remote_region(channel_, name, path, monotonic_us() + 20'000'000);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? *std::move(opened) : nullptr;
  }
  // The version in a slot of its own.
  void put(PageId page, uint64_t llsn, uint32_t slot) {
    const auto pool = open(joined.pool);
    ASSERT_NE(pool, nullptr);
    EXPECT_TRUE(
        pool->put(uint64_t{slot} * kPageBytes, fusion_page(page, llsn), monotonic_us() + 20'000'000)
            .ok());
  }
  std::string get(uint32_t slot) {
    const auto pool = open(joined.pool);
    std::string page(kPageBytes, '\0');
    EXPECT_TRUE(pool->get(uint64_t{slot} * kPageBytes, {page.data(), page.size()},
                          monotonic_us() + 20'000'000)
                    .ok());
    return page;
  }

 private:
  [[nodiscard]] proto::PageCaller next_caller() const {
    return {caller.server, caller.life, joined.epoch};
  }
  StatusOr<proto::LockReply> heard(StatusOr<proto::LockReply> reply) {
    if (!reply.ok()) return reply;
    uint64_t number = reply->first_event;
    for (const proto::LockEvent& event : reply->events)
      if (number++ > locks_heard) {
        inbox.push_back(event);
        ++locks_heard;
      }
    return reply;
  }
  const std::shared_ptr<transport::BlockingChannel> channel_;

 public:
  proto::PageCaller caller;
  proto::FusionJoinReply joined;
  uint64_t fences_heard = 0, members_heard = 0, locks_heard = 0;
  uint64_t placement = UINT64_MAX;
  std::vector<proto::LockEvent> inbox;  // about row locks; the test takes them out
};

}  // namespace strata::memnode::testing
