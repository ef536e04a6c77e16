#include "fusion/names/names.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace strata::fusion {

using proto::NameAsk;
using proto::NameCaller;
using proto::NameGiveUp;
using proto::NameGrant;
using proto::NameMode;
using proto::NameReport;

// --- servers ---

Status Names::joined(NodeId server, uint64_t life) {
  const auto [it, is_new] = members_.try_emplace(server.value, Member{.life = life});
  if (is_new || (it->second.life == life && !it->second.fenced)) return ok_status();
  return error_in_use("an earlier process of this server has not been released yet");
}

// `change` says whether it has changed the entry.
template <typename Change>
void Names::change_entries(uint64_t now_us, const Change& change) {
  std::vector<std::string> changed;
  for (auto& [name, entry] : entries_)
    if (change(&entry)) changed.push_back(name);
  for (const std::string& name : changed)
    if (const auto it = entries_.find(name); it != entries_.end()) settle(it, now_us);
}

void Names::left(NodeId server, uint64_t life) {
  const auto it = members_.find(server.value);
  if (it == members_.end() || it->second.life != life || it->second.fenced) return;
  members_.erase(it);
  for (auto& [place, adopter] : dead_)
    if (adopter == server) adopter = NodeId{};
  change_entries(0, [&](Entry* entry) {
    return std::erase_if(entry->holders,
                         [&](const Holder& h) { return !h.dead && h.server == server; }) +
               std::erase_if(entry->waiters, [&](const Waiter& w) { return w.server == server; }) !=
           0;
  });
}

void Names::fence(NodeId server) {
  const auto it = members_.find(server.value);
  if (it == members_.end()) return;
  it->second.fenced = true;
  change_entries(0, [&](Entry* entry) {
    return std::erase_if(entry->waiters, [&](const Waiter& w) { return w.server == server; }) != 0;
  });
}

void Names::release_fenced(NodeId server) {
  const auto it = members_.find(server.value);
  if (it == members_.end() || !it->second.fenced) return;
  members_.erase(it);
  dead_.try_emplace(server.value);
  for (auto& [place, adopter] : dead_)
    if (adopter == server) adopter = NodeId{};
  change_entries(0, [&](Entry* entry) {
    Holder* const holder = holder_of(entry, server);
    if (holder == nullptr) return false;
    if (holder->exclusive.number == 0) {
      entry->holders.erase(entry->holders.begin() + (holder - entry->holders.data()));
      return true;
    }
    kill(entry, holder);
    return true;
  });
}

// NL4. Beside what was dead already, if it was killed while it recovered.
void Names::kill(Entry* entry, Holder* holder) {
  ++counters_.dead;
  const bool shared = holder->exclusive.shared;
  for (Holder& h : entry->holders) {
    if (!h.dead || h.server != holder->server) continue;
    h.exclusive.shared = h.exclusive.shared && shared;
    entry->holders.erase(entry->holders.begin() + (holder - entry->holders.data()));
    return;
  }
  const Grant nobodys{.shared = shared};
  *holder = Holder{.server = holder->server, .dead = true, .use = {}, .exclusive = nobodys};
}

// --- in the place of a memory node that is gone ---

// NL9
Status Names::holds(const NameCaller& caller, absl::Span<const proto::HeldName> names) {
  STRATA_RETURN_IF_ERROR(check_member(caller));
  if (!recovering_) return error_invalid_argument("it is too late to say what a server has");
  for (const proto::HeldName& held : names) {
    if (held.name.size() > kNameBytesMax || (held.use == 0 && held.exclusive == 0) ||
        (held.shared && held.exclusive == 0))
      return error_invalid_argument("this is no name that a server may have");
    const auto found = entries_.find(held.name);
    if (found == entries_.end()) continue;
    for (const Holder& h : found->second.holders) {
      if (!h.dead && h.server == caller.server) continue;  // said again
      const bool mine = held.exclusive != 0 && !held.shared;
      const bool theirs = h.exclusive.number != 0 && !h.exclusive.shared;
      const bool used = (held.shared && h.use.number != 0) || (h.exclusive.shared && held.use != 0);
      if (h.dead || mine || theirs || used)
        return error_invalid_argument("two servers say that they have the same name");
    }
  }
  for (const proto::HeldName& held : names) {
    Entry& entry = entry_of(held.name, 0)->second;
    if (holder_of(&entry, caller.server) != nullptr) continue;  // said again
    entry.holders.push_back(Holder{.server = caller.server,
                                   .dead = false,
                                   .use = {.number = held.use},
                                   .exclusive = {.number = held.exclusive, .shared = held.shared}});
    heard_of(std::max(held.use, held.exclusive));
  }
  return ok_status();
}

