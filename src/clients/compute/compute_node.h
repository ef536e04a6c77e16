// A compute node's part in a cluster, under the profiles whose data live on storage nodes: finds
// the cluster in the registry, becomes the writer of its log, and offers what the kernel needs to
// run on it. Or it only reads, beside whoever writes. Or it is one of several that write the same
// tables (fusion_node.h adds what these have of each other). Thread-safe.
//   CM1  join() returns once a writer is the stream's only one: every earlier one is fenced.
//   CM2  A stream that another node holds is not taken from it: join() waits until that node has
//        left or has lost its lease. The same node again (the same data folder, held by this
//        process alone: node_identity.h) does not wait: it takes over its own older self, whose
//        process has ended, and only if nobody else has come since it looked. A copy of its folder
//        is another node. Nor does one that stands by wait, after it has found that the holder's
//        process has ended (SB1).
//   CM3  may_answer() is true only while no other node can have become the writer: who reads must
//        ask after the read (K13). Once a lost lease could be replaced and nobody came in between,
//        it is true again. It watches the stream's epoch, too: a node that hears of a larger one
//        never answers again, whatever its lease says.
//   CM5  The placement by which it takes the stream over was read after its epoch was given: no
//        other epoch can have been recovered by a newer one before. It follows every later one.
//   CM4  Nothing in the data folder is needed but the file that tells this node from others; a node
//        without it is another node.
//   CM7  A reader holds no stream and changes nothing: no key of the registry, nothing on storage
//        nodes but how long they keep old states for it. It has a lease of its own, which no key
//        goes with, and goes on when the writer is another one: it reads states as of an llsn, and
//        those that storage nodes answer with no later epoch takes back.
//   CM8  What pages and log are on is one group of storage nodes. A placement with several is
//        refused, and one that comes to be later is not followed, and said.
//   CM9  One of several has a place of its own (cluster/places.h): a log stream, which it holds as
//        a writer does, and a number. Its folder gets the same place again at each start. It is a
//        member at the memory node before it takes the stream: an earlier life of the place has
//        been fenced then, and its log sealed. While there is no database only the first place is
//        given out: whoever becomes its member makes the database, and all others wait, with
//        nothing held, until its control record is there. Who dies meanwhile is followed by whoever
//        becomes the member next, or by itself. Who waits for longer than its lease takes another.
//   CM10  What one of several left undone at its start leaves nothing behind: the stream is free,
//         and so is a place that it had not had before.
//   CM11  One of several that adopts (ComputeOptions::adopts) has another's place, as that one's
//         next life would, but for the data folder: it holds none, its record stays that folder's,
//         and it never gives the place back. A place that is settled (PLC4) it does not take.
//   CM6  It takes a storage node out of the group when asked to through the registry
//        (node_remover.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/latch.h"
#include "base/profiles.h"
#include "base/status.h"
#include "clients/compute/held_versions.h"
#include "clients/compute/node_identity.h"
#include "clients/compute/node_remover.h"
#include "clients/compute/remote_memory.h"
#include "clients/compute/stream_writers.h"
#include "clients/storage/quorum_log_sink.h"
#include "clients/storage/reader_pages.h"
#include "clients/storage/registry_control.h"
#include "clients/storage/shared_pages.h"
#include "clients/storage/storage_page_source.h"
#include "clients/storage/written_page_source.h"
#include "cluster/holder_address.h"
#include "cluster/membership.h"
#include "cluster/node_addresses.h"
#include "cluster/places.h"
#include "cluster/stream_epochs.h"
#include "cluster/topology.h"
#include "registry/registry.h"
#include "transport/sockets/event_loop.h"
#include "transport/sockets/socket_network.h"

