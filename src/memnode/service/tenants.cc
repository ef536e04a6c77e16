#include "memnode/service/tenants.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "proto/methods.h"
#include "transport/secret.h"

namespace strata::memnode {
namespace {

std::vector<TenantOptions> or_anybody(std::vector<TenantOptions> tenants, uint64_t memory_bytes) {
  if (tenants.empty()) tenants.push_back({{}, {}, memory_bytes});
  return tenants;
}

}  // namespace

Status Tenants::check(const std::vector<TenantOptions>& tenants, uint64_t memory_bytes) {
  for (auto it = tenants.begin(); it != tenants.end(); ++it) {
    if (it->name.empty() || it->token.empty())
      return error_invalid_argument("a tenant has a name and a token");
    if (it->quota_bytes == 0 || it->quota_bytes > memory_bytes)
      return error_invalid_argument("the quota of tenant " + it->name +
                                    " is nothing, or more than the node's memory");
    for (auto other = tenants.begin(); other != it; ++other) {
      if (other->name == it->name)
        return error_invalid_argument("tenant " + it->name + " is named twice");
      if (other->token == it->token)
        return error_invalid_argument("tenants " + other->name + " and " + it->name +
                                      " have the same token");
    }
  }
  return ok_status();
}

Tenants::Tenants(std::vector<TenantOptions> tenants, uint64_t memory_bytes)
    : tenants_(or_anybody(std::move(tenants), memory_bytes)),
      memory_bytes_(memory_bytes),
      anybody_(tenants_.front().token.empty()),
      used_(tenants_.size(), 0) {}

StatusOr<Tenants::Number> Tenants::with_token(Bytes token) const {
  if (anybody_) return Number{0};
  for (Number i = 0; i < tenants_.size(); ++i)
    if (transport::same_bytes(token, tenants_[i].token)) return i;
  return error_invalid_argument(
      "no tenant of the memory node has this token; to do: give compute the token's file of a "
      "tenant that the node was started with");
}

StatusOr<Tenants::Number> Tenants::named(std::string_view name) const {
  for (Number i = 0; i < tenants_.size(); ++i)
    if (tenants_[i].name == name) return i;
  return error_not_found("the memory node has no tenant " + std::string(name));
}

uint64_t Tenants::left_locked(Number tenant) const {
  uint64_t all = 0;
  for (const uint64_t used : used_) all += used;
  const uint64_t quota = tenants_[tenant].quota_bytes;
  const uint64_t own = quota - std::min(quota, used_[tenant]);
  return std::min(own, memory_bytes_ - std::min(memory_bytes_, all));
}

uint64_t Tenants::left(Number tenant) const {
  const MutexLock lock(mutex_);
  return left_locked(tenant);
}

Status Tenants::reserve(Number tenant, uint64_t bytes) {
  const MutexLock lock(mutex_);
  if (bytes > left_locked(tenant))
    return error_no_space(
        "the memory node, or the quota of this tenant, has no room for such a pool; to do: ask for "
        "a smaller one, or give the node or the tenant more memory");
  used_[tenant] += bytes;
  return ok_status();
}

void Tenants::count_in(Number tenant, uint64_t bytes) {
  const MutexLock lock(mutex_);
  used_[tenant] += bytes;
}

void Tenants::release(Number tenant, uint64_t bytes) {
  const MutexLock lock(mutex_);
  STRATA_ASSERT(used_[tenant] >= bytes);
  used_[tenant] -= bytes;
}

std::vector<Tenants::Use> Tenants::uses() const {
  std::vector<Use> uses;
  const MutexLock lock(mutex_);
  for (Number i = 0; i < tenants_.size(); ++i)
    uses.push_back({tenants_[i].name, tenants_[i].quota_bytes, used_[i]});
  return uses;
}

}  // namespace strata::memnode
