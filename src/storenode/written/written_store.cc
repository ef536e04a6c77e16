#include "storenode/written/written_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/aligned.h"
#include "base/assert.h"
#include "base/page_name.h"
#include "page/page.h"
#include "pagefile/local_page_source.h"

namespace strata::storenode {
namespace {

std::string pages_folder(const WrittenStoreOptions& options) {
  return options.directory + "/pages";
}

Status no_session() {
  return error_no_session(
      "this storage node has no such write session: it was restarted, or another one was begun");
}

// Fenced is the word for writers that were taken over; what this node's files say is of it alone.
Status of_this_node(const Status& status) {
  return ends_right(status) ? error_peer_down(std::string(status.message())) : status;
}

// Of a space's room, what growing made beyond the need (LocalPageSource). A copy that asked for all
// of it as its need would get more ahead of that, and the next copy of the copy more again.
uint32_t room_ahead(uint32_t pages) { return std::clamp(pages / 8, kGrowPagesMin, kGrowPagesMax); }

Status verify_all(const PageId* ids, uint32_t count, const char* pages) {
  for (uint32_t i = 0; i < count; ++i) {
    const Status sound = verify_page(pages + size_t{i} * kPageBytes, ids[i]);
    if (!sound.ok())
      return error_invalid_argument(name_of(ids[i]) +
                                    " arrived damaged: " + std::string(sound.message()));
    if (i != 0 && ids[i - 1] >= ids[i])
      return error_invalid_argument("pages are not in the order of their ids");
  }
  return ok_status();
}

}  // namespace

// One operation of the session of now: begin() waits for it.
class WrittenStore::InSession {
 public:
  InSession(WrittenStore* store, const proto::Writer& writer) : store_(store) {
    const MutexLock lock(store_->mutex_);
    if (writer.session == 0) {  // WS1; its epoch is of another stream than the session's
      const bool begun = store_->session_.session != 0 && !store_->beginning_;
      if (!store_->options_.of_several || !begun) status_ = no_session();
    } else if (writer.epoch < store_->marked_epoch_) {
      status_ =
          error_fenced("epoch " + std::to_string(writer.epoch.value) + " was taken over by epoch " +
                       std::to_string(store_->marked_epoch_.value));
    } else if (store_->session_ != writer || store_->beginning_) {
      status_ = no_session();
    }
    if (status_.ok())
      ++store_->running_;
    else
      store_->counters_.refused.fetch_add(1, std::memory_order_relaxed);
  }
  ~InSession() {
    if (!status_.ok()) return;
    const MutexLock lock(store_->mutex_);
    STRATA_ASSERT(store_->running_ != 0);
    if (--store_->running_ == 0) store_->changed_.notify_all();
  }
  InSession(const InSession&) = delete;
  InSession& operator=(const InSession&) = delete;
  [[nodiscard]] const Status& status() const noexcept { return status_; }

