// A compute node's WriteSessions among simulated storage nodes and a simulated registry, with an
// oracle that looks after each step whether WN1-WN7 hold. One thread; everything by a seed.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "clients/storage/testing/write_sessions_world.h"

namespace strata::clients::testing {

class WriteSessionsModel {
 public:
  explicit WriteSessionsModel(uint64_t seed);
  void run(int steps);
  // What was wrong first; empty: nothing.
  [[nodiscard]] const std::string& fault() const noexcept { return fault_; }

  // So that a test knows that everything was met.
  struct Seen {
    uint64_t writes = 0, elsewhere = 0, again = 0, refused = 0, syncs = 0, told_again = 0,
             returned = 0, late = 0, left = 0, ended = 0;
  };
  [[nodiscard]] const Seen& seen() const noexcept { return seen_; }

 private:
  using NodeNumber = WriteSessions::NodeNumber;
  using List = std::vector<cluster::InSyncNode>;
  enum class Purpose : uint8_t { kWrite, kSync, kCheck, kReturn, kLeave };
  struct Running {
    Purpose purpose;
    WriteSessions::Task task;
    Pages pages = {};        // kWrite
    bool elsewhere = false;  // kWrite: another process makes the call
    Pages covers = {};       // kSync: what had been acknowledged when it began
    uint64_t report = 0;     // kSync: the last one of before
    std::string leaves = {};
    std::set<NodeNumber> done_by = {};  // kWrite
    WriteSessions::Step step = {};
    uint64_t round = 0;
    std::vector<std::optional<WriteSessions::Answer>> answers = {};
    uint64_t published_generation = 0;
  };
  struct Reply {
    uint64_t task, round;
    size_t slot;
    WriteSessions::Answer answer;
  };
  struct Late {
    uint64_t version;
    List list;
  };

  // Compute.
  void start_compute(bool founding);
  void begin_all(int tries);
  void start(Purpose purpose, WriteSessions::Task task, const Pages& pages, NodeNumber node,
             const std::string& leaves);
  void start_write();
  void start_sync();
  void keep();
  void poll();
  bool advance(uint64_t id);
  void send(uint64_t id, Running* one);
  void answer(uint64_t task, uint64_t round, size_t slot, const WriteSessions::Answer& answer);
  void done(Running* one);
  [[nodiscard]] bool runs(Purpose purpose) const;

  // The world.
  void step();
  bool progress();
  void deliver(size_t index);
  WriteSessions::Answer execute(SimNode* node, const Message& message);
  void land(SimNode* node, const Message& message);
  [[nodiscard]] bool is_out(const SimNode& node) const;
  void miss_answer();
  void miss_all_answers();
  void publish(Running* one);
  void node_fault();
  void restart_many();
  void notice(SimNode* node);
  void lose_disk(SimNode* node);
  void placement_change();
  void begin_leave();
  void tell();
  void finish();
  bool settled();
  SimNode* add_node();
  SimNode* find(NodeNumber number);
  SimNode* named(const std::string& name);
  SimNode* random_member();
  [[nodiscard]] bool listed(const SimNode& node) const;
  [[nodiscard]] bool all_listed(NodeNumber but) const;
  [[nodiscard]] static uint32_t quorum_of(size_t nodes) {
    return static_cast<uint32_t>(nodes / 2 + 1);
  }

  // The oracle.
  void check();
  void check_acknowledged(const Running& one);
  void check_synced(const Running& one);
  void check_may_leave(const Running& one);
  void fail(const std::string& what);

  Rng rng_;
  uint64_t faults_;  // how many in a hundred steps
  std::map<NodeNumber, SimNode> nodes_;
  std::vector<NodeNumber> members_;  // the placement, as it is
  uint64_t generation_ = 1;
  std::vector<NodeNumber> told_;  // as compute was told
  uint64_t told_generation_ = 1;
  std::string leaving_;  // as compute was told
  uint32_t leaving_quorum_ = 0;
  uint64_t stores_ = 100;

  List list_;  // the registry's
  uint64_t list_version_ = 1;
  std::optional<Late> late_list_;
  List known_;  // as InSyncSet knows it
  bool in_doubt_ = false;

  Epoch epoch_;
  std::unique_ptr<WriteSessions> machine_;
  std::map<uint64_t, Running> tasks_;
  uint64_t ids_ = 0;
  std::vector<Message> messages_;
  std::vector<Reply> replies_;
  uint64_t now_us_ = 1'000'000;

  Version last_version_ = 0;
  std::set<uint32_t> busy_;  // pages that are being written
  // What another process has written for compute, with the number of the write: until a sync that
  // began after it, it alone writes these pages.
  std::map<uint32_t, std::pair<Version, uint64_t>> elsewhere_;
  uint64_t reports_ = 0;
  Pages acknowledged_;
  Pages checkpoint_;  // acknowledged before the last sync that was OK
  Seen seen_;
  std::string fault_;
};

}  // namespace strata::clients::testing
