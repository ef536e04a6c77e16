#include "clients/fusion/remote_pages.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/clock.h"
#include "base/wait_interrupt.h"
#include "proto/fusion_messages.h"

namespace strata::clients {
namespace {

constexpr uint64_t kPauseUs = 20'000;

}  // namespace

// FC21
StatusOr<std::vector<proto::PageGrant>> RemotePages::ask(const std::vector<proto::PageAsk>& asks,
                                                         uint64_t wait_us) {
  std::vector<proto::PageGrant> grants;
  for (size_t from = 0; from < asks.size(); from += proto::kFusionPagesMax) {
    const bool all = asks.size() <= proto::kFusionPagesMax;
    const uint64_t may_wait_us = all ? wait_us : 0;
    const proto::AskPagesRequest request{calls_->caller(),
                                         part_of(asks, from, proto::kFusionPagesMax),
                                         static_cast<uint32_t>(may_wait_us)};
    const auto bytes = calls_->call(proto::kAskPages, proto::encode(request), may_wait_us);
    auto reply = bytes.ok() ? proto::decode_ask_pages_reply(*bytes) : bytes.status();
    if (!reply.ok()) {
      if (from != 0 && !is_fenced(reply.status())) break;
      return reply.status();
    }
    grants.insert(grants.end(), std::make_move_iterator(reply->grants.begin()),
                  std::make_move_iterator(reply->grants.end()));
  }
  return grants;
}

Status RemotePages::report(const std::vector<proto::PageReport>& reports, Epoch epoch) {
  for (size_t from = 0; from < reports.size(); from += proto::kFusionPagesMax) {
    const proto::ReportPagesRequest request{calls_->caller_under(epoch),
                                            part_of(reports, from, proto::kFusionPagesMax)};
    STRATA_RETURN_IF_ERROR(calls_->call(proto::kReportPages, proto::encode(request)).status());
  }
  return ok_status();
}

StatusOr<std::vector<uint32_t>> RemotePages::take_slots(uint64_t request, uint32_t wanted,
                                                        uint64_t wait_us, Epoch epoch) {
  const proto::TakePageSlotsRequest asked{calls_->caller_under(epoch), request,
                                          std::min(wanted, proto::kFusionSlotsMax),
                                          static_cast<uint32_t>(wait_us)};
  STRATA_ASSIGN_OR_RETURN(const std::string bytes,
                          calls_->call(proto::kTakePageSlots, proto::encode(asked), wait_us));
  STRATA_ASSIGN_OR_RETURN(proto::TakePageSlotsReply reply,
                          proto::decode_take_page_slots_reply(bytes));
  return std::move(reply.slots);
}

StatusOr<std::vector<PageId>> RemotePages::adopt() {
  std::vector<PageId> pages;
  proto::AdoptPagesRequest request{calls_->caller(), calls_->caller().server, PageId{}};
  for (;;) {
    const auto bytes = calls_->call(proto::kAdoptPages, proto::encode(request));
    if (is_not_found(bytes.status()))
      return pages;  // there was no earlier life, or it left nothing
    STRATA_RETURN_IF_ERROR(bytes.status());
    STRATA_ASSIGN_OR_RETURN(const proto::AdoptPagesReply reply,
                            proto::decode_adopt_pages_reply(*bytes));
    pages.insert(pages.end(), reply.pages.begin(), reply.pages.end());
    if (!reply.more) return pages;
    const PageId next = PageId::unpack(reply.pages.back().packed() + 1);
    if (next <= request.from)
      return error_corruption("a list of adopted pages that does not go on");
    request.from = next;
  }
}

Status RemotePages::adoption_ended(const proto::StreamPosition& end) {
  const proto::AdoptionEndedRequest request{calls_->caller(), calls_->caller().server, end};
  return calls_->call(proto::kAdoptionEnded, proto::encode(request)).status();
}

Status RemotePages::write_back_below(StreamId stream, Lsn below) {
  const uint64_t deadline_us = monotonic_us() + options_.write_back_us_max;
  for (;;) {
    const uint64_t now_us = monotonic_us();
    if (ended_.raised()) return error_fenced("this server has ended");  // FC58
    if (now_us >= deadline_us)
      return error_timed_out("the memory node has not written all changed pages to storage");
    const uint64_t wait_us = std::min(options_.write_back_wait_us, deadline_us - now_us);
    const proto::WriteBackPagesRequest request{calls_->caller(), stream, below,
                                               static_cast<uint32_t>(wait_us)};
    const auto bytes = calls_->call(proto::kWriteBackPages, proto::encode(request), wait_us);
    if (bytes.ok()) {
      STRATA_ASSIGN_OR_RETURN(const proto::WriteBackPagesReply reply,
                              proto::decode_write_back_pages_reply(*bytes));
      if (reply.oldest >= below) return ok_status();
      continue;  // it has waited
    }
    if (!may_be_repeated(bytes.status())) return bytes.status();
    if (is_interrupted_now(WaitInterrupt::current())) return error_interrupted();
    ended_.wait_for_us(kPauseUs);
  }
}

Status RemotePages::forget_space(SpaceId space) {
  const proto::ForgetSpacePagesRequest request{calls_->caller(), space};
  return calls_->call(proto::kForgetSpacePages, proto::encode(request)).status();
}

}  // namespace strata::clients
