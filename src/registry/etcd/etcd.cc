#include "registry/etcd/etcd.h"

#include "base/clock.h"
#include "registry/etcd/internal/etcd_lease.h"
#include "registry/etcd/internal/etcd_watch.h"
#include "registry/text.h"

namespace strata::registry {
namespace {

using internal::EtcdClient;

class EtcdRegistry final : public Registry {
 public:
  explicit EtcdRegistry(const EtcdOptions& options) : client_(options) {}

  [[nodiscard]] uint64_t now_us() const noexcept override { return monotonic_us(); }

  StatusOr<Version> change(absl::Span<const Change> changes, uint64_t deadline_us,
                           std::vector<KeyValue>* found) override {
    STRATA_RETURN_IF_ERROR(check_changes(changes));
    internal::ChangeReply reply;
    const uint64_t seen_before = client_.guard().seen();
    STRATA_RETURN_IF_ERROR(
        client_.call({"/v3/kv/txn", internal::encode_change(changes), /*once=*/true, deadline_us},
                     [&](Bytes body) -> Status {
                       STRATA_ASSIGN_OR_RETURN(reply, internal::decode_change(body));
                       return client_.guard().check(reply.header, seen_before);
                     }));
    if (reply.changed) return Version{reply.header.revision};
    if (found != nullptr) *found = std::move(reply.found);
    return error_conflict(absl::StrCat("registry key ", changes.front().key,
                                       changes.size() > 1 ? " or one with it" : "",
                                       " is not at the version expected"));
  }

  StatusOr<std::optional<KeyValue>> get(std::string_view key, uint64_t deadline_us) override {
    STRATA_RETURN_IF_ERROR(check_key(key));
    std::optional<KeyValue> entry;
    const uint64_t seen_before = client_.guard().seen();
    STRATA_RETURN_IF_ERROR(client_.call(
        {"/v3/kv/range", internal::encode_range({.from = key, .end = {}}), /*once=*/false,
         deadline_us},
        [&](Bytes body) -> Status {
          STRATA_ASSIGN_OR_RETURN(internal::RangeReply reply, internal::decode_range(body));
          STRATA_RETURN_IF_ERROR(client_.guard().check(reply.header, seen_before));
          if (reply.entries.size() > 1 || (!reply.entries.empty() && reply.entries[0].key != key))
            return error_corruption("etcd sent other keys than the one asked for");
          if (!reply.entries.empty()) entry = std::move(reply.entries[0]);
          return ok_status();
        }));
    return entry;
  }

  StatusOr<Listing> list(std::string_view prefix, uint64_t deadline_us) override {
    STRATA_RETURN_IF_ERROR(check_key(prefix));
    internal::ListingPages pages{std::string(prefix)};
    for (bool last = false; !last;) {
      const uint64_t seen_before = client_.guard().seen();
      internal::RangeReply reply;
      STRATA_RETURN_IF_ERROR(
          client_.call({"/v3/kv/range", pages.next_request(), /*once=*/false, deadline_us},
                       [&](Bytes body) -> Status {
                         STRATA_ASSIGN_OR_RETURN(reply, internal::decode_range(body));
                         return client_.guard().check(reply.header, seen_before);
                       }));
      STRATA_ASSIGN_OR_RETURN(last, pages.add(std::move(reply)));
    }
    return pages.take();
  }

  StatusOr<std::unique_ptr<Lease>> grant_lease(uint32_t ttl_s, LeaseLostHandler on_lost,
                                               uint64_t deadline_us) override {
    STRATA_RETURN_IF_ERROR(check_ttl(ttl_s));
    internal::LeaseReply reply;
    // From before the first attempt: a later one only makes the lease last longer in etcd.
    const uint64_t sent_us = internal::lease_clock_us();
    STRATA_RETURN_IF_ERROR(client_.call(
        {"/v3/lease/grant", internal::encode_grant(ttl_s), /*once=*/false, deadline_us},
        [&](Bytes body) -> Status {
          STRATA_ASSIGN_OR_RETURN(reply, internal::decode_grant(body));
          return client_.guard().check(reply.header);
        }));
    return std::make_unique<internal::EtcdLease>(&client_, reply.lease, reply.ttl_s, sent_us,
                                                 std::move(on_lost));
  }

  std::unique_ptr<Watch> watch(std::string prefix, WatchHandler handler) override {
    return std::make_unique<internal::EtcdWatch>(&client_, std::move(prefix), std::move(handler));
  }

 private:
  EtcdClient client_;
};

// "http://host:port", a numeric or named host.
bool is_endpoint(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  if (!text.starts_with(kScheme)) return false;
  text.remove_prefix(kScheme.size());
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  return colon != 0 && colon != std::string_view::npos &&
         text.find_first_of("/?#@ \t\r\n") == std::string_view::npos &&
         text::parse_number(text.substr(colon + 1), &port) && port > 0 && port < 65536;
}

}  // namespace

StatusOr<std::unique_ptr<Registry>> make_etcd_registry(const EtcdOptions& options) {
  if (options.endpoints.empty()) return error_invalid_argument("no etcd endpoint is named");
  for (const std::string& endpoint : options.endpoints)
    if (!is_endpoint(endpoint))
      return error_invalid_argument(
          absl::StrCat("'", endpoint, "' is no etcd endpoint such as http://127.0.0.1:2379"));
  return std::make_unique<EtcdRegistry>(options);
}

}  // namespace strata::registry
