// The holder of an epoch appends to its replicas, pipelined; a write quorum makes bytes durable
// (K9's "durable" of a replicated log). A state machine without clock, threads or sockets. Not
// thread-safe.
//
// Each replica, as the writer sees it:
//   kAsking ──begun, near enough──> kStreaming ──gap: goes back to its end──┐
//      ^ └──too far behind──> kBehind         ^───────────────────────────┘
//      └── tick ── kResting <── lost, disk trouble, full ── any of them
//   WR1  quorum_durable() grows only, and only to what a write quorum of voting replicas that have
//        begun this epoch said is durable in them without a gap; and only to the end of something
//        that was appended at once, so that nobody applies half of it.
//   WR2  After the first reply that tells of a higher epoch nothing is acknowledged or sent.
//   WR3  A slow or dead replica never keeps the others waiting. Bytes are kept until they are
//        quorum-durable, and beyond that for slow replicas up to retain_bytes; who needs older ones
//        is told to fetch them from the others.
//   WR4  A replica that lost what it had acknowledged counts again only when it holds everything
//        this writer had sent by the time it came back.
//   WR5  The log is not cut off above what the slowest replica lacks, as long as that is at most
//        keep_bytes_max: the others are all it can get it from. Of one that was not heard of since
//        this tenure began nobody knows what it lacks.
//   WR6  A replica that is another node now is one nobody has heard of: what the node before it
//        said counts for nothing that is not quorum-durable yet, and it counts itself only when it
//        holds everything this writer had sent when it came (WR4).
//   WR7  While a replica is about to leave, bytes are quorum-durable only if they are so with it
//        and without it. It may leave once all that is quorum-durable is so without it, too.
//   WR8  Every append says what is quorum-durable, and that is enough while one follows the other:
//        a message of its own says it only when tell() asks for it. Whoever runs the writer does so
//        a moment after the last append, and at once when somebody waits for a replica to know.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quorum/messages.h"

namespace strata::quorum {

// By replica: which one it was in an earlier placement; nothing: it was none.
using ReplicasBefore = std::vector<std::optional<ReplicaIndex>>;

class Writer {
 public:
  // `tenure` is what a finished recovery chose: everything below its start is quorum-durable.
  Writer(const QuorumOptions& options, Tenure tenure);

  // More of the log, from end() on. kResourceExhausted: too much waits for a quorum (retain_bytes),
  // try again when quorum_durable() has grown; when nothing waits anything is taken. What is
  // appended at once becomes durable at once, so pieces much smaller than retain_bytes are better.
  // Errors: fenced.
  Status append(std::string bytes);
  [[nodiscard]] bool has_room(uint64_t bytes) const noexcept {
    return end_ == quorum_durable_ ||
           end_.value + bytes - quorum_durable_.value <= options_.retain_bytes;
  }
  [[nodiscard]] Lsn end() const noexcept { return end_; }
  [[nodiscard]] Lsn quorum_durable() const noexcept { return quorum_durable_; }
  // Where the log may begin when its user does not need what is below `wanted`: there or before.
  // WR5.
  [[nodiscard]] Lsn keep_from(Lsn wanted) const noexcept;
  [[nodiscard]] const Tenure& tenure() const noexcept { return tenure_; }
  // The higher epoch, once fenced.
  [[nodiscard]] std::optional<Epoch> fenced_by() const noexcept { return fenced_by_; }

  // WR6: the placement has changed. `before` has for each replica there is now which one it was;
  // nothing: it is a node that was none. Requests to nodes that are none any more are not sent, and
  // their replies are ignored. More than half of the replicas are a write quorum; fewer replicas
  // than before only after one may_leave().
  void follow(uint32_t write_quorum, const ReplicasBefore& before);
  // WR7: that replica is about to leave; of the others, `write_quorum` will be one, which is more
  // than half. At most one at a time.
  void begin_leave(ReplicaIndex leaving, uint32_t write_quorum);
  // It stays after all.
  void cancel_leave();
  [[nodiscard]] bool leaves() const noexcept { return leaving_.has_value(); }
  [[nodiscard]] bool may_leave() const;

  std::vector<Outgoing> take_requests();
  void on_reply(uint64_t id, Reply reply);
  void on_lost(uint64_t id);
  void tick();

  // WR8: a replica has not heard of all that is quorum-durable, and is not about to.
  [[nodiscard]] bool has_news() const noexcept;
  // Tells the replicas that have not heard that everything below `lsn` is.
  void tell(Lsn lsn);

  enum class ReplicaPhase { kAsking, kStreaming, kBehind, kResting };
  struct ReplicaStatus {
    ReplicaPhase phase;
    Lsn durable;
    bool votes;
    Status last_error;
  };
  [[nodiscard]] std::vector<ReplicaStatus> status() const;

 private:
  struct Sent {
    ReplicaIndex replica;
    Lsn from;
    Lsn to;
    Lsn told;  // quorum-durable, as the request says
  };
  struct Replica {
    ReplicaPhase phase = ReplicaPhase::kAsking;
    Lsn durable;                  // in it, as it said last
    Lsn needs;                    // what is below it has, votes or not; zero: not heard of
    bool votes = false;           // durable counts
    Lsn next;                     // what is sent next, in kStreaming
    uint64_t in_flight = 0;       // bytes
    uint32_t news_in_flight = 0;  // requests without bytes
    Lsn told;                     // the quorum_durable it has heard of or will
    Lsn voter_end;                // of the last begin; WR4
    Status last_error;
  };
  struct Piece {
    Lsn at;
    std::shared_ptr<const std::string> bytes;
  };

  void ask(ReplicaIndex index);
  void stream(ReplicaIndex index);
  void stream_all();
  void send_bytes(ReplicaIndex index);
  void send_news(ReplicaIndex index);
  [[nodiscard]] static bool lacks_news(const Replica& replica, Lsn lsn) noexcept;
  void rest(ReplicaIndex index, Status why);
  void fall_behind(ReplicaIndex index);
  void forget_sent(ReplicaIndex index);
  void rename_replicas(const ReplicasBefore& now);
  void on_begin(ReplicaIndex index, const ChangeReply& reply);
  void on_append(ReplicaIndex index, const Sent& sent, const ChangeReply& reply);
  bool note_fenced(const ChangeReply& reply);
  bool note_durable(ReplicaIndex index, const ReplicaState& state);
  void count();
  [[nodiscard]] Lsn reached(std::optional<ReplicaIndex> without, uint32_t write_quorum) const;
  void trim();
  [[nodiscard]] Lsn whole_until(Lsn reached) const;
  [[nodiscard]] std::string bytes_from(Lsn at) const;
  [[nodiscard]] Lsn retained_begin() const noexcept {
    return retained_.empty() ? end_ : retained_.front().at;
  }
  uint64_t send(ReplicaIndex index, decltype(Outgoing::body) body);

  QuorumOptions options_;
  const Tenure tenure_;
  Lsn end_;
  Lsn quorum_durable_;
  std::optional<Epoch> fenced_by_;
  std::vector<Replica> replicas_;
  struct Leaving {
    ReplicaIndex replica;
    uint32_t write_quorum;  // of the others
  };
  std::optional<Leaving> leaving_;
  std::deque<Piece> retained_;  // gapless, ends at end_
  std::map<uint64_t, Sent> sent_;
  uint64_t last_id_ = 0;
  std::vector<Outgoing> outgoing_;
};

}  // namespace strata::quorum