void Names::lost(NodeId place) {
  dead_.try_emplace(place.value);
  unknown_.insert(place.value);
}

// --- adopting ---

std::vector<std::string> Names::dead_names(NodeId place) const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_)
    for (const Holder& h : entry.holders)
      if (h.dead && h.server == place) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

Status Names::adopt(const NameCaller& adopter, NodeId place) {
  STRATA_RETURN_IF_ERROR(check_caller(adopter));
  const auto it = dead_.find(place.value);
  if (it == dead_.end()) return error_not_found();
  if (!it->second.is_zero() && it->second != adopter.server)
    return error_in_use("another server is taking this one's place over");
  it->second = adopter.server;
  return ok_status();
}

Status Names::release_dead(const NameCaller& adopter, NodeId place,
                           absl::Span<const std::string> names, uint64_t now_us) {
  STRATA_RETURN_IF_ERROR(check_caller(adopter));
  const auto dead = dead_.find(place.value);
  if (dead == dead_.end() || dead->second != adopter.server) return ok_status();
  for (const std::string& name : names) {
    const auto it = entries_.find(name);
    if (it == entries_.end()) continue;
    std::erase_if(it->second.holders, [&](const Holder& h) { return h.dead && h.server == place; });
    settle(it, now_us);
  }
  return ok_status();
}

Status Names::adoption_ended(const NameCaller& adopter, NodeId place, uint64_t now_us) {
  STRATA_RETURN_IF_ERROR(check_caller(adopter));
  const auto it = dead_.find(place.value);
  if (it == dead_.end() || it->second != adopter.server) return ok_status();
  dead_.erase(it);
  const bool was_unknown = unknown_.erase(place.value) != 0;  // NL9
  change_entries(now_us, [&](Entry* entry) {
    return std::erase_if(entry->holders,
                         [&](const Holder& h) { return h.dead && h.server == place; }) != 0 ||
           (was_unknown && !entry->waiters.empty());
  });
  return ok_status();
}

// --- what servers say ---

Status Names::check_caller(const NameCaller& caller) const {
  STRATA_RETURN_IF_ERROR(check_member(caller));
  if (recovering_) return error_peer_down("this memory node still hears what servers have");
  return ok_status();
}

Status Names::check_member(const NameCaller& caller) const {
  const auto it = members_.find(caller.server.value);
  if (caller.epoch != epoch_ || it == members_.end() || it->second.life != caller.life ||
      it->second.fenced)
    return error_fenced("this server was fenced, or knows another memory node");
  return ok_status();
}

Names::Holder* Names::holder_of(Entry* entry, NodeId server) noexcept {
  for (Holder& holder : entry->holders)
    if (!holder.dead && holder.server == server) return &holder;
  return nullptr;
}

Names::Entries::iterator Names::entry_of(const std::string& name, uint64_t now_us) {
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found;
  if (entries_.size() >= options_.names_max) trim(now_us);
  const auto it = entries_.try_emplace(name).first;
  it->second.at = by_age_.insert(by_age_.end(), name);
  return it;
}

