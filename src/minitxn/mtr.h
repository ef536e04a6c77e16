// Mini-transaction: a set of latched pages and one redo group over them, published atomically (K7).
// One thread. Typical use:
//
//   Mtr mtr(pool, log);
//   STRATA_RETURN_IF_ERROR(mtr.begin_write());            // may block or fail; no latch held
//   STRATA_ASSIGN_OR_RETURN(MtrPage* leaf, mtr.fix(id, LatchMode::kExclusive));
//   ... check everything that can fail ...
//   mtr.insert(leaf, slot, key, value);                    // from here on nothing may fail
//   Lsn end = mtr.publish();                               // one group; latches released
//
//   M1  All checks come before the first change; changes cannot fail (asserted).
//   M2  Every change is encoded, then applied by redo::apply_op to the latched page: the bytes in
//       memory are the bytes a replay makes.
//   M3  publish() decides full-page images (page source needs them and the page's last image lies
//       below log.image_floor()), reserves, seals, copies, sets llsns, lists pages dirty,
//       completes, unlatches.
//   M4  An Mtr that changed something must be published; destruction without it asserts. One that
//       changed nothing just unlatches.
//   M5  A page fixed twice in one Mtr is the same MtrPage (exclusive satisfies shared; shared ->
//       exclusive asserts).
//   M6  Images and changes of a page are alternatives: an image replaces all changes collected
//       before it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "bufpool/buffer_pool.h"
#include "page/slotted.h"
#include "redo/redo.h"
#include "wal/log.h"

namespace strata {

struct MtrPage {
  PageGuard guard;
  std::string ops;         // encoded changes; capacity is kept for reuse
  uint64_t prev_llsn = 0;  // page.llsn before the first change
  bool modified = false;
  bool restarts = false;  // ops begin with an init or image
  [[nodiscard]] const char* page() const noexcept { return guard.page(); }
  [[nodiscard]] TreePageView view() const noexcept { return TreePageView(guard.page()); }
  [[nodiscard]] PageId id() const noexcept { return guard.id(); }
};

class Mtr {
 public:
  static constexpr uint32_t kDefaultLogBytes = 160 * 1024;  // a few images and the largest row
  // No page takes more log than this: where its changes are longer, publish() logs an image (M6). A
  // mini-transaction over more than 9 pages asks begin_write() for kGroupLogBytes + pages x this.
  static constexpr uint32_t kPageLogBytesMax = 16448;
  static constexpr uint32_t kGroupLogBytes = 64;

  Mtr(BufferPool* pool, Log* log) noexcept;
  ~Mtr();
  Mtr(const Mtr&) = delete;
  Mtr& operator=(const Mtr&) = delete;

  // Sets log capacity aside; needed before any change. No latch may be held.
  Status begin_write(uint32_t log_bytes_max = kDefaultLogBytes, bool urgent = false);
  // For what frees room, and the little that is needed for that: goes on when the disk is full, as
  // an urgent one, but not while the log is late (wal W8, W9).
  Status begin_write_to_free(uint32_t log_bytes_max = kDefaultLogBytes);
  [[nodiscard]] bool can_write() const noexcept { return reserved_bytes_ != 0; }
  [[nodiscard]] uint32_t reserved_bytes() const noexcept { return reserved_bytes_; }

  StatusOr<MtrPage*> fix(PageId id, LatchMode mode);
  // The same for a page that need not exist: kNotFound when it was never written (fix: kDataLoss).
  StatusOr<MtrPage*> fix_if_written(PageId id, LatchMode mode);
  StatusOr<MtrPage*> try_fix(PageId id, LatchMode mode);
  StatusOr<MtrPage*> fix_new(PageId id);  // follow with init_tree / init_plain
  // Takes over / gives back a latch early. Only for pages not modified.
  void release(MtrPage* page) noexcept;
  [[nodiscard]] bool modified() const noexcept { return modified_count_ != 0; }
  // The page if this mtr holds it, null otherwise.
  [[nodiscard]] MtrPage* held(PageId id) const noexcept {
    for (size_t i = 0; i < used_; ++i)
      if (pages_[i]->id() == id) return pages_[i].get();
    return nullptr;
  }

  // --- changes (cannot fail) ---
  void init_tree(MtrPage* page, const TreePageInit& init);
  void init_plain(MtrPage* page, PageType type, IndexId index_id, uint64_t extra);
  // Replaces the whole page; its identity stays.
  void image(MtrPage* page, const char* new_bytes);
  void insert(MtrPage* page, uint16_t slot, Bytes full_key, Bytes value);
  void erase(MtrPage* page, uint16_t slot);
  void replace(MtrPage* page, uint16_t slot, Bytes value);  // picks the smallest encoding
  void patch(MtrPage* page, uint16_t slot, uint16_t offset, Bytes bytes);
  void truncate_right(MtrPage* page, uint16_t keep, Bytes high_key, uint32_t right, uint16_t flags);
  void set_flags(MtrPage* page, uint16_t flags);
  void set_right(MtrPage* page, uint32_t right);
  void write(MtrPage* page, uint16_t offset, Bytes bytes);
  void pending_delete_add(MtrPage* system_page, SpaceId space);
  void pending_delete_remove(MtrPage* system_page, SpaceId space);

  // Publishes; returns the end Lsn of the group (or log.next_lsn() if nothing changed).
  Lsn publish() noexcept;
  [[nodiscard]] Llsn published_llsn() const noexcept { return published_llsn_; }
  // Nothing changed: unlatches, returns the capacity; can begin_write() again.
  void abandon() noexcept;
  // Latches and pages held so far, for tests of latch order.
  [[nodiscard]] size_t page_count() const noexcept { return used_; }
  [[nodiscard]] BufferPool* pool() const noexcept { return pool_; }
  [[nodiscard]] Log* log() const noexcept { return log_; }

 private:
  MtrPage* find(PageId id, LatchMode mode) noexcept;
  MtrPage* add(PageGuard guard);
  std::string* begin_change(MtrPage* page);
  std::string* begin_restart(MtrPage* page);
  void apply(MtrPage* page, size_t ops_before);
  void choose_images(Lsn floor);
  void log_image(MtrPage* page);
  uint32_t build_group(std::string* group, Llsn* above) const;
  void finish_pages(const LogReservation& reservation) noexcept;
  void unlatch_all() noexcept;
  void return_unused(uint32_t used_bytes) noexcept;
  BufferPool* pool_;
  Log* log_;
  std::vector<std::unique_ptr<MtrPage>> pages_;  // [0, used_) live; the rest kept for reuse
  size_t used_ = 0;
  size_t modified_count_ = 0;
  uint32_t reserved_bytes_ = 0;
  Llsn published_llsn_;
};

}  // namespace strata
