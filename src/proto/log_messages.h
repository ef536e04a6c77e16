// The log service's calls as bytes: quorum/messages.h, each with the stream it is about. Pure.
//   LM1  What decodes is well formed: enums known, histories in order (QH1), sizes within limits,
//        nothing left over. Whether it makes sense is for the log store to judge.
//   LM2  decode(encode(x)) == x.
// Errors of decoding are kInvalidArgument for requests and kDataLoss for replies. An answer that is
// "no" travels as an ordinary reply, since it says where the replica stands, too.
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "proto/methods.h"
#include "quorum/messages.h"

namespace strata::proto {

struct TruncateRequest {
  Epoch epoch;
  Lsn below;
};

template <class Request>
struct OfStream {
  StreamId stream;
  Request request;
};

std::string encode(StreamId stream, const quorum::SealRequest& request);
std::string encode(StreamId stream, const quorum::BeginRequest& request);
std::string encode(StreamId stream, const quorum::CatchUpRequest& request);
std::string encode(StreamId stream, const quorum::AppendRequest& request);
std::string encode(StreamId stream, const quorum::CatchUpOrder& order);
std::string encode(StreamId stream, const quorum::ReadRequest& request);
std::string encode(StreamId stream, const TruncateRequest& request);

StatusOr<OfStream<quorum::SealRequest>> decode_log_seal(Bytes bytes);
StatusOr<OfStream<quorum::BeginRequest>> decode_log_begin(Bytes bytes);
StatusOr<OfStream<quorum::CatchUpRequest>> decode_log_catch_up(Bytes bytes);
StatusOr<OfStream<quorum::AppendRequest>> decode_log_append(Bytes bytes);
StatusOr<OfStream<quorum::CatchUpOrder>> decode_log_order(Bytes bytes);
StatusOr<OfStream<quorum::ReadRequest>> decode_log_read(Bytes bytes);
StatusOr<OfStream<TruncateRequest>> decode_log_truncate(Bytes bytes);

std::string encode(const quorum::SealReply& reply);
std::string encode(const quorum::ChangeReply& reply);
std::string encode(const quorum::ReadReply& reply);

StatusOr<quorum::SealReply> decode_seal_reply(Bytes bytes);
StatusOr<quorum::ChangeReply> decode_change_reply(Bytes bytes);
StatusOr<quorum::ReadReply> decode_read_reply(Bytes bytes);

}  // namespace strata::proto
