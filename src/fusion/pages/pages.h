// Which server has which page, what its newest version is and where: the memory node's half of page
// locks and of the shared pool. A pure state machine: no I/O and no clock; time is passed in. Not
// thread-safe.
//
// The owner hands in what servers say, sends what take_outgoing() returns, in any order, and says
// what the authority (fusion/authority) has decided about servers. Bytes of pages never come by
// here: servers put and get them by themselves; the owner writes slots to storage.
//
//              ask()                      report(gives_up)
//   (no hold) ------> waits ----> granted -----------------> (no hold)
//                                    | fence(), release_fenced()
//                                    |---- shared: (no hold)
//                                    `---- exclusive: dead --- its adopter asks to redo --> granted
//                                                         `--- adoption_ended() ---> (no hold)
//
//   FU13  A grant has a number that is never given twice under an epoch. Reports and requests to
//         give up name it: what names another one than the server holds changes nothing.
//   FU14  An exclusive hold ends, or a version becomes the page's, by a report that names a slot
//         which the server had been given, was never anybody else's since, and which it has put the
//         version into. What the page had before is free again, for anybody.
//   FU16  An entry goes only when nobody has or wants the page and storage has all of it (where
//         storage makes pages from the log: always, since the log of what is reported is durable).
//         Then its shard's floor is at or above its llsn and its places in the logs; and the floor
//         is told to whoever is granted a page that is not known. With a page that is known its own
//         places in the logs are told where storage makes pages from them.
//   FU20  Who asks waits behind all who asked for the page before. Holders are asked to give up as
//         soon as the first in the queue cannot be granted beside them; and again after a while.
//   FP1  A version is newer than the one before it (its llsn is larger), or it is no version: a
//        report that comes again or late never brings an old one back.
//   FP2  A slot is in one of these states: free; given to a life of a server; a page's; being
//        written to storage while the page has another already. What was given to a server that has
//        ended is free once nothing of that life can reach the memory any more (FU4).
//   FP3  Of a server that was fenced what it held shared is released, what it held exclusively is
//        kept for whoever adopts its place, who alone is granted it, to redo the dead one's log.
//        Until adoption_ended() nobody else gets it, nor is the adopter asked for it: what that
//        gives up, never heard of, or holds when it is fenced itself, is the dead place's again.
//   FP4  A slot whose version is in storage, too, may be taken back though the page is held: who is
//        granted the page next hears its llsn, and reads that version from storage. Pages that
//        nobody has or wants come first. So pages that servers keep never fill the pool for good.
//   FP5  What all servers have been given and not used, an unused gift each, is a quarter of the
//        slots at most: the rest is pages', which storage can be given.
//   FP7  Where storage makes pages from the log nothing is redone: of a page that a server had
//        exclusively when it ended, however it did, nobody knows the newest version. It is not
//        known any more then, and all floors rise to the end of that server's log before anybody
//        is granted it: when the server leaves, or when its place was adopted.
//   FP6  A memory node in the place of one that is gone first hears what servers still have: from
//        recover() to recovered() nothing is granted and no report counts. What they have keeps its
//        number, in this epoch, too; new numbers are above all that anybody has heard of. Nothing
//        is known of versions then: storage has to have all that was reported before recovered(),
//        or to make it from the logs up to the ends that are named (know_ends()).
//   FU17  oldest() of a stream is at or below the first change of it that is in a slot and not in
//         storage. A write takes over what was to be written when it began; what is reported
//         meanwhile stays.
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
#include "base/ids.h"
#include "base/status.h"
#include "proto/page_locks.h"
#include "proto/resume_messages.h"

namespace strata::fusion {

struct PagesOptions {
  uint32_t slots = 0;  // of the pool
  uint32_t shards = 64;
  uint64_t entries_max = 1u << 20;  // beyond, the oldest of those go that may
  bool storage_replays = false;     // storage makes pages from the log: nothing is written to it
  uint64_t ask_again_us = 100'000;  // when nobody has answered a request to give up
};

struct PagesCounters {
  uint64_t grants = 0, granted_again = 0, give_ups = 0, versions = 0, refused_versions = 0;
  uint64_t dropped = 0, slots_taken_back = 0, writes = 0;
};

class Pages {
 public:
  struct Outgoing {
    NodeId server;
    uint64_t life = 0;
    std::variant<proto::PageGrant, proto::PageGiveUp> message;
  };
  struct Write {  // of a version to storage
    PageId page;
    Llsn llsn;
    uint32_t slot = 0;
  };
  struct DeadPage {
    PageId page;
    bool known = false;
    Llsn llsn;
    uint32_t slot = proto::kNoPageSlot;
  };

