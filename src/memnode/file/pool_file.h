// The file of a pool: a region whose bytes are the pool's state, its slots' headers and its pages.
// It outlives the process. Not thread-safe.
//   MF1  A content has an incarnation, random and not 0. What is lost, damaged or discarded ends
//        it; the next one has another, in the same file: a peer that sleeps with a mapping would
//        keep a second file's memory.
//   MF2  What an earlier process left is used only after every header and every published page was
//        verified; one failure discards all of it, with a line in the log. Any bytes may be there.
//   MF3  A file of another stream, memory node or cluster is not touched.
//   MF4  The last user is kept beyond contents: who was refused once stays refused.
//   MF5  What an earlier boot of the machine left is discarded, unless the medium is persistent and
//        was so during the content's whole life: a file system that lost its last writes would have
//        pages without their headers, and a page that storage lacks would be missed by nobody.
//   MF6  One process uses it at a time.
//   MF7  On a persistent medium what was answered for is durable, in the order that PSL9 asks for;
//        so is the end of a content before anything of it changes, and the next one's emptiness
//        before it has an incarnation. If something cannot be made durable, the content ends: what
//        the kernel has given up nobody can tell, and a later sync that goes well says nothing of
//        it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/ids.h"
#include "base/status.h"
#include "memnode/file/state_records.h"
#include "memnode/pool/pool.h"
#include "transport/regions/region.h"

namespace strata::memnode {

// Names one run of the machine's operating system.
using Boot = std::array<uint64_t, 2>;

struct PoolFileOptions {
  std::string path;
  StreamId stream;
  uint64_t node = 0;         // whose it is: a number of the memory node in its cluster; not 0
  PoolOptions pool;          // slots: of a new file; one that is there keeps its number
  bool persistent = false;   // the medium keeps what was synced (MF7)
  std::optional<Boot> boot;  // instead of the machine's: for tests
};

class PoolFile {
 public:
  // Opens it, or makes it. Blocks: a new file's blocks are allocated, an old one's pages are read.
  // Errors: wrong_database (MF3), in_use (MF6), kResourceExhausted, kInternal.
  static StatusOr<std::unique_ptr<PoolFile>> open(const PoolFileOptions& options);
  PoolFile(const PoolFile&) = delete;
  PoolFile& operator=(const PoolFile&) = delete;

  // The slots. Ends with the content: discard() puts another one in its place.
  [[nodiscard]] Pool* pool() noexcept { return pool_.get(); }
  [[nodiscard]] const std::shared_ptr<transport::Region>& region() const noexcept {
    return region_;
  }
  [[nodiscard]] uint32_t slots() const noexcept { return slots_; }
  // In the region: of the first slot.
  [[nodiscard]] uint64_t headers_at() const noexcept { return kStateBytes; }
  [[nodiscard]] uint64_t pages_at() const noexcept { return pages_at(slots_); }
  [[nodiscard]] uint64_t incarnation() const noexcept { return incarnation_; }
  // The content is one of an earlier process.
  [[nodiscard]] bool found() const noexcept { return found_; }

  // The file is gone, and its memory given back, even where a peer has it mapped: he reads zeros,
  // which are no generation. Nothing else may be asked of it afterwards.
  void remove() const;

  // MF1: all pages go. Nobody fills or writes a slot meanwhile. In three steps, persist() behind
  // each of them (MF7) and nothing else between: there is no content, slots are free, there is one.
  void end_content();
  void begin_content();
  void name_content();
  // All of them. Blocks if the medium is persistent. Errors: kInternal; the content has ended.
  Status discard();
  // MF7: what was stored is durable. Blocks. Nothing, where the medium is not persistent.
  Status persist() const;
  [[nodiscard]] bool persistent() const noexcept { return options_.pool.persistent; }

  // fenced: not larger than the last one.
  Status accept(const StateRecords::User& user);
  [[nodiscard]] StateRecords::User user() const noexcept { return state_.user(); }
  // conflict: before the last one, by epoch, then by Lsn.
  Status set_checkpoint(const StateRecords::Checkpoint& checkpoint);
  [[nodiscard]] StateRecords::Checkpoint checkpoint() const noexcept { return state_.checkpoint(); }

  // Of a region for so many slots. A user's node reads headers and pages by these places: a change
  // raises kPoolLayout (proto/methods.def).
  [[nodiscard]] static constexpr uint64_t pages_at(uint32_t slots) noexcept {
    return kStateBytes + (uint64_t{slots} * sizeof(SlotHeader) + 4095) / 4096 * 4096;
  }
  [[nodiscard]] static constexpr uint64_t region_bytes(uint32_t slots) noexcept {
    return pages_at(slots) + uint64_t{slots} * kPageBytes;
  }

 private:
  PoolFile(const PoolFileOptions& options, std::shared_ptr<transport::Region> region,
           uint32_t slots);
  [[nodiscard]] PoolMemory memory() const noexcept;
  Status use_what_is_there();
  Status keep_found();
  Status sync(uint64_t bytes) const;

  const PoolFileOptions options_;
  const std::shared_ptr<transport::Region> region_;
  const uint32_t slots_;
  const Boot boot_;
  StateRecords state_;
  std::unique_ptr<Pool> pool_;
  uint64_t incarnation_ = 0;
  bool found_ = false;
};

}  // namespace strata::memnode