 private:
  WrittenStore* const store_;
  Status status_;
};

WrittenStore::WrittenStore(const WrittenStoreOptions& options, StoreMark mark)
    : options_(options), number_(mark.number), marked_epoch_(mark.epoch) {}

WrittenStore::~WrittenStore() = default;

StatusOr<std::unique_ptr<WrittenStore>> WrittenStore::open(const WrittenStoreOptions& options) {
  STRATA_ASSERT(options.number != 0);
  STRATA_RETURN_IF_ERROR(options.files->make_directory(options.directory));
  StatusOr<StoreMark> mark = read_store_mark(options.files, options.directory);
  if (is_not_found(mark.status())) {
    STRATA_ASSIGN_OR_RETURN(const bool has_pages, options.files->exists(pages_folder(options)));
    if (has_pages)
      return error_corruption(options.directory +
                              " has pages, but no file 'store' that says which they are (SK2); "
                              "remove the folder: they are then copied from other nodes");
    mark = StoreMark{options.number, Epoch{}};
    STRATA_RETURN_IF_ERROR(write_store_mark(options.files, options.directory, *mark));
  }
  if (!mark.ok()) return mark.status();
  auto store = std::unique_ptr<WrittenStore>(new WrittenStore(options, *mark));
  LocalPageSourceOptions pages;
  pages.directory = pages_folder(options);
  pages.direct_io = options.direct_io;
  pages.open_files = options.open_files_max;
  STRATA_ASSIGN_OR_RETURN(store->source_, open_local_page_source(options.files, pages));
  STRATA_RETURN_IF_ERROR(options.files->sync_directory(options.directory));
  const std::string above = options.directory.substr(0, options.directory.rfind('/'));
  if (!above.empty()) STRATA_RETURN_IF_ERROR(options.files->sync_directory(above));
  return store;
}

// --- sessions ---

// WS1, WS3
Status WrittenStore::refuse_begin(const proto::Writer& writer) const {
  if (writer.epoch < marked_epoch_)
    return error_fenced("epoch " + std::to_string(writer.epoch.value) +
                        " was taken over by epoch " + std::to_string(marked_epoch_.value));
  if (writer.epoch == session_.epoch && writer.session <= session_.session)
    return error_no_session("a later write session has begun");
  return ok_status();
}

Status WrittenStore::note_epoch(Epoch epoch) {
  {
    const MutexLock lock(mutex_);
    if (epoch <= marked_epoch_) return ok_status();
  }
  return write_store_mark(options_.files, options_.directory, {number_, epoch});
}

StatusOr<proto::BeginWritesReply> WrittenStore::begin(const proto::Writer& writer,
                                                      uint64_t continues) {
  proto::BeginWritesReply reply{number_, false};
  {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return !beginning_; });
    STRATA_RETURN_IF_ERROR(refuse_begin(writer));
    // Also when the answers to some beginnings in between were lost.
    reply.continued = continues != 0 && session_.epoch == writer.epoch &&
                      session_.stream == writer.stream && continues >= chain_first_ &&
                      continues <= session_.session;
    beginning_ = true;
    changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return running_ == 0; });
  }
  const Status noted = note_epoch(writer.epoch);  // WS3: before anything is written
  {
    const MutexLock lock(mutex_);
    STRATA_ASSERT(beginning_ && running_ == 0);  // WS1
    beginning_ = false;
    if (noted.ok()) {
      STRATA_ASSERT(writer.epoch >= marked_epoch_);  // WS3
      marked_epoch_ = writer.epoch;
      session_ = writer;
      if (!reply.continued) chain_first_ = writer.session;
      STRATA_ASSERT(chain_first_ <= session_.session);
      created_.clear();
      deleted_.clear();
    }
  }
  changed_.notify_all();
  STRATA_RETURN_IF_ERROR(noted);
  counters_.sessions.fetch_add(1, std::memory_order_relaxed);
  return reply;
}

proto::Writer WrittenStore::session() const {
  const MutexLock lock(mutex_);
  return session_;
}

Status WrittenStore::check_session(Epoch epoch, uint64_t session) const {
  if (session == 0) return ok_status();
  const MutexLock lock(mutex_);
  return session_.epoch == epoch && session_.session == session && !beginning_ ? ok_status()
                                                                               : no_session();
}

// --- what compute writes ---

Status WrittenStore::write(const proto::Writer& writer, const PageId* ids, uint32_t count,
                           const char* pages) {
  STRATA_ASSERT(count <= kWriteBatchPages);
  STRATA_RETURN_IF_ERROR(verify_all(ids, count, pages));  // WS6
  const InSession in_session(this, writer);
  STRATA_RETURN_IF_ERROR(in_session.status());
  const BusySet<PageId>::Hold hold(&pages_, ids, count);  // WS4
  bool ok[kWriteBatchPages] = {};
  const Status status = source_->write_batch(ids, count, pages, ok);
  counters_.write_calls.fetch_add(1, std::memory_order_relaxed);
  counters_.pages_written.fetch_add(static_cast<uint64_t>(std::count(ok, ok + count, true)),
                                    std::memory_order_relaxed);
  return of_this_node(status);
}

Status WrittenStore::sync(const proto::Writer& writer) {
  const InSession in_session(this, writer);
  STRATA_RETURN_IF_ERROR(in_session.status());
  counters_.syncs.fetch_add(1, std::memory_order_relaxed);
  const Status status = source_->sync();
  const MutexLock lock(mutex_);
  trouble_ = status;  // until one ends well (LP3)
  return of_this_node(status);
}

Status WrittenStore::create_space(const proto::Writer& writer, SpaceId space) {
  const InSession in_session(this, writer);
  STRATA_RETURN_IF_ERROR(in_session.status());
  const BusySet<SpaceId>::Hold hold(&spaces_, &space, 1);
  {
    const MutexLock lock(mutex_);
    created_.insert(space);
    deleted_.erase(space);
  }
  return of_this_node(source_->create_space(space));
}

Status WrittenStore::delete_space(const proto::Writer& writer, SpaceId space) {
  const InSession in_session(this, writer);
  STRATA_RETURN_IF_ERROR(in_session.status());
  const BusySet<SpaceId>::Hold hold(&spaces_, &space, 1);
  {
    const MutexLock lock(mutex_);
    deleted_.insert(space);
    created_.erase(space);
  }
  return of_this_node(source_->delete_space(space));
}

Status WrittenStore::grow_space(const proto::Writer& writer, SpaceId space, uint32_t pages) {
  const InSession in_session(this, writer);
  STRATA_RETURN_IF_ERROR(in_session.status());
  return of_this_node(source_->grow_space(space, pages));
}

