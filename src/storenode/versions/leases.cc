#include "storenode/versions/leases.h"

#include <algorithm>
#include <string>

#include "base/assert.h"

namespace strata::storenode {

namespace {
constexpr uint64_t kSamplesPerWindow = 64;
constexpr size_t kReadersMax = 4096;
}  // namespace

Status LeaseTable::renew(uint64_t reader, Llsn at, uint64_t now_us) {
  const MutexLock lock(mutex_);
  if (at < horizon_)
    return error_out_of_range("versions below llsn " + std::to_string(horizon_.value) +
                              " are collected; llsn " + std::to_string(at.value) +
                              " cannot be read any more");
  if (leases_.size() >= kReadersMax && leases_.count(reader) == 0)
    return error_no_space("too many readers of old pages");
  const auto [it, added] = leases_.try_emplace(reader, Lease{at, 0});
  if (at < it->second.at)
    return error_out_of_range("reader " + std::to_string(reader) + " gave up what is below llsn " +
                              std::to_string(it->second.at.value));
  it->second = Lease{at, now_us + options_.lease_us};
  return ok_status();
}

void LeaseTable::release(uint64_t reader) {
  const MutexLock lock(mutex_);
  leases_.erase(reader);
}

void LeaseTable::observe(Llsn newest, uint64_t now_us) {
  const MutexLock lock(mutex_);
  const uint64_t apart = options_.window_us / kSamplesPerWindow;
  if (!samples_.empty() && samples_.back().newest == newest) return;
  if (samples_.size() >= 2 && now_us - samples_[samples_.size() - 2].at_us < apart)
    samples_.pop_back();  // keeps the first of each stretch and the last of all
  STRATA_ASSERT(samples_.empty() || samples_.back().newest <= newest);
  samples_.push_back(Sample{now_us, newest});
}

Llsn LeaseTable::horizon(uint64_t now_us) {
  const MutexLock lock(mutex_);
  std::erase_if(leases_, [now_us](const auto& it) { return it.second.expires_us <= now_us; });
  if (!settled(now_us)) return horizon_;
  Llsn allowed;
  while (!samples_.empty() && samples_.front().at_us + options_.window_us <= now_us) {
    allowed = samples_.front().newest;
    if (samples_.size() == 1 || samples_[1].at_us + options_.window_us > now_us) break;
    samples_.pop_front();
  }
  for (const auto& [reader, lease] : leases_) allowed = std::min(allowed, lease.at);
  horizon_ = std::max(horizon_, allowed);
  return horizon_;
}

size_t LeaseTable::leases() const {
  const MutexLock lock(mutex_);
  return leases_.size();
}

}  // namespace strata::storenode
