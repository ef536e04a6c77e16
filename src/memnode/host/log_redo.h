// The logs of several servers, done again on the pages that storage has: what a memory node that
// has ended held in its memory only. One thread.
//
//   LRD1  The groups of all logs are applied in the order of their llsns, which is each page's
//         order too (K7, K8): a section applies to the version that it names, one that the page has
//         already is left out, and anything else is damage, told with log, position and page.
//   LRD2  Nothing is written before read() has cut every log off behind its last whole group: what
//         was read is durable by then, so no page in storage can be newer than its log. A log whose
//         server goes on is read as far only as that has said that it is durable (live_log.h), and
//         is not cut.
//   LRD3  Every page that a log names is written, also one that has all of it: copies of it may
//         differ in what was written lately (WP3 of clients/storage).
//   LRD6  Which spaces there are is asked once all logs were read: a space that one of them names
//         was made before.
//   LRD4  Pages of a space that is gone, or that a log or the stored list of pending deletes names
//         as about to go, are left out: whoever left such a space forgot what it had not written.
//   LRD5  At most dirty_pages_max pages are in memory; with more, all are written, synced and
//         forgotten. Redo that broke off anywhere is begun again from the start.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/status.h"
#include "pagefile/page_source.h"
#include "redo/redo.h"
#include "wal/log_reader.h"

namespace strata::memnode {

// The system space's page that lists the spaces whose files are to be deleted.
constexpr PageId kPendingDeletesPage{kSystemSpace, 2};

struct LogToRedo {
  StreamId stream;
  LogSink* sink = nullptr;  // outlives the redo; nobody appends to it meanwhile
  Lsn from;                 // its checkpoint
  uint64_t bias = 0;        // of the log there
  // What read() finds: behind the last whole group.
  Lsn end = {};
  uint64_t bias_at_end = 0;
};

class LogRedo {
 public:
  struct Options {
    size_t dirty_pages_max = 16384;
  };
  struct Counters {
    uint64_t groups = 0;
    uint64_t log_bytes = 0;
    uint64_t applied = 0;        // sections
    uint64_t already_there = 0;  // sections that their page had
    uint64_t skipped = 0;        // sections of spaces that are gone
    uint64_t pages_read = 0;
    uint64_t pages_written = 0;
  };
  // `storage` outlives it.
  LogRedo(PageSource* storage, std::vector<LogToRedo> logs, Options options);

  // Once each, read() first. Both block for as long as it takes. Errors: kDataLoss (LRD1, LRD2),
  // and whatever the logs and storage say; interrupted: the thread's InterruptScope.
  Status read();   // to the end of each log
  Status apply();  // OK: storage has all of it durably

  [[nodiscard]] const std::vector<LogToRedo>& logs() const noexcept { return logs_; }
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }

 private:
  struct Page {
    AlignedBytes bytes{kPageBytes};
    bool damaged = false;  // in storage; zeroes here until an image comes
  };
  struct Head;
  Status find_gone_spaces();
  Status read_log(LogToRedo* log);
  [[nodiscard]] bool is_gone(SpaceId space) const;
  Status apply_group(const LogToRedo& log, const redo::GroupView& group);
  Status apply_section(const LogToRedo& log, const redo::GroupHeader& header,
                       const redo::SectionView& section);
  StatusOr<Page*> fetch(PageId id);
  Status write_all();
  [[nodiscard]] Status damage(const LogToRedo& log, const redo::GroupHeader& header, PageId page,
                              const std::string& what) const;

  PageSource* const storage_;
  const Options options_;
  std::vector<LogToRedo> logs_;
  std::set<SpaceId> present_;
  std::set<SpaceId> gone_;
  std::map<PageId, Page> pages_;
  AlignedBytes batch_;
  Counters counters_;
};

}  // namespace strata::memnode
