#include "cluster/membership.h"

#include "base/diag.h"
#include "cluster/internal/records.h"
#include "registry/text.h"

namespace strata::cluster {
namespace {

constexpr int kAttemptsMax = 16;

}  // namespace

const char* role_name(Role role) noexcept {
  switch (role) {
    case Role::kCompute:
      return "compute";
    case Role::kStorage:
      return "storage";
    case Role::kMemory:
      return "memory";
  }
  return "?";
}

StatusOr<Version> Membership::join(const Member& member, const Lease& lease, uint64_t deadline_us) {
  STRATA_RETURN_IF_ERROR(internal::check_member(member));
  const std::string key = keys_.member(member.name);
  Status last = ok_status();
  for (int attempt = 0; attempt < kAttemptsMax; attempt++) {
    STRATA_ASSIGN_OR_RETURN(const std::optional<KeyValue> there, registry_->get(key, deadline_us));
    Version version;
    if (there.has_value()) {
      STRATA_ASSIGN_OR_RETURN(const Member other, internal::decode_member(keys_.members(), *there));
      if (other.identity != member.identity)  // MB1
        return error_in_use(absl::StrCat("the name ", member.name, " belongs to the node at ",
                                         other.address, ", which has another data folder"));
      version = there->version;
    }
    if (!lease.valid())
      return error_lease_lost(absl::StrCat("the lease of node ", member.name, " is lost"));
    const StatusOr<Version> done = registry_->change(
        Change::replace(key, version, internal::encode_member(member), lease.id()), deadline_us);
    if (done.ok()) return done;
    last = done.status();
    // After an unknown outcome the next attempt replaces what this one may have made.
    const bool again = is_outcome_unknown(last) || is_conflict(last);
    if (!again) return last;
  }
  if (is_outcome_unknown(last)) return last;
  return error_busy(absl::StrCat("others keep changing member ", member.name));
}

Status Membership::leave(const std::string& name, Version version, uint64_t deadline_us) {
  STRATA_RETURN_IF_ERROR(check_name("node", name));
  const Status status =
      registry_->change(Change::remove(keys_.member(name), version), deadline_us).status();
  return is_conflict(status) ? ok_status() : status;
}

StatusOr<std::vector<Member>> Membership::list(uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const Listing listing, registry_->list(keys_.members(), deadline_us));
  std::vector<Member> members;
  for (const KeyValue& entry : listing.entries) {
    STRATA_ASSIGN_OR_RETURN(members.emplace_back(),
                            internal::decode_member(keys_.members(), entry));
  }
  return members;
}

std::unique_ptr<Watch> Membership::watch(Handler handler) {
  return registry_->watch(
      keys_.members(), [prefix = keys_.members(), handler = std::move(handler),
                        known = WatchedKeys()](const WatchBatch& batch) mutable {
        known.apply(batch);
        std::vector<Member> members;
        for (const KeyValue& entry : known.entries()) {
          StatusOr<Member> member = internal::decode_member(prefix, entry);
          if (member.ok())
            members.push_back(*std::move(member));
          else
            diag(Severity::kError, "%s", text::message_of(member.status()).c_str());
        }
        handler(members);
      });
}

}  // namespace strata::cluster
