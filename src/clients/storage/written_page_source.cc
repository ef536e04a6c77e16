#include "clients/storage/written_page_source.h"

#include <algorithm>
#include <utility>

#include "base/aligned.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/page_name.h"
#include "base/wait_interrupt.h"
#include "clients/storage/page_replies.h"
#include "page/page.h"
#include "proto/methods.h"

namespace strata::clients {

namespace {

constexpr uint64_t kPauseUs = 20'000;

}  // namespace

// What one round of asking all nodes in sync for a page has brought.
struct WrittenPageSource::Attempt {
  std::vector<WrittenNodes::Reader> to_repair;  // their copies are damaged, or old
  Status error;                                 // the worst
  bool unreachable = false;                     // a node may answer later
};

WrittenPageSource::WrittenPageSource(WrittenPagesOptions options)
    : options_(std::move(options)), given_up_(options_.given_up_max) {}

StatusOr<std::unique_ptr<WrittenPageSource>> WrittenPageSource::open(
    const transport::World& world, const transport::Secret& secret, WrittenPagesOptions options,
    InSyncSet* in_sync) {
  auto source = std::unique_ptr<WrittenPageSource>(new WrittenPageSource(std::move(options)));
  STRATA_ASSIGN_OR_RETURN(source->nodes_,
                          WrittenNodes::open(world, secret, source->options_.nodes, in_sync));
  return source;
}

WrittenPageSource::~WrittenPageSource() {
  STRATA_ASSERT(batches_under_way_.load() == 0);  // they speak of this
  stop();
}

void WrittenPageSource::stop() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    stop_changed_.notify_all();
  }
  if (nodes_ != nullptr) nodes_->stop();
}

bool WrittenPageSource::may_try_again(uint64_t deadline_us) {
  MutexLock lock(mutex_);
  if (stop_changed_.wait_for_us(lock, kPauseUs,
                                [this]() STRATA_REQUIRES(mutex_) { return stopped_; }))
    return false;
  return monotonic_us() < deadline_us;
}

// --- writing ---

Status WrittenPageSource::write(PageId id, const char* page) {
  bool ok = false;
  return write_batch(&id, 1, page, &ok);
}

Status WrittenPageSource::write_batch(const PageId* ids, uint32_t count, const char* pages,
                                      bool* ok) {
  STRATA_ASSERT(count <= proto::kWritePagesMax);
  std::fill(ok, ok + count, false);
  counters_.write_calls.fetch_add(1, std::memory_order_relaxed);
  const std::vector<PageId> all(ids, ids + count);
  const Status status = nodes_->to_all(proto::kWritePages, [&](const proto::Writer& writer) {
    return proto::encode(
        proto::WritePagesRequest{writer, all, Bytes(pages, size_t{count} * kPageBytes)});
  });
  if (!status.ok()) {
    counters_.write_errors.fetch_add(1, std::memory_order_relaxed);
    return status;
  }
  for (uint32_t i = 0; i < count; ++i)
    given_up_.note(ids[i], Llsn{header_of(pages + size_t{i} * kPageBytes)->llsn});
  counters_.pages_written.fetch_add(count, std::memory_order_relaxed);
  std::fill(ok, ok + count, true);
  return ok_status();
}

// --- reading ---

// A page that is not known exactly may be of any age: that it was written to every node in sync is
// what WN1 says.
Llsn WrittenPageSource::needed(PageId id, Llsn at_least) const {
  const GivenUpPages::Found found = given_up_.find(id);
  return found.exact ? std::max(found.llsn, at_least) : at_least;
}

Status WrittenPageSource::read(PageId id, Llsn at_least, char* page) {
  const Llsn from = needed(id, at_least);
  const uint64_t begin_us = monotonic_us();
  counters_.pages.fetch_add(1, std::memory_order_relaxed);
  for (;;) {
    Attempt attempt;
    const Status status = read_round(id, from, page, &attempt);
    if (status.ok() || is_not_found(status)) {
      counters_.wait_us.fetch_add(monotonic_us() - begin_us, std::memory_order_relaxed);
      return status;
    }
    if (ends_right(status) || is_interrupted(status) || !attempt.unreachable) return status;
    STRATA_RETURN_IF_ERROR(nodes_->ended());
    if (!may_try_again(begin_us + options_.read_timeout_us)) return status;
    if (is_interrupted_now(WaitInterrupt::current())) return error_interrupted();
  }
}