Status Names::ask(const NameCaller& caller, absl::Span<const NameAsk> asks, uint64_t now_us) {
  STRATA_RETURN_IF_ERROR(check_caller(caller));
  if (asks.size() > kAtOnceMax) return error_invalid_argument("too many names at once");
  for (const NameAsk& ask : asks) {
    const bool is_mode = ask.mode == NameMode::kNone || ask.mode == NameMode::kUse ||
                         ask.mode == NameMode::kShared || ask.mode == NameMode::kExclusive;
    if (!is_mode || ask.ask == 0 || ask.name.size() > kNameBytesMax)
      return error_invalid_argument("this is no ask for a name");
  }
  for (const NameAsk& ask : asks) {
    if (ask.mode == NameMode::kNone)
      cancel(caller.server, ask, now_us);
    else
      ask_one(caller.server, ask, now_us);
  }
  return ok_status();
}

// NL4. Others that wait for it wait for this server.
bool Names::inherits(const Entry& entry, NodeId server) const noexcept {
  return unknown_.contains(server.value) ||
         std::any_of(entry.holders.begin(), entry.holders.end(),
                     [&](const Holder& h) { return h.dead && h.server == server; });
}

void Names::ask_one(NodeId server, const NameAsk& ask, uint64_t now_us) {
  const auto it = entry_of(ask.name, now_us);
  Entry& entry = it->second;
  if (const Holder* holder = holder_of(&entry, server); holder != nullptr) {
    const Grant& has = ask.mode == NameMode::kUse ? holder->use : holder->exclusive;
    if (has.number != 0 && ask.ask < has.ask) return;  // late
    if (has.number != 0 && ask.ask == has.ask) {       // the grant did not arrive, or has not yet
      ++counters_.granted_again;
      return send_grant(ask.name, server, ask.mode, has);
    }
    // It does not know of what it has, or has given it up by a report that is on its way: it is
    // asked for it like anybody else.
  }
  const auto waiter =
      std::find_if(entry.waiters.begin(), entry.waiters.end(),
                   [&](const Waiter& w) { return w.server == server && w.mode == ask.mode; });
  if (waiter != entry.waiters.end())
    waiter->ask = std::max(waiter->ask, ask.ask);
  else
    entry.waiters.insert(inherits(entry, server) ? entry.waiters.begin() : entry.waiters.end(),
                         {server, ask.mode, ask.ask});
  settle(it, now_us);
}

void Names::cancel(NodeId server, const NameAsk& ask, uint64_t now_us) {
  const auto it = entries_.find(ask.name);
  if (it == entries_.end()) return;
  if (std::erase_if(it->second.waiters,
                    [&](const Waiter& w) { return w.server == server && w.ask == ask.ask; }) == 0)
    return;
  ++counters_.cancelled;
  settle(it, now_us);
}

Status Names::report(const NameCaller& caller, absl::Span<const NameReport> reports,
                     uint64_t now_us) {
  STRATA_RETURN_IF_ERROR(check_caller(caller));
  if (reports.size() > kAtOnceMax) return error_invalid_argument("too many names at once");
  for (const NameReport& report : reports)
    if (report.number == 0 || (report.keeps != NameMode::kNone && report.keeps != NameMode::kUse))
      return error_invalid_argument("this is no report about a name");
  for (const NameReport& report : reports) report_one(caller.server, report, now_us);
  return ok_status();
}

void Names::report_one(NodeId server, const NameReport& report, uint64_t now_us) {
  const auto it = entries_.find(report.name);
  if (it == entries_.end()) return;
  Holder* const holder = holder_of(&it->second, server);
  if (holder == nullptr) return;
  if (holder->exclusive.number == report.number) {
    const Grant was = std::exchange(holder->exclusive, Grant{});
    // Beside others that have it shared it cannot be used.
    if (report.keeps == NameMode::kUse && !was.shared)
      holder->use = Grant{.number = was.number, .ask = was.ask};
  } else if (holder->use.number == report.number && report.keeps == NameMode::kNone) {
    holder->use = Grant{};
  } else {
    return;  // NL2
  }
  if (holder->use.number == 0 && holder->exclusive.number == 0)
    it->second.holders.erase(it->second.holders.begin() + (holder - it->second.holders.data()));
  settle(it, now_us);
}

