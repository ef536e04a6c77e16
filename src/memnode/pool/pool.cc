#include "memnode/pool/pool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "memnode/pool/slot_header.h"
#include "memnode/pool/slot_heap.h"

namespace strata::memnode {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kSpacesExpected = 1024;

enum class State : uint8_t {
  kFree,
  kFilling,
  kClean,
  kDirty,
  kWriting,
  kWritten,
  kLeaving,  // replaced or forgotten while it was being written; its header is free already
  kHeld,     // to be free, once that is durable (PSL9)
};
constexpr size_t kStates = 8;

bool is_published(State state) noexcept {
  return state >= State::kClean && state <= State::kWritten;
}

// That storage may lack changes from `first` on, until the report is synced.
struct Claim {
  Lsn first = kNeverChanged;
  uint64_t report = 0;  // 0: no claim
};

struct SlotState {
  PageId id;
  Llsn llsn;
  uint64_t generation = 0;  // of a published one; peers cannot write it, but a bit can flip there
  // Of this image and of those before it that were not being written when they were replaced;
  // kNeverChanged if clean.
  Lsn own = kNeverChanged;
  uint64_t report = 0;  // kWritten
  // Claims of images that it replaced. Two, so that the first one ends at its own sync however
  // often the page is written meanwhile; what comes after it is taken together.
  std::array<Claim, 2> behind;
  Lsn behind_write = kNeverChanged;  // the claim of the image that it replaced while it was written
  uint32_t leaving = kNone;          // whose slot is this
  uint32_t next = kNone;             // in the bucket, or the next free one
  uint32_t space_next = kNone, space_before = kNone;
  State state = State::kFree;
  bool forgotten = false;  // kFilling: not to be published
  bool replaces = false;   // kFilling: there was a slot of that page, so it may take of the reserve
};

struct SpaceState {
  uint32_t first = kNone;  // slots of its pages, whatever their state
  uint32_t writes = 0;     // of them being written
};

uint32_t buckets_for(uint32_t slots) noexcept {
  uint32_t buckets = 1;
  while (buckets < slots && buckets < (1u << 31)) buckets *= 2;
  return buckets;
}

}  // namespace

struct Pool::Impl {
  Impl(const PoolOptions& options, PoolMemory memory_in)
      : memory(memory_in),
        reserve(std::max(2u, std::min(options.reserve, options.slots / 8))),
        persistent(options.persistent),
        states(options.slots),
        buckets(buckets_for(options.slots), kNone),
        writable(options.slots),
        waiting(options.slots),
        settling(options.slots) {
    STRATA_ASSERT(options.slots >= kPoolSlotsMin);
    STRATA_ASSERT(memory.headers != nullptr);
    STRATA_ASSERT(memory.pages != nullptr);
    spaces.reserve(kSpacesExpected);
    if (!persistent) return;
    stale.resize(options.slots, false);
    superseded.reserve(options.slots);
    held.reserve(options.slots);
  }

  [[nodiscard]] uint32_t slots() const noexcept { return static_cast<uint32_t>(states.size()); }
  [[nodiscard]] uint32_t count(State state) const noexcept {
    return in_state[static_cast<size_t>(state)];
  }
  void become(uint32_t slot, State state) noexcept {
    in_state[static_cast<size_t>(states[slot].state)]--;
    in_state[static_cast<size_t>(state)]++;
    states[slot].state = state;
  }

  // --- the free ones, first in first out: readers of a slot have the longest time --------------

  void push_free(uint32_t slot) noexcept {
    states[slot].next = kNone;
    (free_last == kNone ? free_first : states[free_last].next) = slot;
    free_last = slot;
  }
  uint32_t pop_free() noexcept {
    const uint32_t slot = free_first;
    free_first = states[slot].next;
    if (free_first == kNone) free_last = kNone;
    states[slot].next = kNone;
    return slot;
  }

  // --- by page: the published slot, and those that are leaving ---------------------------------

