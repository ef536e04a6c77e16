// What etcd or somebody in its place answers, and the values of a cluster's keys: any bytes, chosen
// by the first one.
#include "cluster/internal/records.h"
#include "fuzz.h"
#include "registry/etcd/internal/etcd_client.h"

namespace strata::fuzz {
namespace {

using namespace registry;            // NOLINT
using namespace registry::internal;  // NOLINT
using namespace cluster;             // NOLINT
using namespace cluster::internal;   // NOLINT

void check_entries(const std::vector<KeyValue>& entries) {
  for (const KeyValue& entry : entries) FUZZ_CHECK(!entry.key.empty() && !entry.version.is_zero());
}

void messages(uint8_t mode, Bytes bytes) {
  switch (mode % 6) {
    case 0: {
      auto reply = decode_range(bytes);
      if (!reply.ok()) return;
      check_entries(reply->entries);
      ListingPages pages("a");
      if (!pages.add(*std::move(reply)).ok()) return;
      const Listing listing = pages.take();
      for (size_t i = 0; i < listing.entries.size(); i++) {
        FUZZ_CHECK(listing.entries[i].key.starts_with("a"));
        FUZZ_CHECK(i == 0 || listing.entries[i - 1].key < listing.entries[i].key);
      }
      return;
    }
    case 1: {
      const auto reply = decode_change(bytes);
      if (reply.ok()) check_entries(reply->found);
      return;
    }
    case 2: {
      const auto reply = decode_grant(bytes);
      FUZZ_CHECK(!reply.ok() || (reply->ttl_s != 0 && !reply->lease.is_zero()));
      return;
    }
    case 3:
      decode_renewal(bytes).status().IgnoreError();
      return;
    case 4: {
      const auto message = decode_watch(bytes);
      if (!message.ok()) return;
      for (const WatchEvent& event : message->events) check_entries({event.entry});
      return;
    }
    default:
      FUZZ_CHECK(!explain_refusal(500, bytes).status.ok());
  }
}

// What decodes, encodes to something that decodes the same.
void records(uint8_t mode, const KeyValue& entry) {
  KeyValue again = entry;
  switch (mode % 4) {
    case 0: {
      const auto record = decode_epoch(entry);
      if (!record.ok()) return;
      again.value = encode_epoch(*record);
      const auto second = decode_epoch(again);
      FUZZ_CHECK(second.ok() && second->epoch == record->epoch && second->holder == record->holder);
      return;
    }
    case 1: {
      const auto record = decode_member("m/", entry);
      if (!record.ok()) return;
      again.value = encode_member(*record);
      const auto second = decode_member("m/", again);
      FUZZ_CHECK(second.ok() && second->identity == record->identity &&
                 second->address == record->address && second->role == record->role);
      return;
    }
    case 2: {
      const auto record = decode_identity(entry);
      if (!record.ok()) return;
      again.value = encode_identity(*record);
      FUZZ_CHECK(*decode_identity(again) == *record);
      return;
    }
    default: {
      const auto record = decode_placement(entry);
      if (!record.ok()) return;
      FUZZ_CHECK(check_placement(*record).ok());
      again.value = encode_placement(*record);
      const auto second = decode_placement(again);
      FUZZ_CHECK(second.ok() && second->groups == record->groups);
    }
  }
}

}  // namespace
}  // namespace strata::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;  // NOLINT
  fuzz::Input input(data, size);
  const uint8_t mode = input.u8();
  const std::string bytes(input.rest());
  if (mode < 128)
    fuzz::messages(mode, bytes);
  else
    fuzz::records(mode, {"m/n", bytes, registry::Version{1}, {}});
  return 0;
}
