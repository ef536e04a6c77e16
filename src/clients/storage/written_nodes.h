// The storage nodes that a compute node writes its pages to: which of them have everything, calls
// to all of those at once, and how one that missed something comes back. Thread-safe.
// What is asked of whom, and what an answer means, is what WriteSessions says (write_sessions.h,
// with the invariants WN1-WN7); here is what blocks: calls, the registry, and one thread that lets
// nodes come back. No latch is held over any of it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
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
#include "clients/storage/write_sessions.h"
#include "proto/written_messages.h"
#include "transport/address.h"
#include "transport/calls/blocking_channel.h"
#include "transport/calls/channel.h"

namespace strata::clients {

struct WrittenNode {
  std::string name;
  transport::Address address;
};

// A storage node that takes part in a call, for who makes that call for us.
struct DelegateTarget {
  std::string address;
  uint64_t session = 0;
};
// What came of it.
struct DelegateAnswer {
  bool answered = false;  // the status is what that node said
  Status status = {};
};
struct Delegated {
  bool nothing_to_do = false;           // nobody was asked anything
  std::vector<PageId> pages;            // that were written
  std::vector<DelegateAnswer> answers;  // by target; empty: nobody knows what came of it
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
  // Writes to that node, once more, everything that was written by to_all_through() since the last
  // sync that was OK. Blocks; no latch is held. Null: nothing is ever written so.
  std::function<DelegateAnswer(const DelegateTarget&)> write_again;
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
  // One call kWritePages to all nodes (WN1) that another process makes for us, say a memory node:
  // `write` tells it the targets and brings what each of them has answered. Blocks. Errors as
  // to_all().
  using WriteThrough = absl::FunctionRef<Delegated(const std::vector<DelegateTarget>&)>;
  Status to_all_through(WriteThrough write);
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

  // The placement has changed (WN6). Sets of lower generations than one told before are ignored.
  // Does not block.
  void follow(const ReplicaSet& replicas);
  bool prepare_leave(const std::string& key, uint64_t generation, uint32_t write_quorum) override;
  void cancel_leave() override;
  [[nodiscard]] std::vector<bool> well() const override;

  // Nodes no longer come back; calls that wait end. Blocks.
  void stop();

  using NodeState = WriteSessions::NodeState;
  [[nodiscard]] std::vector<NodeState> states() const;  // by place
  [[nodiscard]] Status ended() const;  // why nothing is written any more; OK: it is

 private:
  using Task = WriteSessions::Task;
  using Target = WriteSessions::Target;
  using Step = WriteSessions::Step;
  struct Node {
    Node(WriteSessions::NodeNumber given, const WrittenNode& who)
        : number(given), name(who.name), address(who.address) {}
    const WriteSessions::NodeNumber number;
    const std::string name;
    const transport::Address address;
    std::unique_ptr<transport::Channel> writes;
    std::unique_ptr<transport::BlockingChannel> calls;
    std::unique_ptr<transport::Channel> reads;  // as long as the node: a call keeps both
  };
  // A step, and the nodes that it is about; nullptr: that one has lost its place.
  struct Now {
    Step step;
    std::vector<NodeRef> targets;
    std::vector<Reader> peers;
  };
  using Answer = WriteSessions::Answer;
  using Answers = std::vector<Answer>;
  class Round;

  WrittenNodes(const transport::World& world, const transport::Secret& secret,
               WrittenNodesOptions options, InSyncSet* in_sync);
  NodeRef make_node(const WrittenNode& who);
  static WriteSessions::Options of_sessions(const WrittenNodesOptions& options);
  Status begin_all();
  Status begin_missing(size_t* missing);
  Status equalise_spaces();
  Status forget_spaces();

  // Does what the task says until it is done.
  Status run(Task task, Encode encode);
  Status run(Task task, Encode encode, WriteThrough write);
  Status run(Task task);  // of no call but syncs
  Now wait_for_step(Task* task);
  Answers ask(const Now& now, uint16_t method, Encode encode, proto::CopyPagesRequest* copy,
              std::string* request);
  Answers ask_through(const Now& now, WriteThrough write, std::vector<PageId>* pages);
  Answers write_again(const Now& now);
  Answers ask_all(const Now& now, uint16_t method, uint64_t timeout_us, Encode encode);
  Answers ask_all(const Now& now, const transport::CallOptions& call,
                  absl::FunctionRef<std::string(const Target&)> encode);
  Answers begin_sessions(const Now& now);
  Answer sync_one(const Now& now);
  Answer copy_to(const Now& now, proto::CopyPagesRequest* copy);
  [[nodiscard]] proto::Writer writer(uint64_t session) const {
    return {options_.stream, options_.epoch, session};
  }

  struct Work {
    WriteSessions::Due due;
    std::vector<NodeRef> gone;
  };
  void keep();
  bool wait_for_work(Work* work);
  void lost_connection(WriteSessions::NodeNumber node);
  [[nodiscard]] NodeRef find(WriteSessions::NodeNumber node) const STRATA_REQUIRES(mutex_);
  void say() STRATA_EXCLUDES(mutex_);  // what there is to say

  const WrittenNodesOptions options_;
  const transport::World world_;
  const transport::Secret secret_;
  InSyncSet* const in_sync_;
  std::atomic<WriteSessions::NodeNumber> numbers_{0};  // given to nodes
  mutable Mutex mutex_{LatchRank::kPeers};
  CondVar changed_;
  std::vector<NodeRef> nodes_ STRATA_GUARDED_BY(mutex_);  // of the placement, by place
  std::vector<NodeRef> gone_ STRATA_GUARDED_BY(mutex_);   // the keeper ends their connections
  WriteSessions sessions_ STRATA_GUARDED_BY(mutex_);
  std::thread keeper_;
};

}  // namespace strata::clients
