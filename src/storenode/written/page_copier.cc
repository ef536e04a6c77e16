#include "storenode/written/page_copier.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/aligned.h"
#include "base/assert.h"
#include "base/fault.h"
#include "page/page.h"

namespace strata::storenode {
namespace {

constexpr uint32_t kPagesAtOnce = 64;  // of one call

}  // namespace

PageCopier::~PageCopier() { stop(); }

void PageCopier::stop() {
  std::thread thread;
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    stop_ = true;
    thread.swap(thread_);
  }
  if (thread.joinable()) thread.join();
}

proto::CopyPagesReply PageCopier::order(const proto::CopyPagesRequest& request) {
  const MutexLock lock(mutex_);
  if (stopped_)
    return {proto::CopyPagesReply::State::kFailed, 0, 0, error_peer_down("this node stops")};
  if (last_ == request) return told_;
  if (running_) {  // of an earlier session: it ends soon
    stop_ = true;
    return {};
  }
  if (thread_.joinable()) thread_.join();  // it has ended
  STRATA_ASSERT(told_.state != proto::CopyPagesReply::State::kRunning || last_.writer.session == 0);
  last_ = request;
  told_ = {};
  stop_ = false;
  running_ = true;
  thread_ = std::thread([this, request] { main(request); });
  return told_;
}

proto::CopyPagesReply PageCopier::progress() const {
  const MutexLock lock(mutex_);
  return told_;
}

void PageCopier::main(const proto::CopyPagesRequest& request) {
  const Status status = run(request);
  const MutexLock lock(mutex_);
  STRATA_ASSERT(running_ && last_ == request);  // one at a time
  told_.state =
      status.ok() ? proto::CopyPagesReply::State::kDone : proto::CopyPagesReply::State::kFailed;
  told_.why = status;
  running_ = false;
}

// CW1: spaces that are made here meanwhile are not in the list; WS5 keeps them.
Status PageCopier::run(const proto::CopyPagesRequest& request) {
  PeerPages peer(secret_,
                 {request.peer, request.writer.stream, request.writer.epoch, request.peer_session});
  STRATA_ASSIGN_OR_RETURN(const std::vector<proto::SpaceSize> spaces, peer.list());
  // In its session still, so it was when it told its spaces: not a new disk in the old place.
  STRATA_RETURN_IF_ERROR(peer.get({PageId{kSystemSpace, 0}}).status());
  std::set<SpaceId> kept;
  std::vector<proto::SpaceSize> wanted;
  for (const proto::SpaceSize& space : spaces) {  // CW3
    kept.insert(space.space);
    STRATA_ASSIGN_OR_RETURN(const bool is_wanted,
                            store_->prepare_space(request.writer, space.space, space.pages));
    if (is_wanted) wanted.push_back(space);
  }
  for (const proto::SpaceSize& space : wanted)
    STRATA_RETURN_IF_ERROR(copy_space(&peer, request.writer, space));
  STRATA_RETURN_IF_ERROR(store_->drop_spaces_but(request.writer, kept));
  return store_->sync(request.writer);
}

Status PageCopier::copy_space(PeerPages* peer, const proto::Writer& writer,
                              const proto::SpaceSize& space) {
  for (uint32_t begin = 0; begin < space.pages; begin += kPagesAtOnce) {
    if (stop_) return error_peer_down("the copy was given up");
    std::vector<PageId> ids;
    for (uint32_t i = begin; i < space.pages && i < begin + kPagesAtOnce; ++i)
      ids.push_back({space.space.value, i});
    STRATA_RETURN_IF_ERROR(copy_pages(peer, writer, ids));
    if (fault(FaultPoint::node_copy_pages)) return error_peer_down("fault point node_copy_pages");
  }
  return ok_status();
}

Status PageCopier::copy_pages(PeerPages* peer, const proto::Writer& writer,
                              const std::vector<PageId>& ids) {
  STRATA_ASSIGN_OR_RETURN(const std::vector<proto::PageGot> got, peer->get(ids));
  std::vector<PageId> there;
  std::vector<proto::PageGot> pages;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (is_not_found(got[i].status)) continue;  // never written, or its space went away
    STRATA_RETURN_IF_ERROR(got[i].status);
    there.push_back(ids[i]);
    pages.push_back(got[i]);
  }
  return take(writer, there, pages);
}

Status PageCopier::take(const proto::Writer& writer, const std::vector<PageId>& ids,
                        const std::vector<proto::PageGot>& got) {
  STRATA_ASSERT(ids.size() == got.size());
  const AlignedBytes pages(size_t{kReadBatchPages} * kPageBytes);
  for (size_t begin = 0; begin < ids.size(); begin += kReadBatchPages) {
    const auto count = static_cast<uint32_t>(std::min<size_t>(kReadBatchPages, ids.size() - begin));
    for (uint32_t i = 0; i < count; ++i)
      std::memcpy(pages.get() + size_t{i} * kPageBytes, got[begin + i].bytes.data(), kPageBytes);
    STRATA_ASSIGN_OR_RETURN(const uint32_t taken,
                            store_->take(writer, ids.data() + begin, count, pages.get()));
    STRATA_ASSERT(taken <= count);
    const MutexLock lock(mutex_);
    told_.pages_seen += count;
    told_.pages_taken += taken;
  }
  return ok_status();
}

}  // namespace strata::storenode
