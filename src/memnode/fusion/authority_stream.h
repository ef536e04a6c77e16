// Where a memory node that serves several servers writes down what its successor has to know
// (fusion/authority/authority_record.h).
#pragma once

#include <string>

#include "absl/functional/any_invocable.h"
#include "base/status.h"

namespace strata::memnode {

// Thread-safe; does not block. Outlives whoever appends.
class AuthorityStream {
 public:
  virtual ~AuthorityStream() = default;
  // Behind what was appended before; one is under way at a time. `done` runs once, in any thread,
  // perhaps inside the call: OK, it is durable; fenced: a higher epoch has sealed the stream, and
  // nothing of this one becomes durable any more; anything else: nobody knows.
  using Done = absl::AnyInvocable<void(const Status&)>;
  virtual void append(std::string record, Done done) = 0;
};

}  // namespace strata::memnode
