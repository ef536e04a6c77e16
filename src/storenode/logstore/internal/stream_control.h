// What a stream must remember besides its bytes: the promise, the epoch history, where the log
// begins and where it was last cut. A file with two slots written in turns.
//   SC1  publish() is durable when it returns OK. A crash during it leaves the old state or the new
//        one.
//   SC2  After a failed publish() nobody knows which of the two is on disk, so the next one writes
//        a whole new file and puts it in place of the old one before it says OK. Until then the
//        stream must not change anything that either state forbids: its owner refuses all changes.
//   SC3  open() refuses a foreign, newer or damaged file by path; what it returns is durable.
// Not thread-safe; owned by whoever persists.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "io/file_system.h"
#include "quorum/history.h"
#include "quorum/messages.h"

namespace strata::logstore {

constexpr Lsn kNeverVotes{std::numeric_limits<uint64_t>::max()};
// A longer history has to be shortened before it is published (LG13).
constexpr size_t kHistoryEntriesMax = 1000;

struct ControlState {
  quorum::Holder promised;
  quorum::History history;  // may go on beyond the end while a replica catches up
  Lsn start;
  Lsn voter_end = kNeverVotes;  // the replica votes once its log reaches here; 0: it does
  // Segments below `cut_sequence` hold no bytes from `cut_lsn` on, whatever their files say.
  uint64_t cut_sequence = 0;
  Lsn cut_lsn;
  uint64_t last_sequence = 0;  // a segment with this number or a later one must exist; 0: none
  Lsn quorum_durable;          // at least; newer news is in the segments
  bool operator==(const ControlState&) const = default;
};

class StreamControl {
 public:
  // Nothing is written before the first publish().
  StreamControl(FileSystem* fs, std::string directory, std::string path, uint64_t cluster_id,
                StreamId stream);
  // kNotFound, kDataLoss, unsupported (newer format), wrong_database. Blocks.
  Status open(ControlState* state);
  // Blocks. kResourceExhausted when the disk is full. Asserts the length of the history.
  Status publish(const ControlState& state);

 private:
  Status write_new_file(const ControlState& state);
  FileSystem* const fs_;
  const std::string directory_;
  const std::string path_;
  const uint64_t cluster_id_;
  const StreamId stream_;
  std::unique_ptr<File> file_;  // null: absent, or not to be trusted (SC2)
  uint64_t slot_sequence_ = 0;
};

}  // namespace strata::logstore
