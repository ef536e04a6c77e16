// Which storage nodes have every page that a compute node has written, in which write session each
// is written to, and how one that missed something comes back. A state machine without clock,
// threads, locks or sockets: it is told what was answered, and says what to ask of whom. The
// waiting around it is WrittenNodes (written_nodes.h). Not thread-safe.
//
//                  begin, all calls from now on
//       ┌── kOut ───────────────────────────────> kCopying
//       │    ^ ^── any failed call or copy ────────┘   │ copied, synced: come_back() ends
//       │    └──── failed call, others have it ── kInSync <┘
//       └ the start: those that the registry names begin and are kInSync at once
//   follow(): a node that is new is kOut; one that has lost its place is forgotten, for good
//
//   WN1  A call to all is OK only when every node in sync has answered OK, or has been put out, and
//        at least `write_quorum` stay in sync. So a node in sync has all that was acknowledged.
//   WN2  sync() returns OK only when every node that the registry calls in sync has made durable
//        what it had been given before. Nodes put out leave the registry's list first.
//   WN3  A node of which an answer is missing gets a new write session before anything else is
//        written to it: what is late then can never land over something newer.
//   WN4  A node that was restarted has forgotten its session, and may have lost what was not
//        synced: it is out. If that is true of all at once, or of a write quorum while the others
//        do not answer, they are told again what was acknowledged since the last sync
//        (unsynced_pages.h), before anything else is asked of them, and are in sync as before. What
//        they answered before that counts for nothing any more. One with another page store has
//        lost its pages, and is out; if that is true of all, this compute node ends its work.
//   WN5  A node is in sync again when it has copied, and synced, every page of a node in sync, and
//        every call since the copy was ordered; no call that began before the copy is under way
//        then.
//   WN6  Once the placement has changed only its nodes and its write quorum count: neither what one
//        without a place has, nor its answers. The registry's list names it until the next sync()
//        at most. If nobody is in sync then, this compute node ends its work (ended)
//        and recovery does it: the list, which is changed late, has others.
//   WN7  From begin_leave() on, until follow() or cancel_leave(), calls are OK, and the
//        registry's list is changed, only while enough are in sync also without the node that
//        leaves. It may leave once that list has enough others.
//   WN8  A copy that failed is tried from the next node in sync: one with a page that nobody can
//        read keeps no other out.
//
// Whoever wants something makes a task, and does what step() says until it says kDone. Several
// tasks may be under way; while one waits another one's answer may let it go on.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "clients/storage/unsynced_pages.h"
#include "cluster/in_sync_nodes.h"
#include "proto/written_messages.h"

namespace strata::clients {

class WriteSessions {
 public:
  using NodeNumber = uint64_t;  // never given to another node
  struct Place {
    NodeNumber node;
    std::string name;
  };
  struct Options {
    std::vector<Place> places;  // of the start
    uint32_t write_quorum = 0;
    uint64_t generation = 0;
    bool founding = false;  // whatever pages the nodes have are not of this database
    uint64_t come_back_us_max = 1'000'000;  // between two tries
    size_t unsynced_bytes_max = size_t{64}
                                << 20;  // of pages written since; then a sync comes first
  };
  struct Target {
    NodeNumber node = 0;
    uint64_t session = 0;  // of the request
    uint64_t before = 0;   // kBegin: the session that it continues; 0: none
    bool in_sync = false;  // when it was asked
  };
  struct Answer {
    Status status = {};
    bool answered = false;               // the status is what the node says
    std::string payload = {};            // as it came
    proto::BeginWritesReply begun = {};  // of kBegin
    proto::CopyPagesReply copied = {};   // of kCopy
  };

  // What a task needs next.
  struct Step {
    enum class Kind : uint8_t {
      kWait,     // until anything is told to the machine, or it is `until_us`: then step() again
      kAsk,      // all `targets` at once, then answered()
      kPublish,  // `list` to the registry, then published()
      kDone      // `status` is the outcome
    };
    enum class What : uint8_t { kBegin, kCall, kTellAgain, kSync, kCopy };
    Kind kind = Kind::kWait;
    uint64_t until_us = UINT64_MAX;
    What what = What::kCall;
    std::vector<Target> targets;
    bool elsewhere = false;                     // kCall: by another process
    const UnsyncedPages::Call* call = nullptr;  // kTellAgain
    std::vector<Target> peers;                  // kCopy: from the first that has an address
    std::vector<cluster::InSyncNode> list;
    Status status;
  };
  class Task;

  explicit WriteSessions(Options options);

  // --- the start: nothing else is under way. `listed` is the registry's list ---

