// What a memory node does for several servers that write the same tables, as calls
// (proto/fusion_messages.h): it runs the state machines of src/fusion for one database, under one
// epoch of its authority. Thread-safe.
//
//   FV1  Every call names a server, its life and the epoch. What is of another epoch, of nobody, of
//        a server that is fenced or has left, or comes while this node cannot say that it still has
//        the authority (FU1, FU2) changes nothing, is refused, and is counted.
//   FV2  The state machines are used by one thread at a time, in the order in which calls came
//        (OrderedTasks). No task blocks: what does (memory, storage) runs elsewhere and comes back.
//        So they may run in the thread that calls come in with.
//   FV3  Regions are this epoch's own, with names that nobody can guess (FT6): the clock's words,
//        the pool's slots, and for each life of a server a table of its transactions. A table's
//        name goes when its server is released.
//   FV4  A member ends in this order: fenced, durably; its log sealed; its last lease over and
//        every other server's answer that it has heard, or the end of that one's lease (FU4);
//        released in the pages, the row locks and the names, its table withdrawn; forgotten. Who
//        leaves by itself gives its pages back first and goes the same way, so nobody reads its
//        table when its next life comes. Who does not renew its lease is fenced once that is over,
//        while this node serves.
//   FV5  A call that waits is answered: with what it waits for, at its time, when its caller is
//        fenced, or when the service stops. Of each kind that tells events one per server waits; a
//        newer one ends it.
//   FV6  What is to be said to a server that does not listen is bounded. Of pages the rest is
//        thrown away, and said again when it is asked for again (FW5); nothing of row locks is, but
//        those of a server end with it.
//   FV7  Slots that an ended life was given are free only once its process is known to have gone
//        (the next life says that it is alone) and, slot_wait_us later, nothing of it is on its
//        way.
//   FV8  What is written to storage is a copy that was verified to be the version that was
//        reported; what is not that is not written, counted, and stays (FU17).
//   FV9  Questions about a transaction go to the server whose it is, and its answers back, by the
//        numbers that they were given. not_found: nobody owns the place, or who does is not ready
//        to say (it recovers, or ends): its status pages tell, which are locked until they are
//        redone (FP3). Whatever else keeps it from answering is no reason for the asker to end.
//
//   FV11  A service that recovers (Parts::recovers) hears first what the servers of the record that
//         it begins under still have: pages, names, how far their logs are durable. Who has said
//         all of it is a member from then on, gets leases and may go on with what it has; who says
//         nothing for resume_us_max is fenced. Until all have spoken or were released, and storage
//         has everything of their logs (recovered()), nothing is granted, nobody joins, and no
//         report or question is answered (peer_down: they are repeated). The more so if this one
//         dies meanwhile: its successor begins in the same way. Who was fenced before, and whose
//         place nobody has settled yet, may have had names exclusively, too: they are lost (NL9).
//   FV12  An ask that waits is answered with the first of its grants, which nobody hears of
//        otherwise: whoever needs the page is woken, and nobody else. One that comes again ends the
//        one before. So many of a server wait at most; of the others, of those that waited long
//        enough, and of further grants it hears as of any event.
//   FV13  A page that goes from server to server is written to storage once for all that happens
//        within write_age_us, unless a checkpoint or whoever needs a slot waits for it.
//   FV14  A server's process is known to have ended when it, or its kernel, has ended the
//        connection that it keeps for that (its line): then nothing of it is waited for but what is
//        on its way (FV4, FV7). A line counts only if both ends call the server's end by the same
//        name, so that nobody who stands between can have ended it, and only under the epoch that
//        it was given for; a break of it tells nothing.
//   FV15  Who has ended the connection with which it asked to join, or is gone, is not let in: a
//        member that nobody knows of would be waited for until its lease is over.
//   FV16  By which placement servers find pages on storage nodes they say with their leases; one
//        counts from when it is a member until it is released: so long it may read.
//
// A service that does not recover begins under an authority record of a predecessor only once
// storage has everything that the streams of that one's servers hold, or makes pages from the log:
// this one knows nothing of what was in the old pool. The servers that the record names have to be
// started again; they are fenced at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/latch.h"
#include "base/stop_flag.h"
#include "fusion/locks/row_locks.h"
#include "fusion/pages/pages.h"
#include "fusion/timestamps/time_service.h"
#include "memnode/fusion/authority_stream.h"
#include "memnode/fusion/fusion_names.h"
#include "memnode/fusion/page_store.h"
#include "memnode/service/ordered_tasks.h"
#include "memnode/service/tenants.h"
#include "proto/fusion_messages.h"
#include "proto/resume_messages.h"
#include "transport/calls/rpc_server.h"
#include "transport/regions/region.h"