namespace strata::clients {

enum class ComputeRole : uint8_t { kWriter, kReader, kOneOfSeveral };

// CM9. Becoming a member at the memory node that has the authority, and being none any more.
struct Membership {
  struct Seat {
    NodeId place;
    // Whoever was a member for this place before has ended, and nothing of it is on its way.
    bool alone = false;
    transport::Address authority;  // as the registry tells it, now and later
    uint64_t time_us = 0;          // for one try; it is made again after what passes
  };
  std::function<Status(const Seat& seat)> enter;
  std::function<void()> leave;  // also when it is none
};

struct ComputeOptions {
  ComputeRole role = ComputeRole::kWriter;
  std::string cluster = "main";
  std::string name = "compute-1";
  std::string profile;  // must be the cluster's
  std::string data_directory;
  // Log streams: the one that a writer holds; those whose writers a reader follows. Of one of
  // several its place says which.
  std::vector<StreamId> streams = {StreamId{1}};
  uint32_t lease_seconds = 10;
  uint64_t start_timeout_us = 60'000'000;  // for registry, storage nodes and an earlier writer
  // Of a node that stands by (stand_by.h), which has waited before: a stream that is held now is in
  // use at once, unless its holder is still the one named.
  bool stands_by = false;
  registry::Version in_place_of;
  uint64_t call_timeout_us = 5'000'000;
  uint64_t log_late_after_us = 10'000'000;
  std::function<bool()> give_up_log;         // see QuorumLogOptions; null: never
  uint64_t removal_timeout_us = 10'000'000;  // for all to be durable without the node that goes
  std::shared_ptr<transport::LinkModel> link_model;  // null: none
  uint64_t replay_backlog_max = uint64_t{1} << 30;   // bytes of log; beyond it writers wait
  bool page_images = false;  // in the log, though these storage nodes need none (experiments)
  size_t given_up_max = size_t{1} << 20;  // see StoragePagesOptions
  RemoteMemoryOptions memory;             // of profiles with a memory tier
  Membership membership;                  // of one of several
  // CM11, place_adopter.h: the place of one that was killed, which is to be recovered; 0: the
  // folder's own. `name` is the holder's then, and data_directory is not looked at.
  NodeId adopts;
  // The generation of the placement by which pages are found from now on; it grows. First when
  // join() has opened them. In any thread, must not block; null: nobody wants to know.
  std::function<void(uint64_t)> followed;
  // Asked often by a join() that waits, also with a latch held; null: never.
  std::function<bool()> stop;
};

class ComputeNode {
 public:
  // Blocks. Errors say which part of the cluster they speak of:
  //   kInvalidArgument     a setting that cannot be
  //   unsupported          a reader where nobody keeps what it could read; CM8
  //   wrong_database  another profile;  in_use  another node holds the stream and keeps it
  //   kUnavailable, timed_out   registry or storage nodes missing for start_timeout_us
  //   kDataLoss            what is in the registry, the folder or the log cannot be read
  static StatusOr<std::unique_ptr<ComputeNode>> join(std::unique_ptr<registry::Registry> registry,
                                                     const transport::Secret& secret,
                                                     ComputeOptions options);
  // Without leave(): as if it was killed; the registry lets the stream go with the lease. After the
  // kernel.
  ~ComputeNode();
  ComputeNode(const ComputeNode&) = delete;
  ComputeNode& operator=(const ComputeNode&) = delete;

  // What the kernel runs on (engine/kernel_seams.h); valid as long as this.
  // A reader's pages refuse to be written (RO1); it has neither log nor control: null.
  [[nodiscard]] PageSource* pages() noexcept {
    if (reader_pages_ != nullptr) return reader_pages_.get();
    if (shared_ != nullptr) return shared_.get();  // read only, but for spaces (SharedPages)
    if (memory_ != nullptr) return memory_->pages();
    return written_ != nullptr ? static_cast<PageSource*>(written_.get()) : pages_.get();
  }
  // The same where storage nodes make pages from the logs; else null.
  [[nodiscard]] PositionedPages* replayed_pages() noexcept { return pages_.get(); }
  [[nodiscard]] LogSink* log() noexcept { return log_.get(); }
  // How far the log is durable. Whoever reads it on storage nodes will see all of that soon.
  [[nodiscard]] Lsn durable_log() {
    log_->spread_news();
    return log_->durable_lsn();
  }
  [[nodiscard]] ControlStore* control() noexcept { return control_.get(); }
  // Of profiles with a memory tier; else null. For counters.
  [[nodiscard]] const RemoteMemory* memory() const noexcept { return memory_.get(); }
  [[nodiscard]] ComputeRole role() const noexcept { return options_.role; }