  // Whom to begin a session with; may be asked again for those that did not answer.
  std::vector<Target> starting(const std::vector<cluster::InSyncNode>& listed);
  // Not OK: fenced.
  Status started(const Target& target, const std::vector<cluster::InSyncNode>& listed,
                 const Answer& answer);
  [[nodiscard]] bool may_start() const;  // enough have begun

  // --- tasks ---

  // One call to all nodes (WN1): kUnavailable (too few in sync, may pass), kResourceExhausted (a
  // disk is full), fenced, ended (WN6).
  static Task call(uint16_t method);
  // The same, of kWritePages, by another process that is told the targets and says what each has
  // answered. What was written so he is asked to write once more where it has to be told again
  // (WN4, UP3); until the next sync he is the only one who writes these pages.
  static Task call_elsewhere();
  static Task sync();                      // WN2
  static Task check();                     // WN3, WN4: asks those that are suspected
  static Task come_back(NodeNumber node);  // WN5; one at a time
  // WN7. Nothing: it may not leave yet. A task that ends OK: it may.
  std::optional<Task> begin_leave(const std::string& name, uint64_t generation,
                                  uint32_t write_quorum);
  void cancel_leave() { leaving_.reset(); }

  Step step(Task* task, uint64_t now_us);
  // By target of the step. `request`: of a call, as any of the nodes was sent it.
  void answered(Task* task, const std::vector<Answer>& answers, Bytes request, uint64_t now_us);
  // The same, of a call that another process has made with these pages.
  void answered_elsewhere(Task* task, const std::vector<Answer>& answers,
                          const std::vector<PageId>& pages, uint64_t now_us);
  void published(Task* task, const Status& status, uint64_t now_us);

  // --- what happens ---

  // WN6. False: a set of this generation, or a later one, was told before.
  bool follow(const std::vector<Place>& places, uint32_t write_quorum, uint64_t generation);
  void lost_connection(NodeNumber node);
  void suspect(NodeNumber node, uint64_t session);
  void prefer(NodeNumber node);  // to read from
  void give_up(NodeNumber node, const std::string& why);
  // Acknowledged by whom it was needed of: it is told again, too (WN4).
  void note(uint16_t method, Bytes request) { unsynced_.note(method, request); }
  void stop() noexcept { stopped_ = true; }  // tasks that would wait end

  // --- what is so ---

  // Nodes that may try to come back, whether any is suspected, and when to look again.
  struct Due {
    std::vector<NodeNumber> out;
    bool suspected = false;
    uint64_t next_us = UINT64_MAX;
  };
  [[nodiscard]] Due due(uint64_t now_us) const;
  [[nodiscard]] std::vector<Target> readers() const;  // in sync, the preferred one first
  [[nodiscard]] size_t in_sync_count() const;
  [[nodiscard]] Status too_few() const;
  // What the registry's list should be; kUnavailable: too few for one (WN1, WN7).
  [[nodiscard]] StatusOr<std::vector<cluster::InSyncNode>> list() const;
  [[nodiscard]] const Status& ended() const noexcept { return ended_; }
  [[nodiscard]] uint64_t generation() const noexcept { return generation_; }
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }

  struct NodeState {
    std::string name;
    bool in_sync = false;
    bool copying = false;
    uint64_t pages_copied = 0;
    std::string why;  // it is not in sync
  };
  [[nodiscard]] std::vector<NodeState> states() const;  // by place

  struct Note {
    bool error = false;
    std::string text;
  };
  std::vector<Note> take_notes();  // what there is to say to people

 private:
  enum class State : uint8_t { kOut, kCopying, kInSync };
  struct Node {
    NodeNumber number = 0;
    std::string name;
    State state = State::kOut;
    uint64_t store = 0;
    uint64_t session = 0;
    uint64_t first_session = 0;  // what was answered in earlier ones counts for nothing (WN4)
    bool suspected = false;      // WN3: a new session first
    uint64_t losses = 0;         // of connections to it
    uint64_t losses_before = 0;  // when it was asked last
    uint64_t pages_copied = 0;
    size_t failed_copies = 0;  // in a row (WN8)
    std::string why = "it has not been asked yet";
    uint64_t next_try_us = 0, pause_us = 0;
  };
  // A node that is about to leave, and how many of the others are needed.
  struct Leaving {
    std::string name;
    uint32_t write_quorum;
  };

  static constexpr uint64_t kPauseUsMin = 50'000;