  [[nodiscard]] uint32_t& bucket_of(PageId id) noexcept {
    return buckets[std::hash<PageId>()(id) & (buckets.size() - 1)];
  }
  [[nodiscard]] uint32_t find(PageId id, bool leaving) const noexcept {
    uint32_t at = buckets[std::hash<PageId>()(id) & (buckets.size() - 1)];
    while (at != kNone &&
           !(states[at].id == id && (states[at].state == State::kLeaving) == leaving))
      at = states[at].next;
    return at;
  }
  [[nodiscard]] uint32_t current(PageId id) const noexcept { return find(id, false); }
  void link_page(uint32_t slot) noexcept {
    uint32_t& bucket = bucket_of(states[slot].id);
    states[slot].next = bucket;
    bucket = slot;
  }
  void unlink_page(uint32_t slot) noexcept {
    uint32_t* at = &bucket_of(states[slot].id);
    while (*at != slot) at = &states[*at].next;
    *at = states[slot].next;
  }

  // --- by space --------------------------------------------------------------------------------

  void link_space(uint32_t slot) {
    SpaceState& space = spaces[states[slot].id.space];
    states[slot].space_before = kNone;
    states[slot].space_next = space.first;
    if (space.first != kNone) states[space.first].space_before = slot;
    space.first = slot;
  }
  void unlink_space(uint32_t slot) {
    SlotState& s = states[slot];
    if (s.space_next != kNone) states[s.space_next].space_before = s.space_before;
    if (s.space_before != kNone) {
      states[s.space_before].space_next = s.space_next;
      return;
    }
    const auto space = spaces.find(s.id.space);
    space->second.first = s.space_next;
    if (s.space_next == kNone) spaces.erase(space);
  }

  // --- what storage may lack -------------------------------------------------------------------

  [[nodiscard]] Lsn dirty_from(const SlotState& s) const noexcept {
    return std::min({s.own, s.behind_write, s.behind[0].first, s.behind[1].first});
  }
  // The least report that it waits for; 0: for none.
  [[nodiscard]] static uint64_t waits_for(const SlotState& s) noexcept {
    return s.behind[0].report != 0 ? s.behind[0].report : s.report;
  }
  // PSL4: an image that was replaced counts until its report is synced.
  static void put_behind(SlotState* s, Claim claim) noexcept {
    if (claim.report == 0) return;
    if (s->behind[0].report == 0) {
      s->behind[0] = claim;
    } else if (s->behind[1].report == 0) {
      s->behind[1] = claim;
    } else {
      s->behind[1] = {std::min(s->behind[1].first, claim.first), claim.report};
    }
  }
  // Counts as the image's own from now on.
  static void take_over_claims(SlotState* s) noexcept {
    for (Claim& claim : s->behind) {
      s->own = std::min(s->own, claim.first);
      claim = {};
    }
  }
  // After a change of a published slot: its place in the lists.
  void relist(uint32_t slot) {
    const SlotState& s = states[slot];
    const Lsn from = dirty_from(s);
    const bool may_be_written = s.state == State::kDirty && s.leaving == kNone;  // PSL7
    if (may_be_written) {
      waiting.remove(slot);
      writable.put(slot, from.value);
    } else {
      writable.remove(slot);
      if (from == kNeverChanged) {
        waiting.remove(slot);
      } else {
        waiting.put(slot, from.value);
      }
    }
    const uint64_t report = waits_for(s);
    if (report == 0) {
      settling.remove(slot);
    } else {
      settling.put(slot, report);
    }
  }
  // The same, where dirty_from may have changed.
  void restate(uint32_t slot, Lsn before) {
    const Lsn from = dirty_from(states[slot]);
    if (from != before) set_dirty_from(&memory.headers[slot], from);
    relist(slot);
  }
  void delist(uint32_t slot) {
    writable.remove(slot);
    waiting.remove(slot);
    settling.remove(slot);
  }
  // PSL3: an equal image.
  void lower(uint32_t slot, Lsn first) {
    SlotState& s = states[slot];
    const Lsn before = dirty_from(s);
    if (s.state == State::kClean) become(slot, State::kDirty);
    s.own = std::min(s.own, first);
    restate(slot, before);
  }

  // --- slots come and go -----------------------------------------------------------------------

