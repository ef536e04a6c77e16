#include "memnode/host/authority_wait.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/diag.h"
#include "base/thread_name.h"
#include "cluster/membership.h"
#include "transport/calls/blocking_channel.h"

namespace strata::memnode {

using cluster::StreamHolder;
using registry::Version;
using transport::BlockingChannel;

namespace {

// Nothing is to be seen before something is told.
constexpr uint64_t kUntilToldUs = 60'000'000;
constexpr uint64_t kUnreachedLooks =
    5;  // so much rarer at an address that perhaps nobody here can use

BlockingChannel channel_to(const transport::Secret& secret, const std::string& address) {
  return {secret, transport::Address(address), {}};
}

Status says_another_secret(const std::string& holder) {
  return error_wrong_secret("memory node " + holder +
                            ", which serves the servers of this cluster, has another secret; to "
                            "do: give all nodes of the cluster the same one (--secret-file)");
}

}  // namespace

// A connection to the holder, and a thread that waits for its end.
class AuthorityWait::Line {
 public:
  Line(std::unique_ptr<transport::KeptConnection> kept, std::string to, std::function<void()> ended)
      : to_(std::move(to)), kept_(std::move(kept)), waiter_([this, ended = std::move(ended)] {
          name_this_thread("fusion-line");
          kept_->wait_over();
          ended();
        }) {}
  ~Line() {
    kept_->cut();
    waiter_.join();
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  [[nodiscard]] bool leads_to(const std::string& address) const noexcept {
    return to_ == address && kept_->stands();
  }

 private:
  const std::string to_;
  const std::unique_ptr<transport::KeptConnection> kept_;
  std::thread waiter_;  // last
};

AuthorityWait::AuthorityWait(AuthorityWaitOptions options, registry::Registry* registry,
                             const cluster::ClusterKeys& keys, const transport::Secret& secret)
    : options_(std::move(options)),
      registry_(registry),
      keys_(keys),
      secret_(secret),
      addresses_(registry, keys),
      holder_(error_peer_down(
          "the registry has not said yet which memory node serves the servers of this cluster")) {
  watch_ = cluster::StreamEpochs(registry, keys)
               .watch_holder(cluster::kAuthorityStream,
                             [this](const StatusOr<Holder>& holder) { learn(holder); });
}

AuthorityWait::~AuthorityWait() {
  stop();
  watch_.reset();
  std::shared_ptr<Line> line;
  const MutexLock lock(mutex_);
  line.swap(line_);
}

void AuthorityWait::learn(const StatusOr<Holder>& holder) {
  {
    const MutexLock lock(mutex_);
    holder_ = holder;
  }
  wake();
}

void AuthorityWait::wake() {
  {
    const MutexLock lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

void AuthorityWait::stop() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }
  interrupt_.interrupt();
  changed_.notify_all();
}

// False: it stops.
bool AuthorityWait::sleep(uint64_t us) {
  MutexLock lock(mutex_);
  changed_.wait_for_us(lock, us, [this]() STRATA_REQUIRES(mutex_) { return stopped_ || woken_; });
  woken_ = false;
  return !stopped_;
}

bool AuthorityWait::has_line() const {
  const MutexLock lock(mutex_);
  return line_ != nullptr;
}

Status AuthorityWait::check(uint64_t deadline_us) {
  const auto holder =
      cluster::StreamEpochs(registry_, keys_).current(cluster::kAuthorityStream, deadline_us);
  const auto members = cluster::Membership(registry_, keys_).list(deadline_us);
  if (!holder.ok() || !members.ok() || !holder->has_value()) return ok_status();
  const std::string& name = (*holder)->holder;
  const auto member = std::find_if(members->begin(), members->end(),
                                   [&](const cluster::Member& one) { return one.name == name; });
  if (member == members->end() || name == options_.name) return ok_status();
  return is_wrong_secret(reach(member->address)) ? says_another_secret(name) : ok_status();
}

StatusOr<Version> AuthorityWait::wait(const Say& say) {
  const InterruptScope scope(&interrupt_);
  // AUW4
  for (uint64_t now = monotonic_us(); now < turn_us_ + options_.look_us; now = monotonic_us())
    if (!sleep(turn_us_ + options_.look_us - now)) return error_interrupted("it stops");
  for (;;) {
    uint64_t next_us = kUntilToldUs;
    const StatusOr<std::optional<Version>> turn = look(&next_us);
    if (interrupt_.interrupted()) break;  // then nobody was reached, whoever is there
    if (turn.ok() && turn->has_value()) {
      turn_us_ = monotonic_us();
      keep_line({});
      return **turn;
    }
    if (!turn.ok()) say(turn.status());
    if (!sleep(next_us)) break;
  }
  return error_interrupted("the memory node stops");
}

// Nothing, or why it waits: it is not this node's turn.
StatusOr<std::optional<Version>> AuthorityWait::look(uint64_t* next_us) {
  Holder holder;
  {
    const MutexLock lock(mutex_);
    STRATA_RETURN_IF_ERROR(holder_.status());
    holder = *holder_;
  }
  if (!holder.has_value() || holder->holder == options_.name) return std::optional(Version{});
  const std::string address = addresses_.address_of(holder->holder);
  keep_line(address);
  const bool known = !address.empty() && address == reached_;
  *next_us = known ? options_.look_us : kUnreachedLooks * options_.look_us;
  if (!holder->held) {
    const std::optional<Version> turn = at_unheld(*holder);
    if (turn.has_value()) return turn;
    return error_in_use("memory node " + holder->holder +
                        ", which serves the servers of this cluster, has no lease in the registry "
                        "at the moment, but answers");
  }
  unheld_ = {};
  if (is_wrong_secret(not_reached_)) return says_another_secret(holder->holder);
  if (has_line()) *next_us = kUntilToldUs;
  const bool gone =
      known && !has_line() &&
      channel_to(secret_, address).is_refused(monotonic_us() + options_.connect_us_max);
  if (gone) {  // AUW2
    diag(Severity::kWarning, "fusion: memory node %s is gone; this one takes its place",
         holder->holder.c_str());
    return std::optional(holder->writer);
  }
  return error_in_use("memory node " + holder->holder +
                      " serves the servers of this cluster, with epoch " +
                      std::to_string(holder->epoch.value));
}

// AUW3
std::optional<Version> AuthorityWait::at_unheld(const StreamHolder& holder) {
  const uint64_t now_us = monotonic_us();
  if (unheld_ != holder.epoch) {
    unheld_ = holder.epoch;
    unheld_since_us_ = now_us;
  }
  const bool waited = now_us - unheld_since_us_ >= options_.patience_us;
  // A connection that stands says nothing of a process that hangs.
  if (waited || !reach(addresses_.address_of(holder.holder)).ok()) return Version{};
  return std::nullopt;
}

// OK: somebody who has the cluster's secret answers there.
Status AuthorityWait::reach(const std::string& address) {
  if (address.empty()) return error_peer_down("its address is not known");
  return channel_to(secret_, address)
      .keep_connection(monotonic_us() + options_.connect_us_max)
      .status();
}

// To there, or to nobody.
void AuthorityWait::keep_line(const std::string& address) {
  std::shared_ptr<Line> old;  // ends without the mutex
  {
    const MutexLock lock(mutex_);
    if (line_ != nullptr && line_->leads_to(address)) return;
    old.swap(line_);
  }
  old.reset();
  if (address.empty()) return;
  auto kept =
      channel_to(secret_, address).keep_connection(monotonic_us() + options_.connect_us_max);
  not_reached_ = kept.status();
  if (!kept.ok()) return;
  reached_ = address;
  auto line = std::make_shared<Line>(*std::move(kept), address, [this] { wake(); });
  const MutexLock lock(mutex_);
  line_ = std::move(line);
}

}  // namespace strata::memnode
