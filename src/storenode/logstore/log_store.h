// The logs a storage node keeps: many streams in one folder, each a byte log addressed by Lsn with
// an epoch history. Thread-safe.
//
// All changes are queued and made in batches by persist_pending(), which one thread at a time
// runs: LogStoreRunner in a daemon, the test itself in a simulation. Replies come from that thread,
// when what they say is durable, with no latch held. Reads may come from any thread.
//   LG1  OK to an append or catch-up means: every byte below state.end is durable here.
//   LG2  Bytes of a stream are gapless: an append beyond the end changes nothing.
//   LG3  Once a seal (or begin, or catch-up) of epoch E was answered with OK, nothing of an epoch
//        below E is accepted any more, over any crash.
//   LG4  Bytes of an epoch are accepted only after its beginning is durable here, on a log that
//        agrees with the epoch's chosen history up to there (quorum/history.h).
//   LG5  Bytes known to be quorum-durable are never cut off: who asks for it gets kDataLoss.
//   LG6  What is not quorum-durable is read only by the holder of the promised epoch (S1).
//   LG7  Every byte served was verified against its checksum in this read, but for those that
//        appliers read and that have not left memory since they were appended. Damage is reported
//        with file, offset and range, and can be repaired from a peer's bytes.
//   LG8  After a failed write or sync the segment is closed at what was durable before and verified
//        by reading it again; nothing of the batch is acknowledged.
//   LG9  After a crash nothing is written behind what an old life left: the log goes on in a new
//        segment, which hides everything an older one holds from its start on.
//   LG10  A stream is made only by make_stream(): a node that has forgotten it refuses epochs it
//         may have promised to refuse, and does not vote unless there is nothing it could have
//         forgotten.
//   LG11  Appends are left waiting for more, for `gather_us` at most, only by who calls gather(),
//         and only while the last such wait has shown that nobody waits for their answers
//         (internal/gather_policy.h), or now and then to find that out.
//   LG12  What state() says is of one moment: quorum_durable never goes back, and a log that has
//         had an epoch has one, whatever is cut off or reset meanwhile.
//   LG13  Of more than `history_entries_max` epochs since the prefix was truncated the older half
//         is forgotten, never the bytes; so the log goes on however many writers come and go. A log
//         that has no epoch in common with the chosen one agrees with it up to what it knows to be
//         quorum-durable. Bytes of an epoch that is not known any more count as of epoch 1, the
//         lowest there is, where logs are compared (README). At least three epochs are remembered,
//         so at least two that wrote bytes (docs/adr/2026-11-25-forgotten-epochs.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "io/file_system.h"
#include "quorum/messages.h"

namespace strata {

struct LogStoreOptions {
  std::string directory;    // made when absent
  uint64_t cluster_id = 0;  // stamped in every file; files of another cluster are refused
  uint64_t segment_bytes = 16u << 20;      // of a file, whole blocks, the first its header
  uint64_t chunk_bytes_max = 1u << 20;     // bytes under one checksum; at most 16 MiB
  uint64_t pending_bytes_max = 64u << 20;  // queued and not yet durable; beyond: busy
  uint32_t spare_segments_max = 4;         // files kept for reuse
  uint64_t recent_bytes_max = 0;           // of each stream's end, in memory for appliers (LG7)
  // LG13; fewer only in tests, 6 at least.
  uint32_t history_entries_max = 1000;
  uint64_t gather_us = 0;               // LG11; 0: never
  uint64_t (*now_us)() = monotonic_us;  // only for counters
};

// A range of a stream that cannot be read here.
struct LogDamage {
  Lsn from;
  Lsn to;
  std::string path;
  uint64_t offset = 0;  // in the file, of `from`
  std::string what;     // for people: file, offset, remedy
};

struct StreamStatus {
  StreamId stream;
  quorum::ReplicaState state;
  quorum::History history;
  uint32_t segments = 0;
  std::vector<LogDamage> damages;
  Status failure;  // not OK: the stream could not be opened and answers nothing else
};

struct LogStoreCounters {
  std::atomic<uint64_t> appends{0}, bytes{0}, batches{0}, syncs{0}, sync_us{0};
  std::atomic<uint64_t> fenced{0}, gaps{0}, failed_syncs{0}, disk_full{0}, damages{0};
  std::atomic<uint64_t> segments_made{0}, segments_recycled{0};
  std::atomic<uint64_t> gathered{0};  // batches that waited for more, since the others suffice
};

class LogStore {
 public:
  // Opens what is in the folder. A stream that cannot be opened does not keep the others from
  // being served; its status says why. Blocks.
  static StatusOr<std::unique_ptr<LogStore>> open(FileSystem* fs, const LogStoreOptions& options);
  ~LogStore();  // what is still queued is answered with kUnavailable; a kill, as far as files go
  LogStore(const LogStore&) = delete;
  LogStore& operator=(const LogStore&) = delete;