namespace strata::memnode {

struct FusionServiceOptions {
  fusion::TimeServiceOptions time;
  fusion::PagesOptions pages;  // slots 0: pages are not shared
  fusion::RowLockOptions locks = {.events_max = proto::kLockEventsMax};
  FusionNamesOptions names;
  uint32_t table_slots = 1u << 16;      // of a server's transactions; a power of two
  uint64_t tick_us = 10'000;            // as TimeService wants to be asked
  uint64_t join_us_max = 5'000'000;     // how long a server that wants to join is kept waiting
  uint64_t resume_us_max = 10'000'000;  // FV11; from when this node could answer
  uint64_t slot_wait_us = 10'000'000;   // FV7; connections that are silent for less long are dead
  uint64_t write_pause_us = 10'000;     // between batches to storage that nobody waits for
  uint64_t write_again_us = 200'000;    // after one that failed
  uint64_t write_age_us = 1'000'000;    // FV13; since a page has become dirty
  size_t said_max = 1u << 16;           // pages to be told to one server (FV6)
  size_t questions_max = 1024;          // to one server, not answered yet
  std::function<uint64_t()> now_us;     // goes on while the machine sleeps; null: CLOCK_BOOTTIME
};

// Relaxed, for people and tests.
struct FusionServiceCounters {
  std::atomic<uint64_t> joined{0}, left{0}, fenced{0}, expired{0}, released{0}, resumed{0};
  std::atomic<uint64_t> lines{0}, lines_ended{0};  // FV14
  std::atomic<uint64_t> stale_calls{0};            // FV1: another epoch, another life, nobody's
  std::atomic<uint64_t> calls_unready{0};          // FV1: without the authority
  std::atomic<uint64_t> bad_requests{0}, too_many_requests{0};
  std::atomic<uint64_t> renewals{0}, appends{0}, appends_failed{0};
  std::atomic<uint64_t> pages_told{0}, pages_untold{0};  // FV6
  std::atomic<uint64_t> asks_waiting{0};                 // FV12: so many ever did
  std::atomic<uint64_t> questions{0}, answers{0}, answers_late{0};
  std::atomic<uint64_t> pages_written{0}, writes_failed{0}, slots_damaged{0};
};

// FV11
struct FusionRecovery {
  bool recovers = false;  // nothing is granted yet
  size_t servers = 0;     // that there were before, and are not gone
  size_t resumed = 0;     // of these: have said what they have
  // All have, or are gone. How far the logs of those that have are to be redone.
  bool heard_all = false;
  std::map<NodeId, Lsn> durable;
};

struct FusionStatus {
  Epoch epoch;
  fusion::Authority::Phase phase = fusion::Authority::Phase::kWaiting;
  bool serves = false;
  struct Server {
    NodeId server;
    uint64_t life = 0;
    bool fenced = false;
    uint64_t placement = 0;  // FV16
  };
  std::vector<Server> servers;
  uint64_t clock = 0, ceiling = 0, horizon = 0;
  uint64_t page_entries = 0, dirty_pages = 0, free_slots = 0;
  fusion::PagesCounters pages;
  fusion::RowLockCounters locks;
  uint64_t names = 0;           // that somebody has or waits for
  uint64_t dropped_spaces = 0;  // that not all are known to have left
  uint64_t reuse_rounds = 0;    // begun so far
  fusion::NamesCounters name_locks;
  FusionNamesCounters name_news;
  FusionRecovery recovery;
};

class FusionService : public std::enable_shared_from_this<FusionService> {
 public:
  struct Parts {
    Epoch epoch;
    std::optional<fusion::AuthorityRecord> last;  // of the stream, when it was sealed
    uint64_t sealed_us = 0;                       // by options.now_us
    bool recovers = false;                        // FV11
    // Where storage makes pages from the log: where the logs of earlier servers end, as far as they
    // hold what anybody may ask for. None of those that go on (see recovered()).
    std::vector<proto::StreamPosition> ends;
    std::vector<NodeId> unsettled;  // places that somebody is at, or has not left in order (FV11)
    AuthorityStream* stream = nullptr;  // outlives the service
    PageStore* store = nullptr;         // outlives it; null if options.pages.storage_replays
    // Peers can open that region under the name from now on, until it is withdrawn. Block.
    std::function<void(const std::string& name, std::shared_ptr<transport::Region> region,
                       transport::RegionAccess access)>
        expose;
    std::function<void(const std::string& name)> withdraw;
    // Runs the queue of tasks, which do not block: may run at once, in the thread that asks.
    daemon::Offload offload;
    daemon::Offload offload_blocking;
    // FV4. Seals the log of a fenced server; `done` runs once, in any thread. If it fails it is
    // asked for again. Null: there is nothing to seal.
    std::function<void(NodeId server, uint64_t life, absl::AnyInvocable<void(const Status&)> done)>
        seal;
    // Who may have this, and what of; null: everybody who knows the cluster's secret.
    Tenants* tenants = nullptr;
    Tenants::Number tenant = 0;
  };
  // Blocks for memory. Errors: no_space, kInternal.
  static StatusOr<std::shared_ptr<FusionService>> start(const FusionServiceOptions& options,
                                                        Parts parts);
  ~FusionService();  // stop()
  FusionService(const FusionService&) = delete;
  FusionService& operator=(const FusionService&) = delete;

