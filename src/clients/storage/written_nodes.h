// The storage nodes that a compute node writes its pages to: which of them have everything, calls
// to all of those at once, and how one that missed something comes back. Thread-safe.
//
//                  begin, all calls from now on
//       ┌── kOut ───────────────────────────────> kCopying
//       │    ^ ^── any failed call or copy ────────┘   │ copied, synced: join()
//       │    └──── failed call, others have it ── kInSync <┘
//       └ open(): those that the registry names begin and are kInSync at once
//
//   WN1  A call to all is OK only when every node in sync has answered OK, or has been put out, and
//        at least `write_quorum` stay in sync. So a node in sync has all that was acknowledged.
//   WN2  sync() returns OK only when every node that the registry calls in sync has made durable
//        what it had been given before. Nodes put out leave the registry's list first.
//   WN3  A node of which an answer is missing gets a new write session before anything else is
//        written to it: what is late then can never land over something newer.
//   WN4  A node that was restarted has forgotten its session, and may have lost what was not
//        synced: it is out. If that is true of all at once, nobody here can say what is lost: this
//        compute node ends its work (kFailedPrecondition) and recovery does it.
//   WN5  A node is in sync again when it has copied, and synced, every page of a node in sync, and
//        every call since the copy was ordered; no call that began before the copy is under way
//        then.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/ids.h"
#include "base/latch.h"
#include "base/status.h"
#include "clients/storage/in_sync_set.h"
#include "proto/written_messages.h"
#include "transport/address.h"
#include "transport/blocking_channel.h"
#include "transport/channel.h"

namespace strata::clients {

struct WrittenNode {
  std::string name;
  transport::Address address;
};

struct WrittenNodesOptions {
  StreamId stream;  // this node's, with its epoch (S2)
  Epoch epoch;
  std::vector<WrittenNode> nodes;
  uint32_t write_quorum = 0;
  bool founding = false;                  // whatever pages the nodes have are not of this database
  uint64_t write_timeout_us = 5'000'000;  // then a node is put out
  uint64_t sync_timeout_us = 10'000'000;  // the same, of syncs
  uint64_t open_timeout_us = 5'000'000;   // for nodes that are in sync to answer at the start
  uint64_t come_back_us_max = 1'000'000;  // between two tries
  std::shared_ptr<transport::LinkModel> link_model;
  std::shared_ptr<transport::Counters> counters;  // null: its own
};

class WrittenNodes {
 public:
  // Begins a write session on every node that is in sync. Blocks. Errors: kUnavailable (too few
  // answered; says which), kFailedPrecondition (fenced), kDataLoss (the registry names none).
  // `in_sync` and the world outlive it.
  static StatusOr<std::unique_ptr<WrittenNodes>> open(const transport::World& world,
                                                      const transport::Secret& secret,
                                                      WrittenNodesOptions options,
                                                      InSyncSet* in_sync);
  ~WrittenNodes();  // stop(); no call may be under way
  WrittenNodes(const WrittenNodes&) = delete;
  WrittenNodes& operator=(const WrittenNodes&) = delete;

  using Encode = absl::FunctionRef<std::string(const proto::Writer&)>;
  // One call to all nodes (WN1). Blocks. Errors: kUnavailable (too few in sync, may pass),
  // kResourceExhausted (a disk is full), kFailedPrecondition (fenced, or WN4).
  Status to_all(uint16_t method, Encode encode);
  Status sync();  // WN2

