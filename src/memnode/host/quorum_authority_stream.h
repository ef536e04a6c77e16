// The authority stream on a write quorum of storage nodes: a log stream of its own
// (cluster::kAuthorityStream) in which the last whole record says everything. Thread-safe.
//
//   AQ1  open() has sealed the stream under its epoch before it reads: nothing of an earlier one
//        becomes durable any more, and sealed_us() is later than that.
//   AQ2  last() is the last record that any earlier epoch was told to be durable, or one that came
//        after it. What is damaged is an error, never an older record.
//   AQ3  append() does not block. Storage nodes that do not answer are waited for, until stop():
//        another record would only wait behind this one. Its outcome is nobody's to know then.
//   AQ4  The log is cut off below the last durable record, each trim_bytes.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/latch.h"
#include "clients/storage/quorum_log_sink.h"
#include "fusion/authority/authority_record.h"
#include "memnode/fusion/authority_stream.h"

namespace strata::memnode {

struct AuthorityStreamOptions {
  // stream, addresses, holder, founding (nobody has ever written to it) and timeouts; its give_up
  // is not asked.
  clients::QuorumLogOptions log;
  uint64_t trim_bytes = 256u << 10;
  std::function<uint64_t()> now_us;  // the service's clock
};

class QuorumAuthorityStream final : public AuthorityStream {
 public:
  // Seals and reads. Blocks, as long as take_over_timeout_us. Errors: those of
  // QuorumLogSink::open(), kDataLoss (AQ2). The world's executor runs.
  static StatusOr<std::unique_ptr<QuorumAuthorityStream>> open(const transport::World& world,
                                                               const transport::Secret& secret,
                                                               AuthorityStreamOptions options);
  ~QuorumAuthorityStream() override;  // stop()
  QuorumAuthorityStream(const QuorumAuthorityStream&) = delete;
  QuorumAuthorityStream& operator=(const QuorumAuthorityStream&) = delete;

  [[nodiscard]] const std::optional<fusion::AuthorityRecord>& last() const noexcept {
    return last_;
  }
  [[nodiscard]] uint64_t sealed_us() const noexcept { return sealed_us_; }

  // The epoch begins behind the last record. Once, before the first append(). Blocks. Errors: as
  // those of QuorumLogSink::cut_at(); kDataLoss: what was durable is not whole.
  Status begin();
  void append(std::string record, Done done) override;
  // What is under way ends as an outcome that nobody knows; nothing is appended any more. Blocks.
  // Not in a `done`.
  void stop();

  // The placement has changed. Does not block.
  void follow(clients::ReplicaSet replicas) { sink_->follow(std::move(replicas)); }
  // Where the log begins next, and ends: for a founder's first record in the registry, and tests.
  [[nodiscard]] Lsn end() const noexcept { return Lsn{end_.load()}; }
  // OK as long as this is the stream's writer as far as it knows.
  [[nodiscard]] Status state() const { return sink_->state(); }
  [[nodiscard]] Status late() const { return sink_->late(); }  // a record waits for long, and why

 private:
  struct Waiting {
    std::string record;
    Done done;
  };
  explicit QuorumAuthorityStream(AuthorityStreamOptions options) : options_(std::move(options)) {}
  Status read_back();
  void write_all();
  Status write(const std::string& record);
  void trim(Lsn last);

  AuthorityStreamOptions options_;
  std::atomic<bool> stopping_{false};
  std::unique_ptr<clients::QuorumLogSink> sink_;
  std::optional<fusion::AuthorityRecord> last_;
  uint64_t sealed_us_ = 0;
  std::atomic<uint64_t> end_{0};  // Lsn
  Lsn trimmed_;                   // of the writing thread
  Mutex mutex_{LatchRank::kLeaf};
  CondVar changed_;
  std::optional<Waiting> waiting_ STRATA_GUARDED_BY(mutex_);
  std::thread writer_;  // from begin() on
};

}  // namespace strata::memnode
