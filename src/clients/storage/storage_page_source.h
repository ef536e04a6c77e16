// Pages made from the log by storage nodes (pagefile/page_source.h), under the profiles in which
// compute sends only its log. Thread-safe.
//   SPS1  A page that is read back has at least the llsn it had when it was given up (S3): for
//         pages given up lately exactly known, for others at most the newest llsn of any of those,
//         else the llsn at which this life began.
//   SPS2  Checksum, identity and llsn of every page are verified; a node whose copy is bad, or that
//         does not have it so far, is passed over as long as another one may help.
//   SPS4  Reads end: by their timeout, or when stop() is called. A storage node that is behind and
//         gets on with its replay is waited for: the timeout begins anew. Where several servers
//         write so it does while nodes go on scanning, for four timeouts in all.
//   SPS5  After follow() no read is begun at a node that has lost its place.
//   SPS3  Nothing is written: write() notes what the page's next reader must see.
//   SPS6  Before a node is asked, the log's writer hears of it: what the page waits for may be on
//         all nodes already, and none of them know that it is durable.
//   SPS8  A page as of an older llsn is exactly that: the node knows all log up to there before it
//         answers, and what is newer than asked for is damage. What a node has collected already
//         another one may still have.
//   SPS9  A batch that was begun ends once, by its deadline at the latest, also when its node has
//         lost its place meanwhile: in the thread of options.world.
//   SPS10  Where several servers write, each in a log of its own, a page is read behind the places
//         in these logs that the reader names (read_behind()); what this node gave up, and where
//         its own log began, say nothing of it. A list of spaces then is that of as many nodes as
//         have one among them that has everything durable, each as far as it had the logs when it
//         was asked.
//   SPS11  A node that refuses calls as being of another build is passed over like one that is
//         away, and the log says so once.
//   SPS7  A list of spaces is no older than the end of the log as this life found it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/latch.h"
#include "clients/storage/backlog_gate.h"
#include "clients/storage/given_up_pages.h"
#include "clients/storage/replica_set.h"
#include "pagefile/page_source.h"
#include "pagefile/positioned_pages.h"
#include "proto/page_messages.h"
#include "transport/address.h"
#include "transport/calls/blocking_channel.h"
#include "transport/calls/channel.h"
#include "transport/world.h"

namespace strata::clients {

struct StoragePagesOptions {
  StreamId stream;  // this node's, with its epoch (S2)
  Epoch epoch;
  std::vector<transport::Address> addresses;  // of the storage nodes
  std::vector<std::string> keys;              // theirs, for follow() (replica_set.h)
  // Where several servers write (SPS10): of how many nodes what counts as durable is on; 0: one
  // writes.
  size_t write_quorum = 0;
  size_t given_up_max = 1u << 20;        // pages whose llsn is known exactly; 0: none
  uint32_t wait_us = 2'000'000;          // what a node may wait for its log before another is asked
  uint32_t read_ahead_wait_us = 50'000;  // the same for pages that nobody waits for yet
  uint64_t read_timeout_us = 30'000'000;  // then read() fails
  std::shared_ptr<BacklogGate> gate;      // hears how far behind each node is; null: nobody does
  std::function<void()> spread_news;      // SPS6: cheap, does not block, any thread; may be null
  bool page_images = false;               // storage nodes need none in the log: for experiments
  transport::BlockingChannelOptions channel;
  // In whose thread batches that were begun end (start_read_batch()); it outlives the source. None:
  // they block their caller.
  transport::World world = {};
};

class StoragePageSource final : public PageSource, public PositionedPages {
 public:
  StoragePageSource(const transport::Secret& secret, StoragePagesOptions options);
  ~StoragePageSource() override;

  Status read(PageId id, Llsn at_least, char* page) override;
  // SPS8. Errors also: kOutOfRange, that state is collected on every node.
  Status read_version(PageId id, Llsn at_least, Llsn at_most, char* page) override;
  // SPS10
  Status read_behind(PageId id, Llsn at_least, absl::Span<const LogPosition> places,
                     char* page) override;
  // One call for all; what that node does not have at hand is left out (no other is asked).
  void read_batch(const PageId* ids, uint32_t count, char* pages, Status* results) override;
  // SPS9. The same, and nobody waits for it.
  void start_read_batch(const PageId* ids, uint32_t count, char* pages, Status* results,
                        ReadBatchDone done) override;
  Status write(PageId id, const char* page) override;
  Status sync() override { return ok_status(); }
  Status create_space(SpaceId) override { return ok_status(); }  // its first page's log does
  Status delete_space(SpaceId) override {
    return ok_status();
  }  // the log's record of the drop does
  StatusOr<bool> space_exists(SpaceId space) override;
  StatusOr<std::vector<SpaceId>> list_spaces() override;
  Status grow_space(SpaceId, uint32_t) override { return ok_status(); }
  [[nodiscard]] bool replays_log() const override { return true; }
  void begin_at(Llsn last) override;
  [[nodiscard]] bool needs_page_images() const override { return options_.page_images; }

