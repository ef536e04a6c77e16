// What a memory node does for timestamps, views and leases: an authority, an oracle and a horizon,
// and the words that servers read by themselves. No I/O and no clock, as its parts. Not
// thread-safe, but for the words: servers change and read them at any moment.
//
// The owner calls tick() often (each 10 ms, and after anything else), hands what it returns to the
// authority stream, and says what became of it.
//
//   FT6  The words are written before any server is told where they are, in memory that no earlier
//        epoch's servers can reach: each epoch has a region of its own.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.h"
#include "fusion/authority/authority.h"
#include "fusion/timestamps/horizon.h"
#include "fusion/timestamps/oracle.h"
#include "proto/fusion.h"

namespace strata::fusion {

struct TimeServiceOptions {
  AuthorityOptions authority;
  OracleOptions oracle;
};

class TimeService {
 public:
  // `times`: kTimesBytes of the epoch's region, aligned to 8; outlives this.
  TimeService(const TimeServiceOptions& options, Epoch epoch, std::optional<AuthorityRecord> last,
              uint64_t sealed_us, char* times);

  std::optional<Authority::Append> tick(uint64_t now_us);
  void append_durable(uint64_t number);
  void append_failed(uint64_t number) { authority_.append_failed(number); }
  void refused() noexcept { authority_.refused(); }

  // The answers to a server's calls. Errors: as Authority's.
  Status join(NodeId server, uint64_t life, uint64_t now_us);
  StatusOr<proto::HeartbeatReply> heartbeat(const proto::Heartbeat& beat, uint64_t now_us);
  void leave(NodeId server, uint64_t life);

  [[nodiscard]] Authority* authority() noexcept { return &authority_; }
  [[nodiscard]] const Authority& authority() const noexcept { return authority_; }

 private:
  Authority authority_;
  Oracle oracle_;
  Horizon horizon_;
  char* const times_;
};

}  // namespace strata::fusion
