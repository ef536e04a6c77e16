#include "undo/undo_log.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/assert.h"
#include "base/fault.h"
#include "base/latch.h"
#include "undo/internal/undo_page.h"

namespace strata {

using namespace undo_internal;  // NOLINT: this folder's own

namespace {

constexpr uint32_t kReusableRoomMin = 512;  // a page with less room is not worth offering again
constexpr size_t kTailsTriedMax = 8;
constexpr size_t kIdleTailsMax = 64;  // unclaimed pages kept ready as tails
// Log of one page's change, its full image included, with the map page's.
constexpr uint32_t kPageMtrBytes = 2 * Mtr::kPageLogBytesMax + Mtr::kGroupLogBytes;

// Per thread: records are encoded without allocating.
struct Scratch {
  std::string body;
  std::string raw;
};
Scratch& scratch() {
  thread_local Scratch strings;
  return strings;
}

uint32_t room_after(uint32_t used) noexcept {
  return used + kContinueBytes >= kPageBytes ? 0 : kPageBytes - used - kContinueBytes;
}

}  // namespace

struct UndoSpace::Impl {
  // kFull: nobody appends any more. kListed: in `tails`. kHeld: some writer's tail.
  enum class Use : uint8_t { kFull, kListed, kHeld };
  struct PageState {
    uint32_t claims = 0;      // transactions with records (or room) on it, U4
    uint32_t used_bytes = 0;  // unless kHeld, when the writer knows
    Use use = Use::kFull;
  };

  BufferPool* pool;
  Log* log;
  SpaceManager* spaces;
  NodeId node;
  mutable Mutex mutex{LatchRank::kUndoTail};  // never held over a latch or I/O
  std::unordered_map<uint32_t, PageState> pages STRATA_GUARDED_BY(mutex);
  std::vector<uint32_t> tails STRATA_GUARDED_BY(mutex);  // last in, first out: the warmest page
  std::vector<uint32_t> to_free
      STRATA_GUARDED_BY(mutex);  // pages whose freeing failed; tried again by forget()

  [[nodiscard]] SpaceId space() const noexcept { return SpaceId{undo_space_of(node)}; }
  [[nodiscard]] PageId page_id(uint32_t number) const noexcept {
    return PageId{undo_space_of(node), number};
  }

  bool take_tail(uint32_t bytes, uint32_t* number, uint32_t* used) {
    const MutexLock lock(mutex);
    const size_t tried_max = std::min(tails.size(), kTailsTriedMax);
    for (size_t tried = 0; tried < tried_max; ++tried) {
      const auto it = tails.end() - 1 - static_cast<ptrdiff_t>(tried);
      PageState& state = pages.find(*it)->second;
      if (room_after(state.used_bytes) < bytes) continue;
      *number = *it;
      *used = state.used_bytes;
      state.use = Use::kHeld;
      ++state.claims;
      tails.erase(it);
      return true;
    }
    return false;
  }

  Status add_page(uint32_t* number, uint32_t* used) {
    STRATA_RETURN_IF_ERROR(spaces->ensure_room(space(), 1));
    Mtr mtr(pool, log);
    // Urgent for all: a delete may need it, and who grows is refused for the change itself.
    STRATA_RETURN_IF_ERROR(mtr.begin_write_to_free());
    STRATA_ASSIGN_OR_RETURN(*number, spaces->allocate(&mtr, space()));
    // allocate() has latched the page already: this cannot fail any more.
    StatusOr<MtrPage*> page = mtr.fix_new(page_id(*number));
    STRATA_ASSERT(page.ok());
    mtr.init_plain(*page, PageType::kUndo, IndexId{}, 0);
    mtr.publish();
    *used = kFirstRecordOffset;
    const bool failed = fault(FaultPoint::undo_page_added);
    {
      const MutexLock lock(mutex);
      pages[*number] = PageState{failed ? 0u : 1u, *used, Use::kHeld};
    }
    if (!failed) return ok_status();
    give_back(*number, *used);
    return error_internal("fault point undo_page_added");
  }

  bool is_known(uint32_t number) const {
    const MutexLock lock(mutex);
    return pages.count(number) != 0;
  }

  void give_back(uint32_t number, uint32_t used) {
    const MutexLock lock(mutex);
    PageState& state = pages.find(number)->second;
    STRATA_ASSERT(state.use == Use::kHeld);
    state.used_bytes = used;
    state.use = Use::kFull;
    if (room_after(used) < kReusableRoomMin) return;
    state.use = Use::kListed;
    tails.push_back(number);
  }

