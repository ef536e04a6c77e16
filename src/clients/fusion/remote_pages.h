// The memory node's pages by calls (fusion_pages.h, PageService). Thread-safe; blocks.
//
//   FC21  What does not fit into one message goes in several, each complete by itself (FW5). Of
//         asks the grants that were got count, even if a later message fails: the rest is asked
//         again.
//   FC22  What is said about slots is said under the epoch of their pool; of the rest it counts
//         which epoch the server is under by now.
//   FC58  After end() nobody waits for storage any more, though no memory node says that the server
//         is fenced: none may be there.
#pragma once

#include <vector>

#include "base/stop_flag.h"
#include "clients/fusion/fusion_pages.h"
#include "clients/fusion/remote_calls.h"

namespace strata::clients {

struct RemotePagesOptions {
  uint64_t write_back_us_max = 60'000'000;  // for write_back_below(); then timed_out
  uint64_t write_back_wait_us = 1'000'000;  // of one call
};

class RemotePages final : public PageService {
 public:
  // `calls` outlives this.
  explicit RemotePages(RemoteCalls* calls, const RemotePagesOptions& options = {})
      : calls_(calls), options_(options) {}

  StatusOr<std::vector<proto::PageGrant>> ask(const std::vector<proto::PageAsk>& asks,
                                              uint64_t wait_us) override;
  Status report(const std::vector<proto::PageReport>& reports, Epoch epoch) override;
  StatusOr<std::vector<uint32_t>> take_slots(uint64_t request, uint32_t wanted, uint64_t wait_us,
                                             Epoch epoch) override;
  StatusOr<std::vector<PageId>> adopt() override;
  Status adoption_ended(const proto::StreamPosition& end) override;
  Status write_back_below(StreamId stream, Lsn below) override;
  Status forget_space(SpaceId space) override;
  void end() override { ended_.raise(); }

 private:
  RemoteCalls* const calls_;
  const RemotePagesOptions options_;
  StopFlag ended_;  // FC58
};

}  // namespace strata::clients