// --- a copy of another node's pages ---

StatusOr<bool> WrittenStore::prepare_space(const proto::Writer& writer, SpaceId space,
                                           uint32_t pages) {
  const InSession in_session(this, writer);
  STRATA_RETURN_IF_ERROR(in_session.status());
  const BusySet<SpaceId>::Hold hold(&spaces_, &space, 1);
  {
    const MutexLock lock(mutex_);
    if (deleted_.count(space) != 0) return false;
  }
  STRATA_RETURN_IF_ERROR(of_this_node(source_->create_space(space)));
  if (pages > room_ahead(pages))
    STRATA_RETURN_IF_ERROR(of_this_node(source_->grow_space(space, pages - room_ahead(pages))));
  return true;
}

StatusOr<uint32_t> WrittenStore::take(const proto::Writer& writer, const PageId* ids,
                                      uint32_t count, const char* pages) {
  STRATA_ASSERT(count <= kReadBatchPages);
  STRATA_RETURN_IF_ERROR(verify_all(ids, count, pages));
  const InSession in_session(this, writer);
  STRATA_RETURN_IF_ERROR(in_session.status());
  const BusySet<PageId>::Hold hold(&pages_, ids, count);
  const AlignedBytes own(size_t{kReadBatchPages} * kPageBytes);
  const AlignedBytes newer(size_t{kReadBatchPages} * kPageBytes);
  Status results[kReadBatchPages];
  source_->read_batch(ids, count, own.get(), results);
  PageId newer_ids[kReadBatchPages];
  uint32_t taken = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const size_t at = size_t{i} * kPageBytes;
    if (!results[i].ok() && !is_not_found(results[i]) && !is_corruption(results[i]))
      return of_this_node(results[i]);
    if (results[i].ok() && header_of(own.get() + at)->llsn >= header_of(pages + at)->llsn) continue;
    std::memcpy(newer.get() + size_t{taken} * kPageBytes, pages + at, kPageBytes);
    STRATA_ASSERT(taken <= i);
    newer_ids[taken++] = ids[i];
  }
  counters_.pages_kept.fetch_add(count - taken, std::memory_order_relaxed);
  if (taken == 0) return 0u;
  bool ok[kReadBatchPages] = {};
  const Status status = source_->write_batch(newer_ids, taken, newer.get(), ok);
  if (!status.ok()) {
    const MutexLock lock(mutex_);  // WS5: its file went away in between
    if (is_not_found(status) && deleted_.count(SpaceId{ids[0].space}) != 0) return 0u;
    return of_this_node(status);
  }
  counters_.pages_taken.fetch_add(taken, std::memory_order_relaxed);
  return taken;
}

Status WrittenStore::drop_spaces_but(const proto::Writer& writer, const std::set<SpaceId>& kept) {
  const InSession in_session(this, writer);
  STRATA_RETURN_IF_ERROR(in_session.status());
  STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> here, source_->list_spaces());
  for (const SpaceId space : here) {
    if (kept.count(space) != 0) continue;
    const BusySet<SpaceId>::Hold hold(&spaces_, &space, 1);
    {
      const MutexLock lock(mutex_);
      if (created_.count(space) != 0) continue;  // WS5
    }
    STRATA_RETURN_IF_ERROR(source_->delete_space(space));
  }
  return ok_status();
}

// --- reading ---

void WrittenStore::read(const PageId* ids, uint32_t count, char* pages, Status* results) {
  STRATA_ASSERT(count <= kReadBatchPages);
  const BusySet<PageId>::Hold hold(&pages_, ids, count);  // WS4
  source_->read_batch(ids, count, pages, results);
  counters_.pages_read.fetch_add(count, std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i) {
    results[i] = of_this_node(results[i]);
    if (is_not_found(results[i])) counters_.pages_not_found.fetch_add(1, std::memory_order_relaxed);
    if (is_corruption(results[i])) counters_.pages_damaged.fetch_add(1, std::memory_order_relaxed);
  }
}

StatusOr<std::vector<proto::SpaceSize>> WrittenStore::list_sizes() {
  STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> spaces, source_->list_spaces());
  std::vector<proto::SpaceSize> sizes;
  for (const SpaceId space : spaces) {
    const StatusOr<uint32_t> pages = source_->space_pages(space);
    if (is_not_found(pages.status())) continue;  // deleted meanwhile
    if (!pages.ok()) return pages.status();
    sizes.push_back({space, *pages});
  }
  return sizes;
}

Status WrittenStore::trouble() const {
  const MutexLock lock(mutex_);
  return trouble_;
}

}  // namespace strata::storenode
