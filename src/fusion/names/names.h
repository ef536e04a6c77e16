// Which server uses which table by its name, and which one changes a definition: the memory node's
// half of SchemaChanges (dict/schema_changes.h). A pure state machine: no I/O and no clock; time is
// passed in. Not thread-safe.
//
// The owner hands in what servers say, sends what take_outgoing() returns, in any order, and says
// what the authority (fusion/authority) has decided about servers.
//
//                ask()                        report(keeps nothing)
//   (nothing) -------> waits ----> use ------------------------------> (nothing)
//                        |
//                        `-------> exclusive --- report(keeps use) --> use
//                                    | fence(), release_fenced()
//                                    `--> dead --- release_dead(), adoption_ended() --> (nothing)
//
//   NL1  A name is one server's exclusively, or any number of servers use it, or any number have it
//        shared. Whoever has it exclusively may have its grant to use it beside; so may the only
//        one that has it shared.
//   NL2  A grant has a number that is never given twice under an epoch. Reports and requests to
//        give up name it: what names another one than the server has changes nothing (FU13). A
//        grant to use a name and one to have it exclusively end each by itself, so that an
//        exclusive one that nobody has waited for to the end leaves the other as it was. Only when
//        the exclusive one becomes one to use the name, what was beside it is over.
//   NL3  Who asks waits behind all who asked for the name before, in either mode. Holders are asked
//        to give up as soon as the first in the queue cannot be granted beside them; and again
//        after a while. Who does not want it any more leaves the queue.
//        So who wants it shared comes after who waits to use it, though others have it shared.
//   NL4  Of a server that was fenced what it used is released with its lease. What it had
//        exclusively is dead: nobody gets it until whoever adopts its place (its own next life, or
//        another server) says what has become of the change that it was making. Who has joined in
//        its place gets it before, ahead of all who wait for it, to end that change.
//   NL5  A name that nobody has or waits for is not remembered. Beyond names_max the names that
//        were granted longest ago are asked back, though nobody wants them.
//
//   NL9  A memory node in the place of one that is gone first hears what servers still have: from
//        recover() to recovered() nothing is granted and no report counts. What they have keeps its
//        number; new numbers are above all that anybody has heard of. Of a server that is gone,
//        too, or was before and has no adopter yet, nobody knows what it had exclusively: until its
//        place is adopted (NL4) nobody is granted a name that no other server has.
//
// Deadlocks are not searched. Two servers that want two names exclusively ask in the order of the
// names (MW18), so they wait for each other only if one of them, or a transaction of it, uses what
// the other one wants: that ends when its own server's time is up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "proto/name_locks.h"
#include "proto/resume_messages.h"

namespace strata::fusion {

struct NamesOptions {
  uint64_t names_max = 1u << 20;
  uint64_t ask_again_us = 200'000;  // when nobody has answered a request to give up
};

struct NamesCounters {
  uint64_t grants = 0, granted_again = 0, give_ups = 0, cancelled = 0, trimmed = 0, dead = 0;
};

class Names {
 public:
  static constexpr size_t kNameBytesMax = 1024;
  static constexpr size_t kAtOnceMax = 4096;  // asks or reports of a call

  struct Outgoing {
    NodeId server;
    uint64_t life = 0;
    std::variant<proto::NameGrant, proto::NameGiveUp> message;
  };

  Names(const NamesOptions& options, Epoch epoch) : options_(options), epoch_(epoch) {}

  // --- servers ---
  // A member of the authority's. Errors: in_use (an earlier life is still one here).
  Status joined(NodeId server, uint64_t life);
  // It has ended by itself: what it had is nobody's.
  void left(NodeId server, uint64_t life);
  // Nothing that it says counts any more; nobody waits for it to be granted something.
  void fence(NodeId server);
  // The authority lets go what it had (Authority::may_release): NL4.
  void release_fenced(NodeId server);

  // --- in the place of a memory node that is gone (NL9) ---
  void recover() noexcept { recovering_ = true; }
  // What a member has, in parts, any number of times. Errors: fenced, kInvalidArgument (somebody
  // else has said that it has the name; nothing of it is done).
  Status holds(const proto::NameCaller& caller, absl::Span<const proto::HeldName> names);
  // The server is gone without having said what it had, or was before. Only between recover() and
  // recovered().
  void lost(NodeId place);
  void heard_of(uint64_t number) noexcept { last_number_ = std::max(last_number_, number); }
  void recovered() noexcept { recovering_ = false; }

