// The log store as calls (proto/log_messages.h). Thread-safe.
//   LSV1  A call is answered when what it says is durable, from the log store's thread; reads are
//         done by the offload, never in the server's thread.
//   LSV3  A stream that this node should have and has not is made with what the registry says about
//         it (LG10).
//   LSV4  A node that does not belong to the group any more answers nothing.
//   LSV2  A log is cut off only below what its writer, the page store and every reader of this node
//         still need.
//   LSV5  What a caller may make the node hold is bounded by the node: of a reply's bytes there are
//         no more than proto::kReadBytesMax, whatever was asked for, and of streams
//         proto::kStreamsMax.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "base/latch.h"
#include "daemon/worker_pool.h"
#include "proto/log_messages.h"
#include "storenode/logstore/log_store.h"
#include "storenode/logstore/self_catch_up.h"
#include "transport/calls/rpc_server.h"

namespace strata::storenode {

using daemon::Offload;

class LogService {
 public:
  // Reads a peer's log of the stream: the replica with that place in the stream's list. Answers
  // once, from any thread.
  using FetchFromPeer =
      std::function<void(StreamId stream, quorum::ReplicaIndex peer,
                         const quorum::ReadRequest& request, SelfCatchUp::FetchDone done)>;
  // What the registry says about a stream that this node does not have. Blocks; offloaded.
  using OriginOf = std::function<StatusOr<quorum::StreamOrigin>(StreamId stream)>;
  // A stream exists here now (again after each start). From the log store's thread.
  using StreamMade = std::function<void(StreamId stream)>;
  // Below it the node itself does not need the stream any more.
  using NeededFrom = std::function<Lsn(StreamId stream)>;
  // Not OK: nothing is answered, and this said instead.
  using MayServe = std::function<Status()>;

  struct Parts {
    LogStore* store = nullptr;
    Offload offload;
    FetchFromPeer fetch;
    OriginOf origin;
    StreamMade stream_made;
    NeededFrom needed_from;
    MayServe may_serve;  // null: it may
  };
  explicit LogService(Parts parts);
  // After the server it was registered on.
  ~LogService();
  LogService(const LogService&) = delete;
  LogService& operator=(const LogService&) = delete;

  // Once, before the server listens.
  void register_on(transport::RpcServer* server);
  // Cuts off what nobody needs (LSV2); once in a while. Does not block.
  void truncate();
  // The writer once said so: it may not say it again to a node that was away. Thread-safe.
  void not_needed_by_writer(StreamId stream, Lsn below);
  // fenced unless `epoch` is at least what the stream's replica has promised here.
  Status check_epoch(StreamId stream, Epoch epoch) const;
  // peer_down unless this node votes in all logs that it has a replica of.
  [[nodiscard]] Status votes_in_all() const;
  // LSV4. Of the page service, too.
  [[nodiscard]] Status may_serve() const {
    return parts_.may_serve ? parts_.may_serve() : ok_status();
  }

 private:
  template <class Request, class Run>
  void handle(transport::RpcServer* server, uint16_t method,
              StatusOr<proto::OfStream<Request>> (*decode)(Bytes), Run run);
  void on_log_seal(proto::OfStream<quorum::SealRequest> call, transport::Responder responder);
  void on_log_begin(proto::OfStream<quorum::BeginRequest> call, transport::Responder responder);
  void on_log_catch_up(proto::OfStream<quorum::CatchUpRequest> call,
                       transport::Responder responder);
  void on_log_append(proto::OfStream<quorum::AppendRequest> call, transport::Responder responder);
  void on_log_order(proto::OfStream<quorum::CatchUpOrder> call, transport::Responder responder);
  void on_log_read(proto::OfStream<quorum::ReadRequest> call, transport::Responder responder);
  void on_log_truncate(proto::OfStream<proto::TruncateRequest> call,
                       transport::Responder responder);
  using SharedResponder = std::shared_ptr<transport::Responder>;
  // Makes the stream, then runs `again`; the responder hears of it if that fails (LSV3).
  void make(StreamId stream, const SharedResponder& to, std::function<void()> again);
  void seal(StreamId stream, const quorum::SealRequest& request, const SharedResponder& to,
            bool may_make);
  template <class Request, class Store>
  void change(StreamId stream, std::shared_ptr<const Request> request, SharedResponder to,
              Store store, bool may_make);
  SelfCatchUp* catch_up_of(StreamId stream);

  const Parts parts_;
  Mutex mutex_{LatchRank::kLeaf};
  std::map<StreamId, std::unique_ptr<SelfCatchUp>> catch_ups_
      STRATA_GUARDED_BY(mutex_);                              // never shrinks
  std::map<StreamId, Lsn> wanted_ STRATA_GUARDED_BY(mutex_);  // what the writer does not need
};

}  // namespace strata::storenode
