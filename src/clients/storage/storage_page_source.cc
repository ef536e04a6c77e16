#include "clients/storage/storage_page_source.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/aligned.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/diag.h"
#include "base/page_name.h"
#include "base/wait_interrupt.h"
#include "clients/storage/page_replies.h"
#include "page/page.h"
#include "proto/calls/calls.h"
#include "proto/methods.h"

namespace strata::clients {

namespace {

constexpr uint64_t kPauseUs = 20'000;
constexpr uint64_t kAnswerUs = 1'000'000;  // beyond what the node may wait
constexpr uint32_t kLeaseMs = 10'000;      // a storage node goes by its own time

constexpr uint64_t kScanTimeouts = 4;

// SPS4: a timeout that begins anew whenever less log is left to replay than ever before. Where
// others go on writing the backlog need not shrink; there it begins anew while log is scanned, for
// so many timeouts in all, since what is waited for may be nowhere.
class Patience {
 public:
  explicit Patience(uint64_t timeout_us)
      : timeout_us_(timeout_us), begin_us_(monotonic_us()), deadline_us_(begin_us_ + timeout_us) {}
  [[nodiscard]] uint64_t deadline_us() const noexcept { return deadline_us_; }
  void note_backlog(uint64_t backlog_bytes) noexcept {
    if (backlog_bytes < least_backlog_) begin_anew();
    least_backlog_ = std::min(least_backlog_, backlog_bytes);
  }
  void note_scanned(uint64_t scanned_bytes) noexcept {
    const bool goes_on = scanned_bytes != scanned_bytes_;
    scanned_bytes_ = scanned_bytes;
    if (goes_on && monotonic_us() < begin_us_ + (kScanTimeouts - 1) * timeout_us_) begin_anew();
  }

 private:
  void begin_anew() noexcept { deadline_us_ = monotonic_us() + timeout_us_; }

