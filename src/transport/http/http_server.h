// A small HTTP/1.1 server for people and their tools: GET and HEAD of fixed paths, one request per
// connection. It is for daemons whose other work matters more than its answers, so what it may use
// is bounded first, and by whatever peers do. Runs in its executor's thread.
//
//   HT1  A connection ends `connection_us_max` after it was accepted at the latest, whatever the
//        peer sends, reads, or leaves undone. Of a request no more than `request_bytes_max` is
//        kept.
//   HT2  At most `connections_max` connections are open. One more takes the place of the one that
//        is the oldest: silent peers, however many, cannot keep anybody out, nor use up the
//        process's descriptors.
//   HT3  A peer that has said its whole request gets its answer or an end of the connection, never
//        part of another one's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "base/status.h"
#include "transport/world.h"

namespace strata::transport {

struct HttpOptions {
  uint32_t connections_max = 64;
  uint64_t connection_us_max = 5'000'000;
  size_t request_bytes_max = 8192;
};

struct HttpAnswer {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

class HttpServer {
 public:
  using Handler = absl::AnyInvocable<HttpAnswer()>;  // in the executor's thread
  // Asserts that at least one connection is allowed.
  HttpServer(const World& world, const HttpOptions& options);
  // Closes everything; handlers no longer run when it returns. Not inside a handler. Blocks for the
  // executor's thread, if it runs.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // What is answered to GET of `path`, whatever follows it behind a "?". Before listen().
  void handle(const std::string& path, Handler handler);
  // Errors and the address returned as those of RpcServer::listen().
  StatusOr<std::string> listen(const std::string& address);

  // In the executor's thread.
  [[nodiscard]] size_t connections() const noexcept;
  [[nodiscard]] uint64_t evicted() const noexcept;  // HT2: since the start

 private:
  class Core;
  const std::unique_ptr<Core> core_;
};

}  // namespace strata::transport
