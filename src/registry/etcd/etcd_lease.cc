#include "registry/etcd/internal/etcd_lease.h"

#include <time.h>

#include <string>

#include "base/assert.h"
#include "base/clock.h"
#include "base/diag.h"
#include "base/dilation.h"

namespace strata::registry::internal {

uint64_t lease_clock_us() noexcept {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

namespace {
// Timers run by monotonic_us(), the lease by etcd's clock and ours of lease_clock_us(), which are
// real also where the former is dilated: a renewal that is timed by it would come too late.
uint64_t of_timers(uint64_t lease_us) noexcept {
  return static_cast<uint64_t>(static_cast<double>(lease_us) / time_dilation());
}
}  // namespace

EtcdLease::EtcdLease(EtcdClient* client, LeaseId id, uint64_t ttl_s, uint64_t sent_us,
                     LeaseLostHandler on_lost)
    : client_(client),
      background_(&client->background()),
      id_(id),
      ttl_us_(ttl_s * 1'000'000),
      term_(LeaseTerm::end_of(sent_us, ttl_s)),
      on_lost_(std::move(on_lost)),
      endpoint_(client->preferred()) {
  background_->post([this] {
    if (stopped_) return;
    wake_at_end_of_term();
    renew_at(monotonic_us() + of_timers(ttl_us_ / 3));
  });
}

EtcdLease::~EtcdLease() {
  STRATA_ASSERT(!background_->in_thread());
  background_->run_and_wait([this] { stop(); });
}

Status EtcdLease::revoke(uint64_t deadline_us) {
  background_->run_and_wait([this] { stop(); });
  const Status status = client_->call(
      {.path = "/v3/lease/revoke", .body = encode_lease(id_), .deadline_us = deadline_us},
      [this](Bytes body) -> Status {
        STRATA_ASSIGN_OR_RETURN(const EtcdHeader header, decode_header(body));
        return client_->guard().check(header);
      });
  return is_not_found(status) ? ok_status() : status;
}

void EtcdLease::stop() {
  stopped_ = true;
  term_.end();
  background_->cancel(&renewal_timer_);
  background_->cancel(&term_timer_);
  background_->cancel(&exchange_);
}

void EtcdLease::renew_at(uint64_t when_us) {
  renewal_timer_ = background_->run_at(when_us, [this] {
    renewal_timer_ = 0;
    renew();
  });
}

void EtcdLease::renew() {
  HttpRequest request = client_->request(endpoint_, "/v3/lease/keepalive", encode_lease(id_));
  request.exchange_us = of_timers(ttl_us_ / 4);  // then there is time for another endpoint
  const uint64_t sent_us = lease_clock_us();
  exchange_ = background_->start(std::move(request), [this, sent_us](HttpOutcome outcome) {
    exchange_ = 0;
    on_answer(sent_us, std::move(outcome));
  });
}

void EtcdLease::on_answer(uint64_t sent_us, HttpOutcome outcome) {
  const StatusOr<std::string> body = body_of(std::move(outcome));
  const StatusOr<LeaseReply> reply = body.ok() ? decode_renewal(*body) : body.status();
  if (!reply.ok() || reply->lease != id_ || !client_->guard().check(reply->header).ok()) {
    endpoint_++;
    return renew_at(monotonic_us() + of_timers(ttl_us_ / 20));
  }
  if (reply->ttl_s == 0) return lose("the registry does not know it any more");
  if (!term_.renew(lease_clock_us(), LeaseTerm::end_of(sent_us, reply->ttl_s)))
    return lose("it was not renewed in time");
  wake_at_end_of_term();
  renew_at(monotonic_us() + of_timers(ttl_us_ / 3));
}

void EtcdLease::wake_at_end_of_term() {
  background_->cancel(&term_timer_);
  const uint64_t left_us = term_.remaining_us(lease_clock_us());
  term_timer_ = background_->run_at(monotonic_us() + of_timers(left_us), [this] {
    term_timer_ = 0;
    check_term();
  });
}

void EtcdLease::check_term() {
  if (term_.valid(lease_clock_us())) return wake_at_end_of_term();
  lose("it was not renewed in time");
}

void EtcdLease::lose(const char* why) {
  stop();
  diag(Severity::kWarning, "registry lease %llx is lost: %s",
       static_cast<unsigned long long>(id_.value), why);
  if (on_lost_) on_lost_(id_);
}

}  // namespace strata::registry::internal