// WP2
Status WrittenPageSource::read_round(PageId id, Llsn from, char* page, Attempt* attempt) {
  const std::vector<WrittenNodes::Reader> readers = nodes_->readers();
  attempt->unreachable = readers.empty();
  attempt->error = error_peer_down("no storage node is in sync");
  bool first = true;
  for (const WrittenNodes::Reader& reader : readers) {
    Status status = read_from(reader, id, from, page);
    if (is_not_found(status) && from.is_zero()) return status;
    if (status.ok()) {
      if (!first) nodes_->prefer(reader);
      repair(*attempt, id, page);
      return status;
    }
    if (ends_right(status) || is_interrupted(status)) return status;
    counters_.retries.fetch_add(1, std::memory_order_relaxed);
    if (is_not_found(status))
      status = error_corruption(name_of(id) + " is missing on storage node " +
                                WrittenNodes::address(reader));
    if (is_corruption(status)) {
      counters_.bad_pages.fetch_add(1, std::memory_order_relaxed);
      attempt->to_repair.push_back(reader);
    } else {
      nodes_->suspect(reader);
      attempt->unreachable = true;
    }
    if (first || is_corruption(status)) attempt->error = status;
    first = false;
  }
  return attempt->error;
}

// kUnavailable: the node did not answer; kDataLoss: what it has is damaged, or old.
Status WrittenPageSource::read_from(const WrittenNodes::Reader& reader, PageId id, Llsn from,
                                    char* page) {
  proto::GetPagesRequest request{options_.nodes.stream, options_.nodes.epoch, 0, {}, {},
                                 reader.session};
  request.pages.push_back({id, Llsn{}, Llsn{UINT64_MAX}});
  std::string bytes;
  STRATA_ASSIGN_OR_RETURN(const proto::GetPagesReplyView reply, ask(reader, request, &bytes));
  bool bad = false;
  STRATA_RETURN_IF_ERROR(
      take_page(request.pages[0], reply.pages[0], WrittenNodes::address(reader), page, &bad));
  if (Llsn{header_of(page)->llsn} >= from) return ok_status();
  return error_corruption(name_of(id) + " on storage node " + WrittenNodes::address(reader) +
                          " is an old version, of llsn " + std::to_string(header_of(page)->llsn) +
                          " where " + std::to_string(from.value) + " was written: it lost a write");
}

// Nobody else writes the page now: who reads it has it in no frame that could be written back.
void WrittenPageSource::repair(const Attempt& attempt, PageId id, const char* page) {
  for (const WrittenNodes::Reader& reader : attempt.to_repair) {
    const Status done =
        nodes_->to_one(reader, proto::kWritePages, [&](const proto::Writer& writer) {
          return proto::encode(proto::WritePagesRequest{writer, {id}, Bytes(page, kPageBytes)});
        });
    if (done.ok()) counters_.repaired.fetch_add(1, std::memory_order_relaxed);
  }
}

// --- batches ---

proto::GetPagesRequest WrittenPageSource::request_of(const Batch& batch, uint64_t session) const {
  proto::GetPagesRequest request{options_.nodes.stream, options_.nodes.epoch, 0, {}, {}, session};
  for (uint32_t i = 0; i < batch.count; ++i)
    request.pages.push_back({batch.ids[i], needed(batch.ids[i], Llsn{}), Llsn{UINT64_MAX}});
  return request;
}

void WrittenPageSource::take_batch(const WrittenNodes::Reader& reader,
                                   const proto::GetPagesRequest& request,
                                   const StatusOr<proto::GetPagesReplyView>& reply,
                                   const Batch& batch) {
  if (!reply.ok()) return std::fill(batch.results, batch.results + batch.count, reply.status());
  const std::string node = WrittenNodes::address(reader);
  for (uint32_t i = 0; i < batch.count; ++i) {
    bool bad = false;
    char* const page = batch.pages + size_t{i} * kPageBytes;
    Status& result = batch.results[i];
    result = take_page(request.pages[i], reply->pages[i], node, page, &bad);
    if (is_not_found(result) && !request.pages[i].at_least.is_zero())
      result = error_corruption(name_of(batch.ids[i]) + " is missing on storage node " + node);
    else if (result.ok() && Llsn{header_of(page)->llsn} < request.pages[i].at_least)
      result = error_corruption(name_of(batch.ids[i]) + " on storage node " + node + " is old");
  }
  counters_.pages.fetch_add(batch.count, std::memory_order_relaxed);
  counters_.read_ahead.fetch_add(batch.count, std::memory_order_relaxed);
  counters_.wait_us.fetch_add(monotonic_us() - batch.begin_us, std::memory_order_relaxed);
}

void WrittenPageSource::read_batch(const PageId* ids, uint32_t count, char* pages,
                                   Status* results) {
  const Batch batch{ids, count, pages, results, monotonic_us()};
  const std::vector<WrittenNodes::Reader> readers = nodes_->readers();
  if (readers.empty())
    return std::fill(results, results + count, error_peer_down("no storage node is in sync"));
  const proto::GetPagesRequest request = request_of(batch, readers[0].session);
  std::string bytes;
  take_batch(readers[0], request, ask(readers[0], request, &bytes), batch);
}

