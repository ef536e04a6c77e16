#include "registry/etcd/internal/etcd_watch.h"

#include <algorithm>

#include "base/assert.h"
#include "base/clock.h"
#include "base/diag.h"
#include "registry/text.h"

namespace strata::registry::internal {

EtcdWatch::EtcdWatch(EtcdClient* client, std::string prefix, WatchHandler handler)
    : client_(client),
      background_(&client->background()),
      prefix_(std::move(prefix)),
      handler_(std::move(handler)),
      endpoint_(client->preferred()),
      pause_us_(client->options().retry_us_min) {
  STRATA_ASSERT(check_key(prefix_).ok());
  background_->post([this] { start(); });
}

EtcdWatch::~EtcdWatch() {
  STRATA_ASSERT(!background_->in_thread());
  background_->run_and_wait([this] { stop(); });
}

void EtcdWatch::stop() {
  background_->cancel(&exchange_);
  background_->cancel(&check_);
  background_->cancel(&timer_);
}

void EtcdWatch::start() {
  batch_ = WatchBatch();
  open_ = false;
  if (!delivered_.is_zero()) return stream();
  pages_ = std::make_unique<ListingPages>(prefix_);
  list();
}

void EtcdWatch::list() {
  HttpRequest request = client_->request(endpoint_, "/v3/kv/range", pages_->next_request());
  request.exchange_us = client_->options().watch_check_us;
  const uint64_t seen_before = client_->guard().seen();
  exchange_ = background_->start(std::move(request), [this, seen_before](HttpOutcome outcome) {
    exchange_ = 0;
    on_page(seen_before, std::move(outcome));
  });
}

void EtcdWatch::on_page(uint64_t seen_before, HttpOutcome outcome) {
  const StatusOr<std::string> body = body_of(std::move(outcome));
  if (!body.ok()) return fail(body.status());
  StatusOr<RangeReply> reply = decode_range(*body);
  if (!reply.ok()) return fail(reply.status());
  const Status status = client_->guard().check(reply->header, seen_before);
  if (!status.ok()) return fail(status);
  const StatusOr<bool> last = pages_->add(*std::move(reply));
  if (!last.ok()) return fail(last.status());
  if (!*last) return list();
  Listing listing = pages_->take();
  batch_.snapshot = true;
  batch_.at = listing.at;
  for (KeyValue& entry : listing.entries) batch_.events.push_back({false, std::move(entry)});
  deliver();
  stream();
}

void EtcdWatch::stream() {
  HttpRequest request =
      client_->request(endpoint_, "/v3/watch", encode_watch(prefix_, delivered_.value + 1));
  request.stream = true;
  exchange_ = background_->start(
      std::move(request),
      [this](HttpOutcome outcome) {
        exchange_ = 0;
        const StatusOr<std::string> rest = body_of(std::move(outcome));
        fail(rest.ok() ? error_peer_down("etcd ended the watch") : rest.status());
      },
      [this](const std::vector<std::string>& lines) { on_lines(lines); });
  check_later();
}

void EtcdWatch::on_lines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    EtcdError error;
    StatusOr<WatchMessage> message = decode_error(line, &error)
                                         ? error_peer_down(text::printable(error.message))
                                         : decode_watch(line);
    if (message.ok() && message->canceled && message->compact_revision != 0)
      return start_over(message->compact_revision);
    const Status status = message.ok() ? on_message(*std::move(message)) : message.status();
    if (!status.ok()) return fail(status);
  }
}

Status EtcdWatch::on_message(WatchMessage message) {
  STRATA_RETURN_IF_ERROR(client_->guard().check(message.header));
  if (message.canceled)
    return error_peer_down(absl::StrCat("etcd canceled the watch: ", message.reason));
  if (message.created && !open_) {
    open_ = true;
    pause_us_ = client_->options().retry_us_min;
    if (complained_) diag(Severity::kInfo, "registry watch on %s goes on", prefix_.c_str());
    complained_ = false;
  }
  STRATA_RETURN_IF_ERROR(keep_events(std::move(message.events)));
  if (!message.fragment && !batch_.events.empty()) deliver();
  return ok_status();
}

Status EtcdWatch::keep_events(std::vector<WatchEvent> events) {
  for (WatchEvent& event : events) {
    const bool next = event.entry.version > delivered_ && event.entry.version >= batch_.at;
    if (!next || !event.entry.key.starts_with(prefix_))
      return error_corruption(absl::StrCat("etcd sent a change of ",
                                           text::printable(event.entry.key), " at revision ",
                                           event.entry.version.value, " that does not come next"));
    batch_.at = event.entry.version;
    batch_.events.push_back(std::move(event));
  }
  return ok_status();
}

void EtcdWatch::deliver() {
  WatchBatch batch;
  std::swap(batch, batch_);
  delivered_ = batch.at;
  handler_(batch);
}

void EtcdWatch::start_over(uint64_t compact_revision) {
  diag(Severity::kInfo,
       "registry watch on %s starts over with a snapshot: it was at revision %llu, etcd keeps "
       "changes from %llu on",
       prefix_.c_str(), static_cast<unsigned long long>(delivered_.value),
       static_cast<unsigned long long>(compact_revision));
  stop();
  delivered_ = Version{};
  start();
}

void EtcdWatch::check_later() {
  background_->cancel(&timer_);
  timer_ = background_->run_at(monotonic_us() + client_->options().watch_check_us, [this] {
    timer_ = 0;
    check();
  });
}

// EC4. A stream on which nothing happens looks the same whether the member lives or not, so
// something is asked of it that it can answer by itself.
void EtcdWatch::check() {
  if (!open_) return fail(error_peer_down("etcd did not open the watch in time"));
  HttpRequest request = client_->request(
      endpoint_, "/v3/kv/range",
      encode_range({.from = prefix_, .end = {}, .limit = 1, .serializable = true}));
  request.exchange_us = client_->options().watch_check_us;
  check_ = background_->start(std::move(request), [this](HttpOutcome outcome) {
    check_ = 0;
    const StatusOr<std::string> body = body_of(std::move(outcome));
    if (!body.ok()) return fail(body.status());
    check_later();
  });
}

void EtcdWatch::fail(const Status& why) {
  stop();
  if (!complained_)
    diag(Severity::kWarning, "registry watch on %s is interrupted and will be taken up again: %s",
         prefix_.c_str(), text::message_of(why).c_str());
  complained_ = true;
  endpoint_++;
  timer_ = background_->run_at(monotonic_us() + pause_us_, [this] {
    timer_ = 0;
    start();
  });
  pause_us_ = std::min(2 * pause_us_, client_->options().retry_us_max);
}

}  // namespace strata::registry::internal
