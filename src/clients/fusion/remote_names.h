// Names of tables, dropped spaces and rounds of page reuse by calls to the memory node
// (name_locks.h: NameService; reuse_client.h: ReuseService). Thread-safe; blocks.
//
//   FC46  What does not fit into one message goes in several, each complete by itself (FW5). If one
//         fails the rest is not sent: all of it may be said again.
//   FC47  What a memory node was asked that has ended is peer_down, and is asked again (FC50).
#pragma once

#include <vector>

#include "clients/fusion/name_locks.h"
#include "clients/fusion/remote_calls.h"
#include "clients/fusion/reuse_client.h"

namespace strata::clients {

class RemoteNames final : public NameService, public ReuseService {
 public:
  // `calls` outlives this.
  explicit RemoteNames(RemoteCalls* calls) : calls_(calls) {}

  Status ask(const std::vector<proto::NameAsk>& asks) override;
  Status report(const std::vector<proto::NameReport>& reports) override;
  Status adoption_ended() override;
  StatusOr<bool> space_dropped(SpaceId space) override;
  Status has_left(const std::vector<SpaceId>& spaces) override;

  StatusOr<uint64_t> begin_round() override;
  StatusOr<bool> round_ended(uint64_t round) override;
  Status report_round(uint64_t round) override;

 private:
  RemoteCalls* const calls_;
};

}  // namespace strata::clients
