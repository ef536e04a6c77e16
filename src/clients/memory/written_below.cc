#include "clients/memory/written_below.h"

#include <utility>

namespace strata::clients {

Status WrittenBelow::to_all_through(Through write) {
  return pages_->nodes()->to_all_through([&](const std::vector<DelegateTarget>& targets) {
    std::vector<proto::PoolTarget> told;
    told.reserve(targets.size());
    for (const DelegateTarget& target : targets) told.push_back({target.address, target.session});
    WrittenThrough written = write(told);
    Delegated done;
    done.nothing_to_do = written.nothing_to_do;
    done.pages = std::move(written.pages);
    for (proto::PoolAnswer& answer : written.answers)
      done.answers.push_back({answer.answered, std::move(answer.status)});
    return done;
  });
}

DelegateAnswer WrittenBelow::write_again(const DelegateTarget& target) {
  WriteAgain write_again;
  {
    const MutexLock lock(mutex_);
    if (!write_again_) return {false, error_peer_down("this node stops")};
    write_again = write_again_;
    ++under_way_;
  }
  proto::PoolAnswer answer = write_again({target.address, target.session});
  {
    const MutexLock lock(mutex_);  // also while it notifies: who waits may end this
    --under_way_;
    ended_.notify_all();
  }
  return {answer.answered, std::move(answer.status)};
}

void WrittenBelow::set_write_again(WriteAgain write_again) {
  MutexLock lock(mutex_);
  write_again_ = std::move(write_again);
  ended_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return under_way_ == 0; });
}

}  // namespace strata::clients
