// Replay into page files, one version per page (profile logdb). One worker, which reads the log by
// itself: there is no version map to be filled ahead of it.
//   SR1  Redo goes on at the replayed mark after a restart; pages that are newer skip what they
//        have.
//   SR2  A page that could not be replayed is marked broken before the replayed mark passes it, and
//        stays so until a section restarts its chain: its old state is not served as a newer one.
//   SR3  The files of a space go only once it is marked reclaimed, durably.
//   SR4  A peer's copy takes a page's place only if it is as of all that was replayed here when it
//        was asked for, and of every section that was passed over since. It may be ahead: sections
//        it holds already are skipped.
#pragma once

#include <map>
#include <memory>

#include "base/latch.h"
#include "storenode/replay/group_reader.h"
#include "storenode/replay/in_place_pages.h"
#include "storenode/replay/replay.h"

namespace strata::storenode {

class SingleReplay final : public Replay {
 public:
  SingleReplay(const ReplayParts& parts, PageSource* source, uint64_t cache_bytes)
      : parts_(parts), source_(source), pages_(source, cache_bytes) {}
  Status open();  // once, first; blocks

  Status add_stream(StreamId stream, LogView* log, StreamMark from) override;
  void scanned(StreamId, StreamMark, StreamMark, const std::vector<PageId>&) override {}
  Verdict attempt(Ticket* ticket) override;
  std::optional<PageAnswer> page_at_hand(const GetPageRequest& request) override;
  // One group, and spaces that may be reclaimed.
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
  void look_again() override;
  // The worker puts it in the page's place (SR4).
  Status repair(PageId page, Llsn as_of, PageRef copy) override;
  [[nodiscard]] Llsn repair_from(PageId page, Llsn damaged) const override;

  [[nodiscard]] const InPlacePages& pages() const noexcept { return pages_; }
  StatusOr<std::vector<SpaceId>> list_spaces() { return pages_.list_spaces(); }

 private:
  struct Copy {
    Llsn as_of;
    PageRef page;
  };
  Status reclaim_spaces();
  Status put_copies();
  Status put_copy(PageId page, const Copy& copy);
  void pass_over(PageId page, Llsn llsn);
  struct Wake;  // lives as long as a log may call it
  Status replay_section(const redo::GroupView& group, const redo::SectionView& section);
  StatusOr<PageRef> make(const redo::GroupView& group, const redo::SectionView& section,
                         const StatusOr<PageRef>& base) const;
  Status note_dropped(const redo::GroupView& group);
  Status break_page(PageId page, Llsn llsn, Lsn lsn, const Status& reason);
  Status mend_page(PageId page);
  [[nodiscard]] std::optional<BrokenPage> broken(PageId page) const;
  Status stop_at(const Status& status);

  const ReplayParts parts_;
  PageSource* const source_;
  InPlacePages pages_;
  StreamId stream_;
  LogView* log_ = nullptr;
  std::unique_ptr<GroupReader> reader_;
  std::shared_ptr<Wake> wake_;
  Lsn looked_to_;  // durable before the last look; the worker's
  mutable Mutex mutex_{LatchRank::kLeaf};
  std::map<PageId, BrokenPage> broken_ STRATA_GUARDED_BY(mutex_);
  std::map<PageId, Llsn> passed_over_
      STRATA_GUARDED_BY(mutex_);                             // of broken pages, the last section
  std::map<PageId, Copy> copies_ STRATA_GUARDED_BY(mutex_);  // peers', which the worker shall put
  Status failure_ STRATA_GUARDED_BY(mutex_);
};

}  // namespace strata::storenode