  // Of one that is in no list by page or dirty Lsn any more.
  void release(uint32_t slot) {
    const bool never_published = states[slot].state == State::kFilling;
    unlink_space(slot);
    become(slot, State::kFree);
    states[slot] = SlotState();
    if (!persistent || never_published) return push_free(slot);
    become(slot, State::kHeld);
    held.push_back(slot);
  }
  // PSL6, PSL1: the published one goes, at once for readers; its bytes stay while they are
  // written.
  void retire(uint32_t slot) {
    free_header(&memory.headers[slot]);
    delist(slot);
    if (states[slot].state == State::kWriting) return become(slot, State::kLeaving);
    unlink_page(slot);
    release(slot);
  }
  // PSL1, PSL9: another image has taken its place. What is in its header counts for who recovers,
  // until the other one's is durable.
  void replace(uint32_t slot) {
    if (!persistent) return retire(slot);
    stale[slot] = true;
    superseded.push_back(slot);
    delist(slot);
    if (states[slot].state == State::kWriting) return become(slot, State::kLeaving);
    unlink_page(slot);
    release(slot);
  }
  // What replaced them is durable.
  void free_superseded() noexcept {
    for (const uint32_t slot : superseded) {
      free_header(&memory.headers[slot]);
      stale[slot] = false;
    }
    superseded.clear();
  }
  [[nodiscard]] uint32_t unsettled() const noexcept {
    return static_cast<uint32_t>(superseded.size()) + freed;
  }
  void persisted() {
    size_t kept = 0;
    for (const uint32_t slot : held) {
      if (stale[slot]) {
        held[kept++] = slot;
        continue;
      }
      become(slot, State::kFree);
      push_free(slot);
    }
    held.resize(kept);
    freed = static_cast<uint32_t>(superseded.size());
    free_superseded();
  }
  void adopt_successor(SlotState* next, const SlotState& old, uint32_t old_slot, bool dirty);
  StatusOr<Slot> publish(uint32_t slot);
  Slot describe(uint32_t slot) const {
    const SlotState& s = states[slot];
    return {slot, s.generation, s.llsn, s.state != State::kClean};
  }
  Status recover();
  void check() const;
  void check_published(uint32_t slot) const;
  void end_write(const Write& write, uint64_t report);

  const PoolMemory memory;
  const uint32_t reserve;
  const bool persistent;
  std::vector<SlotState> states;
  std::vector<uint32_t> buckets;
  absl::flat_hash_map<uint32_t, SpaceState> spaces;
  SlotHeap writable;  // dirty, and nobody writes the page; by dirty_from
  SlotHeap waiting;   // the others that storage may lack; by dirty_from
  SlotHeap settling;  // what waits for a sync; by report
  uint32_t free_first = kNone, free_last = kNone;
  std::array<uint32_t, kStates> in_state{};
  // PSL9. Superseded: their headers are still published (stale), whatever their state. Held: kHeld.
  std::vector<bool> stale;
  std::vector<uint32_t> superseded, held;
  uint32_t freed = 0;  // headers of replaced images that are free, but not durably so
  uint64_t report = 0;
  uint64_t published = 0, rejected = 0, dropped = 0, replaced = 0, writes = 0;
};

// PSL4: which claims of the image before it are an image's own, and which end by themselves.
void Pool::Impl::adopt_successor(SlotState* next, const SlotState& old, uint32_t old_slot,
                                 bool dirty) {
  if (!dirty) next->own = dirty_from(old);
  next->behind = old.behind;
  next->leaving = old.leaving;
  next->behind_write = old.behind_write;
  if (old.state == State::kDirty) next->own = std::min(next->own, old.own);
  if (old.state == State::kWritten) put_behind(next, {old.own, old.report});
  if (old.state == State::kWriting) {
    next->leaving = old_slot;
    next->behind_write = old.own;
  }
}

