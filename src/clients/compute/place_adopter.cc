#include "clients/compute/place_adopter.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "base/diag.h"
#include "base/thread_name.h"

namespace strata::clients {

namespace {

// What tells this folder from others stays at the end of it (ID2); people's part may be cut.
std::string adopter_name(const std::string& holder, NodeId place) {
  const std::string behind = "-for-" + std::to_string(place.value);
  if (holder.size() + behind.size() <= cluster::kNameBytesMax) return holder + behind;
  const size_t suffix = holder.rfind('.');
  STRATA_ASSERT(suffix != std::string::npos);
  const size_t room = cluster::kNameBytesMax - behind.size() - (holder.size() - suffix);
  return holder.substr(0, std::min(suffix, room)) + holder.substr(suffix) + behind;
}

}  // namespace

uint32_t rank_behind(NodeId dead, NodeId own, const std::set<uint8_t>& there) {
  const auto distance = [dead](uint8_t server) {
    return static_cast<uint8_t>(server - dead.value);  // around
  };
  return static_cast<uint32_t>(std::count_if(there.begin(), there.end(), [&](uint8_t server) {
    return server != dead.value && distance(server) < distance(own.value);
  }));
}

PlaceAdopter::PlaceAdopter(const transport::Secret& secret, PlaceAdopterOptions options)
    : secret_(secret), options_(std::move(options)) {}

PlaceAdopter::~PlaceAdopter() { stop(); }

void PlaceAdopter::heard(const std::vector<proto::FusionServer>& servers) {
  const MutexLock lock(mutex_);
  there_.clear();
  for (const proto::FusionServer& server : servers) there_.insert(server.server.value);
  news_ = true;
  changed_.notify_all();
}

void PlaceAdopter::start(NodeId own, std::string holder) {
  STRATA_ASSERT(!thread_.joinable() && !own.is_zero());
  own_ = own;
  holder_ = std::move(holder);
  thread_ = std::thread([this] { work(); });
}

void PlaceAdopter::stop() {
  stopping_.raise();
  interrupt_.interrupt();
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void PlaceAdopter::work() {
  name_this_thread("place-adopter");
  const InterruptScope scope(&interrupt_);
  look_at_us_ = 0;
  while (!stopping_.raised()) {
    end_attempts(false);
    uint64_t next_us = look_at_us_;
    for (const auto& [place, wanted] : wanted_) next_us = std::min(next_us, wanted.at_us);
    wait_until(next_us);
    if (stopping_.raised()) break;
    if (monotonic_us() >= look_at_us_) {
      look_at_us_ = UINT64_MAX;
      const Status looked = look();
      if (!looked.ok()) {  // the registry is away: whoever is dead is there no less
        look_pause_us_ =
            std::clamp(2 * look_pause_us_, options_.retry_us_min, options_.retry_us_max);
        look_at_us_ = monotonic_us() + look_pause_us_;
        registry_.reset();
        continue;
      }
      look_pause_us_ = 0;
    }
    adopt_due();
  }
  end_attempts(true);
  registry_.reset();
}

// News of who is there make it look, a little later: who leaves in order says so first (PLC4).
void PlaceAdopter::wait_until(uint64_t at_us) {
  MutexLock lock(mutex_);
  for (;;) {
    const uint64_t now_us = monotonic_us();
    if (std::exchange(news_, false)) {
      look_at_us_ = std::min(look_at_us_, now_us + options_.settle_us);
      at_us = std::min(at_us, look_at_us_);
    }
    if (std::exchange(attempt_ended_, false)) return;
    if (stopped_ || now_us >= at_us) return;
    if (at_us == UINT64_MAX)
      changed_.wait(
          lock, [this]() STRATA_REQUIRES(mutex_) { return stopped_ || news_ || attempt_ended_; });
    else
      changed_.wait_for_us(lock, at_us - now_us, [this]() STRATA_REQUIRES(mutex_) {
        return stopped_ || news_ || attempt_ended_;
      });
  }
}

std::set<uint8_t> PlaceAdopter::others() const {
  const MutexLock lock(mutex_);
  return there_;
}

// ADP1
Status PlaceAdopter::look() {
  const std::set<uint8_t> there = others();
  ++counters_.looks;
  if (registry_ == nullptr) {
    STRATA_ASSIGN_OR_RETURN(registry_, options_.connect());
  }
  STRATA_ASSIGN_OR_RETURN(cluster::ClusterKeys keys,
                          cluster::ClusterKeys::of(options_.node.compute.cluster));
  STRATA_ASSIGN_OR_RETURN(const auto unsettled,
                          cluster::Places(registry_.get(), std::move(keys))
                              .unsettled(registry_->now_us() + options_.call_timeout_us));
  note(unsettled);
  return ok_status();
}

void PlaceAdopter::note(const std::vector<cluster::KnownPlace>& unsettled) {
  const std::set<uint8_t> there = others();
  std::set<uint8_t> dead;
  for (const cluster::KnownPlace& one : unsettled)
    if (one.place.number != own_ && !there.contains(one.place.number.value))
      dead.insert(one.place.number.value);
  std::erase_if(wanted_, [&](const auto& entry) {
    return !dead.contains(entry.first) && !attempts_.contains(entry.first);
  });
  for (const uint8_t place : dead) {
    if (wanted_.contains(place)) continue;
    wanted_[place].at_us =
        monotonic_us() + rank_behind(NodeId{place}, own_, there) * options_.rank_us;
  }
}

void PlaceAdopter::adopt_due() {
  const std::set<uint8_t> there = others();
  const uint64_t now_us = monotonic_us();
  std::erase_if(wanted_, [&](const auto& entry) {  // ADP4
    return there.contains(entry.first) && !attempts_.contains(entry.first);
  });
  for (auto& [number, wanted] : wanted_) {
    if (wanted.at_us > now_us || attempts_.contains(number)) continue;
    wanted.at_us = UINT64_MAX;  // until this try has ended
    begin(NodeId{number});
  }
}

// ADP7
void PlaceAdopter::begin(NodeId place) {
  auto made = std::make_unique<Attempt>();
  Attempt* const attempt = made.get();
  attempts_[place.value] = std::move(made);
  attempt->began_us = monotonic_us();
  counters_.now = attempts_.size();
  attempt->thread = std::thread([this, place, attempt] {
    name_this_thread("place-adoption");
    const InterruptScope scope(&attempt->interrupt);
    attempt->result = adopt(place);
    attempt->has_ended.store(true, std::memory_order_release);  // pairs with end_attempts()
    const MutexLock lock(mutex_);
    attempt_ended_ = true;
    changed_.notify_all();
  });
}

void PlaceAdopter::end_attempts(bool all) {
  for (auto at = attempts_.begin(); at != attempts_.end();) {
    Attempt* const attempt = at->second.get();
    if (!all && !attempt->has_ended.load(std::memory_order_acquire)) {
      ++at;
      continue;
    }
    if (all) attempt->interrupt.interrupt();
    attempt->thread.join();
    ended(NodeId{at->first}, *attempt);
    at = attempts_.erase(at);
    look_at_us_ = 0;
  }
  counters_.now = attempts_.size();
}

void PlaceAdopter::ended(NodeId place, const Attempt& attempt) {
  if (!attempt.result.ok()) {
    const auto wanted = wanted_.find(place.value);
    if (wanted != wanted_.end()) try_again(place, &wanted->second, attempt.result.status());
    return;
  }
  counters_.last_us = monotonic_us() - attempt.began_us;
  ++counters_.done;
  diag(Severity::kInfo,
       "server %u has ended; this server has recovered what it left in %llu ms: %s",
       unsigned{place.value}, static_cast<unsigned long long>(counters_.last_us / 1000),
       attempt.result->c_str());
  wanted_.erase(place.value);
}

// ADP5
void PlaceAdopter::try_again(NodeId place, Wanted* wanted, const Status& why) {
  if (is_not_found(why)) {  // settled meanwhile
    wanted_.erase(place.value);
    return;
  }
  wanted->pause_us = std::clamp(2 * wanted->pause_us, options_.retry_us_min, options_.retry_us_max);
  wanted->at_us = monotonic_us() + wanted->pause_us;
  // Somebody is there, or was quicker: the next look tells.
  if (stopping_.raised() || is_in_use(why) || is_conflict(why)) return;
  ++counters_.failed;
  if (!std::exchange(wanted->told, true))
    diag(Severity::kWarning,
         "server %u has ended, and this server cannot recover what it left yet: %s; it tries again",
         unsigned{place.value}, cause_of(why).c_str());
}

// ADP2, ADP3: what goes without leave() was killed.
StatusOr<std::string> PlaceAdopter::adopt(NodeId place) {
  FusionNodeOptions options = options_.node;
  options.compute.adopts = place;
  options.compute.name = adopter_name(holder_, place);
  options.compute.data_directory.clear();
  options.compute.start_timeout_us = options_.join_us_max;
  options.compute.call_timeout_us = options_.call_timeout_us;
  options.compute.stop = [this] { return interrupt_.interrupted(); };
  options.compute.give_up_log = options.compute.stop;
  options.member.members = nullptr;
  options.ended = nullptr;
  STRATA_ASSIGN_OR_RETURN(auto registry, options_.connect());
  STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<FusionNode> node,
                          FusionNode::join(std::move(registry), secret_, options));
  ++counters_.begun;
  diag(Severity::kInfo, "server %u has ended: this server takes over what it left",
       unsigned{place.value});
  STRATA_ASSIGN_OR_RETURN(std::string what, options_.recover(node.get(), &stopping_));
  STRATA_RETURN_IF_ERROR(node->leave());
  return what;
}

}  // namespace strata::clients
