#include "clients/storage/storage_page_source.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "base/aligned.h"
#include "base/assert.h"
#include "base/clock.h"
#include "page/page.h"
#include "proto/methods.h"

namespace strata::clients {

namespace {

constexpr size_t kShards = 64;
constexpr uint64_t kPauseUs = 20'000;

// Another node, or the same one later, may do better.
bool may_pass(const Status& status) {
  return is_peer_down(status) || status.code() == StatusCode::kDeadlineExceeded;
}

// SP4: a timeout that begins anew whenever less log is left to replay than ever before.
class Patience {
 public:
  explicit Patience(uint64_t timeout_us)
      : timeout_us_(timeout_us), deadline_us_(monotonic_us() + timeout_us) {}
  [[nodiscard]] uint64_t deadline_us() const noexcept { return deadline_us_; }
  void note(uint64_t backlog_bytes) noexcept {
    if (backlog_bytes < least_backlog_) deadline_us_ = monotonic_us() + timeout_us_;
    least_backlog_ = std::min(least_backlog_, backlog_bytes);
  }

 private:
  const uint64_t timeout_us_;
  uint64_t deadline_us_;
  uint64_t least_backlog_ = UINT64_MAX;
};

std::string name_of(PageId id) {
  return "page " + std::to_string(id.space) + ":" + std::to_string(id.number);
}

}  // namespace

// Pages given up, the oldest entries forgotten first: for those the newest llsn forgotten stands.
struct StoragePageSource::Shard {
  mutable Mutex mutex{LatchRank::kLeaf};
  std::unordered_map<PageId, Llsn> given_up;  // guarded by mutex
  std::deque<PageId> order;                   // guarded by mutex; one entry per key of given_up
  Llsn forgotten;                             // guarded by mutex
};

StoragePageSource::StoragePageSource(const transport::Secret& secret, StoragePagesOptions options)
    : options_(std::move(options)), shards_(new Shard[kShards]) {
  STRATA_ASSERT(!options_.addresses.empty());
  for (const transport::Address& address : options_.addresses)
    nodes_.push_back(
        std::make_unique<transport::BlockingChannel>(secret, address, options_.channel));
}

StoragePageSource::~StoragePageSource() = default;

// --- what a page must not be older than (SP1) ---

Status StoragePageSource::write(PageId id, const char* page) {
  const Llsn llsn{header_of(page)->llsn};
  Shard& shard = shards_[std::hash<PageId>{}(id) % kShards];
  const MutexLock lock(shard.mutex);
  const auto [it, is_new] = shard.given_up.try_emplace(id, llsn);
  it->second = std::max(it->second, llsn);
  if (!is_new) return ok_status();
  shard.order.push_back(id);
  if (shard.order.size() > options_.given_up_max / kShards) {
    const auto oldest = shard.given_up.find(shard.order.front());
    shard.forgotten = std::max(shard.forgotten, oldest->second);
    shard.given_up.erase(oldest);
    shard.order.pop_front();
  }
  return ok_status();
}

Llsn StoragePageSource::needed(PageId id, Llsn at_least) const {
  const Llsn begin{begin_.load(std::memory_order_acquire)};
  const Shard& shard = shards_[std::hash<PageId>{}(id) % kShards];
  const MutexLock lock(shard.mutex);
  const auto found = shard.given_up.find(id);
  if (found != shard.given_up.end()) return std::max(found->second, at_least);
  return std::max({shard.forgotten, begin, at_least});
}

void StoragePageSource::begin_at(Llsn last) { begin_.store(last.value, std::memory_order_release); }

// --- reading ---

void StoragePageSource::stop() {
  if (options_.gate != nullptr) options_.gate->stop();
  const MutexLock lock(mutex_);
  stopped_ = true;
  stop_changed_.notify_all();
}

bool StoragePageSource::may_try_again(uint64_t deadline_us) {
  MutexLock lock(mutex_);
  if (stop_changed_.wait_for_us(lock, kPauseUs, [this] { return stopped_; })) return false;
  return monotonic_us() < deadline_us;
}

Status StoragePageSource::read(PageId id, Llsn at_least, char* page) {
  const Llsn from = needed(id, at_least);
  const uint64_t begin_us = monotonic_us();
  Patience patience(options_.read_timeout_us);
  counters_.pages.fetch_add(1, std::memory_order_relaxed);
  Status first_error;
  bool another_round = false;  // some node may do better later
  for (size_t tries = 0;; ++tries) {
    const size_t node = (preferred_.load(std::memory_order_relaxed) + tries) % nodes_.size();
    const Status status = read_from(node, id, from, options_.wait_us, patience.deadline_us(), page);
    if (status.ok() || is_not_found(status)) {
      if (tries > 0) preferred_.store(node, std::memory_order_relaxed);
      counters_.wait_us.fetch_add(monotonic_us() - begin_us, std::memory_order_relaxed);
      return status;
    }
    if (is_fenced(status)) return status;
    if (first_error.ok() || is_corruption(status)) first_error = status;
    counters_.retries.fetch_add(1, std::memory_order_relaxed);
    another_round |= may_pass(status);
    if ((tries + 1) % nodes_.size() != 0) continue;
    patience.note(backlog_bytes_.load(std::memory_order_relaxed));
    if (!another_round || !may_try_again(patience.deadline_us())) return first_error;
    another_round = false;
  }
}

Status StoragePageSource::read_from(size_t node, PageId id, Llsn at_least, uint32_t wait_us,
                                    uint64_t deadline_us, char* page) {
  proto::GetPagesRequest request{options_.stream, options_.epoch, wait_us, {}, {}};
  request.pages.push_back({id, at_least, Llsn{UINT64_MAX}});
  STRATA_ASSIGN_OR_RETURN(const proto::GetPagesReply reply, ask(node, request, deadline_us));
  return take(node, id, reply.pages[0], page);
}

void StoragePageSource::read_batch(const PageId* ids, uint32_t count, char* pages,
                                   Status* results) {
  const uint64_t begin_us = monotonic_us();
  const size_t node = preferred_.load(std::memory_order_relaxed);
  proto::GetPagesRequest request{
      options_.stream, options_.epoch, options_.read_ahead_wait_us, {}, {}};
  request.pages.reserve(count);
  for (uint32_t i = 0; i < count; ++i)
    request.pages.push_back({ids[i], needed(ids[i], Llsn{}), Llsn{UINT64_MAX}});
  const StatusOr<proto::GetPagesReply> reply =
      ask(node, request, begin_us + options_.read_timeout_us);
  if (!reply.ok()) return std::fill(results, results + count, reply.status());
  for (uint32_t i = 0; i < count; ++i)
    results[i] = take(node, ids[i], reply->pages[i], pages + size_t{i} * kPageBytes);
  counters_.pages.fetch_add(count, std::memory_order_relaxed);
  counters_.read_ahead.fetch_add(count, std::memory_order_relaxed);
  counters_.wait_us.fetch_add(monotonic_us() - begin_us, std::memory_order_relaxed);
}

// The reply holds as many pages as the request.
StatusOr<proto::GetPagesReply> StoragePageSource::ask(size_t node,
                                                      const proto::GetPagesRequest& request,
                                                      uint64_t deadline_us) {
  transport::CallOptions call;
  call.method = proto::kGetPages;
  call.epoch = options_.epoch.value;
  call.deadline_us = std::min(deadline_us, monotonic_us() + request.wait_us + 1'000'000);
  call.idempotent = true;
  transport::BlockingReply answer;
  answer.payload.resize(request.pages.size() * (kPageBytes + 64));
  counters_.calls.fetch_add(1, std::memory_order_relaxed);
  STRATA_RETURN_IF_ERROR(nodes_[node]->call(call, proto::encode(request), &answer));
  STRATA_ASSIGN_OR_RETURN(proto::GetPagesReply reply,
                          proto::decode_get_pages_reply(answer.payload));
  if (reply.pages.size() != request.pages.size())
    return error_corruption("a reply for another number of pages");
  backlog_bytes_.store(reply.backlog_bytes, std::memory_order_relaxed);
  if (options_.gate != nullptr) options_.gate->note(node, reply.backlog_bytes);
  return reply;
}

void StoragePageSource::ask_backlogs() {
  // Every reply tells it; this page is always there, and any version of it will do.
  proto::GetPagesRequest request{options_.stream, options_.epoch, 0, {}, {}};
  request.pages.push_back({PageId{kSystemSpace, 0}, Llsn{}, Llsn{UINT64_MAX}});
  for (size_t node = 0; node < nodes_.size(); ++node)
    (void)ask(node, request, monotonic_us() + 1'000'000);  // one that is away says nothing (BG2)
}

// SP2
Status StoragePageSource::take(size_t node, PageId id, const proto::PageGot& got, char* page) {
  STRATA_RETURN_IF_ERROR(got.status);
  Status sound = verify_page(got.bytes.data(), id);
  if (sound.ok() && Llsn{header_of(got.bytes.data())->llsn} > got.llsn)
    sound = error_corruption("its llsn is not what the node says");
  if (!sound.ok()) {
    counters_.bad_pages.fetch_add(1, std::memory_order_relaxed);
    return error_corruption(name_of(id) + " from storage node " + options_.addresses[node].now() +
                            ": " + std::string(sound.message()));
  }
  std::memcpy(page, got.bytes.data(), kPageBytes);
  return ok_status();
}

// --- spaces ---

StatusOr<std::vector<SpaceId>> StoragePageSource::list_spaces() {
  Patience patience(options_.read_timeout_us);
  bool another_round = false;
  for (size_t tries = 0;; ++tries) {
    // Like a page: one that is stuck costs a wait each time it is asked, and every space that is
    // opened asks.
    const size_t node = (preferred_.load(std::memory_order_relaxed) + tries) % nodes_.size();
    auto spaces = list_spaces_of(node, patience.deadline_us());
    if (spaces.ok() && tries > 0) preferred_.store(node, std::memory_order_relaxed);
    if (spaces.ok() || is_fenced(spaces.status())) return spaces;
    another_round |= may_pass(spaces.status());
    if ((tries + 1) % nodes_.size() != 0) continue;
    patience.note(backlog_bytes_.load(std::memory_order_relaxed));
    if (!another_round || !may_try_again(patience.deadline_us())) return spaces;
    another_round = false;
  }
}

StatusOr<std::vector<SpaceId>> StoragePageSource::list_spaces_of(size_t node,
                                                                 uint64_t deadline_us) {
  // A page as of the end of the log as this life found it: who has that knows the spaces, too.
  const AlignedBytes page(kPageBytes, 4096);
  const Llsn begin{begin_.load(std::memory_order_acquire)};
  const Status known =
      read_from(node, PageId{kSystemSpace, 0}, begin, options_.wait_us, deadline_us, page.get());
  if (!known.ok() && !is_not_found(known)) return known;
  transport::CallOptions call;
  call.method = proto::kListSpaces;
  call.epoch = options_.epoch.value;
  call.deadline_us = std::min(deadline_us, monotonic_us() + options_.wait_us + 1'000'000);
  call.idempotent = true;
  transport::BlockingReply answer;
  STRATA_RETURN_IF_ERROR(nodes_[node]->call(call, {}, &answer));
  STRATA_ASSIGN_OR_RETURN(proto::ListSpacesReply reply,
                          proto::decode_list_spaces_reply(answer.payload));
  return std::move(reply.spaces);
}

StatusOr<bool> StoragePageSource::space_exists(SpaceId space) {
  STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> all, list_spaces());
  return std::find(all.begin(), all.end(), space) != all.end();
}

}  // namespace strata::clients