  // Membership.
  [[nodiscard]] Node* find(NodeNumber number);  // nullptr: it has no place any more
  [[nodiscard]] bool enough() const;
  [[nodiscard]] bool enough(const std::vector<Target>& nodes) const;
  void put_out(Node* node, const std::string& why);
  static Status why_out(const Node* node);  // nullptr: it has no place any more
  void warn(std::string text) { notes_.push_back({false, std::move(text)}); }
  Status end(const Status& why);
  // What it answers says nothing of a restart that came after the answer: it is asked again then.
  static void ask_now(Node* node) { node->losses_before = node->losses; }
  static bool lost_since(const Node& node) { return node.losses != node.losses_before; }
  uint64_t next_session() { return ++sessions_; }

  // Tasks; each returns what is to be waited for or done, nothing: go on at the task's stage.
  using Next = std::optional<Step>;
  static Step ask(Step::What what, const std::vector<Target>& targets);
  Next step_once(Task* task, uint64_t now_us);
  Next wait(Task* task, uint64_t now_us, uint64_t until_us = UINT64_MAX);
  Next take_list(Task* task, uint64_t now_us);
  Next begin_check(Task* task, uint64_t now_us);
  Next tell_again(Task* task, uint64_t now_us);
  Next begin_call(Task* task, uint64_t now_us);
  Next begin_return(Task* task, uint64_t now_us);
  Next begin_copy(Task* task, uint64_t now_us);
  Next publish(Task* task, uint64_t now_us);
  void sessions_answered(Task* task, const std::vector<Answer>& answers, uint64_t now_us);
  Status judge_sessions(Task* task, const std::vector<Answer>& answers);
  void told_again(Task* task, const std::vector<Answer>& answers, uint64_t now_us);
  Status all_told(Task* task);
  void end_check(Task* task, const Status& status, uint64_t now_us);
  // OK: it is acknowledged, and is to be remembered.
  bool call_answered(Task* task, const std::vector<Answer>& answers, uint64_t now_us);
  Status judge(const std::vector<Target>& targets, const std::vector<Answer>& answers);
  void return_begun(Task* task, const Answer& answer, uint64_t now_us);
  void copy_answered(Task* task, const Answer& answer, uint64_t now_us);
  void return_synced(Task* task, const Answer& answer, uint64_t now_us);
  void return_ended(Task* task, const Status& status, uint64_t now_us);
  void finish(Task* task, const Status& status, uint64_t now_us);

  const Options options_;
  std::vector<Node> nodes_;         // of the placement, by place
  uint32_t write_quorum_;           // of the placement
  uint64_t generation_;             // of the placement
  std::optional<Leaving> leaving_;  // WN7
  Status ended_;
  uint64_t sessions_ = 0;
  uint64_t operations_ = 0;
  std::set<uint64_t> under_way_;  // calls to all, by number
  UnsyncedPages unsynced_;
  bool asking_ = false;      // a task checks sessions: no call begins
  bool list_taken_ = false;  // a task syncs, or changes the registry's list
  size_t preferred_ = 0;
  std::vector<Note> notes_;
  bool stopped_ = false;
};

// What somebody who waits for the machine is at.
class WriteSessions::Task {
 public:
  [[nodiscard]] uint16_t method() const noexcept { return syncs_ ? sync_method() : method_; }

 private:
  friend class WriteSessions;
  enum class Kind : uint8_t { kCall, kSync, kCheck, kReturn, kLeave };
  enum class Stage : uint8_t {
    kTakeList,  // waits for the registry's list
    kCheck,     // waits until nobody asks for sessions, asks itself if need be
    kAsked,
    kTellAgain,  // waits for calls under way; then one call after the other
    kTold,
    kCall,
    kCalled,
    kReturn,
    kReturnBegun,
    kCopy,  // waits for calls of before
    kCopied,
    kSyncReturned,
    kPublish,
    kPublished,
    kDone
  };
  Task(Kind kind, Stage stage) : kind_(kind), stage_(stage) {}
  static uint16_t sync_method() noexcept;

  Kind kind_;
  Stage stage_;
  uint16_t method_ = 0;
  bool elsewhere_ = false;
  bool fits_ = false;      // kCall: whether a sync has to come first was looked at
  bool syncs_ = false;     // the call under way is a sync
  bool has_list_ = false;  // list_taken_ is ours
  bool asks_ = false;      // asking_ is ours
  uint64_t covered_ = 0;   // by the sync (UP2)
  std::vector<Target> targets_;
  uint64_t operation_ = 0;  // kReturn: the last that began without it
  std::vector<UnsyncedPages::Call> calls_;
  size_t told_ = 0;  // of calls_
  NodeNumber node_ = 0;
  std::vector<Target> peers_;
  uint64_t wait_until_us_ = 0;  // kCopy: the next look at it
  Status status_;
};

}  // namespace strata::clients
