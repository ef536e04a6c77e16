// Where pages come from and go to. What bufpool asks for; implemented by local files
// (pagefile/local_page_source.h) and by clients of storage or memory nodes. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "base/ids.h"
#include "base/status.h"
#include "page/page.h"

namespace strata {

constexpr size_t kWriteBatchPages = 64;
constexpr size_t kReadBatchPages = 16;

using ReadBatchDone = absl::AnyInvocable<void()>;

// Of a page that is written: where in the log its changes lie that the source has not got yet.
struct PageChanges {
  Lsn first;  // of the first of them
  Lsn end;    // behind the last group that touched the page; durable (K9)
};

// A place in the log: everything before it is in the memory tier or in storage.
struct MemoryCheckpoint {
  Lsn lsn;
  uint64_t llsn_bias = 0;  // of the log there
};

class PageSource {
 public:
  virtual ~PageSource() = default;
  // Reads a page whose llsn is at least `at_least` into page[0..kPageBytes) and verifies checksum
  // and identity. kNotFound: never written. kDataLoss: damaged (names file and page). Blocks.
  virtual Status read(PageId id, Llsn at_least, char* page) = 0;
  // The newest state of the page that is not newer than `at_most`, and not older than `at_least`:
  // for replicas and time travel. Errors as read(); unsupported: this source keeps no older
  // states; kOutOfRange: that one is gone; kNotFound: the page was not there yet. Blocks.
  virtual Status read_version(PageId id, Llsn at_least, Llsn at_most, char* page) {
    if (at_most == Llsn{UINT64_MAX}) return read(id, at_least, page);
    return error_unsupported("this page source keeps no older states of pages");
  }
  // Reads up to kReadBatchPages pages that may be needed soon, each as read() would, to where
  // write_batch() would have them; fewer requests than pages where that can be. results[i]: of that
  // page; an error need not mean that read() would fail, too. `pages` is aligned for direct I/O
  // (kDirectIoAlignment). Blocks.
  virtual void read_batch(const PageId* ids, uint32_t count, char* pages, Status* results) {
    for (uint32_t i = 0; i < count; ++i)
      results[i] = read(ids[i], Llsn{}, pages + size_t{i} * kPageBytes);
  }
  // Begins what read_batch() does. Everything given is the source's until it calls `done`, once:
  // inside this call, where reading blocks anyway, or later in a thread of its own, so that nobody
  // waits meanwhile. `done` blocks for nothing but short mutexes, and may end what it belongs to.
  // All batches have ended before the source goes.
  virtual void start_read_batch(const PageId* ids, uint32_t count, char* pages, Status* results,
                                ReadBatchDone done) {
    read_batch(ids, count, pages, results);
    done();
  }
  // Writes a sealed page in place; durable after sync(). `page` is aligned likewise. Blocks.
  virtual Status write(PageId id, const char* page) = 0;
  // Writes up to kWriteBatchPages different pages, given in the order of their ids, in any order;
  // `pages` holds them one after the other, each as write() wants it. ok[i]: that one has been
  // written. Returns the first error.
  virtual Status write_batch(const PageId* ids, uint32_t count, const char* pages, bool* ok) {
    Status first_error;
    for (uint32_t i = 0; i < count; ++i) {
      const Status status = write(ids[i], pages + size_t{i} * kPageBytes);
      ok[i] = status.ok();
      if (!status.ok() && first_error.ok()) first_error = status;
    }
    return first_error;
  }
  // The same, for sources that want to know what the pages hold; the pool calls this one.
  virtual Status write_changed(const PageId* ids, const PageChanges* /*changes*/, uint32_t count,
                               const char* pages, bool* ok) {
    return write_batch(ids, count, pages, ok);
  }
  // Whether evicted() is to be called: a cache behind the pool is fed by it. Constant.
  [[nodiscard]] virtual bool wants_evicted() const { return false; }
  // The pool has dropped the page for want of room: its last bytes, stored already if they were
  // ever changed, with a checksum that may be an old one. Not of pages that other nodes have taken
  // or whose space is gone. Called under a mutex of the pool: copies what it wants, does not block
  // and does not call the pool.
  virtual void evicted(PageId /*id*/, const char* /*page*/) noexcept {}
  virtual Status sync() = 0;  // every completed write is durable
  // Every completed write of a change below `floor` is durable in storage, for a checkpoint there.
  virtual Status sync_below(Lsn /*floor*/) { return sync(); }
  virtual Status create_space(SpaceId space) = 0;  // durable when it returns; OK when it exists
  virtual Status delete_space(SpaceId space) = 0;  // durable when it returns; OK when absent
  virtual StatusOr<bool> space_exists(SpaceId space) = 0;
  virtual StatusOr<std::vector<SpaceId>> list_spaces() = 0;
  // Room for pages [0, pages) of the space exists after OK; kResourceExhausted when the disk is
  // full.
  virtual Status grow_space(SpaceId space, uint32_t pages) = 0;
  // The space has room for pages [0, result); kNotFound: no such space. For who copies all pages;
  // kUnimplemented where nobody does. Blocks.
  virtual StatusOr<uint32_t> space_pages(SpaceId /*space*/) {
    return error_unsupported("this page source does not know the sizes of its spaces");
  }
  // Between the pool and storage there is memory of another machine, which outlives this process.
  // Then there are checkpoints in two tiers (LegoBase, §5.1): often one in that memory, and seldom
  // one in storage, for when that memory is lost, too.
  [[nodiscard]] virtual bool has_memory_tier() const { return false; }
  // Everything before `at` was given to this source, and the log is durable up to there. True: it
  // is noted in that memory, and redo may begin there as long as it is whole. False: there is no
  // such memory for now, and everything before `at` is durable in storage. Blocks. An error changes
  // nothing.
  virtual StatusOr<bool> publish_memory_checkpoint(const MemoryCheckpoint& /*at*/) { return false; }
  // The last one, if that memory has been found whole. For recovery.
  virtual std::optional<MemoryCheckpoint> memory_checkpoint() { return std::nullopt; }
  // Pages are made from the log: what is written to this source only tells it which version the
  // next read must not be older than, and redo is the source's work, not the kernel's.
  [[nodiscard]] virtual bool replays_log() const { return false; }
  // Whether recovery is to tell such a source what the log has changed since the checkpoint where
  // it begins, once for each page and group, in the order of the log: for one that keeps copies of
  // pages from before. Before begin_at(), and before any page is read.
  [[nodiscard]] virtual bool wants_changes_in_log() const { return false; }
  virtual void changed_in_log(PageId /*id*/, Llsn /*llsn*/) {}
  // Of such a source, once, after recovery: the log ends with `last`, and no read may return a page
  // that lacks something of it.
  virtual void begin_at(Llsn /*last*/) {}
  // A store that writes in place and cannot repair what a power loss tears needs full-page images
  // in the log.
  [[nodiscard]] virtual bool needs_page_images() const = 0;
};

}  // namespace strata
