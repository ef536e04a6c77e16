// The storage nodes that a compute node writes its pages to: which of them have everything, calls
// to all of those at once, and how one that missed something comes back. Thread-safe.
//
//                  begin, all calls from now on
//       ┌── kOut ───────────────────────────────> kCopying
//       │    ^ ^── any failed call or copy ────────┘   │ copied, synced: join()
//       │    └──── failed call, others have it ── kInSync <┘
//       └ open(): those that the registry names begin and are kInSync at once
//   follow(): a node that is new is kOut; one that has lost its place is kGone, for good
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
//        they answered before that counts for nothing any more.
//   WN5  A node is in sync again when it has copied, and synced, every page of a node in sync, and
//        every call since the copy was ordered; no call that began before the copy is under way
//        then.
//   WN6  Once the placement has changed only its nodes and its write quorum count: neither what one
//        without a place has, nor its answers. The registry's list names it until the next sync()
//        at most. If nobody is in sync then, this compute node ends its work (ended)
//        and recovery does it: the list, which is changed late, has others.
//   WN7  From prepare_leave() on, until follow() or cancel_leave(), calls are OK, and the
//        registry's list is changed, only while enough are in sync also without the node that
//        leaves. It may leave once that list has enough others.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/ids.h"
#include "base/latch.h"
#include "base/status.h"
#include "clients/storage/in_sync_set.h"
#include "clients/storage/leaving_replica.h"
#include "clients/storage/replica_set.h"
#include "clients/storage/unsynced_pages.h"
#include "proto/written_messages.h"
#include "transport/address.h"
#include "transport/calls/blocking_channel.h"
#include "transport/calls/channel.h"

namespace strata::clients {

struct WrittenNode {
  std::string name;
  transport::Address address;
};

struct WrittenNodesOptions {
  StreamId stream;  // this node's, with its epoch (S2)
  Epoch epoch;
  std::vector<WrittenNode> nodes;  // of the start, as all that is said of the placement
  uint32_t write_quorum = 0;
  uint64_t generation = 0;
  bool founding = false;                  // whatever pages the nodes have are not of this database
  uint64_t write_timeout_us = 5'000'000;  // then a node is put out
  uint64_t sync_timeout_us = 10'000'000;  // the same, of syncs
  uint64_t open_timeout_us = 5'000'000;   // for nodes that are in sync to answer at the start
  uint64_t come_back_us_max = 1'000'000;  // between two tries
  size_t unsynced_bytes_max = size_t{64} << 20;  // of pages written since; then a sync comes first
  std::shared_ptr<transport::LinkModel> link_model;
  std::shared_ptr<transport::Counters> counters;  // null: its own
};

class WrittenNodes final : public LeavingReplica {
 private:
  struct Node;

 public:
  // Begins a write session on every node that is in sync. Blocks. Errors: kUnavailable (too few
  // answered; says which), fenced, kDataLoss (the registry names none).
  // `in_sync` and the world outlive it.
  static StatusOr<std::unique_ptr<WrittenNodes>> open(const transport::World& world,
                                                      const transport::Secret& secret,
                                                      WrittenNodesOptions options,
                                                      InSyncSet* in_sync);
  ~WrittenNodes() override;  // stop(); no call may be under way
  WrittenNodes(const WrittenNodes&) = delete;
  WrittenNodes& operator=(const WrittenNodes&) = delete;

  using Encode = absl::FunctionRef<std::string(const proto::Writer&)>;
  // One call to all nodes (WN1). Blocks. Errors: kUnavailable (too few in sync, may pass),
  // kResourceExhausted (a disk is full), fenced, ended (WN6).
  Status to_all(uint16_t method, Encode encode);
  Status sync();  // WN2