  using SealDone = std::function<void(quorum::SealReply)>;
  using ChangeDone = std::function<void(quorum::ChangeReply)>;

  // --- changes: none blocks; the answers are described in quorum/messages.h ---
  // Makes the stream unless it is here; all other changes answer kNotFound until then.
  void make_stream(StreamId stream, quorum::StreamOrigin origin, ChangeDone done);
  // Promises never to accept a lower epoch. The same holder may ask again.
  void seal(StreamId stream, quorum::SealRequest request, SealDone done);
  // Cuts off what the tenure's log does not have and begins its epoch. kOutOfRange: bytes from
  // `next` on are needed first (catch_up).
  void begin_epoch(StreamId stream, quorum::BeginRequest request, ChangeDone done);
  void catch_up(StreamId stream, quorum::CatchUpRequest request, ChangeDone done);
  // Bytes that are already here are compared (kDataLoss when they differ), the rest is appended.
  void append(StreamId stream, quorum::AppendRequest request, ChangeDone done);
  // The log below `lsn` is not needed any more. kOutOfRange above what is quorum-durable here.
  void truncate_prefix(StreamId stream, Lsn lsn, ChangeDone done);
  // Replaces the damaged range that begins at `from` by a peer's bytes, all of it at once.
  // kDataLoss: they do not match a checksum that survived. kInvalidArgument: not a damaged range.
  void repair(StreamId stream, Lsn from, std::string bytes, ChangeDone done);

  // Makes one batch of what is queued, one sync per file written, and answers. False when nothing
  // was queued. Blocks; callers take turns.
  bool persist_pending();
  // Blocks until something is queued (true) or stop() was called and nothing is (false).
  bool wait_for_work();
  // Before persist_pending(): waits for more appends while the other replicas are a write quorum
  // without this one (LG11). Blocks; one thread.
  void gather();
  void stop();
  // For an orderly end, when nobody calls anything else any more: notes where the logs end, so that
  // the next start can tell damage there from a torn write. Blocks.
  Status close();
  // Fills a spare segment file ahead of need, beside persist_pending(). Blocks.
  void upkeep();
  [[nodiscard]] bool upkeep_is_due() const noexcept;

  // --- reads ---
  quorum::ReadReply read(StreamId stream, const quorum::ReadRequest& request);  // blocks
  // Calls `notify` once bytes beyond `lsn` may be read by appliers (at once if so already), from
  // this thread or the persisting one, with no latch held. kNotFound: no such stream.
  StatusOr<uint64_t> tail(StreamId stream, Lsn lsn, const std::function<void()>& notify);
  void cancel_tail(StreamId stream, uint64_t ticket);
  // Reads all of a stream and looks for damage, which status() then shows. Blocks.
  Status verify(StreamId stream);
  [[nodiscard]] std::vector<StreamStatus> status() const;
  [[nodiscard]] StatusOr<StreamStatus> status(StreamId stream) const;
  // Of status() what changes all the time; cheap.
  [[nodiscard]] StatusOr<quorum::ReplicaState> state(StreamId stream) const;
  [[nodiscard]] const LogStoreCounters& counters() const noexcept;
  [[nodiscard]] uint64_t pending_bytes() const noexcept;

 private:
  class Impl;
  explicit LogStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata
