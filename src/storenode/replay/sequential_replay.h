// Replay by one worker that goes through the log in order and makes every version of every page.
//   SQ1  All versions of sections below replayed() are stored, but those whose page was damaged.
//   SQ2  kEager: a request waits until all log up to its llsn is replayed. kFiltered: until the
//        page's own last section at or below its llsn is.
//   SQ3  Whoever copies a page as of an llsn below replayed() waits for no replay (CO1). What the
//        horizon lets go is passed over, so the oldest kept version may be one that the worker does
//        not reach for long, under load never. It restarts the page's chain then (VM4): its own
//        section makes it.
// One stream: the profiles with one sequential worker have one writer.
#pragma once

#include <atomic>
#include <memory>

#include "base/latch.h"
#include "storenode/replay/group_reader.h"
#include "storenode/replay/replay.h"

namespace strata::storenode {

enum class SequentialWait : uint8_t { kEager, kFiltered };

class SequentialReplay final : public Replay {
 public:
  SequentialReplay(const ReplayParts& parts, SequentialWait wait) : parts_(parts), wait_(wait) {}

  Status add_stream(StreamId stream, LogView* log, StreamMark from) override;
  void scanned(StreamId stream, StreamMark from, StreamMark to,
               const std::vector<PageId>& pages) override;
  Verdict attempt(Ticket* ticket) override;
  std::optional<PageAnswer> page_at_hand(const GetPageRequest& request) override;
  StatusOr<bool> step() override;
  [[nodiscard]] uint32_t workers_max() const override { return 1; }
  bool wait_for_work() override;
  void stop_waiting(bool stop) override;
  [[nodiscard]] StreamMark replayed_to(StreamId stream) const override;
  [[nodiscard]] std::optional<StreamMark> replayed_to_at_hand(StreamId stream) const override {
    return parts_.waits->replayed_at_hand(stream);
  }
  StatusOr<StreamMarks> prepare_checkpoint() override;
  [[nodiscard]] Status failure() const override;
  void retry() override;
  Status repair(PageId page, Llsn, PageRef copy) override {
    const Llsn llsn{header_of(copy->bytes)->llsn};
    return parts_.map->replace(page, {llsn, std::move(copy)});
  }
  [[nodiscard]] Llsn repair_from(PageId, Llsn damaged) const override { return damaged; }

 private:
  Status replay_section(const redo::GroupView& group, const redo::SectionView& section);
  StatusOr<std::optional<Version>> wanted(PageId page, Llsn llsn);
  StatusOr<PageRef> make(const Version& version, const redo::SectionView& section);
  Status stop_at(const Status& status);
  Verdict answer_when_replayed(const GetPageRequest& request);
  StatusOr<PageAnswer> make_for_peer(PageId page, const Version& version) const;

  const ReplayParts parts_;
  const SequentialWait wait_;
  StreamId stream_;
  LogView* log_ = nullptr;
  std::unique_ptr<GroupReader> reader_;
  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  uint64_t scanned_ STRATA_GUARDED_BY(mutex_) = 0;  // Lsn
  uint64_t replayed_ STRATA_GUARDED_BY(mutex_) = 0;
  Status failure_ STRATA_GUARDED_BY(mutex_);
  bool stop_ STRATA_GUARDED_BY(mutex_) = false;
};

}  // namespace strata::storenode