  const uint64_t timeout_us_, begin_us_;
  uint64_t deadline_us_;
  uint64_t least_backlog_ = UINT64_MAX;
  uint64_t scanned_bytes_ = 0;
};

}  // namespace

StoragePageSource::StoragePageSource(const transport::Secret& secret, StoragePagesOptions options)
    : options_(std::move(options)),
      secret_(secret),
      given_up_(options_.given_up_max),
      write_quorum_(options_.write_quorum) {
  STRATA_ASSERT(!options_.addresses.empty());
  STRATA_ASSERT(options_.keys.empty() || options_.keys.size() == options_.addresses.size());
  for (size_t i = 0; i < options_.addresses.size(); ++i)
    nodes_.push_back(
        make_node(options_.keys.empty() ? "" : options_.keys[i], options_.addresses[i]));
}

StoragePageSource::~StoragePageSource() {
  STRATA_ASSERT(batches_under_way_.load() == 0);  // they speak of this
}

// --- the nodes ---

std::shared_ptr<StoragePageSource::Node> StoragePageSource::make_node(
    std::string key, const transport::Address& address) {
  auto node = std::make_shared<Node>(secret_, std::move(key), address, options_.channel);
  if (options_.world.executor == nullptr) return node;
  transport::ChannelOptions channel;
  channel.limits = options_.channel.limits;
  channel.link_model = options_.channel.link_model;
  channel.counters = options_.channel.counters;
  node->batches =
      std::make_unique<transport::Channel>(options_.world, secret_, address, std::move(channel));
  return node;
}

size_t StoragePageSource::node_count() const {
  const MutexLock lock(mutex_);
  return nodes_.size();
}

std::shared_ptr<StoragePageSource::Node> StoragePageSource::node_at(size_t node) const {
  const MutexLock lock(mutex_);
  return nodes_[node % nodes_.size()];
}

// SPS5
void StoragePageSource::follow(const ReplicaSet& replicas) {
  std::vector<std::shared_ptr<Node>> nodes;  // in the end those of before, destroyed unlatched
  quorum::ReplicasBefore before;
  {
    const MutexLock lock(mutex_);
    if (replicas.generation <= generation_) return;
    generation_ = replicas.generation;
    if (write_quorum_ != 0) write_quorum_ = replicas.write_quorum;
    std::vector<std::string> keys;
    for (const std::shared_ptr<Node>& node : nodes_) keys.push_back(node->key);
    before = places_before(keys, replicas);
    for (size_t i = 0; i < before.size(); ++i) {
      const ReplicaNode& node = replicas.nodes[i];
      nodes.push_back(before[i].has_value() ? nodes_[*before[i]]
                                            : make_node(node.key, node.address));
    }
    nodes_.swap(nodes);
  }
  prefer_again(before);
  if (options_.gate != nullptr) options_.gate->follow(replicas.write_quorum, before);
}

// The same node as before, or one that was there before: a new one has to make its pages first.
void StoragePageSource::prefer_again(const quorum::ReplicasBefore& before) {
  const size_t preferred = preferred_.load(std::memory_order_relaxed);
  auto found = std::find(before.begin(), before.end(), preferred);
  if (found == before.end())
    found = std::find_if(before.begin(), before.end(), [](const auto& b) { return b.has_value(); });
  if (found == before.end()) found = before.begin();
  preferred_.store(static_cast<size_t>(found - before.begin()), std::memory_order_relaxed);
}

// --- what a page must not be older than (SPS1) ---

Status StoragePageSource::write(PageId id, const char* page) {
  given_up_.note(id, Llsn{header_of(page)->llsn});
  return ok_status();
}

Llsn StoragePageSource::needed(PageId id, Llsn at_least) const {
  const GivenUpPages::Found found = given_up_.find(id);
  if (found.exact) return std::max(found.llsn, at_least);
  return std::max({found.llsn, Llsn{begin_.load(std::memory_order_acquire)}, at_least});
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
  if (stop_changed_.wait_for_us(lock, kPauseUs,
                                [this]() STRATA_REQUIRES(mutex_) { return stopped_; }))
    return false;
  return monotonic_us() < deadline_us;
}

Status StoragePageSource::read(PageId id, Llsn at_least, char* page) {
  return read_anywhere({{id, needed(id, at_least)}}, page);
}

// SPS10
Status StoragePageSource::read_behind(PageId id, Llsn at_least,
                                      absl::Span<const LogPosition> places, char* page) {
  constexpr Llsn kNewest{UINT64_MAX};  // GP3 of storenode/replay
  Wanted wanted{{id, kNewest, kNewest}, {}, at_least};
  for (const LogPosition& at : places) wanted.places.push_back({at.stream, at.lsn});
  return read_anywhere(wanted, page);
}

// SPS8. A node answers as of the lower bound (GP2), so that both are the same. What this node gave
// up does not matter: it is in that state, or newer than it.
Status StoragePageSource::read_version(PageId id, Llsn at_least, Llsn at_most, char* page) {
  if (at_most == Llsn{UINT64_MAX}) return read(id, at_least, page);
  if (at_most < at_least)
    return error_invalid_argument(name_of(id) + " as of llsn " + std::to_string(at_most.value) +
                                  ", and not older than " + std::to_string(at_least.value));
  return read_anywhere({{id, at_most, at_most}}, page);
}

Status StoragePageSource::read_anywhere(const Wanted& wanted, char* page) {
  const uint64_t begin_us = monotonic_us();
  Patience patience(options_.read_timeout_us);
  counters_.pages.fetch_add(1, std::memory_order_relaxed);
  Status first_error;
  bool another_round = false;  // some node may do better later
  for (size_t tries = 0;; ++tries) {
    const size_t count = node_count();
    const size_t node = (preferred_.load(std::memory_order_relaxed) + tries) % count;
    const Status status = read_from(node, wanted, options_.wait_us, patience.deadline_us(), page);
    if (status.ok() || is_not_found(status)) {
      if (tries > 0) preferred_.store(node, std::memory_order_relaxed);
      counters_.wait_us.fetch_add(monotonic_us() - begin_us, std::memory_order_relaxed);
      return status;
    }
    if (ends_right(status) || is_interrupted(status)) return status;
    if (first_error.ok() || is_corruption(status)) first_error = status;
    counters_.retries.fetch_add(1, std::memory_order_relaxed);
    another_round |= may_pass(status);
    if ((tries + 1) % count != 0) continue;
    patience.note_backlog(backlog_bytes_.load(std::memory_order_relaxed));
    if (options_.write_quorum != 0) patience.note_scanned(scanned_bytes());
    if (!another_round || !may_try_again(patience.deadline_us())) return first_error;
    if (is_interrupted_now(WaitInterrupt::current())) return error_interrupted();
    another_round = false;
  }
}

Status StoragePageSource::read_from(size_t node, const Wanted& wanted, uint32_t wait_us,
                                    uint64_t deadline_us, char* page) {
  proto::GetPagesRequest request{options_.stream, options_.epoch, wait_us, {}, wanted.places};
  request.pages.push_back(wanted.page);
  std::string bytes;
  STRATA_ASSIGN_OR_RETURN(const proto::GetPagesReplyView reply,
                          ask(node, request, deadline_us, &bytes));
  const Status taken = take(*node_at(node), wanted.page, reply.pages[0], page);
  const bool is_there = taken.ok() || is_not_found(taken);
  const Llsn got = taken.ok() ? reply.pages[0].llsn : Llsn{};
  if (!is_there || got >= wanted.llsn_min) return taken;
  return error_peer_down("storage node " + node_at(node)->channel.address() + " has " +
                         name_of(wanted.page.page) + " as of llsn " + std::to_string(got.value) +
                         ", as of " + std::to_string(wanted.llsn_min.value) + " it is needed");
}

// --- batches ---

proto::GetPagesRequest StoragePageSource::request_of(const Batch& batch) const {
  proto::GetPagesRequest request{
      options_.stream, options_.epoch, options_.read_ahead_wait_us, {}, {}};
  request.pages.reserve(batch.count);
  for (uint32_t i = 0; i < batch.count; ++i)
    request.pages.push_back({batch.ids[i], needed(batch.ids[i], Llsn{}), Llsn{UINT64_MAX}});
  return request;
}

void StoragePageSource::take_batch(const Node& node, const proto::GetPagesRequest& request,
                                   const StatusOr<proto::GetPagesReplyView>& reply,
                                   const Batch& batch) {
  if (!reply.ok()) return std::fill(batch.results, batch.results + batch.count, reply.status());
  for (uint32_t i = 0; i < batch.count; ++i)
    batch.results[i] =
        take(node, request.pages[i], reply->pages[i], batch.pages + size_t{i} * kPageBytes);
  counters_.pages.fetch_add(batch.count, std::memory_order_relaxed);
  counters_.read_ahead.fetch_add(batch.count, std::memory_order_relaxed);
  counters_.wait_us.fetch_add(monotonic_us() - batch.begin_us, std::memory_order_relaxed);
}

void StoragePageSource::read_batch(const PageId* ids, uint32_t count, char* pages,
                                   Status* results) {
  const Batch batch{ids, count, pages, results, monotonic_us()};
  const size_t node = preferred_.load(std::memory_order_relaxed);
  const proto::GetPagesRequest request = request_of(batch);
  std::string bytes;
  const auto reply = ask(node, request, batch.begin_us + options_.read_timeout_us, &bytes);
  take_batch(*node_at(node), request, reply, batch);
}

// Keeps the node, and its channel with it: a channel that goes drops what it was asked.
struct StoragePageSource::BatchUnderWay {
  std::shared_ptr<Node> node;
  proto::GetPagesRequest request;
  Batch batch;
  ReadBatchDone done;
};

void StoragePageSource::start_read_batch(const PageId* ids, uint32_t count, char* pages,
                                         Status* results, ReadBatchDone done) {
  const size_t place = preferred_.load(std::memory_order_relaxed);
  std::shared_ptr<Node> node = node_at(place);
  if (node->batches == nullptr)
    return PageSource::start_read_batch(ids, count, pages, results, std::move(done));
  const Batch batch{ids, count, pages, results, monotonic_us()};
  auto begun = std::make_unique<BatchUnderWay>(
      BatchUnderWay{std::move(node), request_of(batch), batch, std::move(done)});
  const auto call = proto::call_of(
      proto::kGetPages, options_.world.executor->now_us() + options_.read_ahead_wait_us + kAnswerUs,
      options_.epoch);
  counters_.calls.fetch_add(1, std::memory_order_relaxed);
  if (options_.spread_news) options_.spread_news();  // SPS6
  batches_under_way_.fetch_add(1);
  transport::Channel* const channel = begun->node->batches.get();
  std::string payload = proto::encode(begun->request);
  channel->call(
      call, std::move(payload),
      [this, place, under_way = std::move(begun)](const transport::Reply& answer) mutable {
        const auto reply = answer.status.ok()
                               ? view_reply(place, under_way->batch.count, answer.payload)
                               : StatusOr<proto::GetPagesReplyView>(
                                     note_refusal(under_way->node.get(), answer.status));
        take_batch(*under_way->node, under_way->request, reply, under_way->batch);
        ReadBatchDone ended = std::move(under_way->done);
        under_way.reset();
        batches_under_way_.fetch_sub(1);
        ended();  // after it this, and the world, may be gone
      });
}

StatusOr<proto::GetPagesReplyView> StoragePageSource::view_reply(size_t node, size_t pages,
                                                                 Bytes bytes) {
  STRATA_ASSIGN_OR_RETURN(proto::GetPagesReplyView reply, proto::view_get_pages_reply(bytes));
  if (reply.pages.size() != pages) return error_corruption("a reply for another number of pages");
  const proto::ReplayProgress& progress = reply.progress;
  node_at(node)->scanned_bytes.store(progress.scanned_bytes, std::memory_order_relaxed);
  backlog_bytes_.store(progress.backlog_bytes, std::memory_order_relaxed);
  if (options_.gate != nullptr)
    options_.gate->note(node, progress.backlog_bytes, progress.scan_lag_bytes);
  return reply;
}

// SPS11
Status StoragePageSource::note_refusal(Node* node, const Status& status) {
  if (is_unsupported(status) && !node->refuses.exchange(true))
    diag(Severity::kWarning, "storage node %s cannot be used for pages: %s",
         node->channel.address().c_str(), std::string(status.message()).c_str());
  return status;
}

// The reply holds as many pages as the request.
StatusOr<proto::GetPagesReplyView> StoragePageSource::ask(size_t node,
                                                          const proto::GetPagesRequest& request,
                                                          uint64_t deadline_us,
                                                          std::string* bytes) {
  const auto call = proto::call_of(
      proto::kGetPages, std::min(deadline_us, monotonic_us() + request.wait_us + kAnswerUs),
      options_.epoch);
  transport::BlockingReply answer;
  answer.payload.resize(request.pages.size() * (kPageBytes + 64));
  counters_.calls.fetch_add(1, std::memory_order_relaxed);
  if (options_.spread_news) options_.spread_news();  // SPS6
  const std::shared_ptr<Node> asked = node_at(node);
  STRATA_RETURN_IF_ERROR(
      note_refusal(asked.get(), asked->channel.call(call, proto::encode(request), &answer)));
  *bytes = std::move(answer.payload);
  return view_reply(node, request.pages.size(), *bytes);
}

void StoragePageSource::ask_backlogs() {
  // Every reply tells it; this page is always there, and any version of it will do.
  proto::GetPagesRequest request{options_.stream, options_.epoch, 0, {}, {}};
  request.pages.push_back({PageId{kSystemSpace, 0}, Llsn{}, Llsn{UINT64_MAX}});
  std::string bytes;
  for (size_t node = 0; node < node_count(); ++node)  // one that is away says nothing (BG2)
    (void)ask(node, request, monotonic_us() + 1'000'000, &bytes);
}

// --- states that are kept for a reader ---

Status StoragePageSource::hold_versions(uint64_t reader, Llsn oldest) {
  return tell_readers_lease({reader, oldest, kLeaseMs});
}

void StoragePageSource::release_versions(uint64_t reader) {
  (void)tell_readers_lease({reader, {}, 0});  // a lease that nobody renews ends by itself
}

Status StoragePageSource::tell_readers_lease(const proto::ReaderLeaseRequest& lease) {
  Status first_error;
  bool taken = false;
  for (size_t node = 0; node < node_count(); ++node) {
    const auto call =
        proto::call_of(proto::kReaderLease, monotonic_us() + 1'000'000, options_.epoch);
    transport::BlockingReply answer;
    const std::shared_ptr<Node> asked = node_at(node);
    const Status status =
        note_refusal(asked.get(), asked->channel.call(call, proto::encode(lease), &answer));
    taken |= status.ok();
    if (first_error.ok() || (is_out_of_range(status) && !is_out_of_range(first_error)))
      first_error = status;
  }
  return taken ? ok_status() : first_error;
}

// SPS2
Status StoragePageSource::take(const Node& node, const proto::PageWanted& wanted,
                               const proto::PageView& got, char* page) {
  bool bad = false;
  Status status = take_page(wanted, got, node.channel.address(), page, &bad);
  if (bad) counters_.bad_pages.fetch_add(1, std::memory_order_relaxed);
  return status;
}

// --- spaces ---

StatusOr<std::vector<SpaceId>> StoragePageSource::list_spaces() {
  if (options_.write_quorum != 0) return list_spaces_of_enough();
  Patience patience(options_.read_timeout_us);
  bool another_round = false;
  for (size_t tries = 0;; ++tries) {
    // Like a page: one that is stuck costs a wait each time it is asked, and every space that is
    // opened asks.
    const size_t count = node_count();
    const size_t node = (preferred_.load(std::memory_order_relaxed) + tries) % count;
    auto spaces = list_spaces_of(node, patience.deadline_us());
    if (spaces.ok() && tries > 0) preferred_.store(node, std::memory_order_relaxed);
    if (spaces.ok() || ends_right(spaces.status()) || is_interrupted(spaces.status()))
      return spaces;
    another_round |= may_pass(spaces.status());
    if ((tries + 1) % count != 0) continue;
    patience.note_backlog(backlog_bytes_.load(std::memory_order_relaxed));
    if (!another_round || !may_try_again(patience.deadline_us())) return spaces;
    another_round = false;
  }
}

StatusOr<std::vector<SpaceId>> StoragePageSource::list_spaces_of(size_t node,
                                                                 uint64_t deadline_us) {
  // SPS7. The page is what can be waited for: who has it as of the end of the log as this life
  // found it mostly knows the spaces, too. A node with a damaged log has it from a peer.
  const AlignedBytes page(kPageBytes);
  const Llsn begin{begin_.load(std::memory_order_acquire)};
  const Status known = read_from(node, {{PageId{kSystemSpace, 0}, begin}}, options_.wait_us,
                                 deadline_us, page.get());
  if (!known.ok() && !is_not_found(known)) return known;
  STRATA_ASSIGN_OR_RETURN(proto::ListSpacesReply reply,
                          ask_for_spaces(node_at(node).get(), {}, deadline_us));
  if (reply.as_of < begin)
    return error_peer_down("storage node " + node_at(node)->channel.address() +
                           " knows the spaces as of llsn " + std::to_string(reply.as_of.value) +
                           ", as of " + std::to_string(begin.value) + " they are needed");
  return std::move(reply.spaces);
}

uint64_t StoragePageSource::scanned_bytes() const {
  uint64_t bytes = 0;
  for (size_t node = 0, count = node_count(); node < count; ++node)
    bytes += node_at(node)->scanned_bytes.load(std::memory_order_relaxed);
  return bytes;
}

StatusOr<proto::ListSpacesReply> StoragePageSource::ask_for_spaces(
    Node* node, const proto::ListSpacesRequest& request, uint64_t deadline_us) {
  const auto call = proto::call_of(
      proto::kListSpaces, std::min(deadline_us, monotonic_us() + options_.wait_us + 1'000'000),
      options_.epoch);
  transport::BlockingReply answer;
  STRATA_RETURN_IF_ERROR(
      note_refusal(node, node->channel.call(call, proto::encode(request), &answer)));
  return proto::decode_list_spaces_reply(answer.payload);
}

// SPS10. Whatever one of them has: another one may lack it.
StatusOr<std::vector<SpaceId>> StoragePageSource::list_spaces_of_enough() {
  Patience patience(options_.read_timeout_us);
  std::map<std::shared_ptr<Node>, proto::ListSpacesRequest> asked;  // who is not so far yet
  for (;;) {
    size_t count = 0;
    uint64_t generation = 0;
    {
      const MutexLock lock(mutex_);
      count = nodes_.size();
      generation = generation_;
    }
    size_t answered = 0;
    uint64_t scanned = 0;
    std::set<SpaceId> spaces;
    Status error = error_peer_down("too few storage nodes answer");
    for (size_t number = 0; number < count; ++number) {
      const std::shared_ptr<Node> node = node_at(number);
      auto reply = ask_for_spaces(node.get(), asked[node], patience.deadline_us());
      if (!reply.ok()) {
        error = reply.status();
        if (ends_right(error) || is_interrupted(error)) return error;
        continue;
      }
      scanned += reply->scanned_bytes;
      if (!reply->waits_for.empty()) {
        error = error_peer_down("storage node " + node->channel.address() +
                                " has not scanned yet all log that it has");
        asked[node].scanned_to = std::move(reply->waits_for);
        continue;
      }
      spaces.insert(reply->spaces.begin(), reply->spaces.end());
      ++answered;
      const MutexLock lock(mutex_);
      if (generation != generation_) break;  // they may be too few of those that there are now
      if (answered + write_quorum_ > nodes_.size())
        return std::vector<SpaceId>(spaces.begin(), spaces.end());
    }
    patience.note_scanned(scanned);
    if (!may_try_again(patience.deadline_us())) return error;
    if (is_interrupted_now(WaitInterrupt::current())) return error_interrupted();
  }
}

StatusOr<bool> StoragePageSource::space_exists(SpaceId space) {
  STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> all, list_spaces());
  return std::find(all.begin(), all.end(), space) != all.end();
}

}  // namespace strata::clients