  // Who works with a node keeps it, also when it loses its place meanwhile.
  using NodeRef = std::shared_ptr<Node>;
  // A node to read from, in sync, and the session to name.
  struct Reader {
    NodeRef node;
    uint64_t session;
  };
  [[nodiscard]] std::vector<Reader> readers();  // the preferred one first
  void prefer(const Reader& reader);
  // Something about it is wrong: whether it still knows that session is asked soon.
  void suspect(const Reader& reader);
  // Asks those that are suspected now. Blocks.
  Status check_sessions();
  // A blocking call to one node.
  Status call(const NodeRef& node, uint16_t method, Bytes request, uint64_t timeout_us,
              transport::BlockingReply* reply);
  // The same without blocking: ends in the world's thread. The node must be kept until then.
  void start_call(const NodeRef& node, uint16_t method, std::string request, uint64_t timeout_us,
                  transport::Channel::Callback done);
  // A call to one node in its session; out it is if it fails.
  Status to_one(const Reader& reader, uint16_t method, Encode encode);
  StatusOr<std::vector<SpaceId>> list_spaces_of(const NodeRef& node);
  [[nodiscard]] static std::string address(const Reader& reader);
  [[nodiscard]] const WrittenNodesOptions& options() const noexcept { return options_; }

  // WN6: the placement has changed. Sets of lower generations than one told before are ignored.
  // Does not block.
  void follow(const ReplicaSet& replicas);
  bool prepare_leave(const std::string& key, uint64_t generation, uint32_t write_quorum) override;
  void cancel_leave() override;
  [[nodiscard]] std::vector<bool> well() const override;

  // Nodes no longer come back; calls that wait end. Blocks.
  void stop();

  struct NodeState {
    std::string name;
    bool in_sync = false;
    bool copying = false;
    uint64_t pages_copied = 0;
    std::string why;  // it is not in sync
  };
  [[nodiscard]] std::vector<NodeState> states() const;  // by place
  [[nodiscard]] Status ended() const;  // why nothing is written any more; OK: it is

 private:
  enum class State : uint8_t { kOut, kCopying, kInSync, kGone };
  struct Node {
    explicit Node(const WrittenNode& who) : name(who.name), address(who.address) {}
    const std::string name;
    const transport::Address address;
    std::unique_ptr<transport::Channel> writes;
    std::unique_ptr<transport::BlockingChannel> calls;
    std::unique_ptr<transport::Channel> reads;  // as long as the node: a call keeps both
    // Of who holds mutex_ of the WrittenNodes:
    State state = State::kOut;
    uint64_t store = 0;
    uint64_t session = 0;
    uint64_t first_session = 0;  // what was answered in earlier ones counts for nothing (WN4)
    bool suspected = false;      // WN3: a new session first
    uint64_t pages_copied = 0;
    std::string why = "it has not been asked yet";
    uint64_t next_try_us = 0, pause_us = 0;
  };
  // A node that is about to leave, and how many of the others are needed.
  struct Leaving {
    std::string name;
    uint32_t write_quorum;
  };
  struct Target {
    NodeRef node;
    proto::Writer writer;
    bool in_sync;
  };
  struct Answer {
    Status status;
    bool answered = false;
    std::string payload;
  };
  class Round;

