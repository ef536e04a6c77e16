#include "fusion/pages/pages.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/page_name.h"

namespace strata::fusion {

using proto::kNoPageSlot;
using proto::PageAsk;
using proto::PageCaller;
using proto::PageFloor;
using proto::PageGiveUp;
using proto::PageGrant;
using proto::PageMode;
using proto::PageReport;

namespace {

constexpr size_t kReportsMax = 4096;
constexpr uint32_t kSlotsAtOnceMax = 1024;

bool in_conflict(PageMode a, PageMode b) noexcept {
  return a == PageMode::kExclusive || b == PageMode::kExclusive;
}

// A floor names only what there is: nobody waits for a stream that was never begun.
void raise(PageFloor* floor, uint32_t stream, uint64_t lsn) {
  if (lsn == 0) return;
  for (proto::StreamPosition& at : floor->scanned_to) {
    if (at.stream.value != stream) continue;
    at.lsn.value = std::max(at.lsn.value, lsn);
    return;
  }
  floor->scanned_to.push_back({StreamId{stream}, Lsn{lsn}});
}

}  // namespace

Pages::Pages(const PagesOptions& options, Epoch epoch)
    : options_(options), epoch_(epoch), floors_(options.shards), slots_(options.slots) {
  STRATA_ASSERT(options.shards != 0);
  free_slots_.reserve(options.slots);
  for (uint32_t slot = options.slots; slot-- > 0;) free_slots_.push_back(slot);
}

// --- servers ---

Status Pages::joined(NodeId server, uint64_t life) {
  const auto [it, is_new] = members_.try_emplace(server.value, Member{.life = life});
  if (is_new || (it->second.life == life && !it->second.fenced)) return ok_status();
  return error_in_use("an earlier process of this server has not been released yet");
}

template <typename Keep>
void Pages::remove_holders(uint64_t now_us, const Keep& keep) {
  for (auto& [page, entry] : entries_) {
    const size_t before = entry.holders.size();
    bool lost = false;  // FP7
    std::erase_if(entry.holders, [&](Holder& holder) {
      const bool wrote = !holder.dead && holder.mode == PageMode::kExclusive;
      const bool kept = keep(&holder);
      lost |= wrote && (!kept || holder.dead);
      return !kept;
    });
    if (lost) lose_version(&entry);
    if (lost || entry.holders.size() != before) settle(page, &entry, now_us);
  }
}

void Pages::left(NodeId server, uint64_t life, const proto::StreamPosition& end) {
  const auto it = members_.find(server.value);
  if (it == members_.end() || it->second.life != life || it->second.fenced) return;
  fence(server);
  const bool adopts = std::any_of(dead_.begin(), dead_.end(),
                                  [&](const auto& dead) { return dead.second.adopter == server; });
  if (adopts) return release_fenced(server);  // what it was redoing is not ready
  members_.erase(server.value);
  know_ends({&end, 1});
  remove_holders(0, [&](const Holder* h) { return h->dead || h->server != server; });
}

void Pages::fence(NodeId server) {
  const auto it = members_.find(server.value);
  if (it == members_.end()) return;
  it->second.fenced = true;
  for (auto& [page, entry] : entries_) {
    const size_t before = entry.waiters.size();
    std::erase_if(entry.waiters, [&](const Waiter& w) { return w.server == server; });
    if (entry.waiters.size() != before) settle(page, &entry, 0);
  }
}

void Pages::release_fenced(NodeId server) {
  const auto it = members_.find(server.value);
  if (it == members_.end() || !it->second.fenced) return;
  members_.erase(it);
  dead_.try_emplace(server.value);
  // What it was adopting waits for another adopter.
  for (auto& [place, dead] : dead_)
    if (dead.adopter == server) dead.adopter = NodeId{};
  remove_holders(0, [&](Holder* h) {
    if (h->dead || h->server != server) return true;
    if (!h->redo_of.is_zero())
      *h = dead_holder(h->redo_of);
    else if (h->mode == PageMode::kExclusive)
      *h = dead_holder(server);
    return h->dead;
  });
}

void Pages::mapping_gone(NodeId server, uint64_t life) {
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    const Slot& s = slots_[slot];
    if (s.state == SlotState::kGiven && s.server == server && s.life == life) free_slot(slot);
  }
}

