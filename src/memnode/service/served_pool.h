// One pool and who uses it. Its calls run one after the other, in the order in which they came
// (OrderedTasks); what is written to storage is under way meanwhile.
//   PUS1  One user at a time: the last one accepted. Who is accepted has a larger (epoch, number)
//         than every one before, over restarts of the node, too. The calls of all others change
//         nothing.
//   PUS2  A newcomer is told that he is accepted once nothing of his predecessors is under way, and
//         then nothing that storage may not have synced counts as clean.
//   PUS3  What enters is whole, is the page that it says, and has an llsn; what storage may lack is
//         in the durable log up to its end (K9). One image that is refused keeps none of its call
//         out.
//   PUS4  Nothing of a space is under way once forget() is answered.
//   PUS5  A write counts if every storage node named has said OK. The answers go to the user as
//         they were; he alone judges storage nodes.
//   PUS6  The checkpoint never goes back. A content that is discarded has none.
//   PUS7  Nobody is attached when the node starts: reports of another process mean nothing here.
//   PUS8  A content that counts for nobody (LG12: the registry does not name it) ends for good with
//         its file: whoever asks later finds no pool. Only one that nobody has used meanwhile.
//   PUS9  On a persistent medium nothing is answered for that is not durable (MF7). What cannot be
//         made durable ends the content: its user hears not_found, as if the memory had been lost.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/aligned.h"
#include "base/latch.h"
#include "memnode/file/pool_file.h"
#include "memnode/pool/pool.h"
#include "memnode/service/ordered_tasks.h"
#include "memnode/service/staging.h"
#include "memnode/service/storage_writer.h"
#include "proto/memory_messages.h"
#include "transport/calls/rpc_server.h"

namespace strata::memnode {

// Of all pools of a node. Relaxed: for people.
struct PoolCounters {
  std::atomic<uint64_t> attached{0}, attach_refused{0}, tokens_refused{0}, stale_calls{0};
  std::atomic<uint64_t> bad_requests{0}, too_many_requests{0};
  std::atomic<uint64_t> images_taken{0}, images_rejected{0}, images_older{0}, images_no_slot{0};
  std::atomic<uint64_t> images_pulled{0}, places_refused{0};
  std::atomic<uint64_t> lookups{0}, listed{0}, dropped{0}, drops_refused{0}, forgotten{0};
  std::atomic<uint64_t> writes{0}, writes_failed{0}, pages_written{0}, pages_written_again{0};
  std::atomic<uint64_t> syncs{0}, checkpoints{0}, damaged{0}, discarded{0}, not_durable{0};
  std::atomic<uint64_t> unused{0}, files_aside{0};
};

struct PoolStatus {
  std::string tenant;
  StreamId stream;
  uint64_t incarnation = 0;
  bool attached = false;
  Epoch epoch;  // of who was accepted last
  uint64_t number = 0;
  uint64_t bytes = 0;
  Pool::Counts counts;
  Lsn oldest_dirty;
  uint64_t last_report = 0;
  uint64_t writes_under_way = 0;
  Epoch checkpoint_epoch;
  Lsn checkpoint;
  std::string trouble;  // a damaged page that nobody else has, or a content that was lost
};

class ServedPool {
 public:
  using To = std::shared_ptr<transport::Responder>;
  struct Parts {
    std::string tenant;
    StreamId stream;
    std::string region;  // its name
    std::unique_ptr<PoolFile> file;
    daemon::Offload offload;
    // New memory of so many places, or null: there is none to be had. Blocks.
    std::function<std::shared_ptr<Staging>(uint32_t places)> stage;
    // All outlive it.
    StorageWriter* writer = nullptr;
    PoolCounters* counters = nullptr;
  };

  explicit ServedPool(Parts parts);
  ServedPool(const ServedPool&) = delete;
  ServedPool& operator=(const ServedPool&) = delete;

  [[nodiscard]] OrderedTasks* tasks() noexcept { return &tasks_; }
  [[nodiscard]] StreamId stream() const noexcept { return stream_; }
  [[nodiscard]] uint64_t bytes() const noexcept { return place_->region()->bytes(); }
  [[nodiscard]] uint64_t incarnation() const;
  [[nodiscard]] bool found() const;  // its content is one of an earlier process
  [[nodiscard]] PoolStatus status() const;
  // Grows with every attachment and every call of its user.
  [[nodiscard]] uint64_t uses() const;
  [[nodiscard]] const std::string& region() const noexcept { return region_; }

