// Pages on storage nodes as one of several servers of the same tables has them: it reads, and makes
// and drops spaces; pages are written there by the memory node that shares them out (FUSION pages,
// clients/fusion). Thread-safe.
//   SHP1  What read() returns has everything that was made durable there, by the memory node,
//         before read() began. The node that a page comes from may have been put out by the memory
//         node without this server having heard: so as many nodes are asked as to have one among
//         them that has it, and the newest version counts.
//   SHP2  Nothing is believed of its age but that: which llsn a page must have at least says who
//         asks (the memory node's grant); what this server itself has seen of the log says nothing.
//   SHP3  Only nodes are asked that the registry's list, as this server last heard it, names: what
//         has lost its pages, and answers "never written", is not in it. While there is no list
//         nothing counts as written.
//   SHP4  A space exists once create_space() has returned, and does not once delete_space() has; a
//         node that missed it is put out when the memory node writes there, or comes back by a
//         copy.
//   SHP5  Calls end: by their timeout, when the thread is interrupted (reads only), or with stop().
// That so many nodes have it is what a write quorum means (WN1, WN2 of write_sessions.h): of N
// nodes at least W have a version that counts as durable, so of any N - W + 1 one has it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/ids.h"
#include "base/latch.h"
#include "base/status.h"
#include "clients/storage/replica_set.h"
#include "cluster/in_sync_nodes.h"
#include "pagefile/page_source.h"
#include "proto/page_messages.h"
#include "transport/calls/channel.h"
#include "transport/secret.h"
#include "transport/world.h"

namespace strata::clients {

struct SharedPagesOptions {
  StreamId stream;  // this server's, with its epoch (S2)
  Epoch epoch;
  ReplicaSet replicas;                    // of the start
  uint64_t call_timeout_us = 3'000'000;   // of one node; then others are asked
  uint64_t read_timeout_us = 30'000'000;  // then a read, or a change of a space, fails
  bool page_images = false;  // in the log, though storage nodes need none (experiments)
  std::shared_ptr<transport::LinkModel> link_model;  // null: none
  std::shared_ptr<transport::Counters> counters;     // null: its own
};

class SharedPages final : public PageSource {
 public:
  // The world outlives it.
  SharedPages(const transport::World& world, const transport::Secret& secret,
              SharedPagesOptions options);
  ~SharedPages() override;  // stop(); no call may be under way

  // Do not block. The placement has changed: one thread at a time says so.
  void follow(const ReplicaSet& replicas);
  void follow_list(const std::vector<cluster::InSyncNode>& list);  // SHP3

  // Errors: kNotFound, kDataLoss (all that was got is damaged), peer_down (too few answer, or none
  // has what is wanted), fenced, interrupted.
  Status read(PageId id, Llsn at_least, char* page) override;
  Status write(PageId id, const char* page) override;  // unsupported
  Status sync() override;                              // unsupported
  Status create_space(SpaceId space) override;
  Status delete_space(SpaceId space) override;
  StatusOr<bool> space_exists(SpaceId space) override;
  StatusOr<std::vector<SpaceId>> list_spaces() override;
  Status grow_space(SpaceId space, uint32_t pages) override;
  StatusOr<uint32_t> space_pages(SpaceId space) override;
  [[nodiscard]] bool needs_page_images() const override { return options_.page_images; }

  void stop();

  struct Counters {
    std::atomic<uint64_t> pages{0}, calls{0}, retries{0}, bad_pages{0}, wait_us{0};
    std::atomic<uint64_t> read_ahead{0};
    std::atomic<uint64_t> older{0};  // versions got of which another node had a newer one
  };
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }
  [[nodiscard]] size_t nodes_listed() const;

 private:
  struct Node {
    explicit Node(const ReplicaNode& given) : who(given) {}
    const ReplicaNode who;
    std::unique_ptr<transport::Channel> channel;
    std::atomic<bool> failed{false};  // the last call: asked last
  };
  using NodeRef = std::shared_ptr<Node>;
  struct Answer {
    Status status = {};
    bool answered = false;
    std::string payload = {};
  };
  // Whom to ask, the better ones first, and how many of them are enough.
  struct Group {
    std::vector<NodeRef> all;     // of the placement
    std::vector<NodeRef> listed;  // of those
    size_t write_quorum = 0;
    [[nodiscard]] size_t read_quorum() const { return all.size() + 1 - write_quorum; }
  };
  class Round;
  class Votes;

  NodeRef make_node(const ReplicaNode& who);
  Group group();
  std::vector<Answer> ask(absl::Span<const NodeRef> nodes, uint16_t method,
                          const std::string& request, uint64_t timeout_us);
  bool may_try_again(uint64_t deadline_us);
  Status read_round(const proto::GetPagesRequest& request, Llsn at_least, char* page);
  StatusOr<std::vector<std::string>> ask_quorum(uint16_t method);
  template <class Reply, class Decode, class Take>
  Status from_quorum(uint16_t method, Decode decode, Take take);
  Status change_space(uint16_t method, SpaceId space, uint32_t pages);
  Status change_space_round(uint16_t method, const std::string& request);

  const SharedPagesOptions options_;
  const transport::World world_;
  const transport::Secret secret_;
  Counters counters_;
  std::atomic<uint32_t> turn_{0};  // so that not all ask the same nodes
  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
  uint64_t generation_ STRATA_GUARDED_BY(mutex_) = 0;
  size_t write_quorum_ STRATA_GUARDED_BY(mutex_) = 0;
  std::vector<NodeRef> nodes_ STRATA_GUARDED_BY(mutex_);
  std::vector<NodeRef> gone_ STRATA_GUARDED_BY(mutex_);  // their channels end with this
  std::optional<std::vector<std::string>> list_ STRATA_GUARDED_BY(mutex_);  // names
};

}  // namespace strata::clients