// --- in the place of a memory node that is gone ---

// FP6
Status Pages::holds(const PageCaller& caller, absl::Span<const proto::HeldPage> pages) {
  STRATA_RETURN_IF_ERROR(check_member(caller));
  if (!recovering_) return error_invalid_argument("it is too late to say what a server has");
  for (const proto::HeldPage& held : pages) {
    const auto found = entries_.find(held.page);
    if (found == entries_.end()) continue;
    for (const Holder& h : found->second.holders) {
      if (h.dead || (h.server != caller.server && in_conflict(h.mode, held.mode)))
        return error_invalid_argument("two servers say that they have the same page");
    }
  }
  for (const proto::HeldPage& held : pages) {
    const auto it = entry_of(held.page);
    if (holder_of(it->second, caller.server) != nullptr) continue;  // said again
    it->second.holders.push_back(Holder{caller.server, held.mode, held.number});
    heard_of(held.number);
    update_lists(held.page, &it->second);
  }
  return ok_status();
}

// --- adopting ---

Pages::Holder Pages::dead_holder(NodeId place) noexcept {
  Holder holder;
  holder.server = place;
  holder.mode = PageMode::kExclusive;
  holder.dead = true;
  return holder;
}

std::vector<Pages::DeadPage> Pages::dead_pages(NodeId place) const {
  std::vector<DeadPage> pages;
  for (const auto& [page, entry] : entries_)
    for (const Holder& holder : entry.holders)
      if (holder.dead && holder.server == place)
        pages.push_back({page, entry.known, entry.llsn, entry.slot});
  return pages;
}

Status Pages::adopt(const PageCaller& adopter, NodeId place) {
  STRATA_RETURN_IF_ERROR(check_caller(adopter));
  const auto it = dead_.find(place.value);
  if (it == dead_.end()) return error_not_found();
  if (!it->second.adopter.is_zero() && it->second.adopter != adopter.server)
    return error_in_use("another server is taking this one's place over");
  it->second.adopter = adopter.server;
  return ok_status();
}

Status Pages::adoption_ended(const PageCaller& adopter, NodeId place,
                             const proto::StreamPosition& end) {
  STRATA_RETURN_IF_ERROR(check_caller(adopter));
  know_ends({&end, 1});
  const auto it = dead_.find(place.value);
  if (it == dead_.end() || it->second.adopter != adopter.server) return ok_status();
  dead_.erase(it);
  remove_holders(0, [&](Holder* h) {
    if (h->redo_of == place) h->redo_of = NodeId{};
    return !h->dead || h->server != place;
  });
  // What the adopter still has it is asked for from now on.
  for (const PageId page : contended_) ask_holders(page, &entries_.at(page), 0, false);
  return ok_status();
}

// --- what servers say ---

Status Pages::check_caller(const PageCaller& caller) const {
  STRATA_RETURN_IF_ERROR(check_member(caller));
  if (recovering_) return error_peer_down("this memory node still hears what servers have");
  return ok_status();
}

Status Pages::check_member(const PageCaller& caller) const {
  const auto it = members_.find(caller.server.value);
  if (caller.epoch != epoch_ || it == members_.end() || it->second.life != caller.life ||
      it->second.fenced)
    return error_fenced("this server was fenced, or knows another memory node");
  return ok_status();
}

const Pages::Holder* Pages::holder_of(const Entry& entry, NodeId server) noexcept {
  for (const Holder& holder : entry.holders)
    if (!holder.dead && holder.server == server) return &holder;
  return nullptr;
}

