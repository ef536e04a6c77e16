// The registry: a small, strongly consistent store of keys that all nodes of a cluster share. It
// says who is there, who may write which log stream and where data lie. Implementations: etcd.h
// and, for tests and simulation, sim.h. Typed helpers: stream_epochs.h, membership.h, topology.h.
// Thread-safe.
//
//   RG1  Versions grow with every change, over all keys; none is given twice, not even to a key
//        that was removed and made again. So "still version v" means "not changed since".
//   RG2  change() is atomic: all of its keys or none, all with one version. change(), get() and
//        list() are linearizable.
//   RG3  The outcome of a change is told truly, by the code alone:
//          OK                  done
//          conflict            a key was not at the version expected: nothing done, see *found
//          kNotFound           the lease is gone: nothing done
//          kUnavailable        no endpoint was reached, or none would: nothing done
//          timed_out           the deadline came before it was sent: nothing done
//          kResourceExhausted, kInvalidArgument   refused: nothing done
//          kUnknown            sent, and then no readable reply: it was done, or may be done
//                              any time later, or never. Who has to know reads; who must not be
//                              overtaken by it changes the key's version.
//        Reads and leases have no outcome to lose: kUnavailable, timed_out, or kDataLoss
//        for replies that nobody can read.
//   RG4  Lease::valid() is true only while the registry certainly keeps the lease, whatever this
//        process slept through; once false it stays false.
//   RG5  The batches of a watch come in order. The first is a snapshot; applied to it, the others
//        give exactly the keys there were at each batch's version, the changes of one change()
//        always together. A further snapshot comes when changes were missed for good.
// Deadlines are absolute, on now_us(). Handlers run one at a time, on a thread of the registry's
// that also renews leases: they should be quick, and not make blocking calls.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/status.h"

namespace strata::registry {

using Version = StrongId<struct VersionTag, uint64_t>;  // 0: the key is not there
using LeaseId = StrongId<struct LeaseTag, uint64_t>;    // 0: none

constexpr size_t kKeyBytesMax = 512;
constexpr size_t kValueBytesMax = 64u << 10;
constexpr size_t kChangesMax = 32;  // keys of one change()
constexpr uint32_t kLeaseSecondsMax = 3600;

struct KeyValue {
  std::string key;
  std::string value;
  Version version;
  LeaseId lease;  // the key goes with it
  bool operator==(const KeyValue&) const = default;
};

// What becomes of one key, and at which version it must be for that.
struct Change {
  enum class Kind : uint8_t { kPut, kRemove, kRequire };

  static Change create(std::string key, std::string value, LeaseId lease = {}) {
    return {Kind::kPut, std::move(key), Version{}, std::move(value), lease};
  }
  // Also replaces the lease the key goes with.
  static Change replace(std::string key, Version version, std::string value, LeaseId lease = {}) {
    return {Kind::kPut, std::move(key), version, std::move(value), lease};
  }
  static Change remove(std::string key, Version version) {
    return {Kind::kRemove, std::move(key), version, {}, {}};
  }
  // Stays as it is; the other changes are made only then. Version 0: is not there.
  static Change require(std::string key, Version version) {
    return {Kind::kRequire, std::move(key), version, {}, {}};
  }

  Kind kind = Kind::kRequire;
  std::string key;
  Version expected;
  std::string value;
  LeaseId lease;
};

struct Listing {
  std::vector<KeyValue> entries;  // by key
  Version at;                     // all of them were so at this version
};

struct WatchEvent {
  bool removed = false;
  KeyValue entry;  // of a removed key only key and the version of the removal
  bool operator==(const WatchEvent&) const = default;
};

struct WatchBatch {
  bool snapshot = false;  // `events` are all keys there are: forget what was known before
  std::vector<WatchEvent> events;
  Version at;
};

// Keeps a lease alive until it is destroyed, revoked or lost.
class Lease {
 public:
  // The registry drops the lease when its time is over. Blocks while its handler runs, so not to be
  // destroyed in a handler.
  virtual ~Lease() = default;
  [[nodiscard]] virtual LeaseId id() const noexcept = 0;
  [[nodiscard]] virtual bool valid() const noexcept = 0;             // cheap; RG4
  [[nodiscard]] virtual uint64_t remaining_us() const noexcept = 0;  // 0: not valid
  // Ends it now, with its keys; its handler is not called. Blocks. After an error the registry may
  // keep it until its time is over; valid() is false in any case.
  virtual Status revoke(uint64_t deadline_us) = 0;
};

// Watches until it is destroyed; after that its handler is not called. Blocks while the handler
// runs, so not to be destroyed in a handler.
class Watch {
 public:
  virtual ~Watch() = default;
};

using LeaseLostHandler = absl::AnyInvocable<void(LeaseId)>;
using WatchHandler = absl::AnyInvocable<void(const WatchBatch&)>;

class Registry {
 public:
  virtual ~Registry() = default;  // after its leases and watches

  [[nodiscard]] virtual uint64_t now_us() const noexcept = 0;  // monotonic

  // Makes the changes if every key is at its expected version. At least one has to be a put or a
  // remove; no key twice. Returns the version they got. On conflict *found (if given)
  // becomes what there is of the keys named. Blocks.
  virtual StatusOr<Version> change(absl::Span<const Change> changes, uint64_t deadline_us,
                                   std::vector<KeyValue>* found = nullptr) = 0;
  StatusOr<Version> change(const Change& one, uint64_t deadline_us,
                           std::vector<KeyValue>* found = nullptr) {
    return change(absl::MakeConstSpan(&one, 1), deadline_us, found);
  }
  // Nothing when the key is not there. Blocks.
  virtual StatusOr<std::optional<KeyValue>> get(std::string_view key, uint64_t deadline_us) = 0;
  // All keys that start with `prefix`, which is not empty. Blocks.
  virtual StatusOr<Listing> list(std::string_view prefix, uint64_t deadline_us) = 0;

  // A lease that the registry keeps for `ttl_s` seconds (or more) after each renewal. `on_lost` is
  // called once when it is no longer valid(). Blocks.
  virtual StatusOr<std::unique_ptr<Lease>> grant_lease(uint32_t ttl_s, LeaseLostHandler on_lost,
                                                       uint64_t deadline_us) = 0;
  // Does not block: the snapshot comes as soon as the registry can be reached.
  virtual std::unique_ptr<Watch> watch(std::string prefix, WatchHandler handler) = 0;
};

// kInvalidArgument unless a registry takes these. For implementations.
Status check_changes(absl::Span<const Change> changes);
Status check_key(std::string_view key);  // also a prefix
Status check_ttl(uint32_t ttl_s);

// The keys below one prefix as a watch tells them. For handlers; not thread-safe.
class WatchedKeys {
 public:
  void apply(const WatchBatch& batch);
  [[nodiscard]] const std::vector<KeyValue>& entries() const noexcept {
    return entries_;
  }  // by key
  [[nodiscard]] Version at() const noexcept { return at_; }

 private:
  std::vector<KeyValue> entries_;
  Version at_;
};

}  // namespace strata::registry