  // For a reader, by a random number that is not 0: the states of pages as of `oldest` and later
  // are kept on every node that can be reached, for a few seconds, so that it is to be called again
  // and again; `oldest` only grows. Blocks, a second at most for each that does not answer. OK: one
  // node at least keeps them. Errors: kOutOfRange (collected on all that answered), as of calls.
  Status hold_versions(uint64_t reader, Llsn oldest);
  // Nothing is kept for that reader any more. Blocks likewise; who does not hear it forgets the
  // reader by itself.
  void release_versions(uint64_t reader);
  // Asks every node how far behind it is, for the gate. Blocks, a second at most for each that does
  // not answer.
  void ask_backlogs();
  // Reads that have not found what they want end with kUnavailable, now and from now on.
  void stop();
  // SPS5: the placement has changed. Sets of lower generations than one told before are ignored.
  // Does not block.
  void follow(const ReplicaSet& replicas);

  struct Counters {
    std::atomic<uint64_t> pages{0}, calls{0}, retries{0}, bad_pages{0}, wait_us{0};
    std::atomic<uint64_t> read_ahead{0};  // of the pages, those that came in a batch
  };
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }
  // Log that the node asked last has not replayed.
  [[nodiscard]] uint64_t backlog_bytes() const noexcept { return backlog_bytes_.load(); }

 private:
  // A storage node; reads under way keep one that has lost its place.
  struct Node {
    Node(const transport::Secret& secret, std::string node_key, const transport::Address& address,
         const transport::BlockingChannelOptions& channel_options)
        : key(std::move(node_key)), channel(secret, address, channel_options) {}
    const std::string key;
    transport::BlockingChannel channel;
    std::unique_ptr<transport::Channel> batches;  // null: options_.world is none
    std::atomic<uint64_t> scanned_bytes{0};       // as it has said last
    std::atomic<bool> refuses{false};             // SPS11
  };
  struct Wanted {
    proto::PageWanted page;
    std::vector<proto::Position> places = {};  // SPS10
    Llsn llsn_min = {};                        // of the answer
  };
  // Where what a batch brings belongs.
  struct Batch {
    const PageId* ids;
    uint32_t count;
    char* pages;
    Status* results;
    uint64_t begin_us;
  };
  struct BatchUnderWay;
  [[nodiscard]] std::shared_ptr<Node> make_node(std::string key, const transport::Address& address);
  [[nodiscard]] proto::GetPagesRequest request_of(const Batch& batch) const;
  void take_batch(const Node& node, const proto::GetPagesRequest& request,
                  const StatusOr<proto::GetPagesReplyView>& reply, const Batch& batch);
  static Status note_refusal(Node* node, const Status& status);  // SPS11; returns `status`
  // What is said of the node at that place is noted.
  StatusOr<proto::GetPagesReplyView> view_reply(size_t node, size_t pages, Bytes bytes);
  [[nodiscard]] size_t node_count() const;
  [[nodiscard]] uint64_t scanned_bytes() const;                    // by all nodes
  [[nodiscard]] std::shared_ptr<Node> node_at(size_t node) const;  // modulo their number
  [[nodiscard]] Llsn needed(PageId id, Llsn at_least) const;
  Status read_anywhere(const Wanted& wanted, char* page);
  Status read_from(size_t node, const Wanted& wanted, uint32_t wait_us, uint64_t deadline_us,
                   char* page);
  // The reply lies in *bytes.
  StatusOr<proto::GetPagesReplyView> ask(size_t node, const proto::GetPagesRequest& request,
                                         uint64_t deadline_us, std::string* bytes);
  Status take(const Node& node, const proto::PageWanted& wanted, const proto::PageView& got,
              char* page);
  StatusOr<std::vector<SpaceId>> list_spaces_of(size_t node, uint64_t deadline_us);
  StatusOr<std::vector<SpaceId>> list_spaces_of_enough();
  StatusOr<proto::ListSpacesReply> ask_for_spaces(Node* node,
                                                  const proto::ListSpacesRequest& request,
                                                  uint64_t deadline_us);
  // OK: one node at least said so.
  Status tell_readers_lease(const proto::ReaderLeaseRequest& lease);
  void prefer_again(const quorum::ReplicasBefore& before);
  // All nodes have failed, perhaps at once: waits a little. False: it is over.
  bool may_try_again(uint64_t deadline_us);

  const StoragePagesOptions options_;  // addresses and keys: of the start
  const transport::Secret secret_;
  GivenUpPages given_up_;
  std::atomic<uint64_t> begin_{0};    // Llsn: what this life found
  std::atomic<size_t> preferred_{0};  // the node that answered last
  std::atomic<uint64_t> backlog_bytes_{0};
  Counters counters_;
  std::atomic<uint32_t> batches_under_way_{0};
  mutable Mutex mutex_{LatchRank::kPeers};
  CondVar stop_changed_;
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<Node>> nodes_ STRATA_GUARDED_BY(mutex_);  // by place
  uint64_t generation_ STRATA_GUARDED_BY(mutex_) = 0;                   // of the set followed last
  size_t write_quorum_ STRATA_GUARDED_BY(mutex_);                       // of it (SPS10)
};

}  // namespace strata::clients