Pages::Entries::iterator Pages::entry_of(PageId page) {
  const auto found = entries_.find(page);
  if (found != entries_.end()) return found;
  if (entries_.size() >= options_.entries_max) trim(options_.entries_max - 1);
  return entries_.try_emplace(page).first;
}

Status Pages::ask(const PageCaller& caller, absl::Span<const PageAsk> asks, uint64_t now_us) {
  STRATA_RETURN_IF_ERROR(check_caller(caller));
  for (const PageAsk& ask : asks) {
    const bool is_mode = ask.mode == PageMode::kShared || ask.mode == PageMode::kExclusive;
    if (!is_mode || ask.ask == 0) return error_invalid_argument("this is no ask for a page");
  }
  for (const PageAsk& ask : asks) ask_one(caller.server, ask, now_us);
  return ok_status();
}

void Pages::ask_one(NodeId server, const PageAsk& ask, uint64_t now_us) {
  Entry& entry = entry_of(ask.page)->second;
  if (const Holder* holder = holder_of(entry, server); holder != nullptr) {
    if (ask.ask < holder->ask) return;  // late
    if (ask.ask == holder->ask) {       // the grant did not arrive, or has not yet
      ++counters_.granted_again;
      return send_grant(ask.page, entry, *holder);
    }
    // It does not know of that hold, or has given it up by a report that is on its way: it is asked
    // for it like anybody else.
  }
  if (ask.redo && grant_dead(server, ask, &entry)) return settle(ask.page, &entry, now_us);
  const auto waiter = std::find_if(entry.waiters.begin(), entry.waiters.end(),
                                   [&](const Waiter& w) { return w.server == server; });
  if (waiter != entry.waiters.end()) {
    if (ask.ask > waiter->ask) {
      waiter->ask = ask.ask;
      waiter->mode = ask.mode;
    }
    return settle(ask.page, &entry, now_us);
  }
  entry.waiters.push_back({server, ask.mode, ask.ask});
  settle(ask.page, &entry, now_us);
}

// FP3.
bool Pages::grant_dead(NodeId server, const PageAsk& ask, Entry* entry) {
  for (Holder& holder : entry->holders) {
    const auto dead = holder.dead ? dead_.find(holder.server.value) : dead_.end();
    if (dead == dead_.end() || dead->second.adopter != server) continue;
    const NodeId place = holder.server;
    holder = Holder{server, PageMode::kExclusive, ++last_number_, ask.ask};
    holder.redo_of = place;
    ++counters_.grants;
    send_grant(ask.page, *entry, holder);
    return true;
  }
  return false;
}

Status Pages::check_report(const PageCaller& caller, const PageReport& report) const {
  if (!report.changed) return ok_status();
  if (report.slot == kNoPageSlot) {
    if (options_.storage_replays) return ok_status();
    return error_invalid_argument("a version of a page without a slot");
  }
  if (report.slot >= slots_.size()) return error_invalid_argument("there is no such slot");
  const auto found = entries_.find(report.page);
  if (found == entries_.end()) return ok_status();  // it changes nothing
  const Entry& entry = found->second;
  const Holder* const holder = holder_of(entry, caller.server);
  if (holder == nullptr || holder->number != report.number) return ok_status();
  if (entry.known && report.llsn <= entry.llsn) return ok_status();
  if (holder->mode != PageMode::kExclusive)
    return error_invalid_argument("a version of a page that the server had for reading");
  const Slot& slot = slots_[report.slot];
  if (slot.state != SlotState::kGiven || slot.server != caller.server || slot.life != caller.life)
    return error_invalid_argument("a version of a page in a slot of somebody else's");  // FU14
  return ok_status();
}

Status Pages::report(const PageCaller& caller, absl::Span<const PageReport> reports,
                     uint64_t now_us) {
  STRATA_RETURN_IF_ERROR(check_caller(caller));
  if (reports.size() > kReportsMax) return error_invalid_argument("too many pages at once");
  std::set<uint32_t> named;
  for (const PageReport& report : reports) {
    STRATA_RETURN_IF_ERROR(check_report(caller, report));
    if (report.changed && report.slot != kNoPageSlot && !named.insert(report.slot).second)
      return error_invalid_argument("two pages in one slot");
  }
  for (const PageReport& report : reports) report_one(caller.server, report, now_us);
  return ok_status();
}

