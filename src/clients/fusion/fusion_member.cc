#include "clients/fusion/fusion_member.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "base/diag.h"
#include "base/thread_name.h"
#include "proto/calls/calls.h"
#include "proto/methods.h"

namespace strata::clients {

using transport::BlockingChannel;
using transport::RemoteRegion;

namespace {

constexpr uint64_t kJoinWaitUs = 6'000'000;  // longer than the memory node keeps one waiting
constexpr uint64_t kJoinPauseUs = 50'000;
constexpr uint64_t kServeUsMax = 30'000'000;
constexpr uint64_t kRenewPauseUs = 50'000;  // after a renewal that failed
constexpr size_t kLinesMax = 16;            // that nobody knows anything of
constexpr uint64_t kGoOnPauseUs = 20'000;   // before the next memory node is asked again

// False: the thread was interrupted.
bool pause_for_us(uint64_t us) {
  Mutex mutex(LatchRank::kLeaf);
  CondVar never;
  CondVarSleep sleeper(&mutex, &never);
  WaitInterrupt* const interrupt = WaitInterrupt::current();
  const WaitInterrupt::Asleep asleep(interrupt, &sleeper);
  MutexLock lock(mutex);
  if (is_interrupted_now(interrupt)) return false;
  never.wait_for_us(lock, us);
  return !is_interrupted_now(interrupt);
}

std::unique_ptr<TitRegion> table_over(RemoteRegion* region, uint64_t slots) {
  if (region->direct() == nullptr) return nullptr;
  return std::make_unique<TitRegion>(region->direct(), slots);
}

}  // namespace

// --- joining ---

StatusOr<proto::FusionJoinReply> FusionMember::ask_to_join(const FusionMemberOptions& options,
                                                           BlockingChannel* channel) {
  const std::string request = proto::encode(
      proto::FusionJoinRequest{options.server, options.life, options.alone, options.token});
  const uint64_t deadline_us = monotonic_us() + options.join_us_max;
  Status said;  // by the memory node: it tells more than that a later call had no time
  for (;;) {
    const auto call =
        proto::call_of(proto::kFusionJoin, std::min(deadline_us, monotonic_us() + kJoinWaitUs));
    transport::BlockingReply reply;
    const Status status = channel->call(call, request, &reply);
    if (status.ok()) return proto::decode_fusion_join_reply(reply.payload);
    // The same life may ask as often as it likes. Who serves no more has a successor.
    const bool again = may_be_repeated(status) || is_in_use(status) || is_withdrawn(status);
    if (reply.answered) said = status;
    if (!again) return status;
    if (monotonic_us() + kJoinPauseUs >= deadline_us) return said.ok() ? status : said;
    if (!pause_for_us(kJoinPauseUs)) return error_interrupted();
  }
}

// Memory is mapped over a unix socket only, and the next memory node may be elsewhere.
transport::RegionPath FusionMember::path_over(const BlockingChannel& channel,
                                              transport::RegionPath wanted) {
  const bool may_map = channel.address().starts_with("unix:");
  return wanted == transport::RegionPath::kMapped && !may_map ? transport::RegionPath::kCalls
                                                              : wanted;
}

StatusOr<FusionMember::Opened> FusionMember::open_regions(
    const FusionMemberOptions& options, const std::shared_ptr<BlockingChannel>& channel,
    const proto::FusionJoinReply& joined) {
  const transport::RegionPath path = path_over(*channel, options.path);
  const uint64_t deadline_us = monotonic_us() + options.open_us_max;
  Opened opened;
  STRATA_ASSIGN_OR_RETURN(opened.times,
                          transport::open_remote_region(channel, joined.times, path, deadline_us));
  STRATA_ASSIGN_OR_RETURN(
      opened.table, transport::open_remote_region(channel, joined.table.region, path, deadline_us));
  if (joined.slots != 0) {
    STRATA_ASSIGN_OR_RETURN(opened.pool,
                            transport::open_remote_region(channel, joined.pool, path, deadline_us));
    if (opened.pool->bytes() != uint64_t{joined.slots} * kPageBytes)
      return error_corruption("the memory node's pool has another size than it says");
  }
  if (opened.times->bytes() < proto::kTimesBytes ||
      opened.table->bytes() != TitRegion::bytes_of(joined.table.slots))
    return error_corruption("a region of the memory node's has another size than it says");
  return opened;
}

StatusOr<std::unique_ptr<FusionMember>> FusionMember::join(
    const FusionMemberOptions& options, const std::shared_ptr<BlockingChannel>& channel) {
  STRATA_ASSERT(options.life != 0 && !options.server.is_zero());
  STRATA_ASSIGN_OR_RETURN(const proto::FusionJoinReply joined, ask_to_join(options, channel.get()));
  auto member = begin(options, channel, joined);
  if (!member.ok()) take_back(options, channel.get(), joined.epoch);
  return member;
}

StatusOr<std::unique_ptr<FusionMember>> FusionMember::begin(
    const FusionMemberOptions& options, const std::shared_ptr<BlockingChannel>& channel,
    const proto::FusionJoinReply& joined) {
  STRATA_ASSIGN_OR_RETURN(const Opened opened, open_regions(options, channel, joined));
  std::unique_ptr<FusionMember> member(new FusionMember(options, channel, joined, opened));
  const uint64_t deadline_us = monotonic_us() + options.call_us_max;
  for (;;) {
    const Status renewed = member->renew();
    if (renewed.ok()) break;
    if (!may_be_repeated(renewed) || monotonic_us() >= deadline_us) return renewed;
    if (!pause_for_us(kJoinPauseUs)) return error_interrupted();
  }
  member->renewer_ = std::thread([m = member.get()] { m->keep_renewing(); });
  return member;
}

// FC62. If it is not heard, the lease tells.
void FusionMember::take_back(const FusionMemberOptions& options, BlockingChannel* channel,
                             Epoch epoch) {
  const InterruptScope carried_through(nullptr);
  const auto call =
      proto::call_of(proto::kFusionLeave, monotonic_us() + options.call_us_max, epoch);
  transport::BlockingReply reply;
  const proto::FusionLeaveRequest request{{options.server, options.life, epoch}, {}};
  channel->call(call, proto::encode(request), &reply).IgnoreError();
}

FusionMember::FusionMember(const FusionMemberOptions& options,
                           std::shared_ptr<BlockingChannel> channel,
                           const proto::FusionJoinReply& joined, const Opened& opened)
    : options_(options),
      pool_region_(opened.pool),
      table_regions_{opened.table},
      table_slots_(joined.table.slots),
      calls_(std::move(channel), {options.server, options.life, joined.epoch}, options.call_us_max),
      table_(table_over(opened.table.get(), joined.table.slots)),
      oracle_(&lease_),
      horizon_(&lease_),
      owners_(&calls_, &lease_, options.owners),
      reader_(&lease_, &owners_, table_.get()),
      locks_(options.server, options.life, &reader_, table_.get(), options.locks),
      page_service_(&calls_, options.pages),
      name_service_(&calls_),
      names_(options.names, joined.epoch, &lease_, &name_service_),
      reuse_(options.reuse, &name_service_) {
  oracle_.use(opened.times, joined.epoch);
  horizon_.use(opened.times, joined.epoch);
}

// FC60: the line is closed when nothing here uses anything any more.
FusionMember::~FusionMember() {
  stop();
  pages_.reset();
  lease_.end();
  lines_.clear();
}

void FusionMember::stop() {
  stopping_.raise();
  interrupt_.interrupt();
  if (renewer_.joinable()) renewer_.join();
  row_locks_.reset();
  events_.reset();
  reuse_.stop();
  locks_.end();
}

// --- what the server uses ---

StatusOr<FusionPages*> FusionMember::make_pages(const FusionPagesOptions& options,
                                                PageSource* storage) {
  STRATA_ASSERT(pages_ == nullptr && events_ == nullptr);
  if (pool_region_ == nullptr) return error_unsupported("the memory node shares no pages");
  auto pages = std::make_unique<FusionPages>(options, epoch(), &lease_, &page_service_,
                                             pool_region_, storage);
  const MutexLock lock(mutex_);
  STRATA_RETURN_IF_ERROR(ended_);
  pages_ = std::move(pages);
  return pages_.get();
}

Status FusionMember::serve() {
  STRATA_ASSERT(events_ == nullptr);
  events_ = std::make_unique<RemoteEvents>(
      &calls_, RemoteEvents::Hearers{pages_.get(), &owners_, &names_, &reuse_},
      [this](const Status& why) { end(why); });
  row_locks_ =
      std::make_unique<RemoteRowLocks>(&calls_, &locks_, [this](const Status& why) { end(why); });
  serves_ = row_locks_->wait_joined(kServeUsMax);
  if (serves_) return status();
  STRATA_RETURN_IF_ERROR(status());
  return error_timed_out("the memory node does not answer about row locks");
}

Status FusionMember::leave() {
  stop();
  const proto::StreamPosition end = pages_ == nullptr ? proto::StreamPosition{} : pages_->log_end();
  pages_.reset();
  lease_.end();  // FC32
  STRATA_RETURN_IF_ERROR(status());
  const proto::FusionLeaveRequest request{calls_.caller(), end};
  const Status left = calls_.call(proto::kFusionLeave, proto::encode(request)).status();
  return is_fenced(left) ? ok_status() : left;  // an earlier try was heard
}

Status FusionMember::status() const {
  const MutexLock lock(mutex_);
  return ended_;
}

// --- the lease ---

void FusionMember::keep_renewing() {
  name_this_thread("fusion-lease");
  const InterruptScope scope(&interrupt_);
  uint64_t pause_us = options_.renew_us;
  keep_line();
  while (!stopping_.wait_for_us(pause_us)) {
    const Status renewed = renew();
    if (is_withdrawn(renewed)) go_on();
    if (!status().ok()) return;
    keep_line();
    pause_us = renewed.ok() ? options_.renew_us : std::min(kRenewPauseUs, options_.renew_us);
    if (news_of_fences_.exchange(false)) pause_us = 0;
  }
}

Status FusionMember::renew() {
  proto::FusionRenewRequest request;
  request.beat.server = options_.server;
  request.beat.life = options_.life;
  request.beat.epoch = epoch();
  const std::optional<Cts> oldest = horizon_.oldest_own_view();  // may fetch
  request.beat.has_views = oldest.has_value();
  request.beat.oldest_view = oldest.value_or(Cts{});
  request.beat.bound = owners_.own_bound();
  const MutexLock lock(renewing_);
  STRATA_RETURN_IF_ERROR(status());
  request.beat.fences_heard = fences_heard_;
  request.members = members_heard_;
  request.placement = options_.placement ? options_.placement() : UINT64_MAX;  // FC63
  const uint64_t asked_us = boot_time_us();
  const auto bytes = calls_.call_as_is(proto::kFusionRenew, proto::encode(request));
  const auto reply = bytes.ok() ? proto::decode_fusion_renew_reply(*bytes) : bytes.status();
  if (!reply.ok()) {
    counters_.renewals_failed.fetch_add(1, std::memory_order_relaxed);
    calls_.channel()->forget_connections();  // it may be somewhere else by now
    if (has_ended(reply.status())) end(reply.status());
    return reply.status();
  }
  if (reply->reply.epoch != epoch()) return error_corruption("a lease of another epoch");
  counters_.renewals.fetch_add(1, std::memory_order_relaxed);
  // FC30, in this order.
  close_tables(*reply);
  lease_.granted(reply->reply.epoch, asked_us, reply->reply.lease_us);
  horizon_.heard(reply->reply.horizon);
  for (const proto::HeartbeatReply::Bound& bound : reply->reply.bounds)
    if (bound.server != options_.server) reader_.heard_bound(bound.server, bound.bound);
  if (reply->members != members_heard_ && options_.members) options_.members(reply->servers);
  if (open_tables(*reply)) members_heard_ = reply->members;
  return ok_status();
}

// FC60
void FusionMember::keep_line() {
  if (lines_epoch_ != epoch()) {
    lines_.clear();  // to a memory node that can fence nobody any more
    lines_epoch_ = epoch();
    line_taken_ = line_refused_ = false;
  }
  if (line_refused_) return;
  if (!lines_.empty() && !lines_.back()->stands()) {
    lines_.pop_back();
    line_taken_ = false;
  }
  if (line_taken_) return;
  if (offer_line().ok()) counters_.lines.fetch_add(1, std::memory_order_relaxed);
}

// Fails: again with the next renewal, unless none is taken.
Status FusionMember::offer_line() {
  const auto call = proto::call_of(
      proto::kFusionLine, monotonic_us() + std::min(options_.call_us_max, options_.renew_us),
      lines_epoch_);
  if (lines_.empty() || line_unanswered_) {
    STRATA_ASSIGN_OR_RETURN(auto kept, calls_.channel()->keep_connection(call.deadline_us));
    lines_.push_back(std::move(kept));
  }
  transport::KeptConnection* const line = lines_.back().get();
  const proto::FusionLineRequest request{calls_.caller_under(lines_epoch_), line->own_end()};
  transport::BlockingReply reply;
  const Status taken = calls_.channel()->call_on(line, call, proto::encode(request), &reply);
  line_unanswered_ = !reply.answered;  // it may be the line: it stays, and carries no call again
  line_taken_ = taken.ok();
  line_refused_ = (reply.answered && (is_unsupported(taken) || is_invalid_argument(taken))) ||
                  lines_.size() >= kLinesMax;
  return taken;
}

void FusionMember::close_tables(const proto::FusionRenewReply& reply) {
  const auto close = [this](uint8_t server) STRATA_REQUIRES(renewing_) {
    if (tables_.erase(server) == 0) return;
    reader_.closed(NodeId{server});
    counters_.tables_closed.fetch_add(1, std::memory_order_relaxed);
  };
  for (const proto::Fence& fence : reply.reply.fences) {
    close(fence.server.value);
    if (fence.number > fences_heard_) news_of_fences_ = true;
    fences_heard_ = std::max(fences_heard_, fence.number);
  }
  if (reply.members == members_heard_) return;
  std::map<uint8_t, uint64_t> there;
  for (const proto::FusionServer& server : reply.servers) there[server.server.value] = server.life;
  const std::map<uint8_t, uint64_t> opened = tables_;
  for (const auto& [server, life] : opened) {
    const auto now = there.find(server);
    if (now == there.end() || now->second != life) close(server);
  }
}

// False: not all of them, to be tried again.
bool FusionMember::open_tables(const proto::FusionRenewReply& reply) {
  if (reply.members == members_heard_) return true;
  bool all = true;
  const transport::RegionPath path = path_over(*calls_.channel(), options_.path);
  for (const proto::FusionServer& server : reply.servers) {
    if (server.server == options_.server || tables_.contains(server.server.value)) continue;
    auto opened = transport::open_remote_region(calls_.channel(), server.table.region, path,
                                                monotonic_us() + options_.open_us_max);
    const bool fits = opened.ok() && (*opened)->bytes() == TitRegion::bytes_of(server.table.slots);
    if (!fits) {
      all = false;  // whoever has it is asked meanwhile
      continue;
    }
    reader_.opened(server.server, *std::move(opened), server.table.slots);
    tables_[server.server.value] = server.life;
    counters_.tables_opened.fetch_add(1, std::memory_order_relaxed);
  }
  return all;
}

// --- another memory node (FC51) ---

void FusionMember::go_on() {
  FusionPages* pages = nullptr;
  {
    const MutexLock lock(mutex_);
    if (!ended_.ok()) return;
    pages = pages_.get();
  }
  if (!serves_.load() || (pages != nullptr && !pages->may_renew()))
    return end(error_fenced("the memory node has ended before this server was ready"));
  while (!stopping_.raised()) {
    events_->epoch_is_over(epoch());  // FC57: before anybody else is told what there is
    Status status;
    {
      const MutexLock lock(renewing_);
      status = try_go_on(pages);
    }
    if (status.ok()) {
      status = renew();
      if (!is_withdrawn(status)) return;
    }
    if (is_fenced(status) || is_invalid_argument(status) || is_unsupported(status))
      return end(status);
    calls_.channel()->forget_connections();
    if (stopping_.wait_for_us(kGoOnPauseUs)) return;
  }
}

Status FusionMember::try_go_on(FusionPages* pages) {
  const proto::FusionResumeRequest request{calls_.caller(), options_.token};
  STRATA_ASSIGN_OR_RETURN(const std::string bytes,
                          calls_.call_as_is(proto::kFusionResume, proto::encode(request)));
  STRATA_ASSIGN_OR_RETURN(const proto::FusionJoinReply joined,
                          proto::decode_fusion_join_reply(bytes));
  if (joined.epoch <= epoch()) return error_corruption("a memory node of an epoch that is over");
  if ((joined.slots != 0) != (pool_region_ != nullptr))
    return error_unsupported("the memory nodes do not agree on whether pages are shared");
  STRATA_ASSIGN_OR_RETURN(const Opened opened, open_regions(options_, calls_.channel(), joined));
  STRATA_RETURN_IF_ERROR(say_all(calls_.caller_under(joined.epoch), pages));
  use(joined, opened, pages);
  return ok_status();
}

// Until it is answered, or there is yet another memory node.
Status FusionMember::say(uint16_t method, const std::string& request, Epoch epoch) {
  for (;;) {
    const auto call = proto::call_of(method, monotonic_us() + options_.call_us_max, epoch);
    transport::BlockingReply reply;
    const Status status = calls_.channel()->call(call, request, &reply);
    if (!may_be_repeated(status)) return status;
    calls_.channel()->forget_connections();
    if (stopping_.wait_for_us(kGoOnPauseUs)) return error_interrupted();
  }
}

Status FusionMember::say_all(const proto::PageCaller& caller, FusionPages* pages) {
  proto::ResumeEndedRequest last{caller, {}, 0, 0, 0};
  if (pages != nullptr) {
    const std::vector<proto::HeldPage> held = pages->renew(caller.epoch);
    for (size_t from = 0; from < held.size(); from += proto::kFusionPagesMax)
      STRATA_RETURN_IF_ERROR(say(proto::kReportHeldPages,
                                 proto::encode(proto::ReportHeldPagesRequest{
                                     caller, part_of(held, from, proto::kFusionPagesMax)}),
                                 caller.epoch));
    last.page_number = pages->holds().last_number();
  }
  const std::vector<proto::HeldName> names = names_.renew(caller.epoch);
  for (size_t from = 0; from < names.size(); from += proto::kFusionNamesMax)
    STRATA_RETURN_IF_ERROR(say(proto::kReportHeldNames,
                               proto::encode(proto::ReportHeldNamesRequest{
                                   caller, part_of(names, from, proto::kFusionNamesMax)}),
                               caller.epoch));
  last.name_number = names_.holds().last_number();
  last.round = reuse_.last_round();
  // After what it has: all that was given up before is in the log up to here.
  if (options_.durable != nullptr) last.durable = options_.durable();
  return say(proto::kResumeEnded, proto::encode(last), caller.epoch);
}

void FusionMember::use(const proto::FusionJoinReply& joined, const Opened& opened,
                       FusionPages* pages) {
  for (const auto& [server, life] : tables_) reader_.closed(NodeId{server});
  tables_.clear();
  members_heard_ = 0;
  if (table_ != nullptr) {  // FC52
    const bool fits = joined.table.slots == table_slots_;
    table_regions_.push_back(opened.table);
    table_->move_to(fits ? opened.table->direct() : nullptr);
  }
  locks_.use(joined.epoch);
  calls_.go_on(joined.epoch);
  oracle_.use(opened.times, joined.epoch);
  horizon_.use(opened.times, joined.epoch);
  if (pages != nullptr) pages->use(joined.epoch, opened.pool);
  counters_.resumed.fetch_add(1, std::memory_order_relaxed);
  diag(Severity::kWarning,
       "fusion: server %u goes on with another memory node, epoch %llu; nothing is lost",
       unsigned{options_.server.value}, static_cast<unsigned long long>(joined.epoch.value));
}

// FC31
void FusionMember::end(const Status& why) {
  FusionPages* pages = nullptr;
  {
    const MutexLock lock(mutex_);
    if (!ended_.ok()) return;
    ended_ = why;
    pages = pages_.get();
  }
  diag(Severity::kWarning, "fusion: server %u has ended here: %s", unsigned{options_.server.value},
       std::string(why.message()).c_str());
  lease_.end();
  const Status fenced = is_fenced(why) ? why : error_fenced(std::string(why.message()));
  oracle_.end(fenced);
  if (pages != nullptr) pages->fenced(fenced);
  names_.fenced(fenced);
  locks_.end();
  if (options_.ended) options_.ended(why);
}

}  // namespace strata::clients
