// What MemoryPageSource wants of the storage below it, and of the registry. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/ids.h"
#include "base/status.h"
#include "pagefile/page_source.h"
#include "proto/memory_messages.h"

namespace strata::clients {

// What came of a call to storage nodes that a memory node has made.
struct WrittenThrough {
  bool nothing_to_do = false;              // nobody was asked anything
  std::vector<PageId> pages;               // that were written
  std::vector<proto::PoolAnswer> answers;  // by target; empty: nobody knows what came of it
};

// If its pages() are made from the log (PageSource::replays_log()), what the pool has is a copy of
// what storage has or will make: then nothing below is called but those pages.
class StorageBelow {
 public:
  virtual ~StorageBelow() = default;
  virtual PageSource* pages() = 0;
  // One call to all storage nodes in sync that a memory node makes: `write` is told the nodes and
  // in which sessions, and says what came of it. Blocks.
  using Through = absl::FunctionRef<WrittenThrough(const std::vector<proto::PoolTarget>& targets)>;
  virtual Status to_all_through(Through write) = 0;
  // Storage has the page with at least this llsn, written by somebody else.
  virtual void note_written(PageId id, Llsn llsn) = 0;
  // What tells one storage node again what a memory node wrote and no sync() has covered; called
  // in any thread, without latches. Empty: there is nobody any more; returns when no call of the
  // earlier one is under way.
  using WriteAgain = std::function<proto::PoolAnswer(const proto::PoolTarget& target)>;
  virtual void set_write_again(WriteAgain write_again) = 0;
};

// What storage lacks of a pool that is named no more.
enum class PoolLoss : uint8_t {
  kNothing,
  kUnknown,  // perhaps something: checkpoints in memory from before count for nothing
};

// Which content of the stream's pool the registry names: the next life of this node relies on that
// one, so no page may go past it to storage while it is named. Block, but for since(). Errors:
// those of the registry; fenced (somebody else has the stream). Thread-safe.
class PoolNaming {
 public:
  virtual ~PoolNaming() = default;
  virtual StatusOr<std::optional<uint64_t>> named() = 0;
  virtual Status name(uint64_t incarnation) = 0;
  virtual Status remove(PoolLoss loss) = 0;  // OK, too, if there is none
  // Checkpoints that the pool keeps from earlier epochs count for nothing (MPR4); as far as the
  // last of these calls has told.
  [[nodiscard]] virtual Epoch since() const = 0;
};

}  // namespace strata::clients
