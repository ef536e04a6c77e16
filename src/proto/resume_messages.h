// What a server says to a new memory node in the place of one that is gone (FV11 of
// memnode/fusion): that it is still there, and what it has. As bytes; pure. FN1 to FN3 of
// fusion_messages.h hold.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "proto/methods.h"
#include "proto/page_locks.h"

namespace strata::proto {

// Answered with a FusionJoinReply: the server goes on under that epoch once it has said all.
struct FusionResumeRequest {
  PageCaller caller;  // of the epoch that it knew
  std::string token;  // the tenant's
};

// A page that the server has, by a grant of an earlier memory node's.
struct HeldPage {
  PageId page = {};
  uint64_t number = 0;
  PageMode mode = PageMode::kShared;
  bool operator==(const HeldPage&) const noexcept = default;
};
struct ReportHeldPagesRequest {
  PageCaller caller;
  std::vector<HeldPage> pages;
};

// A name of a table, likewise; a number of zero: it does not have that grant.
struct HeldName {
  std::string name = {};
  uint64_t use = 0;
  uint64_t exclusive = 0;
  bool shared = false;  // what `exclusive` numbers: NameMode::kShared
  bool operator==(const HeldName&) const noexcept = default;
};
struct ReportHeldNamesRequest {
  PageCaller caller;
  std::vector<HeldName> names;
};

// That was all. New numbers are above these: the largest that the server has ever heard of.
struct ResumeEndedRequest {
  PageCaller caller;
  Lsn durable;  // its log is durable up to there, at least
  uint64_t page_number = 0;
  uint64_t name_number = 0;
  uint64_t round = 0;  // of page reuse
};

std::string encode(const FusionResumeRequest& request);
StatusOr<FusionResumeRequest> decode_fusion_resume(Bytes bytes);
std::string encode(const ReportHeldPagesRequest& request);
StatusOr<ReportHeldPagesRequest> decode_report_held_pages(Bytes bytes);
std::string encode(const ReportHeldNamesRequest& request);
StatusOr<ReportHeldNamesRequest> decode_report_held_names(Bytes bytes);
std::string encode(const ResumeEndedRequest& request);
StatusOr<ResumeEndedRequest> decode_resume_ended(Bytes bytes);

}  // namespace strata::proto
