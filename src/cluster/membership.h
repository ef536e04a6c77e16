// Which nodes are there. A node is there as long as its lease is kept. Thread-safe.
//
//   MB1  A name belongs to one identity at a time: join() replaces the entry only of the same
//        identity (an earlier life of the same data folder), never another's.
//   MB2  An entry is gone when its lease is: at the latest its time after the node stopped renewing
//        it.
// Being there says nothing about being able to write (stream_epochs.h), and being gone does not
// stop a node that sleeps and wakes up later.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/keys.h"
#include "registry/registry.h"

namespace strata::cluster {

enum class Role : uint8_t { kCompute, kStorage, kMemory };

struct Member {
  std::string name;
  Role role = Role::kStorage;
  uint64_t identity = 0;       // random, made with the node's data folder
  std::string address;         // of its RPC service, "127.0.0.1:7101" or a socket's path
  std::string status_address;  // of /healthz and /metrics; may be empty
  LeaseId lease;
  Version version;
};

class Membership {
 public:
  using Handler = absl::AnyInvocable<void(const std::vector<Member>&)>;  // all, by name

  Membership(Registry* registry, ClusterKeys keys) : registry_(registry), keys_(std::move(keys)) {}

  // Enters the member, whose `lease` and `version` are ignored. Returns its version. Blocks.
  // Errors:
  //   in_use, lease_lost   the name is another identity's (the message says whose), or the lease is
  //                        lost
  //   kNotFound            the lease is gone
  //   kInvalidArgument     name or address cannot be
  //   busy, kUnavailable, timed_out, kUnknown   may be tried again
  StatusOr<Version> join(const Member& member, const Lease& lease, uint64_t deadline_us);
  // Takes the entry away, if it is still the one join() made. Blocks. Errors: the registry's.
  Status leave(const std::string& name, Version version, uint64_t deadline_us);
  // Blocks. Errors: kDataLoss (says which entry), the registry's.
  StatusOr<std::vector<Member>> list(uint64_t deadline_us);
  // The handler gets all members, first and whenever one changes. An entry that cannot be read is
  // reported and left out.
  std::unique_ptr<Watch> watch(Handler handler);

 private:
  Registry* const registry_;
  const ClusterKeys keys_;
};

[[nodiscard]] const char* role_name(Role role) noexcept;

}  // namespace strata::cluster
