#include "clients/fusion/oracle_client.h"

#include <algorithm>
#include <utility>

#include "base/wait_interrupt.h"

namespace strata::clients {
namespace {

constexpr uint64_t kRetryUs = 500;
constexpr uint64_t kRetryUsMax = 50'000;
constexpr uint32_t kAnswered = 1;
constexpr uint32_t kLead = 2;

// A thread that sleeps until it is answered, and leads on the way if it is told to.
class Sleeping final : public TimestampFetcher::Request {
 public:
  explicit Sleeping(bool fresh) noexcept : Request(fresh) {}
  void answered() noexcept override { (leads_ ? second_ : first_).unpark(kAnswered); }
  void lead() noexcept override {
    leads_ = true;
    first_.unpark(kLead);
  }
  void wait(TimestampFetcher* fetcher) noexcept {
    if (first_.wait() == kAnswered) return;
    fetcher->lead();
    second_.wait();
  }

 private:
  bool leads_ = false;  // written by who tells it, before it is told; read by who answers it, later
  Parker first_, second_;
};

}  // namespace

OracleClient::OracleClient(const LeaseCheck* lease, const OracleClientOptions& options)
    : options_(options), fetcher_(lease, options.now_us, options.fetch_us_max) {}

void OracleClient::use(std::shared_ptr<transport::RemoteRegion> times, Epoch epoch) {
  fetcher_.use(std::move(times), epoch);
  const MutexLock lock(mutex_);
  changed_.notify_all();
}

StatusOr<Cts> OracleClient::ask(bool fresh) {
  Sleeping request(fresh);
  const InterruptScope carried_through(nullptr);  // others wait for what this thread leads
  fetcher_.ask(&request);
  request.wait(&fetcher_);
  if (!request.status.ok()) return request.status;
  return request.value;
}

StatusOr<Cts> OracleClient::get(bool fresh) {
  const uint64_t deadline_us = options_.now_us() + options_.wait_us_max;
  for (uint64_t retry_us = kRetryUs;; retry_us = std::min(2 * retry_us, kRetryUsMax)) {
    const StatusOr<Cts> got = ask(fresh);
    if (got.ok()) return got;
    // Numbers that nobody knows of were fetched for nobody (FC3): it may just be done again.
    const bool again = may_be_repeated(got.status()) || is_withdrawn(got.status());
    if (!again || options_.now_us() + retry_us >= deadline_us) return got.status();
    STRATA_RETURN_IF_ERROR(wait_a_little(retry_us));
  }
}

void OracleClient::end(const Status& why) {
  const MutexLock lock(mutex_);
  ended_ = why;
  changed_.notify_all();
}

Status OracleClient::wait_a_little(uint64_t us) {
  CondVarSleep sleeper(&mutex_, &changed_);
  WaitInterrupt* const interrupt = WaitInterrupt::current();
  const WaitInterrupt::Asleep asleep(interrupt, &sleeper);
  MutexLock lock(mutex_);
  if (is_interrupted_now(interrupt)) return error_interrupted();
  STRATA_RETURN_IF_ERROR(ended_);
  changed_.wait_for_us(lock, us);
  return is_interrupted_now(interrupt) ? error_interrupted() : ended_;
}

Status OracleClient::raise_to(Cts at_least) {
  STRATA_ASSIGN_OR_RETURN(const Cts now, current());
  if (now >= at_least) return ok_status();
  return error_corruption("a transaction of this server has the timestamp " +
                          std::to_string(at_least.value) +
                          ", but the memory node's clock stands at " + std::to_string(now.value));
}

}  // namespace strata::clients