  Pages(const PagesOptions& options, Epoch epoch);

  // --- servers ---
  // A member of the authority's. Errors: in_use (an earlier life is still one here).
  Status joined(NodeId server, uint64_t life);
  // It has ended by itself, and reported all that it has changed, or its log has it up to `end`
  // (FP7).
  void left(NodeId server, uint64_t life, const proto::StreamPosition& end = {});
  // Nothing that it says counts any more; nobody waits for it to be granted something.
  void fence(NodeId server);
  // The authority lets go what it had (Authority::may_release): its place is dead (FP3).
  void release_fenced(NodeId server);
  // Nothing of that life reaches the slots any more.
  void mapping_gone(NodeId server, uint64_t life);

  // --- in the place of a memory node that is gone (FP6) ---
  void recover() noexcept { recovering_ = true; }
  // What a member has, in parts, any number of times. Errors: fenced, kInvalidArgument (somebody
  // else has said that it has the page; nothing of it is done).
  Status holds(const proto::PageCaller& caller, absl::Span<const proto::HeldPage> pages);
  void heard_of(uint64_t number) noexcept { last_number_ = std::max(last_number_, number); }
  void recovered() noexcept { recovering_ = false; }
  // Nothing that servers have changed before lies beyond these ends of their logs: all floors are
  // at or above them from now on. Only where storage makes pages from the logs.
  void know_ends(absl::Span<const proto::StreamPosition> ends);

  // --- adopting a dead place (FP3) ---
  [[nodiscard]] std::vector<DeadPage> dead_pages(NodeId place) const;
  // The adopter is a member; it may be the next life of the same server. Errors: fenced, kNotFound
  // (the place is not dead), in_use.
  Status adopt(const proto::PageCaller& adopter, NodeId place);
  // Everything of the place's log is redone; what it still holds was not changed, or is in its log
  // up to `end` (FP7). Lets nothing go if the adopter is another one: said again, it may come late.
  // Errors: fenced.
  Status adoption_ended(const proto::PageCaller& adopter, NodeId place,
                        const proto::StreamPosition& end = {});

  // --- what servers say. Errors: fenced (another epoch, not a member, fenced), peer_down (FP6),
  // kInvalidArgument (no server of ours says that; nothing of it is done) ---
  Status ask(const proto::PageCaller& caller, absl::Span<const proto::PageAsk> asks,
             uint64_t now_us);
  Status report(const proto::PageCaller& caller, absl::Span<const proto::PageReport> reports,
                uint64_t now_us);
  // Free slots for it to put into, so many at most (FP5); none: storage lacks what is in all of
  // them. `request`: grows once it was answered with some; the last such answer is given again, so
  // that no slot is lost with an answer.
  StatusOr<std::vector<uint32_t>> take_slots(const proto::PageCaller& caller, uint64_t request,
                                             uint32_t wanted);

  // --- what is to be sent ---
  std::vector<Outgoing> take_outgoing();
  void tick(uint64_t now_us);

  // --- to storage (FU17); nothing where storage replays ---
  // Of those that became dirty before that, the first ones.
  std::vector<Write> begin_writes(uint32_t pages_max, uint64_t dirty_before_us = UINT64_MAX);
  // `synced`: the version, or a newer one, is durable in storage.
  void write_ended(const Write& write, bool synced);
  // Lsn{UINT64_MAX}: none of it is missing in storage.
  [[nodiscard]] Lsn oldest(StreamId stream) const;
  [[nodiscard]] uint64_t dirty_pages() const noexcept { return dirty_pages_; }

  // The space is dropped, and nobody uses it any more: nothing of it is written.
  void forget_space(SpaceId space);
  // Entries that may go do, the oldest first, until so many are left.
  void trim(uint64_t entries_max);
  [[nodiscard]] const proto::PageFloor& floor_of(PageId page) const;
  [[nodiscard]] uint64_t entries() const noexcept { return entries_.size(); }
  [[nodiscard]] uint64_t free_slots() const noexcept { return free_slots_.size(); }
  [[nodiscard]] const PagesCounters& counters() const noexcept { return counters_; }
  // For people: who has the page and who waits for it.
  [[nodiscard]] std::string describe(PageId page) const;
  // For tests: what is wrong with it; empty if nothing is.
  [[nodiscard]] std::string check() const;

