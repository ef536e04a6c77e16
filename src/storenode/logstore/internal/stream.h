// One stream of the log store: its promise, history, segments and ends.
//
//   made ──seal/catch_up──> sealed ──begin──> begun ──append...──┐
//                           ^  ^───catch_up───┘  ^───────────────┘
//                           └── seal of a higher epoch
//   A replica accepts appends of epoch E while promised == last epoch of its log == E.
//
// Changes come from the persister, one at a time; a change either happens wholly or leaves
// everything as it was. Reads come from any thread. What both need changes under mutex_.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/latch.h"
#include "storenode/logstore/internal/segment.h"
#include "storenode/logstore/internal/spares.h"
#include "storenode/logstore/internal/stream_control.h"
#include "storenode/logstore/log_store.h"

namespace strata::logstore {

// What the streams of a store share.
struct StoreContext {
  FileSystem* fs = nullptr;
  LogStoreOptions options;
  std::unique_ptr<Spares> spares;
  LogStoreCounters counters;
};

// "log-<stream>-<sequence>-<start>.seg", all in hex; nothing when it is another file's name.
struct SegmentName {
  StreamId stream;
  uint64_t sequence = 0;
  Lsn start;
};
std::optional<SegmentName> parse_segment_name(const std::string& name);
std::string segment_name(const SegmentName& name);
std::string control_name(StreamId stream);
std::optional<StreamId> parse_control_name(const std::string& name);

class Stream {
 public:
  Stream(StoreContext* context, StreamId id);

  // --- the persister ---
  // Reads what an earlier life left. The folder's names are durable already.
  Status open(std::vector<SegmentName> names);
  // Writes a new stream's control file.
  Status make(const quorum::StreamOrigin& origin);
  quorum::SealReply seal(const quorum::SealRequest& request);
  quorum::ChangeReply begin(const quorum::BeginRequest& request);
  // Gets the log ready for the bytes: cuts what differs, promises the epoch. OK: stage() them.
  quorum::ChangeReply prepare_catch_up(const quorum::CatchUpRequest& request);
  // OK: stage() the bytes.
  quorum::ChangeReply check_append(const quorum::AppendRequest& request);
  // Adds to the batch; nothing is written yet. On failure nothing was added.
  quorum::ChangeReply stage(Lsn at, Bytes bytes, Lsn quorum_durable);
  [[nodiscard]] bool has_staged() const noexcept { return !staged_.empty(); }
  // The batch: write_staged and sync_staged of every stream, then for each commit_staged, or
  // drop_staged if either failed.
  Status write_staged();
  Status sync_staged();
  // Returns who waits for what became readable.
  [[nodiscard]] std::vector<std::function<void()>> commit_staged();
  void drop_staged();
  quorum::ChangeReply truncate_prefix(Lsn lsn);
  quorum::ChangeReply repair(Lsn from, Bytes bytes);
  // Makes the end provable for the next life. Called when the store is closed in order.
  Status close();
  [[nodiscard]] bool wants_spare() const noexcept;

  // --- any thread ---
  quorum::ReadReply read(const quorum::ReadRequest& request);
  // False: readable already, `notify` was not kept.
  bool tail(Lsn lsn, std::function<void()> notify, uint64_t* ticket);
  void cancel_tail(uint64_t ticket);
  Status verify();
  [[nodiscard]] quorum::ReplicaState state() const;
  [[nodiscard]] StreamStatus status() const;
  // Not OK: open() failed, nothing else may be called but status().
  [[nodiscard]] const Status& failure() const noexcept { return failure_; }
  void set_failure(Status failure) { failure_ = std::move(failure); }

 private:
  // What became of a request for a tenure's log.
  struct Fit {
    Status status;
    Lsn next;                // bytes from here on are needed
    bool reset = false;      // nothing of this log is of use: it starts at the tenure's base
    bool strangers = false;  // no epoch in common
  };
  // A segment with the bytes read from it and where they end in it.
  struct Span {
    SegmentPtr segment;
    Lsn from;
    Lsn to;
    Lsn known_end;
  };

