#include "registry/etcd/internal/http.h"

#include <algorithm>

#include "base/assert.h"
#include "registry/text.h"

namespace strata::registry::internal {
namespace {

constexpr size_t kHeaderBytesMax = 64u << 10;
constexpr uint64_t kLongestUs = 3600ull * 1'000'000;

}  // namespace

void init_curl() {
  static const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
  STRATA_ASSERT(code == CURLE_OK);
}

long to_curl_ms(uint64_t us) noexcept {
  return static_cast<long>(std::max<uint64_t>(1, std::min(us, kLongestUs) / 1000));
}

HttpExchange::HttpExchange() : curl_((init_curl(), curl_easy_init())) {
  STRATA_ASSERT(curl_ != nullptr);
  headers_ = curl_slist_append(headers_, "Content-Type: application/json");
  headers_ = curl_slist_append(headers_, "Expect:");  // no extra round trip for large bodies
  // A member that is cut off from the others refuses at once instead of waiting for them.
  headers_ = curl_slist_append(headers_, "Grpc-Metadata-hasleader: true");
  STRATA_ASSERT(headers_ != nullptr);
}

HttpExchange::~HttpExchange() {
  curl_easy_cleanup(curl_);
  curl_slist_free_all(headers_);
}

HttpOutcome HttpExchange::perform(HttpRequest request) {
  prepare(std::move(request));
  return finish(curl_easy_perform(curl_));
}

void HttpExchange::prepare(HttpRequest request) {
  request_ = std::move(request);
  outcome_ = HttpOutcome();
  header_bytes_ = 0;
  line_start_ = 0;
  too_large_ = false;
  error_[0] = '\0';
  curl_easy_reset(curl_);  // keeps connections
  curl_easy_setopt(curl_, CURLOPT_URL, request_.url.c_str());
  curl_easy_setopt(curl_, CURLOPT_POSTFIELDSIZE_LARGE,
                   static_cast<curl_off_t>(request_.body.size()));
  curl_easy_setopt(curl_, CURLOPT_POSTFIELDS, request_.body.c_str());
  curl_easy_setopt(curl_, CURLOPT_HTTPHEADER, headers_);
  curl_easy_setopt(curl_, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
  curl_easy_setopt(curl_, CURLOPT_PROTOCOLS_STR, "http");
  curl_easy_setopt(curl_, CURLOPT_NOPROXY, "*");  // whatever http_proxy says
  curl_easy_setopt(curl_, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl_, CURLOPT_ERRORBUFFER, error_);
  curl_easy_setopt(curl_, CURLOPT_WRITEFUNCTION, &on_body);
  curl_easy_setopt(curl_, CURLOPT_WRITEDATA, this);
  curl_easy_setopt(curl_, CURLOPT_HEADERFUNCTION, &on_header);
  curl_easy_setopt(curl_, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(curl_, CURLOPT_PREREQFUNCTION, &on_connected);
  curl_easy_setopt(curl_, CURLOPT_PREREQDATA, this);
  uint64_t connect_us = request_.connect_us;
  if (request_.exchange_us != 0) {
    connect_us = std::min(connect_us, request_.exchange_us);
    curl_easy_setopt(curl_, CURLOPT_TIMEOUT_MS, to_curl_ms(request_.exchange_us));
  }
  curl_easy_setopt(curl_, CURLOPT_CONNECTTIMEOUT_MS, to_curl_ms(connect_us));
  if (request_.once) {  // RH3
    curl_easy_setopt(curl_, CURLOPT_FRESH_CONNECT, 1L);
    curl_easy_setopt(curl_, CURLOPT_FORBID_REUSE, 1L);
  }
}

HttpOutcome HttpExchange::finish(CURLcode code) {
  curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &outcome_.http_status);
  if (code != CURLE_OK) {
    const char* why = error_[0] != '\0' ? error_ : curl_easy_strerror(code);
    const std::string message = absl::StrCat(request_.url, ": ", why);
    if (too_large_)
      outcome_.status = error_corruption(absl::StrCat(request_.url, ": the reply is larger than ",
                                                      request_.reply_bytes_max, " bytes"));
    else if (code == CURLE_OPERATION_TIMEDOUT)
      outcome_.status = error_timed_out(message);
    else
      outcome_.status = error_peer_down(message);
  }
  return std::move(outcome_);
}

std::vector<std::string> HttpExchange::take_lines() {
  std::vector<std::string> lines;
  long http_status = 0;
  curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &http_status);
  if (http_status != 200) return lines;
  size_t at = 0;
  for (size_t end; (end = outcome_.body.find('\n', at)) != std::string::npos; at = end + 1)
    if (end > at) lines.emplace_back(outcome_.body, at, end - at);
  outcome_.body.erase(0, at);
  line_start_ = 0;
  return lines;
}

bool HttpExchange::keep(Bytes bytes) {
  std::string& body = outcome_.body;
  body.append(bytes);
  long http_status = 0;
  curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &http_status);
  const bool lines = request_.stream && http_status == 200;
  for (size_t end; lines && (end = body.find('\n', line_start_)) != std::string::npos;
       line_start_ = end + 1)
    too_large_ |= end - line_start_ > request_.reply_bytes_max;
  too_large_ |= body.size() - line_start_ > request_.reply_bytes_max;
  return !too_large_;
}

size_t HttpExchange::on_body(char* bytes, size_t, size_t count, void* self) {
  return static_cast<HttpExchange*>(self)->keep(Bytes(bytes, count)) ? count : 0;
}

size_t HttpExchange::on_header(char*, size_t, size_t count, void* self) {
  auto* exchange = static_cast<HttpExchange*>(self);
  exchange->header_bytes_ += count;
  if (exchange->header_bytes_ <= kHeaderBytesMax) return count;
  exchange->too_large_ = true;
  return 0;
}

int HttpExchange::on_connected(void* self, char*, char*, int, int) {
  static_cast<HttpExchange*>(self)->outcome_.sent = true;
  return CURL_PREREQFUNC_OK;
}

}  // namespace strata::registry::internal