  Status free_page(uint32_t number) {
    Mtr mtr(pool, log);
    STRATA_RETURN_IF_ERROR(mtr.begin_write(kPageMtrBytes, true));
    STRATA_ASSIGN_OR_RETURN(MtrPage * page, mtr.fix(page_id(number), LatchMode::kExclusive));
    STRATA_RETURN_IF_ERROR(spaces->free(&mtr, page));
    mtr.publish();
    return ok_status();
  }
};

UndoSpace::UndoSpace(BufferPool* pool, Log* log, SpaceManager* spaces, NodeId node)
    : impl_(std::make_unique<Impl>()) {
  impl_->pool = pool;
  impl_->log = log;
  impl_->spaces = spaces;
  impl_->node = node;
}

UndoSpace::~UndoSpace() = default;

Status UndoSpace::prepare(Writer* writer, uint32_t bytes) {
  if (bytes > kUndoPrepareBytesMax) return error_invalid_argument("undo: change too large");
  if (writer->page == kNoPage && !writer->newest.is_zero())
    return error_internal("undo: an adopted run cannot be continued");
  if (writer->next_page == kNoPage) {
    if (writer->page != kNoPage && room_after(writer->used_bytes) >= bytes) return ok_status();
  } else {
    if (room_after(writer->next_used_bytes) >= bytes) return ok_status();
    impl_->give_back(std::exchange(writer->next_page, kNoPage), writer->next_used_bytes);
  }
  uint32_t number = kNoPage;
  uint32_t used = 0;
  if (!impl_->take_tail(bytes, &number, &used)) {
    STRATA_RETURN_IF_ERROR(impl_->add_page(&number, &used));
  }
  writer->pages.push_back(number);
  writer->next_page = number;
  writer->next_used_bytes = used;
  return ok_status();
}

uint32_t UndoSpace::room(const Writer& writer) noexcept {
  if (writer.next_page != kNoPage) return room_after(writer.next_used_bytes);
  return writer.page != kNoPage ? room_after(writer.used_bytes) : 0;
}

Status UndoSpace::fix_tail(Mtr* mtr, Writer* writer) {
  STRATA_ASSERT(writer->page != kNoPage || writer->next_page != kNoPage);  // prepare() first
  for (const uint32_t number : {writer->page, writer->next_page}) {
    if (number == kNoPage) continue;
    STRATA_ASSIGN_OR_RETURN(MtrPage * page,
                            mtr->fix(impl_->page_id(number), LatchMode::kExclusive));
    if (header_of(page->page())->type != static_cast<uint8_t>(PageType::kUndo))
      return error_corruption("undo: page " + std::to_string(number) + " is not an undo page");
  }
  return ok_status();
}

// Writes one record or mark behind the run so far; its pages are latched in `mtr`.
static UndoPtr append_bytes(Mtr* mtr, UndoSpace::Writer* w, NodeId node, UndoType type, Bytes body,
                            const std::function<void(uint32_t, uint32_t)>& give_back) {
  const auto write = [&](UndoType t, Bytes b) {
    std::string& raw = scratch().raw;
    encode_raw(&raw, w->used_bytes, t, w->trx_id, w->last, b);
    MtrPage* page = mtr->held(PageId{undo_space_of(node), w->page});
    STRATA_ASSERT(page != nullptr);
    STRATA_DASSERT(used_bytes(page->page()) == w->used_bytes);
    mtr->write(page, static_cast<uint16_t>(w->used_bytes), raw);
    w->used_bytes += static_cast<uint32_t>(raw.size());
  };
  if (w->next_page != kNoPage) {
    if (w->page != kNoPage) {
      std::string to;
      append_u64(
          &to, make_undo_ptr(node, w->next_page, static_cast<uint16_t>(w->next_used_bytes)).value);
      if (!w->first.is_zero()) write(UndoType::kContinue, to);
      give_back(w->page, w->used_bytes);
    }
    w->page = std::exchange(w->next_page, kNoPage);
    w->used_bytes = w->next_used_bytes;
  }
  // Room for a continuation always stays (U2).
  STRATA_ASSERT(kRecordPrefixBytes + body.size() <= room_after(w->used_bytes));
  const UndoPtr ptr = make_undo_ptr(node, w->page, static_cast<uint16_t>(w->used_bytes));
  write(type, body);
  if (w->first.is_zero()) w->first = ptr;
  return ptr;
}

StatusOr<UndoPtr> UndoSpace::append(Mtr* mtr, Writer* writer, UndoRecord* record) {
  STRATA_RETURN_IF_ERROR(fix_tail(mtr, writer));
  STRATA_ASSERT(!is_mark(record->type));
  record->trx_id = writer->trx_id;
  record->prev_in_trx = writer->last;
  std::string& body = scratch().body;
  encode_body(&body, *record);
  const UndoPtr ptr =
      append_bytes(mtr, writer, impl_->node, record->type, body,
                   [this](uint32_t page, uint32_t used) { impl_->give_back(page, used); });
  writer->last = writer->newest = ptr;
  ++writer->records;
  return ptr;
}

Status UndoSpace::append_mark(Mtr* mtr, Writer* writer, UndoType type, Bytes body) {
  STRATA_RETURN_IF_ERROR(fix_tail(mtr, writer));
  STRATA_ASSERT(type == UndoType::kPrepare || type == UndoType::kRewind);
  append_bytes(mtr, writer, impl_->node, type, body,
               [this](uint32_t page, uint32_t used) { impl_->give_back(page, used); });
  writer->newest = writer->last;
  return ok_status();
}

void UndoSpace::rewind(Writer* writer, UndoPtr last) { writer->last = last; }

void UndoSpace::detach(Writer* writer) {
  if (writer->page != kNoPage)
    impl_->give_back(std::exchange(writer->page, kNoPage), writer->used_bytes);
  if (writer->next_page != kNoPage)
    impl_->give_back(std::exchange(writer->next_page, kNoPage), writer->next_used_bytes);
}

Status UndoSpace::forget(const std::vector<uint32_t>& pages) {
  std::vector<uint32_t> to_free;
  {
    const MutexLock lock(impl_->mutex);
    to_free.swap(impl_->to_free);
    for (const uint32_t number : pages) {
      const auto it = impl_->pages.find(number);
      STRATA_ASSERT(it != impl_->pages.end() && it->second.claims > 0);
      Impl::PageState& state = it->second;
      if (--state.claims > 0 || state.use == Impl::Use::kHeld) continue;
      if (state.use == Impl::Use::kListed) {
        if (impl_->tails.size() <= kIdleTailsMax) continue;
        std::erase(impl_->tails, number);
      }
      impl_->pages.erase(it);
      to_free.push_back(number);
    }
  }
  Status result;
  for (const uint32_t number : to_free) {
    const Status freed = impl_->free_page(number);
    if (freed.ok()) continue;
    const MutexLock lock(impl_->mutex);
    impl_->to_free.push_back(number);
    result = freed;
  }
  return result;
}

Status UndoSpace::adopt(TrxId trx_id, UndoPtr first, Writer* writer, Adopted* adopted) {
  *writer = Writer{};
  writer->trx_id = trx_id;
  writer->first = first;
  STRATA_RETURN_IF_ERROR(walk_run(
      impl_->pool, trx_id, first,
      [&](UndoPtr ptr, const RawRecord& raw) {
        if (is_mark(raw.type)) {
          if (raw.type == UndoType::kPrepare && adopted != nullptr) adopted->xid.assign(raw.body);
          writer->last = raw.prev_in_trx;
        } else {
          writer->last = ptr;
          ++writer->records;
          if (adopted != nullptr) note_space(raw, &adopted->spaces);
        }
      },
      [&](uint32_t page) { writer->pages.push_back(page); }, nullptr));
  writer->newest = writer->last;
  // A freed page keeps its bytes until it is used again: that run is gone, too.
  for (const uint32_t number : writer->pages) {
    if (impl_->is_known(number)) continue;
    STRATA_ASSIGN_OR_RETURN(const bool allocated,
                            impl_->spaces->is_allocated(impl_->page_id(number)));
    if (!allocated) return error_not_found();
  }
  const MutexLock lock(impl_->mutex);
  for (const uint32_t number : writer->pages) ++impl_->pages[number].claims;
  return ok_status();
}

Status UndoSpace::finish_recovery() {
  STRATA_ASSIGN_OR_RETURN(const std::vector<uint32_t> numbers,
                          impl_->spaces->allocated_pages(impl_->space()));
  for (const uint32_t number : numbers) {
    uint32_t used = 0;
    {
      const PageId id = impl_->page_id(number);
      STRATA_ASSIGN_OR_RETURN(const PageGuard guard,
                              expect_written(impl_->pool->fix(id, LatchMode::kShared), id));
      if (header_of(guard.page())->type != static_cast<uint8_t>(PageType::kUndo)) continue;
      used = used_bytes(guard.page());
    }
    bool claimed = false;
    {
      const MutexLock lock(impl_->mutex);
      const auto it = impl_->pages.find(number);
      claimed = it != impl_->pages.end();
      if (claimed && it->second.use == Impl::Use::kFull) {
        it->second.used_bytes = used;
        if (room_after(used) >= kReusableRoomMin) {
          it->second.use = Impl::Use::kListed;
          impl_->tails.push_back(number);
        }
      }
    }
    if (!claimed) STRATA_RETURN_IF_ERROR(impl_->free_page(number));
  }
  return ok_status();
}

uint64_t UndoSpace::pages_in_use() const noexcept {
  const MutexLock lock(impl_->mutex);
  return impl_->pages.size();
}

}  // namespace strata