  // FV5. Answers what waits; nothing of it runs any more when this returns. Blocks for what is
  // under way. Once, while `offload` still runs what it was given; not in a task.
  void stop();

  // FV11. Storage has everything of the logs of all servers, of those that go on as far as they
  // have said; or makes pages from them, up to these ends. Once all were heard.
  void recovered(const std::vector<proto::StreamPosition>& ends = {});
  // Fences a member. From a supervisor, or who adopts.
  void fence(NodeId server);
  // Its supervisor has seen the process end (FU4, FV7).
  void exited(NodeId server, uint64_t life);

  [[nodiscard]] Epoch epoch() const noexcept { return epoch_; }
  // As of the last tick, or change of who takes part.
  [[nodiscard]] FusionStatus status() const;
  // FV16. No server finds pages on storage nodes by an older placement; the largest: there is none.
  [[nodiscard]] uint64_t placement_followed() const;
  [[nodiscard]] const FusionServiceCounters& counters() const noexcept { return counters_; }

  // Of FusionDoor: a request, in the RpcServer's thread.
  using To = std::shared_ptr<transport::Responder>;
#define STRATA_FUSION_METHOD(number, constant, counter, ...) \
  void counter(Bytes payload, const To& to);
#include "proto/methods.def"

 private:
  using Task = OrderedTasks::Task;
  struct Question {
    To to;
    NodeId asker;
    uint64_t until_us = 0;
  };
  struct AskWait {
    To to;
    std::vector<uint64_t> asks;  // their numbers
    uint64_t until_us = 0;
  };
  // A life of a server, from when it wants to join until it is forgotten.
  struct Server {
    NodeId id;
    uint64_t life = 0;
    std::string table;  // its region's name
    bool table_asked = false;
    bool has_table = false;
    bool member = false;    // durably
    bool expected = false;  // FV11: a predecessor's; a member once it has said what it has
    bool speaks = false;    // it has begun to
    Lsn durable;            // what it has said of its log
    bool left = false;
    bool exited = false;  // its process is known to have ended
    bool fenced = false;  // or asked for
    bool seal_asked = false;
    bool sealed = false;
    uint64_t lease_end_us = 0;  // of what this node gave, drift included
    uint64_t placement = 0;     // FV16: as it said last
    // Calls that wait, and what there is to be said.
    std::optional<To> events;
    uint64_t events_until_us = 0;
    std::optional<To> lock_events;
    proto::LockBatch lock_poll;
    uint64_t lock_events_until_us = 0;
    std::vector<AskWait> ask_waits;  // FV12
    std::deque<proto::PageGrant> grants;
    std::deque<proto::PageGiveUp> give_ups;
    std::deque<proto::OwnerQuestion> questions;
    std::map<uint64_t, Question> asked;  // by number: told to it, or about to be
  };
  struct Join {
    proto::FusionJoinRequest request;
    To to;
    uint64_t until_us = 0;
    Status last;
  };
  struct WriteBack {
    NodeId server;
    To to;
    StreamId stream;
    Lsn below;
    uint64_t until_us = 0;
  };
  struct SlotWait {
    proto::TakePageSlotsRequest request;
    To to;
    uint64_t until_us = 0;
  };
  struct EndedLife {
    NodeId server;
    uint64_t life = 0;
    uint64_t free_us = 0;  // its slots, from then on; 0: it may still be there
  };
  struct AdoptedList {
    uint64_t life = 0;  // of the adopter
    std::vector<PageId> pages;
  };