 private:
  struct Member {
    uint64_t life = 0;
    bool fenced = false;
    uint64_t slots_request = 0;
    std::vector<uint32_t> slots = {};  // what that was answered
  };
  struct Dead {
    NodeId adopter;  // zero: nobody yet
  };
  struct Holder {
    NodeId server;
    proto::PageMode mode = proto::PageMode::kShared;
    uint64_t number = 0;
    uint64_t ask = 0;
    bool dead = false;
    NodeId redo_of = {};  // the dead place that it was granted for
    bool asked = false;   // to give it up
    uint64_t asked_us = 0;
  };
  struct Waiter {
    NodeId server;
    proto::PageMode mode = proto::PageMode::kShared;
    uint64_t ask = 0;
  };
  using Firsts = std::map<uint32_t, uint64_t>;  // stream -> the first Lsn that storage lacks
  struct Entry {
    bool known = false;
    Llsn llsn;
    uint32_t slot = proto::kNoPageSlot;
    std::vector<Holder> holders;
    std::deque<Waiter> waiters;
    std::map<uint32_t, uint64_t> ends;  // stream -> behind its last change that was reported
    Firsts firsts;                      // of the newest version
    bool queued = false;                // to be written
    bool forgotten = false;             // its space is gone
    bool writing = false;
    uint32_t writing_slot = proto::kNoPageSlot;
    Firsts writing_firsts;
    bool idle = false;   // in idle_
    bool spare = false;  // in spare_
    std::list<PageId>::iterator listed_at;
  };
  enum class SlotState : uint8_t { kFree, kGiven, kPage, kWritten };
  struct Slot {
    SlotState state = SlotState::kFree;
    NodeId server;      // kGiven
    uint64_t life = 0;  // kGiven
  };
  using Entries = std::unordered_map<PageId, Entry>;

  Status check_member(const proto::PageCaller& caller) const;
  Status check_caller(const proto::PageCaller& caller) const;
  Status check_report(const proto::PageCaller& caller, const proto::PageReport& report) const;
  static Holder dead_holder(NodeId place) noexcept;
  static const Holder* holder_of(const Entry& entry, NodeId server) noexcept;
  Entries::iterator entry_of(PageId page);
  void ask_one(NodeId server, const proto::PageAsk& ask, uint64_t now_us);
  bool grant_dead(NodeId server, const proto::PageAsk& ask, Entry* entry);
  void report_one(NodeId server, const proto::PageReport& report, uint64_t now_us);
  void take_version(Entry* entry, const proto::PageReport& report);
  void lose_version(Entry* entry);
  void settle(PageId page, Entry* entry, uint64_t now_us);
  void grant(PageId page, Entry* entry, const Waiter& waiter);
  void send_grant(PageId page, const Entry& entry, const Holder& holder);
  void ask_holders(PageId page, Entry* entry, uint64_t now_us, bool again);
  [[nodiscard]] bool may_lose_slot(const Entry& entry) const noexcept;
  void update_lists(PageId page, Entry* entry);
  [[nodiscard]] bool may_go(const Entry& entry) const noexcept;
  [[nodiscard]] bool is_dirty(const Entry& entry) const noexcept;
  void drop(Entries::iterator it);
  void free_slot(uint32_t slot);
  void lose_slot(PageId page);
  void make_slots(uint64_t wanted);
  [[nodiscard]] uint32_t slots_at_once() const noexcept;
  void add_first(Firsts* firsts, uint32_t stream, uint64_t lsn);
  void clear_firsts(Firsts* firsts);
  template <typename Keep>
  void remove_holders(uint64_t now_us, const Keep& keep);
  [[nodiscard]] size_t shard_of(PageId page) const noexcept;

  const PagesOptions options_;
  const Epoch epoch_;
  bool recovering_ = false;  // FP6
  std::map<uint8_t, Member> members_;
  std::map<uint8_t, Dead> dead_;  // places
  Entries entries_;
  std::list<PageId> idle_;  // nobody has or wants them; the oldest first
  std::list<PageId>
      spare_;  // held, or wanted, with a slot whose version storage has; likewise (FP4)
  std::set<PageId> contended_;
  std::vector<proto::PageFloor> floors_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  struct ToWrite {
    PageId page;
    uint64_t since_us = 0;
  };
  void queue_to_write(PageId page, Entry* entry, uint64_t since_us);
  std::deque<ToWrite> to_write_;  // in the order of since_us, but for writes that have failed
  uint64_t heard_us_ = 0;         // when somebody said something last
  std::map<uint32_t, std::multiset<uint64_t>> firsts_;  // stream -> of all entries
  uint64_t dirty_pages_ = 0;
  uint64_t last_number_ = 0;
  std::vector<Outgoing> outgoing_;
  PagesCounters counters_;
};

}  // namespace strata::fusion
