// What a memory node writes into the authority stream: all that its successor has to know. Pure.
//
//   AR1  A record says everything; the last whole one of the stream counts and none before it. So
//        the stream may be cut off below it, and an append whose fate is unknown does no harm: the
//        next one says as much, or more.
//   AR2  Epoch, ceiling, horizon and the number of fences never shrink from one record to the next.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "proto/fusion.h"

namespace strata::fusion {

struct Member {
  NodeId server;
  uint64_t life = 0;   // of its process
  uint64_t fence = 0;  // the number under which it was fenced; 0: it was not
  bool operator==(const Member&) const noexcept = default;
};

struct AuthorityRecord {
  Epoch epoch;           // of the memory node that wrote it
  uint64_t ceiling = 0;  // no timestamp above it was ever used
  uint64_t horizon = 0;  // nobody was ever told a larger one
  uint64_t fences = 0;   // the last number given
  std::vector<Member> members;
  std::vector<proto::Fence> fenced;  // the last fence of each server there ever was (FA3)
  bool operator==(const AuthorityRecord&) const noexcept = default;
};

constexpr size_t kMembersMax = 254;

std::string encode(const AuthorityRecord& record);
// Of bytes that may be anything. Errors: kDataLoss.
StatusOr<AuthorityRecord> decode_authority_record(Bytes bytes);

}  // namespace strata::fusion