  // Opening.
  void drop_void(std::vector<SegmentName>* names);
  Status load_segment(const SegmentName& name);
  void check_chain();
  Status find_end();
  Status find_end_of(Segment* last);
  Status lose_tail(const std::string& what);

  quorum::ChangeReply reply(Status status) const;
  quorum::ChangeReply refuse(Status status, Lsn next) const;
  quorum::ChangeReply begin_later(const quorum::BeginRequest& request);
  Status check_holder(const quorum::Holder& holder) const;
  StatusOr<std::optional<Lsn>> agreed_without_epoch(const quorum::LogShape& chosen) const;
  Fit fit(const quorum::Tenure& tenure) const;
  quorum::History adopted(const quorum::Tenure& tenure, const Fit& fit) const;
  Status make_durable(ControlState* next);
  Status publish(ControlState next);
  Status ensure_control();
  Status cut(ControlState next, const Fit& fit);
  [[nodiscard]] std::vector<Span> spans_locked(Lsn from, Lsn to) const;
  Status read_spans(const std::vector<Span>& spans, std::string* out) const;
  Status read_range(Lsn from, Lsn to, std::string* out);
  bool same_bytes(Lsn at, Bytes bytes, Status* failure);
  [[nodiscard]] uint64_t room_in_active() const noexcept;
  Status roll(Lsn lsn, Epoch epoch);
  StatusOr<SegmentPtr> make_segment(const SegmentInfo& info);
  void close_active();
  void drop_segments(const std::vector<SegmentPtr>& dropped);
  void remove_garbage();
  Status repair_segment(size_t index, const LogDamage& damage, Bytes bytes);
  Status replace_segment(size_t index, const std::string& image, const SegmentInfo& info,
                         uint32_t salt);
  Status restore_front(const LogDamage& damage, Bytes bytes);

  // Called with mutex_, or by the persister: the analysis knows no either-or.
  [[nodiscard]] quorum::ReplicaState state_locked() const noexcept;
  [[nodiscard]] Lsn readable_end() const noexcept {
    return std::min(quorum_durable_, durable_end_);
  }
  [[nodiscard]] Lsn known_end_of(size_t index) const noexcept;
  [[nodiscard]] std::vector<LogDamage> damages_locked() const;
  void remember_locked(Bytes appended);
  [[nodiscard]] Lsn staged_end() const noexcept { return Lsn{durable_end_.value + staged_.size()}; }

  StoreContext* const context_;
  const StreamId id_;
  StreamControl control_file_;
  Status failure_;

  mutable Mutex mutex_{LatchRank::kLogStream};
  // Written by the persister under mutex_, so it reads them without: no annotation says that.
  ControlState control_;  // what is durable
  Lsn durable_end_;
  Lsn quorum_durable_;                // the largest heard of; may lie beyond the end
  std::vector<SegmentPtr> segments_;  // in order of starts; what counts begins where the next does
  std::vector<LogDamage> holes_;      // ranges of which no file exists
  uint64_t cuts_ = 0;                 // grows when bytes are cut off
  std::string recent_;                // the bytes before durable_end_, as they were appended
  std::map<uint64_t, std::pair<Lsn, std::function<void()>>> tails_ STRATA_GUARDED_BY(mutex_);
  uint64_t last_ticket_ STRATA_GUARDED_BY(mutex_) = 0;

  // The persister's own.
  bool control_trusted_ = true;  // false after a failed publish (SC2)
  uint64_t next_sequence_ = 1;
  SegmentPtr active_;  // the last of segments_, or null: the next append makes a new one
  std::vector<std::string> garbage_;
  std::string staged_;  // bytes from durable_end_ on
  Lsn staged_quorum_durable_;
};

}  // namespace strata::logstore
