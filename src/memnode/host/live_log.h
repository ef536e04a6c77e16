// The log of a server that goes on, for whoever redoes it beside that server: as far as the server
// has said that it is durable. Reads from the storage nodes, takes nothing over. One thread.
//
//   LVL1  What is read is acknowledged by a write quorum: storage nodes show a reader no more than
//         they know to be. One that does not know of all of it yet, or does not answer, is passed
//         over for another one; they learn it from the server.
//   LVL2  Nothing is ever changed: there is no room, and cutting it off at or below its end does
//         nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "clients/storage/quorum_client.h"
#include "transport/calls/blocking_channel.h"
#include "transport/secret.h"
#include "wal/log_sink.h"

namespace strata::memnode {

class LiveLog final : public LogSink {
 public:
  // `nodes`: addresses and stream are used. [from, end): what is to be read.
  LiveLog(const transport::Secret& secret, const clients::QuorumClientOptions& nodes, Lsn from,
          Lsn end, uint64_t read_us_max);

  [[nodiscard]] Lsn begin_lsn() const override { return from_; }
  [[nodiscard]] Lsn room_end() const override { return end_; }
  [[nodiscard]] bool is_stream() const override { return true; }
  // Blocks for read_us_max. Errors: peer_down (no storage node has it, knows of it, and answers;
  // says why), kOutOfRange (the server's checkpoint has gone on, and nobody needs it any more),
  // interrupted.
  StatusOr<size_t> read(Lsn at, char* out, size_t bytes) override;
  Status cut_at(Lsn end) override;

  Status prepare_room(Lsn end) override;
  Status append(Lsn at, Bytes bytes) override;
  Status sync() override;
  Status truncate_below(Lsn lsn) override;

 private:
  StatusOr<size_t> read_from(size_t node, Lsn at, char* out, size_t bytes);

  const transport::Secret secret_;
  const clients::QuorumClientOptions nodes_;
  const Lsn from_, end_;
  const uint64_t read_us_max_;
  std::vector<std::unique_ptr<transport::BlockingChannel>> channels_;
  size_t node_ = 0;  // that was read from last
};

}  // namespace strata::memnode