StatusOr<Pool::Slot> Pool::Impl::publish(uint32_t slot) {
  SlotState& s = states[slot];
  STRATA_ASSERT(s.state == State::kFilling);
  const uint32_t old = current(s.id);
  if (s.forgotten || (old != kNone && states[old].llsn > s.llsn)) {
    rejected++;
    release(slot);
    return error_conflict();
  }
  if (old != kNone && states[old].llsn == s.llsn) {
    if (s.own != kNeverChanged) lower(old, s.own);
    release(slot);
    return describe(old);
  }
  if (old == kNone && s.replaces && count(State::kFree) < reserve) {  // PSL8
    release(slot);
    return error_no_space();
  }
  const char* const page = memory.pages + uint64_t{slot} * kPageBytes;
  STRATA_ASSERT(page_id_of(page) == s.id);
  STRATA_ASSERT(header_of(page)->llsn == s.llsn.value);
  if (old != kNone) {
    adopt_successor(&s, states[old], old, s.own != kNeverChanged);
    replaced++;
  } else {
    s.leaving = find(s.id, true);  // of a space that was forgotten
  }
  SlotHeader* const header = &memory.headers[slot];
  publish_header(header, s.id, s.llsn, dirty_from(s));
  s.generation = header->generation;
  if (old != kNone) replace(old);
  become(slot, s.own == kNeverChanged ? State::kClean : State::kDirty);
  link_page(slot);
  relist(slot);
  published++;
  return describe(slot);
}

// One image of a write has come to its end. 0: badly.
void Pool::Impl::end_write(const Write& write, uint64_t written) {
  SlotState& s = states[write.slot];
  STRATA_ASSERT(s.id == write.id);
  STRATA_ASSERT(s.llsn == write.llsn);
  spaces.find(s.id.space)->second.writes--;
  if (s.state == State::kWriting) {
    become(write.slot, written == 0 ? State::kDirty : State::kWritten);
    s.report = written;
    return relist(write.slot);
  }
  STRATA_ASSERT(s.state == State::kLeaving);
  const uint32_t at = current(s.id);
  if (at != kNone && states[at].leaving == write.slot) {
    SlotState& next = states[at];
    const Lsn before = dirty_from(next);
    if (written == 0) {
      next.own = std::min(next.own, next.behind_write);  // PSL4: for good
    } else if (next.behind_write != kNeverChanged) {
      put_behind(&next, {next.behind_write, written});
    }
    next.behind_write = kNeverChanged;
    next.leaving = kNone;
    restate(at, before);
  }
  unlink_page(write.slot);
  release(write.slot);
}

Status Pool::Impl::recover() {
  for (uint32_t slot = 0; slot < slots(); slot++) {
    SlotHeader* const header = &memory.headers[slot];
    STRATA_ASSIGN_OR_RETURN(const HeaderContent content, read_header(*header));
    if (!content.published) continue;
    const char* const page = memory.pages + uint64_t{slot} * kPageBytes;
    const Status whole = verify_page(page, content.id);
    if (!whole.ok()) return with_message(error_corruption(), std::string(whole.message()));
    if (header_of(page)->llsn != content.llsn.value)
      return error_corruption("a page has another llsn than its slot says");
    if (content.llsn.is_zero()) return error_corruption("a page without an llsn");
  }
  // Nothing is damaged; now it may be changed. What is free may not be so durably.
  freed = persistent ? 1 : 0;
  for (uint32_t slot = 0; slot < slots(); slot++) {
    SlotHeader* const header = &memory.headers[slot];
    const HeaderContent content = *read_header(*header);
    uint32_t goes = kNone;
    if (content.published) {
      Lsn from = content.dirty_from;
      goes = current(content.id);
      // The process was killed after the one was published and before the other was freed.
      if (goes != kNone && states[goes].llsn >= content.llsn) {
        if (from != kNeverChanged) lower(goes, from);
        goes = slot;
      } else {
        if (goes != kNone) from = std::min(from, states[goes].own);
        SlotState& s = states[slot];
        s.id = content.id;
        s.llsn = content.llsn;
        s.generation = content.generation;
        s.own = from;
        if (from != content.dirty_from) set_dirty_from(header, from);
      }
    }
    in_state[static_cast<size_t>(State::kFree)]++;
    if (!content.published || goes == slot) {
      free_header(header);
      push_free(slot);
      continue;
    }
    if (goes != kNone) retire(goes);
    become(slot, states[slot].own == kNeverChanged ? State::kClean : State::kDirty);
    link_page(slot);
    link_space(slot);
    relist(slot);
  }
  return ok_status();
}

