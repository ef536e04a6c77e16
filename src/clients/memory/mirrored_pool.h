// A pool that two memory nodes keep, so that the loss of one of them loses nothing: one of the two
// copies is used, the other one is the backup. Above it is one RemotePool like any other.
// Thread-safe.
//   MIR1  The backup has every page of which the used copy has changes that storage may lack, in
//         the same version, and no page that the used copy has not, before a call is OK: pages are
//         put to the used copy first, and dropped there first.
//   MIR2  A copy counts while the registry names it. A backup that misses something, or is lost, is
//         unnamed before any call is OK again; so is a used copy before the backup takes its place.
//         That happens in attach() alone, while no other call is under way (PAT1).
//   MIR3  Pages are written to storage from the used copy. The backup is told what is durable. If
//         it takes over, its pages are as dirty as they stood; what the other one was about to
//         write went to write sessions that have ended, since nobody heard how it ended (WN3).
//   MIR4  A new backup begins empty and gets everything from then on. It is named once storage has
//         everything that the used copy had changed before, which is hurried.
//   MIR5  A life of a compute node does without the backup of the one before, if the used copy is
//         there: calls may have reached only one of the two.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/latch.h"
#include "clients/memory/remote_pool.h"
#include "clients/memory/storage_below.h"

namespace strata::clients {

// Which content of which of two copies the registry names.
struct NamedCopies {
  uint32_t used = 0;                       // 0 or 1
  std::array<uint64_t, 2> incarnations{};  // by copy; 0: nothing of it counts
  bool operator==(const NamedCopies&) const = default;
};

// As PoolNaming, of two copies.
class CopiesNaming {
 public:
  virtual ~CopiesNaming() = default;
  virtual StatusOr<std::optional<NamedCopies>> named() = 0;
  virtual Status name(const NamedCopies& copies) = 0;
  virtual Status remove(PoolLoss loss) = 0;
  [[nodiscard]] virtual Epoch since() const = 0;
};

struct MirrorOptions {
  std::function<Lsn()> durable;     // up to where the log is; thread-safe, does not block
  uint64_t timeout_us = 5'000'000;  // of who uses it; a copy is given up after half of it
  uint64_t retry_us = 5'000'000;    // between two tries to have a backup again
};

class MirroredPool final : public RemotePool {
 public:
  // All of them outlive it.
  MirroredPool(MirrorOptions options, const std::array<RemotePool*, 2>& copies,
               CopiesNaming* names);
  ~MirroredPool() override;
  // The registry's name of it, for who uses it.
  [[nodiscard]] PoolNaming* naming() const;

  StatusOr<AttachedPool> attach(uint64_t incarnation, bool fresh, uint64_t deadline_us) override;
  StatusOr<proto::PoolListReply> list(uint32_t from) override;
  StatusOr<std::vector<proto::PoolPutReply::Taken>> put(const std::vector<proto::PoolImage>& images,
                                                        Bytes pages, Lsn durable) override;
  StatusOr<std::vector<proto::PoolLookupReply::Found>> lookup(
      const std::vector<PageId>& pages) override;
  StatusOr<std::vector<Status>> drop(const std::vector<PageId>& pages) override;
  Status forget_space(SpaceId space) override;
  StatusOr<proto::PoolWriteReply> write(Lsn below, uint32_t pages_max,
                                        const std::vector<proto::PoolTarget>& targets) override;
  StatusOr<proto::PoolWriteAgainReply> write_again(uint32_t from,
                                                   const proto::PoolTarget& target) override;
  StatusOr<proto::PoolSyncedReply> synced(uint64_t report) override;
  Status stored(const std::vector<StoredPage>& pages) override;
  Status checkpoint(Lsn lsn, uint64_t bias) override;
  void read_slots(absl::Span<SlotRead> reads) override;
  bool wants_attach() override;
  [[nodiscard]] bool has_backup() const override { return backup() == Backup::kCounts; }
  [[nodiscard]] Lsn wants_stored_below() const override;  // MIR4

  enum class Backup : uint8_t {
    kNone,
    kJoining,  // it gets everything, and lacks something from before (MIR4)
    kCounts,
  };
  [[nodiscard]] Backup backup() const;
  [[nodiscard]] uint64_t switches() const noexcept { return switches_.load(); }

 private:
  class Naming;
  struct Now {
    uint32_t used = 0;
    Backup backup = Backup::kNone;
    std::array<uint64_t, 2> incarnations{};
    [[nodiscard]] uint32_t other() const { return 1 - used; }
  };
  [[nodiscard]] Now now() const;
  [[nodiscard]] RemotePool* used() const { return copies_[now().used]; }
  StatusOr<AttachedPool> attach_new(uint64_t deadline_us);
  StatusOr<AttachedPool> attach_copy(uint32_t copy, bool fresh, uint64_t deadline_us);
  StatusOr<AttachedPool> switch_over(const Status& why, uint64_t deadline_us);
  Status attach_backup(uint64_t deadline_us);
  Status leave_backup(const Status& why);
  void take_prepared(const AttachedPool& used);
  Status name_backup(const Now& now, Lsn oldest);
  // A call to that copy ended so; whether well.
  bool heard(uint32_t copy, const Status& status, uint64_t begun_us);
  [[nodiscard]] bool is_gone(uint32_t copy, const Status& status, uint64_t deadline_us) const;
  Status put_to_backup(const Now& now, const std::vector<proto::PoolImage>& images, Bytes pages,
                       Lsn durable, const std::vector<proto::PoolPutReply::Taken>& taken);
  StatusOr<std::vector<PageId>> gone_from_used(const Now& now, const std::vector<PageId>& pages);
  Status drop_from_backup(const Now& now, const std::vector<PageId>& pages,
                          const std::vector<PageId>& gone);
  Status tell_backup(const Now& now);
  [[nodiscard]] uint64_t attempt_us() const {
    return std::max<uint64_t>(options_.timeout_us / 4, 1);
  }

  const MirrorOptions options_;
  const std::array<RemotePool*, 2> copies_;
  CopiesNaming* const names_;
  const std::unique_ptr<Naming> naming_;
  std::atomic<uint64_t> switches_{0};
  mutable Mutex mutex_{LatchRank::kLeaf};
  Now now_ STRATA_GUARDED_BY(mutex_);
  bool new_life_ STRATA_GUARDED_BY(mutex_) = true;  // nothing was attached yet (MIR5)
  // The registry may name the backup, whether or not it counts.
  bool may_be_named_ STRATA_GUARDED_BY(mutex_) = false;
  bool broken_ STRATA_GUARDED_BY(mutex_) = false;  // the backup answers, and has missed something
  Lsn joined_at_ STRATA_GUARDED_BY(mutex_);
  std::optional<AttachedPool> prepared_ STRATA_GUARDED_BY(mutex_);
  uint32_t slots_ STRATA_GUARDED_BY(mutex_) = 0;  // of the used one
  uint64_t retry_at_us_ STRATA_GUARDED_BY(mutex_) = 0;
  std::array<uint64_t, 2> failing_since_us_ STRATA_GUARDED_BY(mutex_){};  // 0: it does not
  // Written by the used copy, by report; and what of that is durable, and not told to the backup.
  std::map<uint64_t, std::vector<StoredPage>> reported_ STRATA_GUARDED_BY(mutex_);
  std::vector<StoredPage> untold_ STRATA_GUARDED_BY(mutex_);
  std::vector<PageId> undropped_ STRATA_GUARDED_BY(mutex_);  // of the backup: perhaps
};

}  // namespace strata::clients
