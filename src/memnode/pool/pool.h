// The slots of one remote buffer pool (LegoBase, §4 and §5): which page each holds, which of them
// storage may lack, and what may be overwritten. A state machine without I/O, threads, locks or
// time; page bytes and slot headers live in memory that somebody else provides (PoolMemory). One
// thread at a time.
//
//                begin_fill          publish
//   kFree ──────────────> kFilling ──────────> kClean, or kDirty
//     ^ ^──── abandon ───────┘                    │  ^
//     │                                           │  └ synced(report): storage has it
//     ├──── drop, forget_space, replaced ─────────┤
//     │                              take_writes  v
//     └── kLeaving (its write ends) <─────── kWriting ── wrote ──> kWritten(report)
//                                                 └─ failed ─> kDirty
//
//   PSL1  A page has one published slot at most. A slot is never overwritten while it is
//         published: a newer image goes into another one, which takes its place when it is whole.
//   PSL2  (incarnation, slot, generation) never stands for two contents: a generation grows by one
//         when the slot is published (even) and by one when it is freed (odd). Who reads
//         generation, page, generation and sees the same even number twice has read one content.
//   PSL3  An image takes a page's place only with a larger llsn. One with an equal llsn changes
//         nothing but `dirty_from`, which it can only lower. An older one is refused (conflict).
//   PSL4  dirty_from of a page is the first Lsn of a change that storage may lack: the least of
//         all images since storage last had it for certain. An image behind one that is being
//         written, or is written and not synced, keeps the older one's dirty_from until that is
//         synced, then its own. A clean image that replaces one that storage may lack is not
//         believed: it is dirty from where that one was.
//   PSL5  Clean is only what synced(report) says: an image whose write was reported with that
//         number or a lower one, and which was not replaced since; and what stored() says.
//   PSL6  drop() frees clean pages only. A page that is being written keeps its slot until the
//         write ends, whatever happens to the page.
//   PSL7  At most one write of a page is under way. One that has ended badly leaves it dirty.
//   PSL8  `reserve` slots are for images that take the place of another one: a page that has a
//         slot never waits for storage. Half of them is for the slots whose write is still under
//         way when they are replaced, so no more are being written at a time; the other half for
//         images that are being filled at a time.
//   PSL9  Where the memory is persistent (PoolOptions::persistent), what an answer was given for
//         survives a power loss: a header is published once its page's bytes are durable, the image
//         that it replaces is freed once it is durable itself, and a slot is filled again once its
//         being free is durable. persisted() says that everything stored before is. A page goes for
//         good only while no older image of any page may come back (unsettled() is 0).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "page/page.h"

namespace strata::memnode {

constexpr Lsn kNeverChanged{UINT64_MAX};

// In the region, one per slot, followed by nothing else in its 64 bytes. Little endian. What a
// reader on another host sees: it compares `generation` before and after the page. The order in
// which its fields change: slot_header.h.
struct SlotHeader {
  uint64_t generation = 0;
  uint64_t page = 0;  // packed
  uint64_t llsn = 0;
  uint32_t crc32c = 0;  // of generation, page and llsn
  uint32_t reserved = 0;
  // Changes in place while the slot is published: one word, written in one step, with a check of
  // its own (the upper 16 bits; Lsns have 48), of it and the generation. Zero with its check:
  // clean; all ones: free.
  uint64_t dirty_from = 0;
  uint64_t unused[3] = {};
};
static_assert(sizeof(SlotHeader) == 64);

constexpr uint32_t kPoolSlotsMin = 16;

struct PoolOptions {
  uint32_t slots = 0;       // kPoolSlotsMin at least
  uint32_t reserve = 256;   // PSL8, 2 at least; less in a small pool: an eighth of it at most
  bool persistent = false;  // PSL9
};

// Where headers and pages are; outlives the pool. `headers` and `pages` are written by the pool
// and by who fills slots; peers only read them.
struct PoolMemory {
  SlotHeader* headers = nullptr;
  char* pages = nullptr;  // kPageBytes each
};

class Pool {
 public:
  // An empty pool: all slots are made free (generations go on from what the headers hold).
  Pool(const PoolOptions& options, PoolMemory memory);
  // What an earlier process left there: every header and every published page is verified;
  // of two slots of one page the larger llsn stays, with the smaller dirty_from; what was written
  // counts as dirty. kDataLoss: one of them is damaged, and nothing of it may be used.
  static StatusOr<std::unique_ptr<Pool>> recover(const PoolOptions& options, PoolMemory memory);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  struct Slot {
    uint32_t number = 0;
    uint64_t generation = 0;
    Llsn llsn;
    bool dirty = false;  // also: being written, written and not synced
  };