void Pages::report_one(NodeId server, const PageReport& report, uint64_t now_us) {
  const auto found = entries_.find(report.page);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  const Holder* const holder = holder_of(entry, server);
  if (holder == nullptr || holder->number != report.number) return;  // FU13
  if (report.changed) take_version(&entry, report);
  if (report.gives_up) {
    const size_t at = static_cast<size_t>(holder - entry.holders.data());
    if (holder->redo_of.is_zero())
      entry.holders.erase(entry.holders.begin() + static_cast<ptrdiff_t>(at));
    else
      entry.holders[at] = dead_holder(holder->redo_of);  // FP3
  }
  heard_us_ = now_us;
  if (!entry.firsts.empty() && !entry.queued && !entry.writing)
    queue_to_write(report.page, &entry, now_us);
  settle(report.page, &entry, now_us);
}

void Pages::take_version(Entry* entry, const PageReport& report) {
  if (entry->known && report.llsn <= entry->llsn) {  // FP1
    ++counters_.refused_versions;
    return;
  }
  ++counters_.versions;
  if (entry->slot != kNoPageSlot) {
    if (entry->writing && entry->writing_slot == entry->slot)
      slots_[entry->slot].state = SlotState::kWritten;
    else
      free_slot(entry->slot);
  }
  entry->slot = report.slot;
  if (report.slot != kNoPageSlot) slots_[report.slot] = Slot{SlotState::kPage, {}, 0};
  entry->known = true;
  entry->llsn = report.llsn;
  uint64_t& end = entry->ends[report.stream.value];
  end = std::max(end, report.end.value);
  if (!options_.storage_replays) {
    if (!is_dirty(*entry)) ++dirty_pages_;
    add_first(&entry->firsts, report.stream.value, report.first.value);
  }
}

// FP7
void Pages::lose_version(Entry* entry) {
  if (!options_.storage_replays) return;
  if (entry->slot != kNoPageSlot) free_slot(std::exchange(entry->slot, kNoPageSlot));
  entry->known = false;
}

void Pages::know_ends(absl::Span<const proto::StreamPosition> ends) {
  if (!options_.storage_replays) return;
  for (const proto::StreamPosition& end : ends)
    for (PageFloor& floor : floors_) raise(&floor, end.stream.value, end.lsn.value);
}

// --- grants ---

void Pages::settle(PageId page, Entry* entry, uint64_t now_us) {
  while (!entry->waiters.empty()) {
    const Waiter& first = entry->waiters.front();
    const bool granted =
        std::none_of(entry->holders.begin(), entry->holders.end(), [&](const Holder& h) {
          return h.dead || h.server == first.server || in_conflict(h.mode, first.mode);
        });
    if (!granted) break;
    grant(page, entry, first);
    entry->waiters.pop_front();
  }
  if (entry->waiters.empty()) {
    contended_.erase(page);
  } else {
    contended_.insert(page);
    ask_holders(page, entry, now_us, false);
  }
  update_lists(page, entry);
}

void Pages::grant(PageId page, Entry* entry, const Waiter& waiter) {
  entry->holders.push_back(Holder{waiter.server, waiter.mode, ++last_number_, waiter.ask});
  ++counters_.grants;
  send_grant(page, *entry, entry->holders.back());
}

void Pages::send_grant(PageId page, const Entry& entry, const Holder& holder) {
  PageGrant grant{page,        holder.ask, holder.number, holder.mode,
                  entry.known, entry.llsn, entry.slot,    {}};
  if (!entry.known) grant.floor = floors_[shard_of(page)];  // FU16: as it is now, so no lower
  if (!entry.known || options_.storage_replays)
    for (const auto& [stream, end] : entry.ends) raise(&grant.floor, stream, end);
  const auto member = members_.find(holder.server.value);
  STRATA_ASSERT(member != members_.end());
  outgoing_.push_back({holder.server, member->second.life, std::move(grant)});
}

