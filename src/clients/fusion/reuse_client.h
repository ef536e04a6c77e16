// When pages that left trees of this server may be used again, where others read them, too
// (space/page_reuse.h), by way of a memory node. Thread-safe.
//
//   FC43  A mark is taken after the round was heard of, and the round is reported once that mark
//         has ended: so everything that was under way when the round began has ended here (RU1).
//         Rounds that come meanwhile wait for the next mark, all for one. Who is asked for a round
//         that it has reported says so again: another memory node does not know it (RU5).
//   FC44  A server whose kernel has not joined, or has left, has no operations (MW14): it says so
//         at once.
#pragma once

#include <cstdint>
#include <optional>
#include <thread>

#include "base/latch.h"
#include "base/status.h"
#include "base/wait_interrupt.h"
#include "proto/name_locks.h"
#include "space/page_reuse.h"

namespace strata::clients {

// How the memory node is asked. Thread-safe; blocks. Errors: the calls', fenced.
class ReuseService {
 public:
  virtual ~ReuseService() = default;
  virtual StatusOr<uint64_t> begin_round() = 0;
  virtual StatusOr<bool> round_ended(uint64_t round) = 0;
  virtual Status report_round(uint64_t round) = 0;
};

// FC43, without threads. Not thread-safe.
class ReuseMarks {
 public:
  void asked(uint64_t round) noexcept;
  // The round to be reported, if there is one; again until reported(). `own` may be null (FC44).
  std::optional<uint64_t> due(OwnOperations* own) noexcept;
  void reported(uint64_t round) noexcept;
  [[nodiscard]] bool is_idle() const noexcept { return reported_ >= asked_ && !again_; }
  [[nodiscard]] uint64_t last_asked() const noexcept { return asked_; }

 private:
  uint64_t asked_ = 0, reported_ = 0;
  bool again_ = false;   // what was reported is to be reported once more
  uint64_t marked_ = 0;  // the round that mark_ is for; 0: none
  uint64_t mark_ = 0;
};

struct ReuseClientOptions {
  uint64_t look_us = 20'000;  // how often it is looked whether a mark has ended
};

class ReuseClient final : public PageReuse {
 public:
  ReuseClient(const ReuseClientOptions& options, ReuseService* service);
  ~ReuseClient() override;

  // From the memory node, in any order, any number of times.
  void asked(const proto::ReuseAsk& ask);
  // The largest round that was begun here, or asked for.
  [[nodiscard]] uint64_t last_round() const;
  // Nothing is reported any more when it returns. Blocks for what is under way. Again: nothing.
  void stop();

  // PageReuse; `node` is this server.
  Status join(NodeId node, OwnOperations* own) override;
  void leave(NodeId node) noexcept override;
  StatusOr<uint64_t> begin_round() override;
  StatusOr<bool> round_ended(uint64_t round) override { return service_->round_ended(round); }

 private:
  void work();  // its thread

  const ReuseClientOptions options_;
  ReuseService* const service_;
  mutable Mutex mutex_{LatchRank::kPeers};  // held while a mark is looked at
  CondVar changed_;
  OwnOperations* own_ STRATA_GUARDED_BY(mutex_) = nullptr;
  ReuseMarks marks_ STRATA_GUARDED_BY(mutex_);
  uint64_t begun_ STRATA_GUARDED_BY(mutex_) = 0;
  bool stopping_ STRATA_GUARDED_BY(mutex_) = false;
  WaitInterrupt interrupt_;  // of its thread, once it is to end
  std::thread thread_;
};

}  // namespace strata::clients
