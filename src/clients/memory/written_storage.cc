#include "clients/memory/written_storage.h"

#include <utility>

namespace strata::clients {

// Shared with the nodes' option. A call keeps what it calls; who takes it away waits for its end.
struct WrittenStorage::Hook {
  Mutex mutex{LatchRank::kLeaf};
  CondVar ended;
  std::shared_ptr<const WriteAgain> write_again STRATA_GUARDED_BY(mutex);
  uint32_t calls STRATA_GUARDED_BY(mutex) = 0;

  DelegateAnswer call(const DelegateTarget& target) {
    std::shared_ptr<const WriteAgain> now;
    {
      const MutexLock lock(mutex);
      if (write_again == nullptr) return {false, error_peer_down("no memory node is in use")};
      now = write_again;
      ++calls;
    }
    proto::PoolAnswer answer = (*now)({target.address, target.session});
    {
      const MutexLock lock(mutex);
      --calls;
    }
    ended.notify_all();
    return {answer.answered, std::move(answer.status)};
  }
};

WrittenStorage::WrittenStorage() : hook_(std::make_shared<Hook>()) {}
WrittenStorage::~WrittenStorage() { set_write_again(nullptr); }

std::function<DelegateAnswer(const DelegateTarget&)> WrittenStorage::write_again() const {
  return [hook = hook_](const DelegateTarget& target) { return hook->call(target); };
}

void WrittenStorage::set_write_again(WriteAgain write_again) {
  MutexLock lock(hook_->mutex);
  hook_->write_again =
      write_again ? std::make_shared<const WriteAgain>(std::move(write_again)) : nullptr;
  Hook* const hook = hook_.get();
  hook->ended.wait(lock, [hook]() STRATA_REQUIRES(hook->mutex) { return hook->calls == 0; });
}

Status WrittenStorage::to_all_through(Through write) {
  return source_->nodes()->to_all_through([&](const std::vector<DelegateTarget>& targets) {
    std::vector<proto::PoolTarget> asked;
    asked.reserve(targets.size());
    for (const DelegateTarget& target : targets) asked.push_back({target.address, target.session});
    WrittenThrough through = write(asked);
    Delegated done;
    done.nothing_to_do = through.nothing_to_do;
    done.pages = std::move(through.pages);
    for (proto::PoolAnswer& answer : through.answers)
      done.answers.push_back({answer.answered, std::move(answer.status)});
    return done;
  });
}

}  // namespace strata::clients