// `again`: also those that were asked, long ago.
void Pages::ask_holders(PageId page, Entry* entry, uint64_t now_us, bool again) {
  const Waiter& first = entry->waiters.front();
  for (Holder& holder : entry->holders) {
    if (holder.dead || !holder.redo_of.is_zero()) continue;  // FP3
    if (holder.server != first.server && !in_conflict(holder.mode, first.mode)) continue;
    if (holder.asked && !(again && now_us >= holder.asked_us + options_.ask_again_us)) continue;
    const auto member = members_.find(holder.server.value);
    if (member == members_.end() || member->second.fenced) continue;
    holder.asked = true;
    holder.asked_us = now_us;
    ++counters_.give_ups;
    outgoing_.push_back({holder.server, member->second.life, PageGiveUp{page, holder.number}});
  }
}

std::vector<Pages::Outgoing> Pages::take_outgoing() { return std::exchange(outgoing_, {}); }

void Pages::tick(uint64_t now_us) {
  for (const PageId page : contended_) ask_holders(page, &entries_.at(page), now_us, true);
}

// --- slots ---

void Pages::free_slot(uint32_t slot) {
  slots_[slot] = Slot{};
  free_slots_.push_back(slot);
}

void Pages::make_slots(uint64_t wanted) {
  while (free_slots_.size() < wanted && !(idle_.empty() && spare_.empty())) {
    ++counters_.slots_taken_back;
    if (idle_.empty())
      lose_slot(spare_.front());
    else
      drop(entries_.find(idle_.front()));
  }
}

// FP4
void Pages::lose_slot(PageId page) {
  Entry& entry = entries_.at(page);
  STRATA_ASSERT(entry.spare && entry.known && may_lose_slot(entry));
  free_slot(std::exchange(entry.slot, kNoPageSlot));
  update_lists(page, &entry);
}

// FP5
uint32_t Pages::slots_at_once() const noexcept {
  const auto shares = static_cast<uint32_t>(4 * std::max<size_t>(members_.size(), 1));
  return std::max(1u, options_.slots / shares);
}

StatusOr<std::vector<uint32_t>> Pages::take_slots(const PageCaller& caller, uint64_t request,
                                                  uint32_t wanted) {
  STRATA_RETURN_IF_ERROR(check_caller(caller));
  Member& member = members_.at(caller.server.value);
  if (request < member.slots_request)
    return error_invalid_argument("an answer to an earlier request for slots");
  if (request == member.slots_request) return member.slots;
  wanted = std::min({wanted, kSlotsAtOnceMax, slots_at_once()});
  make_slots(wanted);
  std::vector<uint32_t> slots;
  while (slots.size() < wanted && !free_slots_.empty()) {
    slots.push_back(free_slots_.back());
    free_slots_.pop_back();
    slots_[slots.back()] = Slot{SlotState::kGiven, caller.server, caller.life};
  }
  if (slots.empty()) return slots;
  member.slots_request = request;
  member.slots = slots;
  return slots;
}

// --- entries that go ---

size_t Pages::shard_of(PageId page) const noexcept { return mix64(page.packed()) % floors_.size(); }

const PageFloor& Pages::floor_of(PageId page) const { return floors_[shard_of(page)]; }

bool Pages::is_dirty(const Entry& entry) const noexcept {
  return !entry.firsts.empty() || !entry.writing_firsts.empty();
}

bool Pages::may_go(const Entry& entry) const noexcept {
  return entry.holders.empty() && entry.waiters.empty() && !entry.writing && !is_dirty(entry);
}

bool Pages::may_lose_slot(const Entry& entry) const noexcept {
  return entry.slot != kNoPageSlot && !entry.writing && !is_dirty(entry);
}