// --- grants ---

// NL1. What the server has by an earlier ask has to be gone before.
bool Names::is_in_the_way(const Holder& h, const Waiter& waiter) noexcept {
  if (h.dead) return h.server != waiter.server;  // NL4
  const bool use = waiter.mode == NameMode::kUse;
  if (h.server == waiter.server) return (use ? h.use : h.exclusive).number != 0;
  if (waiter.mode == NameMode::kShared) return h.use.number != 0 || !h.exclusive.shared;
  return !use || h.exclusive.number != 0;
}

bool Names::is_free(const Entry& entry, const Waiter& waiter) const noexcept {
  // NL9. What was its own place's is for it (NL4).
  const bool unknown = std::any_of(unknown_.begin(), unknown_.end(),
                                   [&](uint8_t place) { return place != waiter.server.value; });
  if (unknown && entry.holders.empty()) return false;
  return std::none_of(entry.holders.begin(), entry.holders.end(),
                      [&](const Holder& h) { return is_in_the_way(h, waiter); });
}

void Names::settle(Entries::iterator it, uint64_t now_us) {
  Entry& entry = it->second;
  const std::string& name = it->first;
  while (!entry.waiters.empty() && is_free(entry, entry.waiters.front())) {
    const Waiter first = entry.waiters.front();
    entry.waiters.pop_front();
    grant(name, &entry, first);
  }
  if (!entry.waiters.empty()) {
    contended_.insert(name);
    return ask_holders(name, &entry, now_us, false);
  }
  contended_.erase(name);
  if (!entry.holders.empty()) return;
  by_age_.erase(entry.at);
  entries_.erase(it);  // NL5
}

void Names::grant(const std::string& name, Entry* entry, const Waiter& waiter) {
  Holder* holder = holder_of(entry, waiter.server);
  if (holder == nullptr)
    holder = &entry->holders.emplace_back(
        Holder{.server = waiter.server, .dead = false, .use = {}, .exclusive = {}});
  const bool use = waiter.mode == NameMode::kUse;
  Grant& given = use ? holder->use : holder->exclusive;
  given = Grant{.number = ++last_number_, .ask = waiter.ask};
  given.shared = waiter.mode == NameMode::kShared;
  ++counters_.grants;
  send_grant(name, waiter.server, waiter.mode, given);
  by_age_.splice(by_age_.end(), by_age_, entry->at);
  if (waiter.mode != NameMode::kExclusive) return;
  // Who has it exclusively may use it: what it asked for before is answered by this.
  std::erase_if(entry->waiters, [&](const Waiter& w) {
    return w.server == waiter.server && w.mode == NameMode::kUse && w.ask < waiter.ask;
  });
}

void Names::send_grant(const std::string& name, NodeId server, NameMode mode, const Grant& grant) {
  const auto member = members_.find(server.value);
  STRATA_ASSERT(member != members_.end());
  outgoing_.push_back(
      {server, member->second.life, NameGrant{name, mode, grant.ask, grant.number}});
}

// `again`: also those that were asked, long ago.
void Names::ask_holders(const std::string& name, Entry* entry, uint64_t now_us, bool again) {
  const Waiter& first = entry->waiters.front();
  const bool use = first.mode == NameMode::kUse;
  for (Holder& h : entry->holders) {
    if (h.dead || !is_in_the_way(h, first)) continue;
    // Of its own what it asks for anew; of another one's whatever is in the way.
    const bool own = h.server == first.server;
    const bool beside = first.mode == NameMode::kShared && h.exclusive.shared;
    if (own ? !use : !beside)
      ask_back(name, h.server, NameMode::kExclusive, &h.exclusive, now_us, again);
    if (own == use) ask_back(name, h.server, NameMode::kUse, &h.use, now_us, again);
  }
}