  // --- adopting a dead place (NL4) ---
  [[nodiscard]] std::vector<std::string> dead_names(NodeId place) const;
  // The adopter is a member; it may be the next life of the same server. Errors: fenced, kNotFound
  // (the place is not dead), in_use.
  Status adopt(const proto::NameCaller& adopter, NodeId place);
  // What the place was changing of these is published or undone. Of what is not dead, or somebody
  // else adopts, nothing is done: said again, it may come late. Errors: fenced.
  Status release_dead(const proto::NameCaller& adopter, NodeId place,
                      absl::Span<const std::string> names, uint64_t now_us);
  // So is all that it was changing.
  Status adoption_ended(const proto::NameCaller& adopter, NodeId place, uint64_t now_us);

  // --- what servers say. Errors: fenced (another epoch, not a member, fenced), peer_down (NL9),
  // kInvalidArgument (no server of ours says that; nothing of it is done) ---
  Status ask(const proto::NameCaller& caller, absl::Span<const proto::NameAsk> asks,
             uint64_t now_us);
  Status report(const proto::NameCaller& caller, absl::Span<const proto::NameReport> reports,
                uint64_t now_us);

  // --- what is to be sent ---
  std::vector<Outgoing> take_outgoing();
  void tick(uint64_t now_us);

  [[nodiscard]] uint64_t names() const noexcept { return entries_.size(); }
  [[nodiscard]] const NamesCounters& counters() const noexcept { return counters_; }
  // For people: who has the name and who waits for it.
  [[nodiscard]] std::string describe(Bytes name) const;
  // For tests: what is wrong with it; empty if nothing is.
  [[nodiscard]] std::string check() const;

 private:
  struct Member {
    uint64_t life = 0;
    bool fenced = false;
  };
  struct Grant {
    uint64_t number = 0;  // 0: none
    uint64_t ask = 0;
    bool asked = false;   // to give it up
    bool shared = false;  // of those in Holder::exclusive
    uint64_t asked_us = 0;
  };
  struct Holder {
    NodeId server;  // a dead one's: the place
    bool dead = false;
    Grant use, exclusive;  // the second: also shared
  };
  struct Waiter {
    NodeId server;
    proto::NameMode mode = proto::NameMode::kUse;
    uint64_t ask = 0;
  };
  struct Entry {
    std::vector<Holder> holders;
    std::deque<Waiter> waiters;
    std::list<std::string>::iterator at;  // in by_age_
  };
  using Entries = std::unordered_map<std::string, Entry>;

  Status check_member(const proto::NameCaller& caller) const;
  Status check_caller(const proto::NameCaller& caller) const;
  static Holder* holder_of(Entry* entry, NodeId server) noexcept;
  Entries::iterator entry_of(const std::string& name, uint64_t now_us);
  void kill(Entry* entry, Holder* holder);
  [[nodiscard]] bool inherits(const Entry& entry, NodeId server) const noexcept;
  void ask_one(NodeId server, const proto::NameAsk& ask, uint64_t now_us);
  void cancel(NodeId server, const proto::NameAsk& ask, uint64_t now_us);
  void report_one(NodeId server, const proto::NameReport& report, uint64_t now_us);
  // The entry may be gone when it returns.
  void settle(Entries::iterator it, uint64_t now_us);
  [[nodiscard]] bool is_free(const Entry& entry, const Waiter& waiter) const noexcept;
  void grant(const std::string& name, Entry* entry, const Waiter& waiter);
  void send_grant(const std::string& name, NodeId server, proto::NameMode mode, const Grant& grant);
  void ask_holders(const std::string& name, Entry* entry, uint64_t now_us, bool again);
  void ask_back(const std::string& name, NodeId server, proto::NameMode mode, Grant* grant,
                uint64_t now_us, bool again);
  static bool is_in_the_way(const Holder& holder, const Waiter& waiter) noexcept;
  void trim(uint64_t now_us);
  template <typename Change>
  void change_entries(uint64_t now_us, const Change& change);

  const NamesOptions options_;
  const Epoch epoch_;
  std::map<uint8_t, Member> members_;
  bool recovering_ = false;         // NL9
  std::set<uint8_t> unknown_;       // NL9: dead places of which nobody knows what they had
  std::map<uint8_t, NodeId> dead_;  // places -> adopter; zero: nobody yet
  Entries entries_;
  std::list<std::string> by_age_;  // those that were granted longest ago first
  std::set<std::string> contended_;
  uint64_t last_number_ = 0;
  std::vector<Outgoing> outgoing_;
  NamesCounters counters_;
};

}  // namespace strata::fusion
