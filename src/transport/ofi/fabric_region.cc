// A peer's region on a fabric. Puts and gets are the provider's; what must be atomic is done by
// calls:
//   - fetch_add and compare_swap always. A network card's atomics are atomic among themselves, not
//     with those of the owner's processor, which does the same to the same words for its own
//     threads, for mappings and for calls.
//   - puts and gets of one aligned word (RR3) where a processor carries them out, out of the
//   pieces
//     in which a stream's bytes happen to come.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/latch.h"
#include "transport/clock.h"
#include "transport/ofi/fabric_link.h"
#include "transport/regions/fabric.h"
#include "transport/regions/region_memory.h"
#include "transport/regions/region_server.h"

namespace strata::transport {
namespace {

using Kind = RegionOperation::Kind;
using ofi::FabricLink;

constexpr size_t kLinksMax = 64;    // kept for later use
constexpr size_t kCallsMax = 1024;  // operations in one call

bool is_atomic(const RegionOperation& operation) noexcept {
  return operation.kind == Kind::kFetchAdd || operation.kind == Kind::kCompareSwap;
}

uint64_t length_of(const RegionOperation& operation) noexcept {
  return operation.kind == Kind::kPut ? operation.source.size() : operation.target.size();
}

bool only_gets(absl::Span<const RegionOperation> batch) noexcept {
  return std::all_of(batch.begin(), batch.end(),
                     [](const auto& operation) { return operation.kind == Kind::kGet; });
}

class FabricRegion final : public RemoteRegion {
 public:
  FabricRegion(std::shared_ptr<BlockingChannel> channel, std::unique_ptr<RemoteRegion> calls,
               FabricPlace place, FabricManner manner, ofi::Info info)
      : channel_(std::move(channel)),
        calls_(std::move(calls)),
        place_(std::move(place)),
        manner_(manner),
        info_(std::move(info)),
        words_by_call_(manner == FabricManner::kOfProvider && !ofi::is_one_sided(*info_)) {}

  Status run(absl::Span<RegionOperation> batch, uint64_t deadline_us) override;
  Status persist(uint64_t offset, uint64_t bytes, uint64_t deadline_us) override {
    return calls_->persist(offset, bytes, deadline_us);
  }
  [[nodiscard]] bool truly_one_sided() const noexcept override { return ofi::is_one_sided(*info_); }
  [[nodiscard]] uint64_t bytes() const noexcept override { return calls_->bytes(); }
  [[nodiscard]] uint64_t epoch() const noexcept override { return calls_->epoch(); }
  [[nodiscard]] RegionAccess access() const noexcept override { return calls_->access(); }

 private:
  // One try of a batch.
  struct Attempt {
    std::unique_ptr<FabricLink> link;                      // null: none was needed yet, or it broke
    bool linked = false;                                   // there was one
    bool changed = false;                                  // the region, perhaps
    uint64_t operations = 0, bytes_out = 0, bytes_in = 0;  // over the fabric
  };
  Status attempt(absl::Span<RegionOperation> batch, uint64_t deadline_us, Attempt* attempt);
  Status do_runs(absl::Span<RegionOperation> batch, uint64_t deadline_us, Attempt* attempt);
  Status transfer(absl::Span<RegionOperation> batch, uint64_t deadline_us, Attempt* attempt);
  Status exchange(FabricLink* link, absl::Span<const FabricLink::Piece> pieces, Kind kind,
                  uint64_t deadline_us, Attempt* attempt);
  Status modelled(uint64_t begin_ns, uint64_t out, uint64_t in, uint64_t deadline_us);
  [[nodiscard]] bool by_call(const RegionOperation& operation) const noexcept;
  size_t end_of_run(absl::Span<const RegionOperation> batch, size_t begin) const noexcept;
  bool is_withdrawn(uint64_t deadline_us);

  Status take_link(uint64_t deadline_us, Attempt* attempt);
  std::unique_ptr<FabricLink> take_cached();
  void put_back(std::unique_ptr<FabricLink> link);
  void drop_cached();

