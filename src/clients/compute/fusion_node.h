// A server that is one of several which write the same tables (profile fusion): its place and its
// log stream (ComputeNode), its membership at the memory node that has the authority
// (FusionMember), its pages, and what a kernel needs of all that. Thread-safe but for join(),
// leave() and the end.
//
//   join() -> fill() -> the kernel is opened -> ... -> Kernel::shutdown(), it is gone -> leave()
//
//   FUN1  What is opened on it redoes only what its place's last life had exclusively (FP3), and
//         has pages, timestamps, views, row locks, names of tables and other servers' transactions
//         by the memory node.
//   FUN2  may_answer() asks the memory node's lease, not the registry's: while the registry is away
//         everything goes on, but nobody joins.
//   FUN3  It is a member before it takes its log stream, and none any more before it lets the
//         stream go: nobody finds a stream free whose member may still use pages.
//   FUN4  A join() that fails leaves nothing behind: neither a member, nor a stream that is held,
//         nor a place that was taken for it. After join() only leave() does that; without it (the
//         destructor) all is as if the process had been killed, since pages may be changed that
//         nobody else has.
//   FUN5  Who hears that it is fenced says so once (ended), and answers nothing from then on: its
//         server has to be started again.
//   FUN6  A memory node that is lost is followed by the next one (FC51): what the server has stays
//         its own, transactions go on, and whoever wants to answer meanwhile waits.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "base/latch.h"
#include "base/status.h"
#include "clients/compute/compute_node.h"
#include "clients/fusion/fusion_member.h"

namespace strata::clients {

struct FusionNodeOptions {
  // role and membership are filled in; streams is not looked at.
  ComputeOptions compute;
  // server, life, alone, join_us_max and ended are filled in.
  FusionMemberOptions member;
  FusionPagesOptions pages;              // stream is filled in
  uint64_t answer_wait_us = 30'000'000;  // FUN6
  // FUN5. In a thread of this; must not block for it, nor end it.
  std::function<void(const Status&)> ended = nullptr;
};

class FusionNode {
 public:
  // Blocks, at most for compute.start_timeout_us and some calls. Errors: those of
  // ComputeNode::join(), and of FusionMember::join(): peer_down (no memory node has the authority,
  // or it does not answer), in_use (an earlier process of this server is still there), unsupported
  // (the memory node shares no pages).
  static StatusOr<std::unique_ptr<FusionNode>> join(std::unique_ptr<registry::Registry> registry,
                                                    const transport::Secret& secret,
                                                    FusionNodeOptions options);
  ~FusionNode();  // FUN4. After the kernel
  FusionNode(const FusionNode&) = delete;
  FusionNode& operator=(const FusionNode&) = delete;

  // The number of the server: KernelOptions::node.
  [[nodiscard]] NodeId number() const noexcept { return node_->place(); }
  // KernelSeams but for `answers`; valid as long as this.
  template <class Seams>
  void fill(Seams* seams) {
    seams->page_source = pages_->source();
    seams->page_lock = pages_;
    seams->timestamps = member_->timestamps();
    seams->horizon = member_->horizon();
    seams->others = member_->others();
    seams->locks = member_->locks();
    seams->schema = member_->names();
    seams->page_reuse = member_->page_reuse();
    seams->log_sink = node_->log();
    seams->control = node_->control();
    seams->attach = node_->database_exists();
    seams->first_llsn_bias = node_->first_llsn_bias();
  }

  // K13, FUN2. Cheap while there is a lease. Without one it is waited for, for answer_wait_us, if
  // there may be one again: what was read and written is as true under the next memory node
  // (FUN6). So no latch may be held. Ends, too, when the thread is interrupted.
  [[nodiscard]] bool may_answer() const noexcept {
    return member_->has_lease() || wait_for_lease();
  }
  // Why it may not, for whoever asked: fenced or lease_lost. OK: it may by now.
  [[nodiscard]] Status why_silent() const;
  // The worst of what keeps this server, its log or its pages from going on. OK: all is well here.
  [[nodiscard]] Status trouble() const;
  // After Kernel::shutdown() was OK, and the kernel is gone: its pages and its stream are free, its
  // place stays its own and is settled (PLC4). Blocks. Errors: the memory node's, the registry's:
  // what could not be said ends with the leases.
  Status leave();

  [[nodiscard]] ComputeNode* compute() noexcept { return node_.get(); }
  [[nodiscard]] FusionMember* member() noexcept { return member_.get(); }
  [[nodiscard]] FusionPages* pages() noexcept { return pages_; }

 private:
  FusionNode(const transport::Secret& secret, FusionNodeOptions options);
  Status enter(const Membership::Seat& seat);
  void leave_again();
  Status share_pages();
  bool wait_for_lease() const noexcept;

  const transport::Secret secret_;
  std::atomic<uint64_t> placement_{0};  // FC63
  FusionNodeOptions options_;           // constant once join() has returned
  std::unique_ptr<ComputeNode> node_;
  std::unique_ptr<FusionMember> member_;  // over node_: ends before it
  FusionPages* pages_ = nullptr;          // of member_
};

}  // namespace strata::clients