  // The calls, in its tasks. Each answers, now or later.
  void attach(const proto::PoolAttachRequest& request, const To& to);
  void list(const proto::PoolListRequest& request, const To& to);
  void put(const proto::PoolPutRequest& request, const To& to);
  void put_staged(const proto::PoolPutStagedRequest& request, const To& to);
  void lookup(const proto::PoolPagesRequest& request, const To& to);
  void drop(const proto::PoolPagesRequest& request, const To& to);
  void forget(const proto::PoolForgetRequest& request, const To& to);
  void write(const proto::PoolWriteRequest& request, const To& to);
  void write_again(const proto::PoolWriteAgainRequest& request, const To& to);
  void synced(const proto::PoolSyncedRequest& request, const To& to);
  void stored(const proto::PoolStoredRequest& request, const To& to);
  void checkpoint(const proto::PoolCheckpointRequest& request, const To& to);
  // PUS8. In its tasks. True: this was the end, of the content with this incarnation that had so
  // many uses; the file is still there.
  bool end_unused(uint64_t incarnation, uint64_t uses);
  void remove_file() const { place_->remove(); }

 private:
  // Something on its way to storage.
  struct Batch {
    proto::PoolUser user;
    std::vector<Pool::Write> writes;
    std::vector<proto::PoolTarget> targets;
    PageBatch pages;
    bool again = false;
    uint32_t next = 0;  // of one that is written again
    To to;
  };
  using BatchPtr = std::shared_ptr<Batch>;
  struct Newcomer {
    proto::PoolAttachRequest request;
    To to;
  };
  struct Forgetting {
    SpaceId space;
    To to;
  };

  // PUS1. OK: it is the user.
  Status check_user(const proto::PoolUser& user);
  [[nodiscard]] Status check_newcomer(const proto::PoolAttachRequest& request) const;
  void finish_attach();
  Status enter(const Newcomer& newcomer);
  Status begin_content();
  // Brings an image's bytes into a slot that nobody sees yet. Not OK: they are not that image.
  using Fill = absl::FunctionRef<Status(const Pool& pool, uint32_t slot)>;
  // The images of one call. On a persistent medium they are published together, so that it is asked
  // twice in a call, not for each page.
  struct Takes {
    proto::PoolPutReply reply;
    struct Filled {
      size_t image = 0;
      uint32_t slot = 0;
    };
    std::vector<Filled> filled;  // and not published yet; their answers come then
    bool lowered = false;        // an image that was there already is to be written sooner
  };
  StatusOr<uint32_t> begin_fill(const proto::PoolImage& image, Llsn llsn, Takes* takes,
                                Pool::Slot* there);
  StatusOr<Pool::Slot> end_fill(uint32_t slot, const Status& filled);
  StatusOr<Pool::Slot> take(const proto::PoolImage& image, Llsn llsn, Fill fill, Takes* takes);
  StatusOr<Pool::Slot> take_carried(const proto::PoolImage& image, Lsn durable, const char* page,
                                    Takes* takes);
  StatusOr<Pool::Slot> pull(const proto::PoolStagedImage& staged, Lsn durable,
                            const Staging* staging, Takes* takes);
  Status rejected(Status why);
  void count_taken(const Status& taken);
  Status publish(Takes* takes);
  Status make_durable();
  void end_undurable(const Status& why) STRATA_REQUIRES(mutex_);
  Status settle();
  void end_put(Takes* takes, const To& to);
  void begin(const BatchPtr& batch);
  void send(const BatchPtr& batch);
  Status copy_pages(Batch* batch);
  void end(const BatchPtr& batch, const Status& sent, std::vector<proto::PoolAnswer> answers);
  void end_write(const Batch& batch, const Status& sent, std::vector<proto::PoolAnswer> answers);
  void end_again(const Batch& batch, const Status& sent, std::vector<proto::PoolAnswer> answers);
  void end_waits();
  [[nodiscard]] bool under_way(SpaceId space) const STRATA_REQUIRES(mutex_);
  void note_trouble(const Status& trouble);

  const std::string tenant_;
  const StreamId stream_;
  const std::string region_;
  // What is constant of it needs no mutex; the rest is file_.
  const PoolFile* const place_;
  const daemon::Offload offload_;
  const std::function<std::shared_ptr<Staging>(uint32_t places)> stage_;
  StorageWriter* const writer_;
  PoolCounters* const counters_;

  // Tasks change what is here one at a time; the mutex is for who looks from outside, and is not
  // held over anything that blocks.
  mutable Mutex mutex_{LatchRank::kLeaf};
  const std::unique_ptr<PoolFile> file_ STRATA_PT_GUARDED_BY(mutex_);
  uint64_t uses_ STRATA_GUARDED_BY(mutex_) = 0;
  bool ended_ STRATA_GUARDED_BY(mutex_) = false;                // PUS8
  bool attached_ STRATA_GUARDED_BY(mutex_) = false;             // whom the file names
  bool made_ STRATA_GUARDED_BY(mutex_);                         // and nobody was told yet
  std::shared_ptr<Staging> staging_ STRATA_GUARDED_BY(mutex_);  // of who is attached; or null
  std::list<BatchPtr> batches_ STRATA_GUARDED_BY(mutex_);
  std::optional<Newcomer> newcomer_ STRATA_GUARDED_BY(mutex_);
  std::vector<Forgetting> forgetting_ STRATA_GUARDED_BY(mutex_);
  std::string trouble_ STRATA_GUARDED_BY(mutex_);
  OrderedTasks tasks_;
};

}  // namespace strata::memnode