  const std::shared_ptr<BlockingChannel> channel_;
  const std::unique_ptr<RemoteRegion> calls_;
  const FabricPlace place_;
  const FabricManner manner_;
  const ofi::Info info_;
  const bool words_by_call_;
  Mutex mutex_{LatchRank::kLeaf};
  std::vector<std::unique_ptr<FabricLink>> cached_
      STRATA_GUARDED_BY(mutex_);  // the last one was used last
};

Status FabricRegion::run(absl::Span<RegionOperation> batch, uint64_t deadline_us) {
  STRATA_RETURN_IF_ERROR(check_batch(batch, bytes(), access()));
  const uint64_t begin_ns = monotonic_ns();
  MethodCounters& counters = channel_->counters().of(kRegionRunMethod);
  Attempt first, second;
  Attempt* last = &first;
  Status result = attempt(batch, deadline_us, &first);
  // RR5: gets are done again, and what cannot have been done.
  if (is_peer_down(result) && first.linked && !first.changed) {
    count(counters.retries);
    drop_cached();  // the others are of the same age
    last = &second;
    result = attempt(batch, deadline_us, &second);
  }
  if (is_peer_down(result) && is_withdrawn(deadline_us)) {
    result = error_withdrawn("the region has been withdrawn");  // RR4
  } else if (did_not_run(result) && last->changed) {  // what came last did not, but others did
    result = error_outcome_unknown(std::string(result.message()));
  }
  count(counters.operations, last->operations);
  count(counters.bytes_out, last->bytes_out);
  count(counters.bytes_in, last->bytes_in);
  if (last->operations > 0) count(counters.nanoseconds, monotonic_ns() - begin_ns);
  if (!result.ok()) count(counters.errors);
  return result;
}

Status FabricRegion::attempt(absl::Span<RegionOperation> batch, uint64_t deadline_us,
                             Attempt* attempt) {
  Status done = do_runs(batch, deadline_us, attempt);
  if (attempt->link != nullptr) put_back(std::move(attempt->link));
  return done;
}

Status FabricRegion::do_runs(absl::Span<RegionOperation> batch, uint64_t deadline_us,
                             Attempt* attempt) {
  for (size_t begin = 0; begin < batch.size();) {
    const size_t end = end_of_run(batch, begin);
    const absl::Span<RegionOperation> run = batch.subspan(begin, end - begin);
    if (by_call(run.front())) {
      const Status done = calls_->run(run, deadline_us);
      if (!only_gets(run) && !did_not_run(done)) attempt->changed = true;
      STRATA_RETURN_IF_ERROR(done);
    } else {
      STRATA_RETURN_IF_ERROR(transfer(run, deadline_us, attempt));
    }
    begin = end;
  }
  return ok_status();
}

bool FabricRegion::by_call(const RegionOperation& operation) const noexcept {
  if (is_atomic(operation)) return true;
  return words_by_call_ && operation.offset % 8 == 0 && length_of(operation) == 8;
}

// A run goes by the same way and, over the fabric, in the same direction: RR2 between two of them
// is that the first one has ended.
size_t FabricRegion::end_of_run(absl::Span<const RegionOperation> batch,
                                size_t begin) const noexcept {
  const bool called = by_call(batch[begin]);
  size_t end = begin + 1;
  while (end < batch.size() && by_call(batch[end]) == called &&
         (called ? end - begin < kCallsMax : batch[end].kind == batch[begin].kind))
    end++;
  return end;
}

// Fills the link's buffer again and again.
Status FabricRegion::transfer(absl::Span<RegionOperation> batch, uint64_t deadline_us,
                              Attempt* attempt) {
  STRATA_RETURN_IF_ERROR(take_link(deadline_us, attempt));
  const Kind kind = batch.front().kind;
  struct Place {
    size_t operation;
    uint64_t done;  // bytes of it before this piece
  };
  std::vector<FabricLink::Piece> pieces;
  std::vector<Place> places;
  uint64_t done = 0;
  uint32_t filled = 0;
  for (size_t i = 0; i < batch.size();) {
    const RegionOperation& operation = batch[i];
    const auto bytes = static_cast<uint32_t>(
        std::min<uint64_t>(length_of(operation) - done, FabricLink::kBufferBytes - filled));
    char* const here = attempt->link->buffer() + filled;
    if (bytes > 0) {
      if (kind == Kind::kPut) std::memcpy(here, operation.source.data() + done, bytes);
      pieces.push_back({place_.base + operation.offset + done, filled, bytes});
      places.push_back({i, done});
      filled += bytes;
      done += bytes;
    }
    if (done == length_of(operation)) {
      i++;
      done = 0;
    }
    const bool full = filled == FabricLink::kBufferBytes || pieces.size() == FabricLink::kPiecesMax;
    if (pieces.empty() || (!full && i < batch.size())) continue;
    STRATA_RETURN_IF_ERROR(exchange(attempt->link.get(), pieces, kind, deadline_us, attempt));
    for (size_t n = 0; kind == Kind::kGet && n < pieces.size(); n++)
      std::memcpy(batch[places[n].operation].target.data() + places[n].done,
                  attempt->link->buffer() + pieces[n].local, pieces[n].bytes);
    pieces.clear();
    places.clear();
    filled = 0;
  }
  attempt->operations += batch.size();
  return ok_status();
}

Status FabricRegion::exchange(FabricLink* link, absl::Span<const FabricLink::Piece> pieces,
                              Kind kind, uint64_t deadline_us, Attempt* attempt) {
  const uint64_t begin_ns = monotonic_ns();
  uint64_t bytes = 0;
  for (const FabricLink::Piece& piece : pieces) bytes += piece.bytes;
  const bool put = kind == Kind::kPut;
  Status done =
      put ? link->put(pieces, deadline_us, &attempt->changed) : link->get(pieces, deadline_us);
  if (!done.ok()) {
    attempt->link.reset();  // FL2
    count(channel_->counters().connections_closed);
    return done;
  }
  (put ? attempt->bytes_out : attempt->bytes_in) += bytes;
  return modelled(begin_ns, put ? bytes : 0, put ? 0 : bytes, deadline_us);
}

Status FabricRegion::modelled(uint64_t begin_ns, uint64_t out, uint64_t in, uint64_t deadline_us) {
  LinkModel* const model = channel_->link_model();
  if (model == nullptr) return ok_status();
  const uint64_t done_ns = model->round_trip(begin_ns, out, in);
  sleep_until_ns(std::min(done_ns, deadline_us * 1000));
  return done_ns > deadline_us * 1000 ? error_timed_out("deadline of an operation") : ok_status();
}

// Connections end with a region, with their owner, and for other reasons; only the owner can tell.
bool FabricRegion::is_withdrawn(uint64_t deadline_us) {
  return monotonic_us() < deadline_us && strata::is_withdrawn(calls_->run({}, deadline_us));
}

// --- links -------------------------------------------------------------------------------------

Status FabricRegion::take_link(uint64_t deadline_us, Attempt* attempt) {
  if (attempt->link != nullptr) return ok_status();
  if (monotonic_us() >= deadline_us) return error_timed_out("deadline of an operation");
  attempt->link = take_cached();
  if (attempt->link == nullptr) {
    STRATA_ASSIGN_OR_RETURN(attempt->link,
                            FabricLink::connect(info_.get(), place_, manner_, deadline_us));
    count(channel_->counters().connections_opened);
  }
  attempt->linked = true;
  return ok_status();
}

std::unique_ptr<FabricLink> FabricRegion::take_cached() {
  for (;;) {
    std::unique_ptr<FabricLink> link;
    {
      const MutexLock lock(mutex_);
      if (cached_.empty()) return nullptr;
      link = std::move(cached_.back());
      cached_.pop_back();
    }
    if (link->is_alive()) return link;
    count(channel_->counters().connections_closed);
  }
}

void FabricRegion::put_back(std::unique_ptr<FabricLink> link) {
  {
    const MutexLock lock(mutex_);
    if (cached_.size() < kLinksMax) {
      cached_.push_back(std::move(link));
      return;
    }
  }
  count(channel_->counters().connections_closed);
}

void FabricRegion::drop_cached() {
  std::vector<std::unique_ptr<FabricLink>> dropped;
  {
    const MutexLock lock(mutex_);
    dropped.swap(cached_);
  }
  count(channel_->counters().connections_closed, dropped.size());
}

}  // namespace

StatusOr<std::unique_ptr<RemoteRegion>> make_fabric_region(
    std::shared_ptr<BlockingChannel> channel, uint64_t bytes, uint64_t epoch, uint64_t incarnation,
    RegionAccess access, const FabricPlace& place, FabricManner manner) {
  STRATA_ASSIGN_OR_RETURN(const ofi::FabricAddress address,
                          ofi::parse_fabric_address(place.address));
  STRATA_ASSIGN_OR_RETURN(ofi::Info info, ofi::find_provider(address, ofi::Side::kPeer));
  std::unique_ptr<RemoteRegion> calls =
      make_call_region(channel, bytes, epoch, incarnation, access);
  return std::make_unique<FabricRegion>(std::move(channel), std::move(calls), place, manner,
                                        std::move(info));
}

}  // namespace strata::transport
