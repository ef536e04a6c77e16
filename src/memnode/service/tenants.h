// Who may have pools on a memory node, and how much of its memory each. Thread-safe.
//   TN1  A tenant is who shows its token, all of it; tokens of two tenants differ.
//   TN2  The pools of a tenant are never larger together than its quota, those of all never larger
//        than the node's memory.
// Without any tenant everybody who knows the cluster's secret is the same one, without a name,
// whose quota is the whole memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/latch.h"
#include "base/status.h"

namespace strata::memnode {

struct TenantOptions {
  std::string name;
  std::string token;
  uint64_t quota_bytes = 0;
};

class Tenants {
 public:
  // kInvalidArgument: says what is wrong.
  static Status check(const std::vector<TenantOptions>& tenants, uint64_t memory_bytes);
  // check() was OK.
  Tenants(std::vector<TenantOptions> tenants, uint64_t memory_bytes);
  Tenants(const Tenants&) = delete;
  Tenants& operator=(const Tenants&) = delete;

  using Number = size_t;  // of a tenant
  // kInvalidArgument: nobody has this token.
  StatusOr<Number> with_token(Bytes token) const;
  // kNotFound: there is none of this name (any more).
  StatusOr<Number> named(std::string_view name) const;
  [[nodiscard]] const std::string& name(Number tenant) const { return tenants_[tenant].name; }
  [[nodiscard]] size_t count() const noexcept { return tenants_.size(); }

  // What it may have beyond what it has.
  [[nodiscard]] uint64_t left(Number tenant) const;
  // Takes so much for a pool of the tenant. kResourceExhausted: TN2.
  Status reserve(Number tenant, uint64_t bytes);
  void release(Number tenant, uint64_t bytes);
  // A pool that was there before the tenant's quota was what it is: counted, whatever its size.
  void count_in(Number tenant, uint64_t bytes);

  struct Use {
    std::string name;
    uint64_t quota_bytes = 0;
    uint64_t used_bytes = 0;
  };
  [[nodiscard]] std::vector<Use> uses() const;
  [[nodiscard]] uint64_t memory_bytes() const noexcept { return memory_bytes_; }

 private:
  [[nodiscard]] uint64_t left_locked(Number tenant) const STRATA_REQUIRES(mutex_);
  const std::vector<TenantOptions> tenants_;
  const uint64_t memory_bytes_;
  const bool anybody_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  std::vector<uint64_t> used_ STRATA_GUARDED_BY(mutex_);
};

}  // namespace strata::memnode
