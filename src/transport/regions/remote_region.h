// A peer's region, as its users see it. Thread-safe. Three ways to it: a mapping of the owner's
// file (same host; the owner's processor takes no part), calls that the owner bounds-checks, or
// RDMA over a fabric (fabric_server.h), where atomics still go by calls, and single words too
// unless a network card carries them out (ADR 2026-11-23-libfabric).
//
//   RR1  Nothing outside the region is read or written, whatever is asked: kOutOfRange, and of a
//        batch nothing is done then.
//   RR2  The operations of a batch happen in its order; put is visible when it ends, and
//        everything before it is visible to whoever sees it.
//   RR3  8 aligned bytes are read, written, added to and swapped atomically. Larger gets and puts
//        are not: validate them by a checksum or a version word.
//   RR4  Operations by call fail with withdrawn once the owner has withdrawn the region.
//        So do those over a fabric; of a batch under way at that time, some may have been done
//        before. Those on a mapping never fail, nor notice: correctness comes from epochs, never
//        from detection (RN3).
//   RR5  After a lost reply it is unknown whether puts and atomics were done (kUnknown); a batch
//        of gets alone is done again instead. Whatever the outcome, the caller's memory is not
//        touched any more once run() has returned.
//   RR6  A batch that was begun ends once, by its deadline at the latest, and RR1 to RR5 hold for
//        it. Those that one thread begins over one channel are done in the order in which they
//        were begun; gets that are done again come later. A region goes after its batches have
//        ended.
//   RR7  Of a region that its owner exposes for reading only, puts and atomics fail with
//        kInvalidArgument, and of their batch nothing is done; nobody touches the memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/status.h"
#include "transport/calls/blocking_channel.h"
#include "transport/calls/channel.h"
#include "transport/regions/region.h"
#include "transport/world.h"

namespace strata::transport {

struct RegionOperation {
  enum class Kind : uint8_t { kPut = 1, kGet = 2, kFetchAdd = 3, kCompareSwap = 4 };
  Kind kind = Kind::kGet;
  uint64_t offset = 0;
  Bytes source = {};             // kPut
  absl::Span<char> target = {};  // kGet
  uint64_t operand = 0;          // kFetchAdd: what is added; kCompareSwap: the new value
  uint64_t expected = 0;         // kCompareSwap
  uint64_t before = 0;           // out, of the atomic ones: the value before

  static RegionOperation put(uint64_t offset, Bytes source) {
    return {.kind = Kind::kPut, .offset = offset, .source = source};
  }
  static RegionOperation get(uint64_t offset, absl::Span<char> target) {
    return {.kind = Kind::kGet, .offset = offset, .target = target};
  }
  static RegionOperation fetch_add(uint64_t offset, uint64_t addend) {
    return {.kind = Kind::kFetchAdd, .offset = offset, .operand = addend};
  }
  static RegionOperation compare_swap(uint64_t offset, uint64_t expected, uint64_t desired) {
    return {.kind = Kind::kCompareSwap, .offset = offset, .operand = desired, .expected = expected};
  }
};

using RegionDone = absl::AnyInvocable<void(const Status&)>;

class RemoteRegion {
 public:
  virtual ~RemoteRegion() = default;
  // Does all of them; returns when the last one is done. Blocks, at most until the deadline (of
  // base/clock.h's clock; a mapping needs no time). Errors: kOutOfRange, kInvalidArgument (an
  // atomic that is not aligned, a batch too long), withdrawn, and as CA1.
  virtual Status run(absl::Span<RegionOperation> batch, uint64_t deadline_us) = 0;
  // RN4. Blocks for the medium. Errors: kOutOfRange, kInternal, and as CA1.
  virtual Status persist(uint64_t offset, uint64_t bytes, uint64_t deadline_us) = 0;
  // Begin what run() and persist() do, and call `done` at the end (RR6); until then the batch,
  // and the memory it names, are the region's. A region that was opened over a Channel ends them
  // in the executor's thread, whose clock the deadline is of, and nobody waits. All others have
  // ended them when this returns: a mapping needs no time, and the rest block their caller.
  virtual void start(absl::Span<RegionOperation> batch, uint64_t deadline_us, RegionDone done) {
    done(run(batch, deadline_us));
  }
  virtual void start_persist(uint64_t offset, uint64_t bytes, uint64_t deadline_us,
                             RegionDone done) {
    done(persist(offset, bytes, deadline_us));
  }
  // The region itself, where it is mapped; null elsewhere. To be written only if access() says so.
  [[nodiscard]] virtual char* direct() noexcept { return nullptr; }
  // Whether the owner's processor takes no part.
  [[nodiscard]] virtual bool truly_one_sided() const noexcept = 0;
  [[nodiscard]] virtual uint64_t bytes() const noexcept = 0;
  [[nodiscard]] virtual uint64_t epoch() const noexcept = 0;  // of the owner, when it was made
  [[nodiscard]] virtual RegionAccess access() const noexcept { return RegionAccess::kReadWrite; }

  Status put(uint64_t offset, Bytes source, uint64_t deadline_us);
  Status get(uint64_t offset, absl::Span<char> target, uint64_t deadline_us);
  // The value before.
  StatusOr<uint64_t> fetch_add(uint64_t offset, uint64_t addend, uint64_t deadline_us);
  StatusOr<uint64_t> compare_swap(uint64_t offset, uint64_t expected, uint64_t desired,
                                  uint64_t deadline_us);
};

enum class RegionPath : uint8_t { kMapped, kCalls, kFabric };

// Opens what the peer exposes under `name` (RegionServer). kMapped needs a channel over a unix
// socket, kFabric an owner with a fabric, its provider here, and libfabric in this build. Blocks.
// Errors: kNotFound, kInvalidArgument, kDataLoss (no region came), and as CA1.
StatusOr<std::unique_ptr<RemoteRegion>> open_remote_region(std::shared_ptr<BlockingChannel> channel,
                                                           const std::string& name, RegionPath path,
                                                           uint64_t deadline_us);

// The same by calls over a Channel, for many operations at once: the region's start() does not
// block, and neither does this. `done` is called in the thread of the executor, which is the
// channel's; run() and persist() are not for that thread.
using RegionOpened = absl::AnyInvocable<void(StatusOr<std::unique_ptr<RemoteRegion>>)>;
void start_open_region(std::shared_ptr<Channel> channel, Executor* executor,
                       const std::string& name, uint64_t deadline_us, RegionOpened done);

}  // namespace strata::transport