void Pool::Impl::check_published(uint32_t slot) const {
  const SlotState& s = states[slot];
  const SlotHeader& header = memory.headers[slot];
  const StatusOr<HeaderContent> content = read_header(header);
  STRATA_ASSERT(content.ok());
  STRATA_ASSERT(content->published);
  STRATA_ASSERT(content->generation == s.generation);
  STRATA_ASSERT(content->id == s.id);
  STRATA_ASSERT(content->llsn == s.llsn);
  STRATA_ASSERT(content->dirty_from == dirty_from(s));
  STRATA_ASSERT(current(s.id) == slot);
  STRATA_ASSERT((s.state == State::kClean) == (s.own == kNeverChanged));
  if (s.state == State::kClean) STRATA_ASSERT(dirty_from(s) == kNeverChanged);
  STRATA_ASSERT((s.state == State::kWritten) == (s.report != 0));
  STRATA_ASSERT(writable.has(slot) == (s.state == State::kDirty && s.leaving == kNone));
  STRATA_ASSERT(waiting.has(slot) == (s.state != State::kClean && !writable.has(slot)));
  STRATA_ASSERT(settling.has(slot) == (waits_for(s) != 0));
  if (s.leaving != kNone) {
    STRATA_ASSERT(states[s.leaving].state == State::kLeaving);
    STRATA_ASSERT(states[s.leaving].id == s.id);
  } else {
    STRATA_ASSERT(s.behind_write == kNeverChanged);
  }
  if (s.behind[1].report != 0) STRATA_ASSERT(s.behind[0].report < s.behind[1].report);
}

void Pool::Impl::check() const {
  std::array<uint32_t, kStates> found{};
  for (uint32_t slot = 0; slot < slots(); slot++) {
    const State state = states[slot].state;
    found[static_cast<size_t>(state)]++;
    if (is_published(state)) {
      check_published(slot);
    } else {
      const StatusOr<HeaderContent> content = read_header(memory.headers[slot]);
      STRATA_ASSERT(content.ok());
      STRATA_ASSERT(content->published == (persistent && stale[slot]));
      STRATA_ASSERT(!writable.has(slot));
      STRATA_ASSERT(!waiting.has(slot));
      STRATA_ASSERT(!settling.has(slot));
    }
  }
  STRATA_ASSERT(found == in_state);
  writable.check();
  waiting.check();
  settling.check();
  uint32_t listed = 0;
  for (uint32_t slot = free_first; slot != kNone; slot = states[slot].next) {
    STRATA_ASSERT(states[slot].state == State::kFree);
    listed++;
  }
  STRATA_ASSERT(listed == count(State::kFree));
  uint32_t of_spaces = 0, writes_of_spaces = 0;
  for (const auto& [number, space] : spaces) {
    writes_of_spaces += space.writes;
    for (uint32_t slot = space.first; slot != kNone; slot = states[slot].space_next) {
      STRATA_ASSERT(states[slot].id.space == number);
      of_spaces++;
    }
  }
  STRATA_ASSERT(of_spaces + listed + held.size() == slots());
  STRATA_ASSERT(held.size() == count(State::kHeld));
  STRATA_ASSERT(writes_of_spaces == count(State::kWriting) + count(State::kLeaving));
}

Pool::Pool(const PoolOptions& options, PoolMemory memory)
    : Pool(std::make_unique<Impl>(options, memory)) {
  for (uint32_t slot = 0; slot < impl_->slots(); slot++) {
    begin_header(&memory.headers[slot]);
    impl_->push_free(slot);
  }
  impl_->in_state[static_cast<size_t>(State::kFree)] = impl_->slots();
}

