#include "storenode/copy/page_asker.h"

#include "base/assert.h"
#include "base/thread_name.h"
#include "page/page.h"

namespace strata::storenode {

void PageAsker::start() {
  STRATA_ASSERT(!thread_.joinable());
  {
    const MutexLock lock(mutex_);
    STRATA_ASSERT(stopped_ && waiting_.empty());
    stopped_ = false;
  }
  thread_ = std::thread([this] { run(); });
}

void PageAsker::stop() {
  std::deque<std::pair<GetPageRequest, GetPageDone>> left;
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    left.swap(waiting_);
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (auto& [request, done] : left) done(error_peer_down("this node stops"));
}

void PageAsker::ask(const GetPageRequest& request, GetPageDone done) {
  {
    const MutexLock lock(mutex_);
    if (!stopped_ && waiting_.size() < waiting_max_) {
      waiting_.emplace_back(request, std::move(done));
      changed_.notify_all();
      return;
    }
  }
  done(error_peer_down("peers cannot be asked for pages now"));
}

void PageAsker::run() {
  name_this_thread("page-asker");
  for (;;) {
    std::pair<GetPageRequest, GetPageDone> next;
    {
      MutexLock lock(mutex_);
      changed_.wait(lock,
                    [this]() STRATA_REQUIRES(mutex_) { return stopped_ || !waiting_.empty(); });
      if (stopped_) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    next.second(ask_peers(next.first));
  }
}

StatusOr<PageAnswer> PageAsker::ask_peers(const GetPageRequest& request) {
  Status first = error_peer_down("there is no peer to be asked");
  for (size_t i = 0; i < peers_.size(); ++i) {
    auto answers = peers_[i]->get({request.page}, request.at_least, request.at_most);
    Status status = answers.status();
    if (status.ok()) status = answers->front().status();
    if (status.ok()) status = verify_page(answers->front()->page->bytes, request.page);
    if (status.ok()) return std::move(answers->front());
    if (i == 0) first = status;
  }
  return first;
}

}  // namespace strata::storenode