  // --- of one of several (CM9) ---
  [[nodiscard]] NodeId place() const noexcept { return place_.place.number; }
  // The database is there, and this place is only added to it, or was before. False: this node is
  // to make it.
  [[nodiscard]] bool database_exists() const noexcept { return !founds_; }
  // Of StreamHolder; of an adopter its name.
  [[nodiscard]] const std::string& holder() const noexcept { return holder_; }
  // PLC4: nothing is left to be recovered, and nobody else's to be waited for. Before leave().
  // Blocks. Errors: the registry's, conflict: the stream is not held any more.
  Status settle();
  // Of a place whose log begins now: more than any llsn of an earlier attempt to begin it.
  [[nodiscard]] uint64_t first_llsn_bias() const noexcept {
    return std::max(grant_.epoch.value << 32, log_->founding_bias());
  }
  // leave(), and a place on which nothing was written is nobody's again (CM10). Blocks. Errors: the
  // registry's.
  Status give_up();

  // Of a reader: storage nodes keep the states of pages as of `oldest` and later for it, until it
  // moves forward or ends. Blocks. Errors: those of HeldVersions::hold(); kInvalidArgument: this is
  // a writer, which needs none.
  Status hold_versions(Llsn oldest);

  [[nodiscard]] uint64_t identity() const noexcept {  // CM4; an adopter has none: 0
    return held_ == nullptr ? 0 : held_->identity();
  }
  [[nodiscard]] bool may_answer() const noexcept {  // CM3; cheap
    return !taken_over_.load(std::memory_order_acquire) &&
           lease_.load(std::memory_order_acquire)->valid();
  }
  // Why it may not, for whoever asked: fenced or lease_lost. OK: it may by now.
  [[nodiscard]] Status why_silent() const;
  // The worst of what keeps this node, its log or its pages from going on, with the remedy. OK: all
  // is well here.
  [[nodiscard]] Status trouble() const;
  // After the kernel has stopped: others may have the stream at once. Blocks. Errors: the
  // registry's; the stream is then free when the lease ends.
  Status leave();

  struct Facts {
    Epoch epoch;  // a reader's: the newest that a writer has
    bool holds_lease = false;
    std::string fenced;  // why it is not the writer any more; empty: it is
    Lsn durable;
    uint64_t pages_read = 0, pages_read_ahead = 0, page_calls = 0, page_retries = 0;
    uint64_t bad_pages = 0, page_wait_us = 0;
    uint64_t log_bytes_sent = 0, log_calls = 0, replay_backlog_bytes = 0;
    uint32_t replicas_reached = 0, replicas = 0;
    uint64_t placement_generation = 0;
    uint64_t backpressure_waits = 0, backpressure_wait_us = 0;
    bool backpressure = false;  // writers wait now
    // Where pages are written (profile remote-disk); 0 elsewhere.
    uint64_t pages_written = 0, page_bytes_written = 0, page_write_calls = 0;
    uint64_t page_write_errors = 0, pages_repaired = 0;
    uint32_t page_nodes = 0, page_nodes_in_sync = 0;
    bool page_writes_ended = false;  // WN4
  };
  [[nodiscard]] Facts facts() const;

 private:
  ComputeNode(std::unique_ptr<registry::Registry> registry, const transport::Secret& secret,
              cluster::ClusterKeys keys, ComputeOptions options);
  Status find_identity();
  Status join_as_writer(uint64_t deadline_us);
  Status join_as_reader(uint64_t deadline_us);
  Status join_as_one_of_several(uint64_t deadline_us);
  Status take_place(uint64_t deadline_us);
  Status have_lease();
  Status try_place(cluster::Places* places, uint64_t deadline_us);
  StatusOr<cluster::KnownPlace> find_place(cluster::Places* places, bool founded, bool* fresh);
  Status hold_place(cluster::Places* places, const cluster::KnownPlace& known,
                    uint64_t deadline_us);
  StatusOr<bool> is_founded(uint64_t deadline_us);
  Status move_in(cluster::Places* places, const cluster::KnownPlace& known);
  StatusOr<cluster::KnownPlace> find_adopted(cluster::Places* places);
  [[nodiscard]] bool adopts() const noexcept { return !options_.adopts.is_zero(); }
  [[nodiscard]] const char* end_of_it() const noexcept;
  void let_place_go();
  void stop_keeping();
  [[nodiscard]] uint64_t call_deadline() const {
    return registry_->now_us() + options_.call_timeout_us;
  }
  void watch_epoch();
  void note_taken_over(const cluster::StreamHolder& by);
  StatusOr<cluster::Placement> find_placement(uint64_t deadline_us);
  Status hold_stream(uint64_t deadline_us);
  Status try_to_hold(uint64_t deadline_us);
  Status open_storage(const cluster::Placement& placement, uint64_t deadline_us);
  void follow_placement(const cluster::Placement& placement);
  [[nodiscard]] ReplicaSet replicas_of(uint64_t generation, const cluster::StorageGroup& group);
  void note_placement(const Status& followed);
  void say_followed(uint64_t generation);
  [[nodiscard]] StreamId stream() const noexcept {  // not a reader's
    return place_.place.number.is_zero() ? options_.streams.front()
                                         : cluster::log_stream_of(place_.place.number);
  }
  void open_replayed_pages(const std::vector<transport::Address>& nodes,
                           const std::vector<std::string>& keys, size_t write_quorum);
  Status open_written_pages(uint64_t generation, const cluster::StorageGroup& group,
                            uint64_t deadline_us);
  Status open_shared_pages(uint64_t generation, const cluster::StorageGroup& group);
  Status find_memory(uint64_t deadline_us);
  void stop_pages();
  void watch_placement(uint64_t generation);
  void watch_removals();
  void add_shared(Facts* facts) const;
  void add_replayed(Facts* facts) const;
  void add_written(Facts* facts) const;
  StatusOr<std::unique_ptr<registry::Lease>> new_lease(uint64_t deadline_us);
  // Waits a little, for the next try; false: stopped, or the deadline has passed.
  bool pause(uint64_t pause_us, uint64_t deadline_us);
  void keep_lease();
  void watch_backlogs();
  Status replace_lease();