Pool::Pool(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Pool::~Pool() = default;

StatusOr<std::unique_ptr<Pool>> Pool::recover(const PoolOptions& options, PoolMemory memory) {
  auto impl = std::make_unique<Impl>(options, memory);
  STRATA_RETURN_IF_ERROR(impl->recover());
  impl->check();
  return std::unique_ptr<Pool>(new Pool(std::move(impl)));
}

StatusOr<uint32_t> Pool::begin_fill(PageId id, Llsn llsn, bool dirty, Lsn first, Slot* there) {
  if (llsn.is_zero() || (dirty && !may_be_dirty_from(first))) return error_invalid_argument();
  const uint32_t old = impl_->current(id);
  if (old != kNone && impl_->states[old].llsn > llsn) {  // PSL3
    impl_->rejected++;
    return error_conflict();
  }
  if (old != kNone && impl_->states[old].llsn == llsn) {
    if (dirty) impl_->lower(old, first);
    *there = impl_->describe(old);
    return error_duplicate_key();
  }
  const uint32_t kept = old == kNone ? impl_->reserve : 0;  // PSL8
  if (impl_->count(State::kFree) <= kept) return error_no_space();
  const uint32_t slot = impl_->pop_free();
  SlotState& s = impl_->states[slot];
  s.id = id;
  s.llsn = llsn;
  s.own = dirty ? first : kNeverChanged;
  s.replaces = old != kNone;
  impl_->become(slot, State::kFilling);
  impl_->link_space(slot);
  return slot;
}

char* Pool::bytes_of(uint32_t slot) const noexcept {
  return impl_->memory.pages + uint64_t{slot} * kPageBytes;
}

void Pool::fill(uint32_t slot, const char* page) const noexcept {
  char* const target = bytes_of(slot);
  for (uint32_t at = 0; at < kPageBytes; at += 8)
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(target + at))
        .store(load_u64(page + at), std::memory_order_release);
}

StatusOr<Pool::Slot> Pool::publish(uint32_t slot) { return impl_->publish(slot); }

void Pool::abandon(uint32_t slot) {
  STRATA_ASSERT(impl_->states[slot].state == State::kFilling);
  impl_->release(slot);
}

std::optional<Pool::Slot> Pool::lookup(PageId id) const {
  const uint32_t at = impl_->current(id);
  if (at == kNone) return std::nullopt;
  return impl_->describe(at);
}

std::optional<PageId> Pool::page_at(uint32_t slot) const {
  if (slot >= impl_->slots() || !is_published(impl_->states[slot].state)) return std::nullopt;
  return impl_->states[slot].id;
}

Status Pool::drop(PageId id) {
  const uint32_t at = impl_->current(id);
  if (at == kNone) return error_not_found();
  if (impl_->states[at].state != State::kClean) return error_busy();  // PSL6
  STRATA_ASSERT(impl_->unsettled() == 0);                             // PSL9
  impl_->retire(at);
  impl_->dropped++;
  return ok_status();
}

void Pool::forget_space(SpaceId space) {
  const auto found = impl_->spaces.find(space.value);
  if (found == impl_->spaces.end()) return;
  STRATA_ASSERT(impl_->unsettled() == 0);  // PSL9
  uint32_t next = kNone;
  for (uint32_t slot = found->second.first; slot != kNone; slot = next) {
    SlotState& s = impl_->states[slot];
    next = s.space_next;
    if (s.state == State::kFilling) s.forgotten = true;
    if (is_published(s.state)) impl_->retire(slot);
  }
}

bool Pool::writes_of(SpaceId space) const {
  const auto found = impl_->spaces.find(space.value);
  return found != impl_->spaces.end() && found->second.writes > 0;
}

std::vector<Pool::Write> Pool::take_writes(Lsn below, uint32_t max) {
  std::vector<Write> taken;
  const uint32_t under_way = impl_->count(State::kWriting) + impl_->count(State::kLeaving);
  const uint32_t allowed = impl_->reserve / 2;  // PSL8
  const uint32_t most = std::min(max, allowed - std::min(allowed, under_way));
  taken.reserve(std::min(most, impl_->writable.size()));
  while (taken.size() < most && !impl_->writable.empty() && impl_->writable.least() < below.value) {
    const uint32_t slot = impl_->writable.first();
    const SlotState& s = impl_->states[slot];
    impl_->become(slot, State::kWriting);
    impl_->relist(slot);
    impl_->spaces.find(s.id.space)->second.writes++;
    taken.push_back({slot, s.id, s.llsn});
  }
  impl_->writes += taken.size();
  std::sort(taken.begin(), taken.end(), [](const Write& a, const Write& b) { return a.id < b.id; });
  return taken;
}

