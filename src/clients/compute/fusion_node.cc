#include "clients/compute/fusion_node.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/diag.h"
#include "base/wait_interrupt.h"

namespace strata::clients {

namespace {

constexpr uint64_t kLeaseAgainUs = 5'000;

uint64_t random_life() {
  uint64_t life = 0;
  while (life == 0) transport::system_entropy()->fill(reinterpret_cast<char*>(&life), sizeof life);
  return life;
}

}  // namespace

FusionNode::FusionNode(const transport::Secret& secret, FusionNodeOptions options)
    : secret_(secret), options_(std::move(options)) {
  options_.compute.role = ComputeRole::kOneOfSeveral;
  options_.compute.membership = {[this](const Membership::Seat& seat) { return enter(seat); },
                                 [this] { leave_again(); }};
  // Each is said after pages are found by it.
  options_.compute.followed = [this](uint64_t generation) { placement_ = generation; };
  options_.member.placement = [this] { return placement_.load(); };
  options_.member.durable = [this] { return node_->durable_log(); };
  options_.member.ended = [this](const Status& why) {
    if (options_.compute.adopts.is_zero())
      diag(Severity::kError, "%s: this server answers nothing any more; start it again",
           cause_of(why).c_str());
    if (options_.ended) options_.ended(why);
  };
}

FusionNode::~FusionNode() {
  if (member_ != nullptr) member_->stop();
  pages_ = nullptr;
  member_.reset();
  node_.reset();
}

StatusOr<std::unique_ptr<FusionNode>> FusionNode::join(std::unique_ptr<registry::Registry> registry,
                                                       const transport::Secret& secret,
                                                       FusionNodeOptions options) {
  auto self = std::unique_ptr<FusionNode>(new FusionNode(secret, std::move(options)));
  STRATA_ASSIGN_OR_RETURN(self->node_,
                          ComputeNode::join(std::move(registry), secret, self->options_.compute));
  const Status shared = self->share_pages();
  if (shared.ok()) return self;
  self->node_->give_up().IgnoreError();  // FUN4; what cannot be said now ends with the leases
  return shared;
}

// --- becoming a member ---

// FUN3. May be called again, with the same seat or another one.
Status FusionNode::enter(const Membership::Seat& seat) {
  if (seat.authority.now().empty())
    return error_peer_down(
        "no memory node has the authority over the cluster's servers yet; start one");
  FusionMemberOptions member = options_.member;
  // Memory is mapped over a unix socket only.
  if (member.path == transport::RegionPath::kMapped && !seat.authority.now().starts_with("unix:"))
    member.path = transport::RegionPath::kCalls;
  if (options_.member.life == 0 || options_.member.server != seat.place)
    options_.member.life = random_life();
  options_.member.server = seat.place;
  placement_ = 0;
  member.life = options_.member.life;
  member.server = seat.place;
  member.alone = seat.alone;
  member.join_us_max = seat.time_us;
  transport::BlockingChannelOptions channel;
  channel.link_model = options_.compute.link_model;
  auto joined = FusionMember::join(
      member, std::make_shared<transport::BlockingChannel>(secret_, seat.authority, channel));
  if (!joined.ok()) {
    if (is_in_use(joined.status())) return joined.status();
    return with_message(joined.status(), "the memory node at " + seat.authority.now() +
                                             " does not take this server in as number " +
                                             std::to_string(seat.place.value) + ": " +
                                             cause_of(joined.status()));
  }
  member_ = *std::move(joined);
  return ok_status();
}

// Nothing was changed yet. Its next try is another life.
void FusionNode::leave_again() {
  options_.member.life = 0;
  if (member_ == nullptr) return;
  const Status left = member_->leave();
  if (!left.ok())
    diag(Severity::kInfo, "the memory node was not told that this server has left: %s",
         cause_of(left).c_str());
  pages_ = nullptr;
  member_.reset();
}

Status FusionNode::share_pages() {
  options_.pages.stream = cluster::log_stream_of(number());
  options_.pages.replayed = node_->replayed_pages();
  options_.pages.durable = options_.member.durable;
  STRATA_ASSIGN_OR_RETURN(pages_, member_->make_pages(options_.pages, node_->pages()));
  STRATA_RETURN_IF_ERROR(pages_->begin());
  return member_->serve();
}

// --- afterwards ---

// FUN6
bool FusionNode::wait_for_lease() const noexcept {
  const uint64_t end_us = monotonic_us() + options_.answer_wait_us;
  Mutex mutex(LatchRank::kLeaf);
  CondVar never;
  WaitInterrupt* const interrupt = WaitInterrupt::current();
  while (!member_->has_lease()) {
    if (monotonic_us() >= end_us || !member_->status().ok()) return false;
    CondVarSleep sleep(&mutex, &never);
    const WaitInterrupt::Asleep asleep(interrupt, &sleep);
    MutexLock lock(mutex);
    if (is_interrupted_now(interrupt)) return false;
    never.wait_for_us(lock, kLeaseAgainUs);
  }
  return true;
}

Status FusionNode::why_silent() const {
  if (member_->has_lease()) return ok_status();
  const Status ended = member_->status();
  if (!ended.ok())
    return error_fenced("this server is none of the cluster's any more (" + cause_of(ended) +
                        ") and answers nothing; to do: start it again, or connect to another one");
  return error_lease_lost(
      "this server has no lease from the memory node, so that others may have changed what it has; "
      "to do: wait, it answers again when the memory node does; if that takes long, look at it");
}

Status FusionNode::trouble() const {
  STRATA_RETURN_IF_ERROR(why_silent());
  return node_->trouble();
}

Status FusionNode::leave() {
  const Status told = member_->leave();
  const Status settled = told.ok() ? node_->settle() : told;
  const Status left = node_->leave();
  return settled.ok() ? left : settled;
}

}  // namespace strata::clients
