#include "daemon/descriptors.h"

#include <sys/resource.h>

#include <algorithm>
#include <string>

namespace strata::daemon {
namespace {

constexpr uint64_t kLeast = 256;
constexpr uint64_t kEnough = 65536;  // more is of no use, and poll-like calls of libraries get slow
constexpr uint64_t kHttpMax = 64;
constexpr uint64_t kRpcMax = 4096;
constexpr uint64_t kPagesMax = 512;

}  // namespace

StatusOr<DescriptorShares> share_descriptors(uint64_t limit) {
  if (limit < kLeast)
    return error_invalid_argument("this process may have only " + std::to_string(limit) +
                                  " files open, and needs " + std::to_string(kLeast) +
                                  "; raise the limit (ulimit -n, or LimitNOFILE of its service)");
  DescriptorShares shares;
  shares.http = static_cast<uint32_t>(std::min(limit / 16, kHttpMax));
  shares.rpc = static_cast<uint32_t>(std::min(limit / 4, kRpcMax));
  shares.pages = static_cast<uint32_t>(std::min(limit / 4, kPagesMax));
  return shares;
}

StatusOr<DescriptorShares> reserve_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return share_descriptors(kLeast);
  rlimit raised = limit;
  raised.rlim_cur = std::max(limit.rlim_cur, std::min<rlim_t>(limit.rlim_max, kEnough));
  if (raised.rlim_cur != limit.rlim_cur && ::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  return share_descriptors(limit.rlim_cur);
}

}  // namespace strata::daemon