  // --- filling: begin_fill(), the page's bytes go to bytes_of(slot), publish() or abandon() ---

  // A slot for that image. Errors: conflict (PSL3: a newer one is here), kResourceExhausted (no
  // slot is free; drop or write some), kAlreadyExists (this llsn is here already: dirty_from was
  // lowered if need be, `there` says where), kInvalidArgument (no llsn; dirty without a first Lsn
  // of 48 bits).
  StatusOr<uint32_t> begin_fill(PageId id, Llsn llsn, bool dirty, Lsn first, Slot* there);
  [[nodiscard]] char* bytes_of(uint32_t slot) const noexcept;
  // Copies a verified page there, as readers of the region need it: each word is a release (PH3).
  // Needs no lock of the caller's: the slot is his until publish() or abandon().
  void fill(uint32_t slot, const char* page) const noexcept;
  // The bytes are whole and verified. OK, too, if the same llsn was published meanwhile: it says
  // where. Errors: conflict (a newer image was published meanwhile, or its space was forgotten),
  // kResourceExhausted (it was to take the place of one that was dropped meanwhile, PSL8): the
  // slot is free again.
  StatusOr<Slot> publish(uint32_t slot);
  void abandon(uint32_t slot);

  // --- looking, dropping ---

  [[nodiscard]] std::optional<Slot> lookup(PageId id) const;
  // The page in a slot, if one is published there.
  [[nodiscard]] std::optional<PageId> page_at(uint32_t slot) const;
  // Errors: kNotFound, busy (PSL6: not clean). Only while nothing is unsettled().
  Status drop(PageId id);
  // Every page of the space is gone for lookups; slots being written are freed when that ends. Only
  // while nothing is unsettled().
  void forget_space(SpaceId space);
  // A write of a page of this space is under way.
  [[nodiscard]] bool writes_of(SpaceId space) const;

  // --- writing to storage ---

  struct Write {
    uint32_t slot = 0;
    PageId id;
    Llsn llsn;
  };
  // Up to `max` dirty pages with dirty_from < below, oldest first, that nobody writes (PSL7);
  // sorted by page. Fewer, perhaps none, while many are being written (PSL8). They are being
  // written until wrote() or failed(), and their bytes stay as they are until then, whatever
  // happens to the pages.
  std::vector<Write> take_writes(Lsn below, uint32_t max);
  // Storage has answered OK for all of them; the number of the report that says so, which grows.
  uint64_t wrote(const std::vector<Write>& writes);
  void failed(const std::vector<Write>& writes);
  // Storage has made durable what reports up to that number said (PSL5).
  void synced(uint64_t report);
  // Somebody else has written that version of the page to storage, which has made it durable. It
  // counts as clean if it is here in that version or an older one, and nobody is writing it.
  void stored(PageId id, Llsn llsn);
  // Pages of which something is written and not synced, from that slot on, as they are now:
  // perhaps newer than what was written, which holds that, too. `next` = slots: that was all.
  // Their bytes are to be copied before anything else is done here: nothing keeps them.
  std::vector<Write> written_since_sync(uint32_t from, uint32_t max, uint32_t* next) const;
  // Written and not synced counts as dirty again, e.g. for a new user. What is being written is
  // not touched.
  void doubt_written();

  // PSL9. All of the memory is durable as it is now. Of slots that were replaced the headers become
  // free; those that were free before may be filled. Nothing, where it is not persistent.
  void persisted();
  // Slots that only persisted() makes usable, once or twice.
  [[nodiscard]] uint32_t held() const noexcept;
  // Images that were replaced and that a power loss may bring back. persisted(), once or twice,
  // makes that 0. Always 0, where the memory is not persistent.
  [[nodiscard]] uint32_t unsettled() const noexcept;

  // The least dirty_from of all pages; kNeverChanged: none is dirty.
  [[nodiscard]] Lsn oldest_dirty() const;
  [[nodiscard]] uint64_t last_report() const noexcept;
  // Pages that storage may lack.
  [[nodiscard]] uint32_t unclean() const noexcept;

  struct Counts {
    uint32_t slots = 0, free = 0, filling = 0, clean = 0, dirty = 0, writing = 0, written = 0,
             leaving = 0, held = 0;
    uint64_t published = 0, rejected = 0, dropped = 0, replaced = 0, writes = 0;
  };
  [[nodiscard]] Counts counts() const;
  // Checks its own lists against each other: for tests, and after recovery. Asserts.
  void check() const;

 private:
  struct Impl;
  explicit Pool(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata::memnode
