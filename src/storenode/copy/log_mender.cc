#include "storenode/copy/log_mender.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/diag.h"
#include "base/latch.h"

namespace strata::storenode {
namespace {

constexpr uint32_t kReadBytes = 1u << 20;

// What one call answers from another thread.
template <class Answer>
class Awaited {
 public:
  [[nodiscard]] std::function<void(Answer)> setter() const {
    return [shared = shared_](Answer answer) {
      const MutexLock lock(shared->mutex);
      shared->answer = std::move(answer);
      shared->changed.notify_all();
    };
  }
  Answer wait() {
    MutexLock lock(shared_->mutex);
    shared_->changed.wait(
        lock, [this]() STRATA_REQUIRES(shared_->mutex) { return shared_->answer.has_value(); });
    return *std::move(shared_->answer);
  }

 private:
  struct Shared {
    Mutex mutex{LatchRank::kLeaf};
    CondVar changed;
    std::optional<Answer> answer STRATA_GUARDED_BY(mutex);
  };
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace

bool LogMender::mend() {
  bool some = false;
  const auto failed_before = std::exchange(failed_, {});
  for (const StreamStatus& stream : store_->status()) {
    if (!stream.failure.ok()) continue;
    for (const LogDamage& damage : stream.damages) {
      const std::pair place(stream.stream, damage.from);
      const auto before = failed_before.find(place);
      Pauses pauses = before == failed_before.end() ? Pauses{} : before->second;
      if (pauses.left > 0) {
        --pauses.left;
      } else if (mend(stream.stream, damage, /*is_new=*/pauses.after_failure == 0)) {
        some = true;
        continue;
      } else {
        pauses.after_failure = std::min(kPausesMax, 2 * pauses.after_failure + 1);
        pauses.left = pauses.after_failure;
        STRATA_ASSERT(pauses.left != 0);  // else it would be asked for all the time
      }
      failed_[place] = pauses;
    }
  }
  return some;
}

StatusOr<std::string> LogMender::fetch_range(StreamId stream, quorum::ReplicaIndex peer, Lsn from,
                                             Lsn to, Lsn* begin) {
  std::string bytes;
  while (from.value + bytes.size() < to.value) {
    const Lsn at{from.value + bytes.size()};
    Awaited<quorum::ReadReply> awaited;
    const auto most = static_cast<uint32_t>(std::min<uint64_t>(kReadBytes, to.value - at.value));
    fetch_(stream, peer, {at, most, false, {}}, awaited.setter());
    const quorum::ReadReply reply = awaited.wait();
    *begin = reply.start;
    if (is_out_of_range(reply.status) && reply.start <= at)
      return error_peer_down("the peer does not have it yet");
    STRATA_RETURN_IF_ERROR(reply.status);
    if (reply.from != at || reply.bytes.empty() || reply.bytes.size() > most)
      return error_peer_down("the peer does not have all of it");
    bytes += reply.bytes;
  }
  return bytes;
}

bool LogMender::mend(StreamId stream, const LogDamage& damage, bool is_new) {
  std::string failure = "no peer could be asked";
  quorum::ReplicaIndex cut_off = 0;
  Lsn all_begin{UINT64_MAX};
  const Place place = place_();
  for (quorum::ReplicaIndex peer = 0; peer < place.replicas; ++peer) {
    if (peer == place.own) continue;
    Lsn begin;
    auto bytes = fetch_range(stream, peer, damage.from, damage.to, &begin);
    const bool is_cut_off = is_out_of_range(bytes.status());
    Status done = bytes.status();
    if (bytes.ok()) {
      STRATA_ASSERT(bytes->size() == damage.to.value - damage.from.value);
      Awaited<quorum::ChangeReply> awaited;
      store_->repair(stream, damage.from, *std::move(bytes), awaited.setter());
      done = awaited.wait().status;
    }
    if (done.ok()) {
      mended_.fetch_add(1);
      diag(Severity::kWarning, "log: %s: lsn %llu to %llu were taken from a peer",
           damage.path.c_str(), static_cast<unsigned long long>(damage.from.value),
           static_cast<unsigned long long>(damage.to.value));
      return true;
    }
    failure = std::string(done.message());
    if (!is_cut_off) continue;
    ++cut_off;
    all_begin = std::min(all_begin, begin);
  }
  STRATA_ASSERT(cut_off <= place.replicas);
  if (cut_off > 0 && cut_off + 1 == place.replicas) lost_(stream, damage.to, all_begin);
  if (is_new)
    diag(Severity::kWarning, "log: %s: it cannot be mended yet: %s", damage.path.c_str(),
         failure.c_str());
  return false;
}

}  // namespace strata::storenode
