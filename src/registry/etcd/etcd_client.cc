#include "registry/etcd/internal/etcd_client.h"

#include <algorithm>

#include "base/clock.h"
#include "registry/text.h"

namespace strata::registry::internal {
namespace {

// Of values of kValueBytesMax, in base64: well below reply_bytes_max.
constexpr uint64_t kEntriesPerPage = 64;
constexpr size_t kIdleExchangesMax = 8;
// curl counts in milliseconds and may end a little early.
constexpr uint64_t kTimerSlackUs = 2000;

}  // namespace

Status ClusterGuard::check(const EtcdHeader& header) {
  uint64_t known = 0;
  if (cluster_id_.compare_exchange_strong(known, header.cluster_id) || known == header.cluster_id)
    return ok_status();
  return error_corruption(absl::StrCat("etcd cluster ", absl::Hex(header.cluster_id),
                                       " answers where cluster ", absl::Hex(known),
                                       " did: was the registry's data folder replaced?"));
}

Status ClusterGuard::check(const EtcdHeader& header, uint64_t seen_before) {
  STRATA_RETURN_IF_ERROR(check(header));
  if (header.revision < seen_before)
    return error_corruption(absl::StrCat("etcd is at revision ", header.revision, " but was at ",
                                         seen_before, ": its data were set back"));
  uint64_t known = revision_.load();
  while (known < header.revision && !revision_.compare_exchange_weak(known, header.revision)) {
  }
  return ok_status();
}

std::string ListingPages::next_request() const {
  const std::vector<KeyValue>& entries = listing_.entries;
  const std::string from = entries.empty() ? prefix_ : entries.back().key + '\0';
  const std::string end = prefix_end(prefix_);
  return encode_range(
      {.from = from, .end = end, .limit = kEntriesPerPage, .at_revision = listing_.at.value});
}

StatusOr<bool> ListingPages::add(RangeReply reply) {
  const bool first = listing_.at.is_zero();
  if (first) listing_.at = Version{reply.header.revision};
  for (KeyValue& entry : reply.entries) {
    const bool in_order = listing_.entries.empty() || listing_.entries.back().key < entry.key;
    if (!in_order || !entry.key.starts_with(prefix_) || entry.version > listing_.at)
      return error_corruption(
          absl::StrCat("etcd's list of ", prefix_, " is out of order or not what was asked for"));
    listing_.entries.push_back(std::move(entry));
  }
  if (reply.header.revision == 0 || (reply.more && reply.entries.empty()))
    return error_corruption(absl::StrCat("etcd's list of ", prefix_, " has no end"));
  return !reply.more;
}

HttpRequest EtcdClient::request(size_t index, std::string_view path, std::string body) const {
  HttpRequest request;
  request.url = absl::StrCat(endpoint(index), text::view(path));
  request.body = std::move(body);
  request.connect_us = options_.connect_us_max;
  request.reply_bytes_max = options_.reply_bytes_max;
  return request;
}

// What one attempt came to. OK, or an error that is final or may be better at another endpoint.
struct EtcdClient::Attempt {
  Status status;
  bool elsewhere = false;
};

EtcdClient::Attempt EtcdClient::judge(const HttpOutcome& outcome, bool once,
                                      absl::FunctionRef<Status(Bytes)> decode) {
  Refusal refusal{outcome.status, outcome.sent, true};
  if (outcome.status.ok() && outcome.http_status == 200) {
    refusal.status = decode(outcome.body);
    if (refusal.status.ok()) return {ok_status(), false};
  } else if (outcome.status.ok()) {
    refusal = explain_refusal(outcome.http_status, outcome.body);
  }
  if (once && refusal.in_doubt)  // EC1
    return {error_outcome_unknown(absl::StrCat("sent to etcd, but whether it was done is unknown: ",
                                               refusal.status.message())),
            false};
  return {refusal.status, refusal.elsewhere};
}

Status EtcdClient::call(const EtcdCall& call, absl::FunctionRef<Status(Bytes)> decode) {
  const size_t count = options_.endpoints.size();
  const size_t first = preferred();
  std::unique_ptr<HttpExchange> exchange = take_exchange();
  Status last = error_timed_out("the deadline has passed");
  for (size_t tried = 0; tried < count; tried++) {
    const uint64_t now = monotonic_us();
    if (now >= call.deadline_us) break;
    const uint64_t left_us = call.deadline_us - now;
    const uint64_t share_us = left_us / (count - tried);
    HttpRequest to = request(first + tried, call.path, call.body);
    to.once = call.once;
    to.connect_us = std::min(to.connect_us, share_us);
    to.exchange_us = call.once ? left_us : share_us;
    const Attempt attempt = judge(exchange->perform(std::move(to)), call.once, decode);
    last = attempt.status;
    if (last.ok()) preferred_.store((first + tried) % count);
    if (!attempt.elsewhere) break;
  }
  put_back(std::move(exchange));
  // An endpoint's share of the time is not the caller's deadline.
  if (is_timed_out(last) && monotonic_us() + kTimerSlackUs < call.deadline_us)
    return error_peer_down(text::message_of(last));
  return last;
}

std::unique_ptr<HttpExchange> EtcdClient::take_exchange() {
  {
    const MutexLock lock(mutex_);
    if (!idle_.empty()) {
      auto exchange = std::move(idle_.back());
      idle_.pop_back();
      return exchange;
    }
  }
  return std::make_unique<HttpExchange>();
}

void EtcdClient::put_back(std::unique_ptr<HttpExchange> exchange) {
  const MutexLock lock(mutex_);
  if (idle_.size() < kIdleExchangesMax) idle_.push_back(std::move(exchange));
}

StatusOr<std::string> body_of(HttpOutcome outcome) {
  STRATA_RETURN_IF_ERROR(outcome.status);
  if (outcome.http_status != 200) return explain_refusal(outcome.http_status, outcome.body).status;
  return std::move(outcome.body);
}

}  // namespace strata::registry::internal
