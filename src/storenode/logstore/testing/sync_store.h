// For tests: a LogStore on one thread, each change made and answered before the call returns.
// Streams are made when they are first sealed, begun or caught up, as nobody's yet and without a
// vote.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "io/file_system.h"
#include "storenode/logstore/log_store.h"

namespace strata::testing {

class SyncStore {
 public:
  SyncStore(FileSystem* fs, const LogStoreOptions& options) {
    auto opened = LogStore::open(fs, options);
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (opened.ok()) store_ = std::move(*opened);
  }
  LogStore* operator->() const { return store_.get(); }
  [[nodiscard]] LogStore& store() const { return *store_; }

  quorum::ChangeReply make(StreamId stream, quorum::StreamOrigin origin) {
    quorum::ChangeReply out;
    store_->make_stream(stream, origin, keep(&out));
    drain();
    return out;
  }
  quorum::SealReply seal(StreamId stream, quorum::Holder holder) {
    quorum::SealReply out;
    make(stream, {});
    store_->seal(stream, {holder}, [&](quorum::SealReply r) { out = std::move(r); });
    drain();
    return out;
  }
  quorum::ChangeReply begin(StreamId stream, const quorum::Tenure& tenure) {
    return begin(stream, tenure, tenure.start);
  }
  quorum::ChangeReply begin(StreamId stream, const quorum::Tenure& tenure, Lsn voter_end) {
    quorum::ChangeReply out;
    make(stream, {});
    store_->begin_epoch(stream, {tenure, voter_end}, keep(&out));
    drain();
    return out;
  }
  quorum::ChangeReply append(StreamId stream, Epoch epoch, Lsn at, std::string bytes,
                             Lsn quorum_durable = {}) {
    quorum::ChangeReply out;
    store_->append(stream, {epoch, at, std::move(bytes), quorum_durable}, keep(&out));
    drain();
    return out;
  }
  quorum::ChangeReply catch_up(StreamId stream, const quorum::Tenure& tenure, Lsn at,
                               std::string bytes, Lsn quorum_durable = {}) {
    quorum::ChangeReply out;
    make(stream, {});
    store_->catch_up(stream, {tenure, at, std::move(bytes), quorum_durable}, keep(&out));
    drain();
    return out;
  }
  quorum::ChangeReply truncate_prefix(StreamId stream, Lsn lsn) {
    quorum::ChangeReply out;
    store_->truncate_prefix(stream, lsn, keep(&out));
    drain();
    return out;
  }
  quorum::ChangeReply repair(StreamId stream, Lsn from, std::string bytes) {
    quorum::ChangeReply out;
    store_->repair(stream, from, std::move(bytes), keep(&out));
    drain();
    return out;
  }
  // Everything in [from, to), as an applier (epoch 0) or as the holder of `epoch` reads it.
  StatusOr<std::string> read(StreamId stream, Lsn from, Lsn to, Epoch epoch = {}) {
    std::string all;
    while (from < to) {
      const quorum::ReadReply got = store_->read(
          stream, {from, static_cast<uint32_t>(to.value - from.value), !epoch.is_zero(), epoch});
      STRATA_RETURN_IF_ERROR(got.status);
      if (got.bytes.empty()) return error_out_of_range("the log ends before");
      all += got.bytes;
      from.value += got.bytes.size();
    }
    return all;
  }
  quorum::ReplicaState state(StreamId stream) const {
    const auto status = store_->status(stream);
    EXPECT_TRUE(status.ok() && status->failure.ok());
    return status.ok() ? status->state : quorum::ReplicaState{};
  }
  void drain() {
    while (store_->persist_pending()) {
    }
  }

 private:
  static LogStore::ChangeDone keep(quorum::ChangeReply* out) {
    return [out](quorum::ChangeReply r) { *out = std::move(r); };
  }
  std::unique_ptr<LogStore> store_;
};

}  // namespace strata::testing