void Names::ask_back(const std::string& name, NodeId server, NameMode mode, Grant* grant,
                     uint64_t now_us, bool again) {
  if (grant->number == 0) return;
  if (grant->asked && !(again && now_us >= grant->asked_us + options_.ask_again_us)) return;
  const auto member = members_.find(server.value);
  if (member == members_.end() || member->second.fenced) return;
  grant->asked = true;
  grant->asked_us = now_us;
  ++counters_.give_ups;
  outgoing_.push_back({server, member->second.life, NameGiveUp{name, mode, grant->number}});
}

// The oldest name that nobody waits for; it goes when all have given it up.
void Names::trim(uint64_t now_us) {
  constexpr size_t kLooksMax = 16;
  for (size_t looks = 0; looks < kLooksMax && !by_age_.empty(); ++looks) {
    by_age_.splice(by_age_.end(), by_age_, by_age_.begin());
    const std::string& name = by_age_.back();
    Entry& entry = entries_.at(name);
    if (!entry.waiters.empty()) continue;
    for (Holder& h : entry.holders)
      if (!h.dead && h.exclusive.number == 0)
        ask_back(name, h.server, NameMode::kUse, &h.use, now_us, true);
    ++counters_.trimmed;
    return;
  }
}

std::vector<Names::Outgoing> Names::take_outgoing() { return std::exchange(outgoing_, {}); }

void Names::tick(uint64_t now_us) {
  for (const std::string& name : contended_) ask_holders(name, &entries_.at(name), now_us, true);
}

// --- for people, and for tests ---

std::string Names::describe(Bytes name) const {
  const auto it = entries_.find(std::string(name));
  if (it == entries_.end()) return "nobody has it";
  std::string text = "held by";
  for (const Holder& h : it->second.holders) {
    text += " " + std::to_string(h.server.value);
    if (h.dead) text += " dead";
    if (h.use.number != 0) text += " U:" + std::to_string(h.use.number);
    if (h.exclusive.number != 0)
      text += (h.exclusive.shared ? " S:" : " X:") + std::to_string(h.exclusive.number);
    if (h.use.asked || h.exclusive.asked) text += " asked";
  }
  text += ", waited for by";
  for (const Waiter& w : it->second.waiters)
    text += " " + std::to_string(w.server.value) +
            (w.mode == NameMode::kUse      ? "U:"
             : w.mode == NameMode::kShared ? "S:"
                                           : "X:") +
            std::to_string(w.ask);
  return text;
}

std::string Names::check() const {
  if (by_age_.size() != entries_.size()) return "names are listed wrongly";
  for (const auto& [name, entry] : entries_) {
    size_t exclusive = 0, shared = 0, use = 0, holders = 0;
    for (const Holder& h : entry.holders) {
      const bool inherited = !h.dead && std::any_of(entry.holders.begin(), entry.holders.end(),
                                                    [&](const Holder& other) {
                                                      return other.dead && other.server == h.server;
                                                    });
      if (inherited && !members_.contains(h.server.value)) return name + ": held by nobody here";
      if (inherited) continue;  // NL4
      ++holders;
      exclusive += (h.dead || h.exclusive.number != 0) && !h.exclusive.shared ? 1 : 0;
      shared += h.exclusive.shared ? 1 : 0;
      use += h.use.number != 0 && !h.exclusive.shared ? 1 : 0;
      if (h.exclusive.shared && h.use.number != 0 && entry.holders.size() > 1)
        return name + ": used beside those that have it shared";
      if (!h.dead && h.use.number == 0 && h.exclusive.number == 0)
        return name + ": held as nothing";
      if (!h.dead && !members_.contains(h.server.value)) return name + ": held by nobody here";
    }
    if (exclusive > 1 || (exclusive == 1 && holders > 1) || (shared != 0 && use != 0))
      return name + ": NL1";
    if (entry.holders.empty() && entry.waiters.empty()) return name + ": NL5";
    if (contended_.contains(name) == entry.waiters.empty())
      return "nobody looks after the queue of " + name;
    if (!entry.waiters.empty() && is_free(entry, entry.waiters.front()))
      return name + ": the first could have it";
  }
  return "";
}

}  // namespace strata::fusion
