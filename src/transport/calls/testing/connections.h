// Connections without sockets: bytes are carried by hand.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "transport/calls/connection.h"

namespace strata::transport::test {

inline Secret secret_of(char fill) {
  std::array<char, Secret::kBytes> bytes;
  bytes.fill(fill);
  return Secret(bytes);
}

// What the connection wants to write, taken from it.
inline std::string take_output(Connection* connection, uint64_t now_ns = 0) {
  std::string out;
  while (connection->output().waiting() > 0) {
    std::array<Bytes, 3> pieces;
    const OutputQueue::Batch batch = connection->output().front(absl::MakeSpan(pieces));
    size_t bytes = 0;
    for (size_t i = 0; i < batch.pieces; i++) {
      out.append(pieces[i]);
      bytes += pieces[i].size();
    }
    connection->output().consume(bytes);
    connection->note_written(now_ns);
  }
  return out;
}

inline FrameHeader header_of(FrameKind kind, uint64_t id, uint16_t method = 1) {
  FrameHeader header;
  header.flags = static_cast<uint16_t>(kind);
  header.request_id = id;
  header.method = method;
  return header;
}

inline std::string frame_of(const FrameHeader& header, Bytes payload) {
  std::string out(kFrameHeaderBytes, '\0');
  encode_header(header, payload, out.data());
  return out.append(payload);
}

// Both ends of a connection and the frames each has handed out.
class Pair {
 public:
  explicit Pair(Manner manner = Manner::kLively, char client_secret = 's',
                const ConnectionLimits& limits = {})
      : client(secret_of(client_secret), Hello{.manner = manner, .channel_id = 5}, limits,
               system_entropy(), 0),
        server(secret_of('s'), 77, limits, system_entropy(), 0) {}

  Status to_server(Bytes bytes, uint64_t now_ns = 0) {
    return server.receive(bytes, now_ns, [this](const Frame& frame) {
      requests.emplace_back(frame.payload);
      return true;
    });
  }
  Status to_client(Bytes bytes, uint64_t now_ns = 0) {
    return client.receive(bytes, now_ns, [this](const Frame& frame) {
      replies.emplace_back(frame.payload);
      return true;
    });
  }
  // Carries everything there is, until both are silent.
  Status carry(uint64_t now_ns = 0) {
    for (;;) {
      const std::string out = take_output(&client, now_ns);
      const std::string in = take_output(&server, now_ns);
      if (out.empty() && in.empty()) return ok_status();
      STRATA_RETURN_IF_ERROR(to_server(out, now_ns));
      STRATA_RETURN_IF_ERROR(to_client(in, now_ns));
    }
  }

  Connection client, server;
  std::vector<std::string> requests, replies;
};

}  // namespace strata::transport::test
