// A kernel's log on a write quorum of storage nodes (wal/log_sink.h): what QuorumClient does, for
// threads that block.
//   QL1  open() has sealed the stream: whoever wrote it before is fenced from then on. Nothing is
//        decided until cut_at(), which begins the epoch at the end of the last whole group.
//   QL2  sync() returns OK once a write quorum has everything appended, however long that takes: as
//        long as this node is the stream's writer the storage nodes are asked again. late() says
//        meanwhile that they are waited for, and why. An error means that another node took the
//        stream over (fenced), or that give_up said so and nobody knows (kUnknown).
//        Both are final: the node must not answer for that log any more.
//   QL3  While a database is being founded, nothing that an earlier attempt left in the stream
//        counts, not even for whoever made it: a founder's last step is one that only the stream's
//        writer can do (the first control data). The log begins behind the last whole group there.
//   QL5  However much is appended at once goes out in pieces of whole groups (log_pieces.h), which
//        become durable one after the other.
//   QL4  What is damaged in the log being read is read from another storage node, if that one held
//        the same bytes when both were sealed (their histories say so) or knows them to be
//        quorum-durable. The damaged one mends itself later.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/data_format.h"
#include "base/latch.h"
#include "clients/storage/backlog_gate.h"
#include "clients/storage/leaving_replica.h"
#include "clients/storage/log_pieces.h"
#include "clients/storage/quorum_client.h"
#include "transport/calls/blocking_channel.h"
#include "wal/log_sink.h"

namespace strata::clients {

struct QuorumLogOptions {
  QuorumClientOptions client;
  quorum::Holder holder;
  bool founding = false;
  Lsn first_lsn = kFirstLsn;  // of a stream that nobody has written to
  uint64_t take_over_timeout_us = 30'000'000;
  uint64_t late_after_us = 10'000'000;  // then sync() is late (QL2)
  std::function<bool()> give_up;        // asked now and then while sync() waits; null: never (QL2)
  std::shared_ptr<BacklogGate> gate;    // writers wait at it; null: for nothing
};

class QuorumLogSink final : public LogSink, public LeavingReplica {
 public:
  // Takes the stream over (QL1). Blocks. Errors: fenced (by a higher epoch),
  // kUnavailable (too few storage nodes answered; says which), wrong_secret (that is why),
  // kDataLoss (quorum/recovery.h).
  // `world`'s executor runs.
  static StatusOr<std::unique_ptr<QuorumLogSink>> open(const transport::World& world,
                                                       const transport::Secret& secret,
                                                       QuorumLogOptions options);
  ~QuorumLogSink() override;

  [[nodiscard]] Lsn begin_lsn() const override;
  Status prepare_room(Lsn end) override;
  [[nodiscard]] Lsn room_end() const override;
  Status append(Lsn at, Bytes bytes) override;
  // In place of append(), of a log that is not made of groups: what is appended at once becomes
  // durable as a whole (WR1). At most LogPieces::kBytesMax.
  Status append_whole(Lsn at, std::string bytes);
  Status sync() override;
  StatusOr<size_t> read(Lsn at, char* out, size_t bytes) override;
  Status truncate_below(Lsn lsn) override;
  Status wait_for_readers(WaitInterrupt* interrupt) override {
    return options_.gate == nullptr ? ok_status() : options_.gate->wait(interrupt);
  }
  [[nodiscard]] Status late() const override;
  [[nodiscard]] bool is_stream() const override { return true; }
  Status cut_at(Lsn end) override;
  [[nodiscard]] std::string locate(Lsn lsn) const override;

  // Somebody waits for a storage node to apply what is durable. Does not block; any thread.
  void spread_news() { client_->spread_news(); }
  // The placement has changed (QC3 of quorum_client.h). Does not block.
  void follow(ReplicaSet replicas) { client_->follow(std::move(replicas)); }
  bool prepare_leave(const std::string& key, uint64_t generation, uint32_t write_quorum) override {
    return client_->prepare_leave(key, generation, write_quorum);
  }
  void cancel_leave() override { client_->cancel_leave(); }
  [[nodiscard]] std::vector<bool> well() const override;

  // OK as long as this node is the stream's writer as far as it knows. Does not block.
  [[nodiscard]] Status state() const;
  [[nodiscard]] Lsn durable_lsn() const;
  // The llsn bias that the log has at begin_lsn(), after attempts to found it that came to nothing.
  [[nodiscard]] uint64_t founding_bias() const noexcept { return founding_bias_; }
  [[nodiscard]] Epoch epoch() const noexcept { return options_.holder.epoch; }
  [[nodiscard]] StreamId stream() const noexcept { return options_.client.stream; }
  [[nodiscard]] std::vector<QuorumClient::ReplicaStatus> replicas() const;
  // QC5: wrong_secret or unsupported, if that is why some do not answer. Blocks as replicas().
  [[nodiscard]] Status check_usable() const;

 private:
  QuorumLogSink(const transport::World& world, const transport::Secret& secret,
                QuorumLogOptions options);
  QuorumEvents events();
  Status wait_chosen();
  void note_late(uint64_t waited_us);
  void note_in_time();
  [[nodiscard]] std::string why_late(uint64_t waited_us) const;
  Status find_founding_start();
  bool read_elsewhere(Lsn end);
  StatusOr<size_t> read_around(Lsn at, char* out, size_t bytes, const Status& damage);
  [[nodiscard]] uint64_t same_bytes(size_t replica, Lsn at) const;
  StatusOr<size_t> read_once(Lsn at, char* out, size_t bytes);
  StatusOr<size_t> read_from(transport::BlockingChannel* channel,
                             const quorum::ReadRequest& request, uint64_t timeout_us,
                             char* out) const;
  // Waits until `done` or the end; false: neither came in time.
  template <class Done>
  bool wait(uint64_t timeout_us, Done done);
  [[nodiscard]] ChosenLog chosen() const;  // once there is one

  const QuorumLogOptions options_;
  const transport::Secret secret_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  // never changes once open() has returned
  std::optional<ChosenLog> chosen_ STRATA_GUARDED_BY(mutex_);
  std::optional<Lsn> begun_ STRATA_GUARDED_BY(mutex_);
  Lsn durable_ STRATA_GUARDED_BY(mutex_);
  Status ended_ STRATA_GUARDED_BY(mutex_);
  Status late_ STRATA_GUARDED_BY(mutex_);
  std::atomic<bool> is_late_{false};  // late_ is not OK
  // The kernel's thread that owns the log at the time.
  Lsn appended_;
  LogPieces pieces_;
  uint64_t founding_bias_ = 0;
  Lsn founding_start_;  // QL3
  std::atomic<bool> writing_{false};
  std::unique_ptr<transport::BlockingChannel>
      reader_;                            // of the chosen replica, as long as it answers
  size_t reader_replica_ = 0;             // which that is
  size_t elsewhere_tried_ = 0;            // how often another one was taken
  std::unique_ptr<QuorumClient> client_;  // last: its events end first
};

}  // namespace strata::clients