  const ComputeOptions options_;
  const Profile* const profile_;  // the one they name
  const transport::Secret secret_;
  const cluster::ClusterKeys keys_;
  const std::unique_ptr<registry::Registry> registry_;
  std::unique_ptr<HeldIdentity> held_;
  std::string holder_;  // name, and what tells this folder from others and from its copies
  mutable Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  bool stopped_ STRATA_GUARDED_BY(mutex_) = false;
  bool lease_lost_ STRATA_GUARDED_BY(mutex_) = false;
  Status fenced_ STRATA_GUARDED_BY(mutex_);
  Status placement_ STRATA_GUARDED_BY(mutex_);  // why the newest one is not followed (CM8)
  const std::shared_ptr<transport::Counters> counters_ = std::make_shared<transport::Counters>();
  transport::IoThread io_;
  transport::SocketNetwork network_;
  std::unique_ptr<cluster::NodeAddresses> addresses_;
  // All there were: may_answer() may still look at an old one.
  std::vector<std::unique_ptr<registry::Lease>> leases_;  // of the thread that keeps the lease
  std::atomic<registry::Lease*> lease_{nullptr};
  std::atomic<bool> taken_over_{false};  // never false again
  cluster::EpochGrant grant_;            // likewise
  std::unique_ptr<RegistryControl> control_;
  // One of the three.
  std::unique_ptr<StoragePageSource> pages_;
  std::unique_ptr<InSyncSet> in_sync_;
  std::unique_ptr<WrittenPageSource> written_;
  std::unique_ptr<SharedPages> shared_;
  std::unique_ptr<RemoteMemory> memory_;  // over either of them; it asks log_
  std::unique_ptr<QuorumLogSink> log_;
  // A reader's.
  std::unique_ptr<StreamWriters> writers_;
  std::unique_ptr<ReaderPages> reader_pages_;  // over pages_
  std::unique_ptr<HeldVersions> held_versions_;
  std::shared_ptr<BacklogGate> gate_;
  std::atomic<uint64_t> placement_generation_{0};
  std::unique_ptr<cluster::Topology> topology_;
  std::unique_ptr<registry::Watch> placement_watch_;
  std::unique_ptr<registry::Watch> epoch_watch_;
  std::unique_ptr<registry::Watch> list_watch_;  // of one of several
  cluster::KnownPlace place_;                    // likewise
  bool place_is_new_ = false;                    // nobody has written on it
  bool after_adopter_ = false;                   // another one was at it, and may still be there
  cluster::KnownPlace fresh_place_;              // taken by this join(), nobody has moved in
  bool founds_ = false;
  std::unique_ptr<cluster::HolderAddress> authority_;  // of one of several, too
  std::unique_ptr<NodeRemover> remover_;
  std::thread keeper_;
  std::thread watcher_;  // of backlogs
};

}  // namespace strata::clients