uint64_t Pool::wrote(const std::vector<Write>& writes) {
  const uint64_t report = ++impl_->report;
  for (const Write& write : writes) impl_->end_write(write, report);
  return report;
}

void Pool::failed(const std::vector<Write>& writes) {
  for (const Write& write : writes) impl_->end_write(write, 0);
}

void Pool::synced(uint64_t report) {
  while (!impl_->settling.empty() && impl_->settling.least() <= report) {
    const uint32_t slot = impl_->settling.first();
    SlotState& s = impl_->states[slot];
    const Lsn before = impl_->dirty_from(s);
    if (s.behind[0].report != 0) {
      s.behind[0] = std::exchange(s.behind[1], Claim());
    } else {  // PSL5
      s.report = 0;
      s.own = kNeverChanged;
      impl_->become(slot, State::kClean);
    }
    impl_->restate(slot, before);
  }
}

void Pool::stored(PageId id, Llsn llsn) {
  const uint32_t slot = impl_->current(id);
  if (slot == kNone) return;
  SlotState& s = impl_->states[slot];
  if (s.state != State::kDirty || s.leaving != kNone || s.llsn > llsn) return;
  const Lsn before = impl_->dirty_from(s);
  s.own = kNeverChanged;
  s.behind = {};
  s.behind_write = kNeverChanged;
  impl_->become(slot, State::kClean);
  impl_->restate(slot, before);
}

std::vector<Pool::Write> Pool::written_since_sync(uint32_t from, uint32_t max,
                                                  uint32_t* next) const {
  std::vector<Write> found;
  uint32_t slot = from;
  for (; slot < impl_->slots() && found.size() < max; slot++) {
    if (!impl_->settling.has(slot)) continue;
    const SlotState& s = impl_->states[slot];
    found.push_back({slot, s.id, s.llsn});
  }
  *next = std::min(slot, impl_->slots());
  return found;
}

void Pool::doubt_written() {
  while (!impl_->settling.empty()) {
    const uint32_t slot = impl_->settling.first();
    SlotState& s = impl_->states[slot];
    Impl::take_over_claims(&s);
    s.report = 0;
    if (s.state == State::kWritten) impl_->become(slot, State::kDirty);
    impl_->relist(slot);  // dirty_from is as it was
  }
}

void Pool::persisted() {
  if (impl_->persistent) impl_->persisted();
}

uint32_t Pool::held() const noexcept { return static_cast<uint32_t>(impl_->held.size()); }
uint32_t Pool::unsettled() const noexcept { return impl_->unsettled(); }

Lsn Pool::oldest_dirty() const {
  uint64_t least = kNeverChanged.value;
  if (!impl_->writable.empty()) least = std::min(least, impl_->writable.least());
  if (!impl_->waiting.empty()) least = std::min(least, impl_->waiting.least());
  return Lsn{least};
}

uint64_t Pool::last_report() const noexcept { return impl_->report; }
uint32_t Pool::unclean() const noexcept { return impl_->writable.size() + impl_->waiting.size(); }

Pool::Counts Pool::counts() const {
  Counts counts;
  counts.slots = impl_->slots();
  counts.free = impl_->count(State::kFree);
  counts.filling = impl_->count(State::kFilling);
  counts.clean = impl_->count(State::kClean);
  counts.dirty = impl_->count(State::kDirty);
  counts.writing = impl_->count(State::kWriting);
  counts.written = impl_->count(State::kWritten);
  counts.leaving = impl_->count(State::kLeaving);
  counts.held = impl_->count(State::kHeld);
  counts.published = impl_->published;
  counts.rejected = impl_->rejected;
  counts.dropped = impl_->dropped;
  counts.replaced = impl_->replaced;
  counts.writes = impl_->writes;
  return counts;
}

void Pool::check() const { impl_->check(); }

}  // namespace strata::memnode