void Pages::update_lists(PageId page, Entry* entry) {
  const bool idle = may_go(*entry);
  const bool spare = !idle && may_lose_slot(*entry);
  if (idle == entry->idle && spare == entry->spare) return;
  if (entry->idle || entry->spare) (entry->idle ? idle_ : spare_).erase(entry->listed_at);
  entry->idle = idle;
  entry->spare = spare;
  std::list<PageId>& list = idle ? idle_ : spare_;
  if (idle || spare) entry->listed_at = list.insert(list.end(), page);
}

void Pages::drop(Entries::iterator it) {
  Entry& entry = it->second;
  STRATA_ASSERT(entry.idle && may_go(entry));
  PageFloor& floor = floors_[shard_of(it->first)];
  if (entry.known) floor.llsn = std::max(floor.llsn, entry.llsn);
  for (const auto& [stream, end] : entry.ends) raise(&floor, stream, end);
  if (entry.slot != kNoPageSlot) free_slot(entry.slot);
  idle_.erase(entry.listed_at);
  entries_.erase(it);
  ++counters_.dropped;
}

void Pages::forget_space(SpaceId space) {
  std::vector<PageId> pages;
  for (const auto& [page, entry] : entries_)
    if (page.space == space.value) pages.push_back(page);
  for (const PageId page : pages) {
    const auto it = entries_.find(page);
    Entry& entry = it->second;
    if (is_dirty(entry)) --dirty_pages_;
    clear_firsts(&entry.firsts);
    clear_firsts(&entry.writing_firsts);
    entry.queued = false;
    entry.forgotten = true;
    entry.waiters.clear();
    entry.holders.clear();
    settle(page, &entry, 0);
    if (entry.idle) drop(it);  // else once it is written
  }
}

void Pages::trim(uint64_t entries_max) {
  while (entries_.size() > entries_max && !idle_.empty()) drop(entries_.find(idle_.front()));
}

// --- to storage ---

void Pages::add_first(Firsts* firsts, uint32_t stream, uint64_t lsn) {
  const auto [it, is_new] = firsts->try_emplace(stream, lsn);
  if (!is_new) {
    if (it->second <= lsn) return;
    std::multiset<uint64_t>& all = firsts_[stream];
    all.erase(all.find(it->second));
    it->second = lsn;
  }
  firsts_[stream].insert(lsn);
}

void Pages::clear_firsts(Firsts* firsts) {
  for (const auto& [stream, lsn] : *firsts) {
    std::multiset<uint64_t>& all = firsts_[stream];
    all.erase(all.find(lsn));
  }
  firsts->clear();
}

void Pages::queue_to_write(PageId page, Entry* entry, uint64_t since_us) {
  entry->queued = true;
  to_write_.push_back({page, since_us});
}

std::vector<Pages::Write> Pages::begin_writes(uint32_t pages_max, uint64_t dirty_before_us) {
  std::vector<Write> writes;
  while (writes.size() < pages_max && !to_write_.empty() &&
         to_write_.front().since_us <= dirty_before_us) {
    const PageId page = to_write_.front().page;
    to_write_.pop_front();
    const auto it = entries_.find(page);
    if (it == entries_.end() || !it->second.queued) continue;  // its space is gone
    Entry& entry = it->second;
    entry.queued = false;
    STRATA_ASSERT(!entry.writing && entry.slot != kNoPageSlot && !entry.firsts.empty());
    entry.writing = true;
    entry.writing_slot = entry.slot;
    entry.writing_firsts = std::exchange(entry.firsts, {});
    writes.push_back({page, entry.llsn, entry.slot});
    ++counters_.writes;
    update_lists(page, &entry);
  }
  return writes;
}

