// One HTTP POST over libcurl, in a form both a blocking call and the background thread use.
//   RH1  Never more than `reply_bytes_max` of body (of one line, for a stream) or 64 KiB of header
//        are kept, and never more time taken than the request allows: whoever sends more or slower
//        gets an error.
//   RH2  `sent` is false only when no byte of the request can have left: no connection was made.
//   RH3  A request with `once` gets a connection of its own. On one that was used before, libcurl
//        would send a request again when the connection turns out to be closed, and nobody could
//        tell whether the first one was carried out.
// Plain http only, straight to the endpoint: no proxy, no redirect, no signals.
#pragma once

#include <curl/curl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace strata::registry::internal {

struct HttpRequest {
  std::string url;
  std::string body;
  uint64_t connect_us = 1'000'000;
  uint64_t exchange_us = 0;  // connecting included; 0: no limit
  size_t reply_bytes_max = 0;
  bool once = false;    // may not be sent twice
  bool stream = false;  // the reply is lines without end
};

struct HttpOutcome {
  Status status;  // OK: the whole reply came. Else kUnavailable, timed_out or kDataLoss
  bool sent = false;
  long http_status = 0;
  std::string body;
};

// Makes one exchange after the other; not thread-safe.
class HttpExchange {
 public:
  HttpExchange();
  ~HttpExchange();
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;

  HttpOutcome perform(HttpRequest request);  // blocks

  // The same in three steps, with a multi handle doing the work between the first and the last.
  void prepare(HttpRequest request);
  [[nodiscard]] CURL* handle() const noexcept { return curl_; }
  HttpOutcome finish(CURLcode code);

  // Of a stream that goes on: whole lines that came, without their ends; only while the HTTP status
  // is 200.
  std::vector<std::string> take_lines();

 private:
  static size_t on_body(char* bytes, size_t, size_t count, void* self);
  static size_t on_header(char* bytes, size_t, size_t count, void* self);
  static int on_connected(void* self, char*, char*, int, int);
  bool keep(Bytes bytes);

  CURL* const curl_;
  curl_slist* headers_ = nullptr;
  HttpRequest request_;
  HttpOutcome outcome_;
  size_t header_bytes_ = 0;
  size_t line_start_ = 0;  // in outcome_.body, of a stream's unfinished line
  bool too_large_ = false;
  char error_[CURL_ERROR_SIZE] = {};
};

// Whole milliseconds, none below one: 0 means "for ever" to libcurl.
[[nodiscard]] long to_curl_ms(uint64_t us) noexcept;
void init_curl();  // once per process, by whoever is first

}  // namespace strata::registry::internal