// Keeps the node, and its channel with it: a channel that goes drops what it was asked.
struct WrittenPageSource::BatchUnderWay {
  WrittenNodes::Reader reader;
  proto::GetPagesRequest request;
  Batch batch;
  ReadBatchDone done;
};

void WrittenPageSource::start_read_batch(const PageId* ids, uint32_t count, char* pages,
                                         Status* results, ReadBatchDone done) {
  const Batch batch{ids, count, pages, results, monotonic_us()};
  const std::vector<WrittenNodes::Reader> readers = nodes_->readers();
  if (readers.empty()) {
    std::fill(results, results + count, error_peer_down("no storage node is in sync"));
    return done();
  }
  auto begun = std::make_unique<BatchUnderWay>(
      BatchUnderWay{readers[0], request_of(batch, readers[0].session), batch, std::move(done)});
  counters_.calls.fetch_add(1, std::memory_order_relaxed);
  batches_under_way_.fetch_add(1);
  std::string payload = proto::encode(begun->request);
  nodes_->start_call(
      readers[0].node, proto::kGetPages, std::move(payload), options_.call_timeout_us,
      [this, under_way = std::move(begun)](const transport::Reply& answer) mutable {
        const auto reply = answer.status.ok() ? view_reply(under_way->batch.count, answer.payload)
                                              : StatusOr<proto::GetPagesReplyView>(answer.status);
        take_batch(under_way->reader, under_way->request, reply, under_way->batch);
        ReadBatchDone ended = std::move(under_way->done);
        under_way.reset();
        batches_under_way_.fetch_sub(1);
        ended();  // after it this, and the world, may be gone
      });
}

// As many pages as were asked for.
StatusOr<proto::GetPagesReplyView> WrittenPageSource::view_reply(size_t pages, Bytes bytes) {
  STRATA_ASSIGN_OR_RETURN(proto::GetPagesReplyView reply, proto::view_get_pages_reply(bytes));
  if (reply.pages.size() != pages) return error_corruption("a reply for another number of pages");
  return reply;
}

StatusOr<proto::GetPagesReplyView> WrittenPageSource::ask(const WrittenNodes::Reader& reader,
                                                          const proto::GetPagesRequest& request,
                                                          std::string* bytes) {
  transport::BlockingReply answer;
  answer.payload.resize(request.pages.size() * (kPageBytes + 64));
  counters_.calls.fetch_add(1, std::memory_order_relaxed);
  STRATA_RETURN_IF_ERROR(nodes_->call(reader.node, proto::kGetPages, proto::encode(request),
                                      options_.call_timeout_us, &answer));
  *bytes = std::move(answer.payload);
  return view_reply(request.pages.size(), *bytes);
}

// --- spaces ---

Status WrittenPageSource::about_space(uint16_t method, SpaceId space, uint32_t pages) {
  const uint64_t deadline_us = monotonic_us() + options_.read_timeout_us;
  for (;;) {
    const Status status = nodes_->to_all(method, [&](const proto::Writer& writer) {
      return proto::encode(proto::SpaceRequest{writer, space, pages});
    });
    // Somebody's statement waits: too few nodes are in sync for a moment, mostly.
    if (!may_pass(status) || !may_try_again(deadline_us)) return status;
  }
}

Status WrittenPageSource::create_space(SpaceId space) {
  return about_space(proto::kCreateSpace, space, 0);
}

Status WrittenPageSource::delete_space(SpaceId space) {
  return about_space(proto::kDeleteSpace, space, 0);
}

Status WrittenPageSource::grow_space(SpaceId space, uint32_t pages) {
  return about_space(proto::kGrowSpace, space, pages);
}

StatusOr<std::vector<SpaceId>> WrittenPageSource::list_spaces() {
  const uint64_t deadline_us = monotonic_us() + options_.read_timeout_us;
  Status error = error_peer_down("no storage node is in sync");
  const AlignedBytes page(kPageBytes);
  for (;;) {
    for (const WrittenNodes::Reader& reader : nodes_->readers()) {
      auto spaces = nodes_->list_spaces_of(reader.node);
      // In its session still, so it was when it told its spaces.
      Status status = spaces.status();
      if (status.ok()) status = read_from(reader, PageId{kSystemSpace, 0}, Llsn{}, page.get());
      if (spaces.ok() && (status.ok() || is_not_found(status) || is_corruption(status)))
        return spaces;
      if (ends_right(status)) return status;
      nodes_->suspect(reader);
      error = status;
    }
    STRATA_RETURN_IF_ERROR(nodes_->ended());
    if (!may_try_again(deadline_us)) return error;
  }
}

StatusOr<bool> WrittenPageSource::space_exists(SpaceId space) {
  STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> all, list_spaces());
  return std::find(all.begin(), all.end(), space) != all.end();
}

}  // namespace strata::clients