void Pages::write_ended(const Write& write, bool synced) {
  const auto it = entries_.find(write.page);
  STRATA_ASSERT(it != entries_.end() && it->second.writing &&
                it->second.writing_slot == write.slot);
  Entry& entry = it->second;
  entry.writing = false;
  if (entry.writing_slot != entry.slot) free_slot(entry.writing_slot);
  entry.writing_slot = kNoPageSlot;
  Firsts written = std::exchange(entry.writing_firsts, {});
  if (!synced && !entry.forgotten)
    for (const auto& [stream, lsn] : written) add_first(&entry.firsts, stream, lsn);
  const bool was_dirty = !written.empty() || !entry.firsts.empty();
  clear_firsts(&written);
  if (!is_dirty(entry)) {
    if (was_dirty) --dirty_pages_;
  } else if (!entry.queued) {
    queue_to_write(write.page, &entry, heard_us_);
  }
  update_lists(write.page, &entry);
}

Lsn Pages::oldest(StreamId stream) const {
  const auto it = firsts_.find(stream.value);
  if (it == firsts_.end() || it->second.empty()) return Lsn{UINT64_MAX};
  return Lsn{*it->second.begin()};
}

// --- for people, and for tests ---

std::string Pages::describe(PageId page) const {
  const auto it = entries_.find(page);
  if (it == entries_.end()) return "nothing is known of it";
  const Entry& entry = it->second;
  const auto name = [](PageMode mode) { return mode == PageMode::kExclusive ? "X" : "S"; };
  std::string text = "llsn " + std::to_string(entry.known ? entry.llsn.value : 0) + ", held by";
  for (const Holder& h : entry.holders)
    text += " " + std::to_string(h.server.value) + name(h.mode) + ":" + std::to_string(h.number) +
            (h.dead ? " dead" : "") + (h.redo_of.is_zero() ? "" : " to redo") +
            (h.asked ? " asked" : "");
  text += ", waited for by";
  for (const Waiter& w : entry.waiters)
    text += " " + std::to_string(w.server.value) + name(w.mode) + ":" + std::to_string(w.ask);
  return text;
}

std::string Pages::check() const {
  std::map<uint32_t, PageId> used;
  uint64_t dirty = 0;
  uint64_t idle = 0;
  uint64_t spare = 0;
  for (const auto& [page, entry] : entries_) {
    const std::string name = text_of(page);
    for (const uint32_t slot : {entry.slot, entry.writing ? entry.writing_slot : kNoPageSlot})
      if (slot != kNoPageSlot && !used.try_emplace(slot, page).second && used[slot] != page)
        return "slot " + std::to_string(slot) + " has two pages, one of them " + name;
    if (entry.slot != kNoPageSlot && slots_[entry.slot].state != SlotState::kPage)
      return "page " + name + " is in a slot that is not a page's";
    uint64_t exclusive = 0;
    for (const Holder& h : entry.holders) exclusive += h.mode == PageMode::kExclusive ? 1 : 0;
    if (exclusive > 1 || (exclusive == 1 && entry.holders.size() > 1))
      return "page " + name + " is held by two";
    if (entry.idle != may_go(entry)) return "page " + name + " goes, or does not";
    if (entry.spare != (!entry.idle && may_lose_slot(entry)))
      return "page " + name + " may lose its slot, or may not";
    if (contended_.contains(page) == entry.waiters.empty())
      return "nobody looks after the queue of page " + name;
    dirty += is_dirty(entry) ? 1 : 0;
    idle += entry.idle ? 1 : 0;
    spare += entry.spare ? 1 : 0;
  }
  if (dirty != dirty_pages_) return "dirty pages are counted wrongly";
  if (idle != idle_.size()) return "idle pages are listed wrongly";
  if (spare != spare_.size()) return "pages that may lose their slots are listed wrongly";
  std::set<uint32_t> free(free_slots_.begin(), free_slots_.end());
  if (free.size() != free_slots_.size()) return "a slot is free twice";
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    const SlotState state = slots_[slot].state;
    if ((state == SlotState::kFree) != free.contains(slot)) return "a slot is free, or is not";
    const bool of_page = state == SlotState::kPage || state == SlotState::kWritten;
    if (of_page != used.contains(slot)) return "a slot is a page's, or is not";
  }
  return "";
}

}  // namespace strata::fusion