  // A node to read from, in sync, and the session to name.
  struct Reader {
    size_t node;
    uint64_t session;
  };
  [[nodiscard]] std::vector<Reader> readers();  // the preferred one first
  void prefer(size_t node);
  // Something about it is wrong: whether it still knows that session is asked soon.
  void suspect(const Reader& reader);
  // Asks those that are suspected now. Blocks.
  Status check_sessions();
  // A blocking call to one node.
  Status call(size_t node, uint16_t method, Bytes request, uint64_t timeout_us,
              transport::BlockingReply* reply);
  // A call to one node in its session; out it is if it fails.
  Status to_one(const Reader& reader, uint16_t method, Encode encode);
  StatusOr<std::vector<SpaceId>> list_spaces_of(size_t node);
  [[nodiscard]] std::string address(size_t node) const { return nodes_[node].address.now(); }
  [[nodiscard]] const WrittenNodesOptions& options() const noexcept { return options_; }

  // Nodes no longer come back; calls that wait end. Blocks.
  void stop();

  struct NodeState {
    std::string name;
    bool in_sync = false;
    bool copying = false;
    uint64_t pages_copied = 0;
    std::string why;  // it is not in sync
  };
  [[nodiscard]] std::vector<NodeState> states() const;
  [[nodiscard]] Status ended() const;  // why nothing is written any more; OK: it is

 private:
  enum class State : uint8_t { kOut, kCopying, kInSync };
  struct Node {
    std::string name;
    transport::Address address = "";
    std::unique_ptr<transport::Channel> writes;
    std::unique_ptr<transport::BlockingChannel> calls;
    // Guarded by mutex_:
    State state = State::kOut;
    uint64_t store = 0;
    uint64_t session = 0;
    bool suspected = false;  // WN3: a new session first
    uint64_t pages_copied = 0;
    std::string why = "it has not been asked yet";
    uint64_t next_try_us = 0, pause_us = 0;
  };
  struct Target {
    size_t node;
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
  Status begin_all();
  Status begin_one(size_t node, uint64_t session, uint64_t continues,
                   proto::BeginWritesReply* reply);
  Status equalise_spaces();
  Status forget_spaces();
  Status take_targets(std::vector<Target>* targets, uint64_t* operation);
  std::vector<Answer> ask(const std::vector<Target>& targets, uint16_t method, uint64_t timeout_us,
                          Encode encode);
  Status judge(const std::vector<Target>& targets, const std::vector<Answer>& answers);
  Status to_all(uint16_t method, uint64_t timeout_us, Encode encode);
  void judge_sessions(const std::vector<size_t>& asked, const std::vector<uint64_t>& sessions,
                      const std::vector<StatusOr<proto::BeginWritesReply>>& replies);
  void keep();
  std::vector<size_t> wait_for_work(bool* suspected);
  void come_back(size_t node);
  Status try_come_back(size_t node);
  Status copy_to(size_t node, const proto::Writer& writer);
  Status join(size_t node, const proto::Writer& writer);
  Status end(const Status& why);
  Status publish();
  void lost_connection(size_t node);
  // With mutex_ held:
  void put_out(size_t node, const std::string& why);
  [[nodiscard]] size_t in_sync_count() const;
  [[nodiscard]] Status too_few() const;
  [[nodiscard]] proto::Writer writer_of(size_t node) const;
  uint64_t next_session() { return ++sessions_; }
  void say();  // what there is to say, with mutex_ not held

  const WrittenNodesOptions options_;
  const transport::World world_;
  InSyncSet* const in_sync_;
  std::vector<Node> nodes_;
  mutable Mutex mutex_{LatchRank::kPeers};
  CondVar changed_;
  Status ended_;                    // guarded by mutex_
  uint64_t sessions_ = 0;           // guarded by mutex_
  uint64_t operations_ = 0;         // guarded by mutex_
  std::set<uint64_t> under_way_;    // guarded by mutex_
  bool asking_sessions_ = false;    // guarded by mutex_
  bool syncing_ = false;            // guarded by mutex_: somebody uses in_sync_
  size_t preferred_ = 0;            // guarded by mutex_
  std::vector<std::string> notes_;  // guarded by mutex_: to be said
  bool stopped_ = false;            // guarded by mutex_
  std::thread keeper_;
};

}  // namespace strata::clients