  FusionService(const FusionServiceOptions& options, Parts parts);
  Status make_regions();
  void begin();

  // --- tasks ---
  bool enter();
  void exit();
  bool post(Task task, uint64_t bytes);
  bool post_always(Task task);   // false: the service stops
  bool run_blocking(Task task);  // false: it will not run
  template <class Message>
  void serve(StatusOr<Message> request, void (FusionService::*run)(const Message&, const To&),
             const To& to, uint64_t bytes);
  void refuse(const Status& why, const To& to);
  void keep_ticking();
  void tick();
  void advance();  // the authority, after anything else
  void append_ended(uint64_t number, const Status& status);
  void take_snapshot();

  // --- servers ---
  [[nodiscard]] const fusion::Authority& authority() const { return time_->authority(); }
  Server* find(NodeId server);
  Server* check(const proto::PageCaller& caller, const To& to);
  Server* check_life(const proto::PageCaller& caller, const To& to);
  bool refused(const Status& status, const To& to);
  [[nodiscard]] const fusion::Member* member(NodeId server) const;
  [[nodiscard]] bool is_member(const Server& server) const;
  void join(const proto::FusionJoinRequest& request, const To& to);
  Status try_join(const Join& join);
  Status prepare_server(const proto::FusionJoinRequest& request);
  Status check_tenant(const std::string& token) const;
  [[nodiscard]] proto::FusionJoinReply join_reply(const Server& server) const;
  bool wants_table(Server* server);
  void make_table(NodeId server, uint64_t life);
  void table_made(NodeId server, uint64_t life, const std::string& name, const Status& status);
  void answer_join(const Join& join);
  void give_up_join(const To& to);
  void forget_join(const Join& join);
  void end_join(NodeId server, uint64_t life, const Status& why);
  void drop_table(Server* server);
  void try_joins();
  void renew(const proto::FusionRenewRequest& request, const To& to);
  void leave(const proto::FusionLeaveRequest& request, const To& to);
  void note_line(const proto::FusionLineRequest& request, const To& to);
  // --- in the place of a memory node that is gone ---
  void expect(const fusion::Member& member);
  void resume(const proto::FusionResumeRequest& request, const To& to);
  Status try_resume(const proto::FusionResumeRequest& request);
  Server* check_speaker(const proto::PageCaller& caller, const To& to);
  void hear_pages(const proto::ReportHeldPagesRequest& request, const To& to);
  void hear_names(const proto::ReportHeldNamesRequest& request, const To& to);
  void end_resume(const proto::ResumeEndedRequest& request, const To& to);
  void look_after_expected();
  [[nodiscard]] FusionRecovery recovery() const;
  void fence_member(NodeId server);
  void note_exited(NodeId server, uint64_t life);
  void take_away(NodeId server, uint64_t life);
  void line_ended(NodeId server, uint64_t life);  // any thread
  void begin_fenced(Server* server);
  void look_after_members();
  void seal(Server* server);
  void release(NodeId server);
  void free_slots_of_ended();
  void list_changed() noexcept { ++list_version_; }
  std::vector<proto::FusionServer> list() const;

  // --- pages ---
  void ask(const proto::AskPagesRequest& request, const To& to);
  void report(const proto::ReportPagesRequest& request, const To& to);
  void take_slots(const proto::TakePageSlotsRequest& request, const To& to);
  void adopt(const proto::AdoptPagesRequest& request, const To& to);
  void end_adoption(const proto::AdoptionEndedRequest& request, const To& to);
  void write_back(const proto::WriteBackPagesRequest& request, const To& to);
  void forget_space(const proto::ForgetSpacePagesRequest& request, const To& to);
  void events(const proto::FusionEventsRequest& request, const To& to);
  void say_pages(NodeId self, std::vector<proto::PageGrant>* granted);
  void end_same_asks(Server* server, uint64_t ask);
  bool answer_ask(Server* server, proto::PageGrant* grant);
  void expire_asks(Server* server);
  void tell(Server* server);
  void answer_events(Server* server);
  void start_writes();
  void write_slots(const std::vector<fusion::Pages::Write>& writes, std::vector<bool>* synced);
  void writes_ended(const std::vector<fusion::Pages::Write>& writes,
                    const std::vector<bool>& synced);
  void answer_write_backs();
  void answer_slot_waits();

