// What the replay modes have in common: the parts they work with, and what the page store asks of
// them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "redo/redo.h"
#include "storenode/replay/counters.h"
#include "storenode/replay/log_cache.h"
#include "storenode/replay/streams.h"
#include "storenode/replay/wait_list.h"
#include "storenode/versions/version_db.h"
#include "storenode/versions/version_map.h"
#include "storenode/versions/version_store.h"

namespace strata::storenode {

// The parts of a page store; all thread-safe, all outlive the mode.
struct ReplayParts {
  VersionDb* db;
  VersionMap* map;
  VersionStore* store;
  LogCache* log_cache;
  Streams* streams;
  WaitList* waits;
  ReplayCounters* counters;
  // A version of the page could not be made: a worker says so, with no latch held.
  std::function<void(PageId page, Llsn llsn)> damaged;
};

// What attempt() says: an answer, an error, or what to wait for.
using Verdict = std::variant<PageAnswer, Status, WaitCondition>;

using StreamMarks = std::vector<std::pair<StreamId, StreamMark>>;

class Replay {
 public:
  virtual ~Replay() = default;
  // The log of a stream is replayed from here on. Called before its first scanned().
  virtual Status add_stream(StreamId stream, LogView* log, StreamMark from) = 0;
  // Quick scan came from `from` to `to`; `pages` have versions there that are not stored yet.
  // Called once these versions are in the map and before `to` is published. Does not block.
  virtual void scanned(StreamId stream, StreamMark from, StreamMark to,
                       const std::vector<PageId>& pages) = 0;
  // Tries to answer. Called by any thread, for any number of requests at a time. Blocks for disk
  // and log, not for what it says to wait for.
  virtual Verdict attempt(Ticket* ticket) = 0;
  // The answer if it is in memory, for a thread that must not wait, not even for a latch. Nothing:
  // attempt() says. What it answers attempt() would have answered at that moment.
  virtual std::optional<PageAnswer> page_at_hand(const GetPageRequest& request) = 0;
  // replayed_to() likewise.
  [[nodiscard]] virtual std::optional<StreamMark> replayed_to_at_hand(StreamId stream) const = 0;
  // One bounded piece of work in the background. False: there is none now. May be called by as many
  // threads at a time as workers_max() says. Errors: what stopped it, and may be tried again.
  virtual StatusOr<bool> step() = 0;
  [[nodiscard]] virtual uint32_t workers_max() const = 0;
  // Blocks until step() may find work (true), or stop_waiting() was called.
  virtual bool wait_for_work() = 0;
  virtual void stop_waiting(bool stop) = 0;
  // Every version of a section below it is handed to the store, or is not needed any more.
  virtual StreamMark replayed_to(StreamId stream) const = 0;
  // Makes everything up to what is returned durable, but for what lies in the version db.
  virtual StatusOr<StreamMarks> prepare_checkpoint() = 0;
  // Damage of the log that stopped all replay; OK: none. retry(): it may be mended.
  [[nodiscard]] virtual Status failure() const = 0;
  virtual void retry() = 0;
  // At each checkpoint: what is left alone and has not changed since the one before is replayed
  // now.
  virtual void ripen() {}
  // Whatever is left alone is replayed now: somebody waits for replayed_to().
  virtual void ripen_all() {}
  // Workers wait with what need not be done now: until it is known which old states are needed.
  virtual void hold_back(bool) {}
  // Wakes a worker that waits for the log itself.
  virtual void look_again() {}
  // A peer's good copy, sealed and verified, of a page that is damaged here: the page as of `as_of`
  // or later. kNotFound: that version is of no use here.
  virtual Status repair(PageId page, Llsn as_of, PageRef copy) = 0;
  // As of when a copy must be for repair().
  [[nodiscard]] virtual Llsn repair_from(PageId page, Llsn damaged) const = 0;
};

// --- for modes that keep versions ---

struct Choice {
  enum class Kind : uint8_t { kFound, kNeverWritten, kCollected } kind = Kind::kNeverWritten;
  Version version;
};
// The version that answers a request for a page with these versions (GP2).
[[nodiscard]] Choice choose(VersionList list, Llsn at_least, Llsn at_most) noexcept;
// What a request for a page of a space that is dropped, and reclaimed, gets.
[[nodiscard]] Status dropped_space(PageId page, Llsn dropped, const GetPageRequest& request);
// Reads the map and chooses. kNotFound and kOutOfRange say that there is none, and why.
StatusOr<Version> find_version(const ReplayParts& parts, const GetPageRequest& request);
// Reads a stored version. Nothing: it has just been collected; look for another one.
StatusOr<std::optional<PageAnswer>> read_stored(const ReplayParts& parts, PageId page,
                                                const Version& version);
// The stored version that answers, if map and cache have it in memory and nobody has a latch.
std::optional<PageAnswer> stored_at_hand(const ReplayParts& parts, const GetPageRequest& request);
// A stored version another one is made from. kNotFound: it has just been collected. kDataLoss: it
// is damaged, or missing although the map has it.
StatusOr<PageRef> read_base(const ReplayParts& parts, PageId page, Llsn llsn);
// The version's section from the log. Blocks. kDataLoss: it is damaged, or not known.
Status read_section(const ReplayParts& parts, const Version& version, std::string* section);
// What became of a request whose version should be stored by now and is not.
[[nodiscard]] Status not_replayed(PageId page, const Version& version);

// Applies the section; does not seal. The page is zeroes if it was never written or the section
// restarts the chain. kDataLoss: damaged, or a gap in the chain; names page, stream and lsn, and
// the page is unchanged.
Status apply_to(PageBuffer* buffer, PageId page, const Version& version,
                const redo::SectionView& section);
// The same to a copy of `base` (null: zeroes), sealed.
StatusOr<PageRef> apply_to_copy(const PageBuffer* base, PageId page, const Version& version,
                                const redo::SectionView& section);

}  // namespace strata::storenode
