// Which memory node serves, and which servers it serves: its epoch, the leases that it gives, the
// servers that are fenced. A pure state machine: no I/O and no clock; time is passed in, and is the
// memory node's own (one that goes on while the machine sleeps). Not thread-safe.
//
// A memory node that wants the authority gets an epoch from the registry, seals the authority
// stream on the storage nodes under it, reads the last record, and makes an Authority of the two.
//
//     (sealed)               takeover_wait_us after the seal, a record of its own durable
//   kWaiting ---------------------------------------------------------------> kServing
//       \                                                                       /
//        `------------- refused(): a higher epoch has sealed the stream -------'--> kDeposed
//
//   FU1  Whatever names another epoch than this one is refused. Epochs come from the registry and
//        are never given twice.
//   FU2  A lease ends lease_us after the memory node *sent* the last record that is durable, at the
//        latest; the server counts it from when it *asked*, and a little less for clocks that run
//        at different speeds. Nobody's record becomes durable once the stream is sealed, so a
//        successor that waits that long after the seal, and a little more, finds no lease of its
//        predecessor's alive: no two epochs answer at a time.
//   FU4  A server is fenced by a record; it gets no lease from when that is asked for. What it
//        holds is released only once the record is durable, its last lease has ended, and every
//        other server has said that it has heard of the fence, or has no lease left: nobody goes by
//        what the fenced one has last shown. (That its log is sealed is up to the caller.) Whose
//        process is known to have ended has no lease.
//   FA1  A server is in a durable record before it gets its first lease: a successor knows all who
//        may have one.
//   FA2  Another life of a server comes in only after the earlier one was fenced, released and
//        forgotten.
//   FA3  The last fence of every server stays in the record after all else of it is forgotten: a
//        server that slept through all that is told before it gets a lease.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "fusion/authority/authority_record.h"
#include "proto/fusion.h"

namespace strata::fusion {

struct AuthorityOptions {
  uint64_t lease_us = 2'000'000;
  uint64_t renew_us = 300'000;  // between records, when nothing else makes one
  uint64_t takeover_wait_us = 2'000'000 + 2'000'000 / 8;  // at least a lease, and drift of clocks
};

class Authority {
 public:
  enum class Phase : uint8_t { kWaiting, kServing, kDeposed };
  // `last`: what the stream held when it was sealed under `epoch`, at `sealed_us`. Without one
  // nobody had the authority before, and nobody is waited for.
  Authority(const AuthorityOptions& options, Epoch epoch, std::optional<AuthorityRecord> last,
            uint64_t sealed_us);

  [[nodiscard]] Epoch epoch() const noexcept { return epoch_; }
  [[nodiscard]] Phase phase(uint64_t now_us) const noexcept;
  // kServing, and its own time has not run out. What it says later may be another's business.
  [[nodiscard]] bool serves(uint64_t now_us) const noexcept;

  // --- the authority stream ---
  struct Append {
    uint64_t number = 0;
    std::string bytes;
  };
  // What is to be appended now, if anything. One is under way at a time.
  std::optional<Append> next_append(uint64_t now_us);
  // When next_append() should be asked again though nothing has happened.
  [[nodiscard]] uint64_t next_append_at_us() const noexcept;
  void append_durable(uint64_t number);
  void append_failed(uint64_t number);  // or nobody knows: the next one says the same
  void refused() noexcept { deposed_ = true; }
  // Both only grow; they count once a record that says so is durable.
  void raise_ceiling(uint64_t ceiling);
  void raise_horizon(uint64_t horizon);
  [[nodiscard]] const AuthorityRecord& durable() const noexcept { return durable_; }

  // --- servers ---
  // OK once the server is a member, durably. Errors: peer_down (not yet: ask again), fenced (this
  // life was), in_use (an earlier life still is one), no_space.
  Status join(NodeId server, uint64_t life, uint64_t now_us);
  // A lease of so many microseconds from when it asked. Errors: peer_down, fenced.
  StatusOr<uint64_t> renew(const proto::Heartbeat& beat, uint64_t now_us);
  // It ends by itself: nothing of it is left to release.
  void leave(NodeId server, uint64_t life);
  // Fences a member. Errors: kNotFound.
  Status fence(NodeId server);
  // FU4. Its supervisor has seen the process end.
  void exited(NodeId server, uint64_t life);
  // FU4. The member is fenced, and has no lease (and so no view that counts) any more.
  [[nodiscard]] bool has_ended(NodeId server, uint64_t now_us) const;
  // FU4. And nobody goes by it.
  [[nodiscard]] bool may_release(NodeId server, uint64_t now_us) const;
  // What it had is released or adopted: another life may join.
  void forget(NodeId server);
  [[nodiscard]] std::vector<proto::Fence> fences_above(uint64_t number) const;  // FA3; durable ones
  // Members, as they will be once what is proposed is durable.
  [[nodiscard]] const std::vector<Member>& members() const noexcept { return wanted_.members; }

 private:
  struct Kept {
    uint64_t lease_end_us = 0;  // drift included; 0: none from here
    uint64_t fences_heard = 0;
  };
  struct InFlight {
    uint64_t number = 0;
    uint64_t sent_us = 0;
    AuthorityRecord record;
  };
  static Member* find(AuthorityRecord* record, NodeId server) noexcept;
  static const Member* find(const AuthorityRecord& record, NodeId server) noexcept;

  const AuthorityOptions options_;
  const Epoch epoch_;
  const uint64_t serves_from_us_;
  bool deposed_ = false;
  uint64_t valid_until_us_ = 0;  // as far as records go
  AuthorityRecord durable_;      // at first the predecessor's
  AuthorityRecord wanted_;
  std::optional<InFlight> in_flight_;
  uint64_t last_number_ = 0;
  uint64_t last_sent_us_ = 0;
  std::map<uint8_t, Kept> kept_;  // by server
};

}  // namespace strata::fusion