  // --- names ---
  void want_names(const proto::AskNamesRequest& request, const To& to);
  void note_names(const proto::ReportNamesRequest& request, const To& to);
  void end_name_adoption(const proto::AdoptionEndedRequest& request, const To& to);
  void note_dropped(const proto::SpaceDroppedRequest& request, const To& to);
  void note_left(const proto::LeftSpacesRequest& request, const To& to);
  void begin_round(const proto::FusionCallerRequest& request, const To& to);
  void look_at_round(const proto::ReuseRoundRequest& request, const To& to);
  void note_round(const proto::ReuseRoundRequest& request, const To& to);
  void tell_names();

  // --- transactions ---
  void ask_about(const proto::AskOwnerRequest& request, const To& to);
  void answer(const proto::AnswerAskersRequest& request, const To& to);
  void end_questions(Server* server, const Status& why);

  // --- row locks ---
  void exchange(const proto::LockBatch& batch, const To& to);
  void lock_events(const proto::RowLockEventsRequest& request, const To& to);
  StatusOr<proto::LockReply> exchanged(const proto::LockBatch& batch);
  void tell_locks();
  void answer_lock_events(Server* server);
  void end_waits(Server* server, const Status& why);
  void expire_waits();

  const FusionServiceOptions options_;
  const Parts parts_;
  const Epoch epoch_;
  FusionServiceCounters counters_;
  std::shared_ptr<transport::Region> times_, pool_;
  std::string times_name_, pool_name_;

  // The tasks' (FV2).
  std::optional<fusion::TimeService> time_;
  fusion::Pages pages_;
  fusion::RowLocks locks_;
  FusionNames names_;
  std::map<uint8_t, Server> servers_;
  std::list<Join> joins_;
  std::vector<EndedLife> ended_lives_;
  std::map<uint8_t, AdoptedList> adopted_;  // by place
  std::list<WriteBack> write_backs_;
  std::list<SlotWait> slot_waits_;  // who came first is given slots first
  bool writing_ = false;
  bool write_failed_ = false;    // the last batch
  uint64_t write_at_us_ = 0;     // the next one, not before
  std::vector<To> after_write_;  // who has dropped a space, of which something may be under way
  bool served_ = false;          // at the last tick
  bool recovers_ = false;        // FV11
  uint64_t resume_until_us_ = 0;
  uint64_t list_version_ = 1;
  uint64_t last_question_ = 0;
  uint64_t now_us_ = 0;  // of the task

  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar unused_;
  bool stopping_ STRATA_GUARDED_BY(mutex_) = false;
  uint64_t outside_ STRATA_GUARDED_BY(mutex_) = 0;  // threads in post(), tasks that block
  FusionStatus snapshot_ STRATA_GUARDED_BY(mutex_);
  bool stopped_ = false;  // the stopper's
  StopFlag stop_ticking_;
  std::atomic<bool> tick_waits_{false};
  std::thread ticker_;
  OrderedTasks tasks_;
};

// Where calls come in, whichever service there is at the moment. Thread-safe.
class FusionDoor {
 public:
  // Once, before the server listens; outlives it.
  void register_on(transport::RpcServer* server);
  // The same for who serves them himself: each method's handler.
  void give_handlers(absl::FunctionRef<void(uint16_t method, transport::Handler handler)> take);
  // Null: there is none, and who calls hears peer_down. Of a service that was there before calls
  // may still be under way.
  void open(std::shared_ptr<FusionService> service);

 private:
  [[nodiscard]] std::shared_ptr<FusionService> service() const;
  mutable Mutex mutex_{LatchRank::kLeaf};
  std::shared_ptr<FusionService> service_ STRATA_GUARDED_BY(mutex_);
};

}  // namespace strata::memnode