  WrittenNodes(const transport::World& world, const transport::Secret& secret,
               WrittenNodesOptions options, InSyncSet* in_sync);
  NodeRef make_node(const WrittenNode& who);
  Status begin_all();
  Status begin_at_start(const NodeRef& node, size_t* begun, size_t* missing);
  Status begin_one(const NodeRef& node, uint64_t session, uint64_t continues,
                   proto::BeginWritesReply* reply);
  Status equalise_spaces();
  Status forget_spaces();
  Status take_targets(std::vector<Target>* targets, uint64_t* operation);
  std::vector<Answer> ask(const std::vector<Target>& targets, uint16_t method, uint64_t timeout_us,
                          Encode encode);
  Status judge(const std::vector<Target>& targets, const std::vector<Answer>& answers)
      STRATA_REQUIRES(mutex_);
  Status to_all(uint16_t method, uint64_t timeout_us, Encode encode);
  // A node that was asked whether it knows its session, and what it said.
  struct Asked {
    NodeRef node;
    uint64_t session;  // the new one
    uint64_t before;
    Status status;
    proto::BeginWritesReply reply;
    [[nodiscard]] bool continued() const { return status.ok() && reply.continued; }
    [[nodiscard]] bool forgot() const { return status.ok() && !reply.continued; }
  };
  bool take_suspected(std::vector<Asked>* asked) STRATA_REQUIRES(mutex_);
  Status judge_sessions(const std::vector<Asked>& asked, std::vector<Target>* restarted)
      STRATA_REQUIRES(mutex_);
  Status tell_again(std::vector<Target> restarted);
  Status keep_few_unsynced(uint16_t method);
  struct Work {
    std::vector<NodeRef> out;  // that may try to come back
    std::vector<NodeRef> gone;
    bool suspected = false;
  };
  void keep();
  bool wait_for_work(Work* work);
  bool find_work(Work* work, uint64_t* next_us) STRATA_REQUIRES(mutex_);
  void come_back(const NodeRef& node);
  Status try_come_back(const NodeRef& node);
  Status copy_to(const NodeRef& node, const proto::Writer& writer);
  Status join(const NodeRef& node, const proto::Writer& writer);
  Status end(const Status& why);
  Status publish();
  void lost_connection(Node* node);
  void put_out(Node* node, const std::string& why) STRATA_REQUIRES(mutex_);
  void take_place(std::vector<NodeRef> nodes, const ReplicaSet& replicas) STRATA_REQUIRES(mutex_);
  [[nodiscard]] size_t in_sync_count() const STRATA_REQUIRES(mutex_);
  [[nodiscard]] bool enough() const STRATA_REQUIRES(mutex_);
  [[nodiscard]] bool enough(const std::vector<Target>& nodes) const STRATA_REQUIRES(mutex_);
  [[nodiscard]] Status too_few() const STRATA_REQUIRES(mutex_);
  [[nodiscard]] proto::Writer writer_of(const Node& node) const STRATA_REQUIRES(mutex_);
  uint64_t next_session() STRATA_REQUIRES(mutex_) { return ++sessions_; }

  [[nodiscard]] std::vector<NodeRef> nodes() const;
  void say() STRATA_EXCLUDES(mutex_);  // what there is to say

  const WrittenNodesOptions options_;
  const transport::World world_;
  const transport::Secret secret_;
  InSyncSet* const in_sync_;
  mutable Mutex mutex_{LatchRank::kPeers};
  CondVar changed_;
  std::vector<NodeRef> nodes_ STRATA_GUARDED_BY(mutex_);      // of the placement, by place
  std::vector<NodeRef> gone_ STRATA_GUARDED_BY(mutex_);       // the keeper ends their connections
  uint32_t write_quorum_ STRATA_GUARDED_BY(mutex_) = 0;       // of the placement
  uint64_t generation_ STRATA_GUARDED_BY(mutex_) = 0;         // of the placement
  std::optional<Leaving> leaving_ STRATA_GUARDED_BY(mutex_);  // WN7
  Status ended_ STRATA_GUARDED_BY(mutex_);
  uint64_t sessions_ STRATA_GUARDED_BY(mutex_) = 0;
  uint64_t operations_ STRATA_GUARDED_BY(mutex_) = 0;
  std::set<uint64_t> under_way_ STRATA_GUARDED_BY(mutex_);
  UnsyncedPages unsynced_ STRATA_GUARDED_BY(mutex_);
  bool asking_sessions_ STRATA_GUARDED_BY(mutex_) = false;
  bool syncing_ STRATA_GUARDED_BY(mutex_) = false;  // somebody uses in_sync_
  size_t preferred_ STRATA_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> notes_ STRATA_GUARDED_BY(mutex_);  // to be said
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
  std::thread keeper_;
};

}  // namespace strata::clients
