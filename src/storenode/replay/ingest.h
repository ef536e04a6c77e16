// Quick scan: reads the quorum-durable log and enters every section in the version map, without
// applying anything. One thread at a time, but for add_stream(), failure() and retry().
//   IN1  Nothing at or beyond the durable Lsn is read (S1, GR1).
//   IN2  Versions are in the map, which keeps them in memory (VM7), before the position behind
//        them is published (VM1). Before that the scanned mark is written, further than they lie.
//   IN3  After a restart scanning begins at the replayed mark, so that what is not stored, or was
//        in memory only, is known again. Below the scanned mark what the map has is left as it is,
//        and what it collected does not come back; above, it has nothing.
//   IN4  A stream whose log is damaged stops there; what was scanned before is served on.
//   IN5  In smart mode log is left alone for `scan_delay_us` after it has come, but not while a
//        request waits for it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "base/latch.h"
#include "base/status.h"
#include "storenode/replay/group_reader.h"
#include "storenode/replay/replay.h"

namespace strata::storenode {

class Ingest {
 public:
  Ingest(const ReplayParts& parts, Replay* replay) : parts_(parts), replay_(replay) {}

  // Also beside step(). `begin`: where the stream began, for a page store that has not seen it yet.
  // That its log begins too late is not returned but kept (failure()): what is stored can be
  // served.
  Status add_stream(StreamId stream, LogView* log, Lsn begin);
  // Scans up to `bytes` of one stream, and removes spaces whose drop is below the horizon. False:
  // nothing is durable that is not scanned. Errors (of the version store): may be tried again.
  StatusOr<bool> step(uint64_t bytes);

  // What stopped a stream; OK: nothing.
  [[nodiscard]] Status failure() const;
  void retry();  // the damage may be mended

 private:
  struct Stream {
    StreamId id;
    LogView* log;
    std::unique_ptr<GroupReader> reader;
    StreamMark end;  // published
    Lsn known_to;    // IN3: the scanned mark of the last life
    Lsn marked_to;   // the scanned mark of this one
    Lsn needs;       // the first byte it needed when it was added
    Status failure;  // of who holds mutex_, once the stream is in streams_
  };
  struct Found {
    std::vector<VersionMap::NewVersion> added;
    std::vector<PageId> pending;
    VersionDb::Batch marks;
    StreamMark end;
    uint64_t groups = 0;
    uint64_t sections = 0;
  };
  Status reclaim_spaces();
  Stream* next_stream();
  [[nodiscard]] size_t stream_count() const;
  StatusOr<bool> scan(Stream* stream, uint64_t bytes);
  Status publish(Stream* stream, Found* found);
  Status start_over(Stream* stream, const Status& status) const;
  Status collect_group(Stream* stream, const redo::GroupView& group, Found* found);
  Status add_section(Stream* stream, const redo::GroupView& group, const redo::SectionView& section,
                     Found* found);
  StatusOr<bool> is_known(PageId page, Llsn llsn, bool* pending);
  void fail(Stream* stream, const Status& status);
  Status check_begin(const Stream& stream) const;

  const ReplayParts parts_;
  Replay* const replay_;
  size_t next_ = 0;
  mutable Mutex mutex_{LatchRank::kLeaf};
  // They are added, never removed.
  std::vector<std::unique_ptr<Stream>> streams_ STRATA_GUARDED_BY(mutex_);
};

}  // namespace strata::storenode
