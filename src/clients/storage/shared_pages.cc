#include "clients/storage/shared_pages.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/aligned.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/page_name.h"
#include "base/wait_interrupt.h"
#include "clients/storage/page_replies.h"
#include "page/page.h"
#include "proto/calls/calls.h"
#include "proto/methods.h"
#include "proto/written_messages.h"

namespace strata::clients {

namespace {

constexpr uint64_t kPauseUs = 20'000;
constexpr uint64_t kReconnectUsMax = 100'000;

}  // namespace

// Calls under way to several nodes; the last answer wakes whoever waits. What comes when nobody
// waits any more is thrown away.
class SharedPages::Round {
 public:
  explicit Round(size_t calls) : answers_(calls), missing_(calls) {}
  void answer(size_t i, const transport::Reply& reply) {
    const MutexLock lock(mutex_);
    answers_[i].status = reply.status;
    answers_[i].answered = reply.answered;
    answers_[i].payload = std::string(reply.payload);
    if (--missing_ == 0) all_.notify_all();
  }
  // All end by their deadline.
  std::vector<Answer> wait() {
    WaitInterrupt* const interrupt = WaitInterrupt::current();
    CondVarSleep sleep(&mutex_, &all_);
    const WaitInterrupt::Asleep asleep(interrupt, &sleep);
    MutexLock lock(mutex_);
    while (missing_ != 0 && !is_interrupted_now(interrupt)) all_.wait(lock);
    if (missing_ == 0) return std::move(answers_);
    return std::vector<Answer>(answers_.size(), Answer{error_interrupted(), false, {}});
  }

 private:
  Mutex mutex_{LatchRank::kLeaf};
  CondVar all_;
  std::vector<Answer> answers_ STRATA_GUARDED_BY(mutex_);
  size_t missing_ STRATA_GUARDED_BY(mutex_);
};

// SHP1: what nodes have said of a page.
class SharedPages::Votes {
 public:
  Votes(PageId id, Llsn at_least, size_t needed, char* page)
      : id_(id), at_least_(at_least), needed_(needed), page_(page) {}

  void take(const proto::GetPagesRequest& request, const std::string& node, const Answer& answer,
            Counters* counters) {
    Status status = answer.status;
    bool bad = false;
    if (status.ok()) {
      const auto reply = proto::view_get_pages_reply(answer.payload);
      status = !reply.ok() ? reply.status()
               : reply->pages.size() == 1
                   ? take_page(request.pages[0], reply->pages[0], node, got_.get(), &bad)
                   : error_corruption("a reply for another number of pages");
    }
    if (bad || is_corruption(status)) counters->bad_pages.fetch_add(1, std::memory_order_relaxed);
    if (is_not_found(status)) return void(++votes_);
    if (!status.ok()) {
      // Why this server may not ask any more goes before all else; damage before silence.
      if (error_.ok() || ends_right(status) || is_interrupted(status) || is_corruption(status))
        error_ = status;
      return;
    }
    ++votes_;
    const Llsn llsn{header_of(got_.get())->llsn};
    if (found_ && llsn != best_) counters->older.fetch_add(1, std::memory_order_relaxed);
    if (found_ && llsn <= best_) return;
    found_ = true;
    best_ = llsn;
    std::memcpy(page_, got_.get(), kPageBytes);
  }
  // One answer is enough where it is known which version is wanted.
  [[nodiscard]] bool decided() const {
    if (!at_least_.is_zero()) return found_ && best_ >= at_least_;
    return votes_ >= needed_;
  }
  [[nodiscard]] bool ends() const { return ends_right(error_) || is_interrupted(error_); }
  [[nodiscard]] Status outcome() const {
    if (decided()) return found_ ? ok_status() : error_not_found();
    if (!error_.ok()) return error_;
    return error_peer_down("no storage node that answers has " + name_of(id_) + " as of llsn " +
                           std::to_string(at_least_.value));
  }

 private:
  const PageId id_;
  const Llsn at_least_;
  const size_t needed_;
  char* const page_;
  const AlignedBytes got_{kPageBytes};
  size_t votes_ = 0;  // answers that say what that node has
  bool found_ = false;
  Llsn best_;
  Status error_;
};

SharedPages::SharedPages(const transport::World& world, const transport::Secret& secret,
                         SharedPagesOptions options)
    : options_(std::move(options)), world_(world), secret_(secret) {
  follow(options_.replicas);
}

SharedPages::~SharedPages() { stop(); }

void SharedPages::stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

SharedPages::NodeRef SharedPages::make_node(const ReplicaNode& who) {
  auto node = std::make_shared<Node>(who);
  transport::ChannelOptions channel;
  channel.reconnect_us_max = kReconnectUsMax;
  channel.link_model = options_.link_model;
  if (options_.counters != nullptr) channel.counters = options_.counters;
  node->channel = std::make_unique<transport::Channel>(world_, secret_, who.address, channel);
  return node;
}

// --- who is there ---

// Nodes are made with nothing held: they begin to connect. One thread at a time calls this.
void SharedPages::follow(const ReplicaSet& replicas) {
  std::vector<NodeRef> before;
  {
    const MutexLock lock(mutex_);
    if (!nodes_.empty() && replicas.generation <= generation_) return;
    before = nodes_;
  }
  std::vector<NodeRef> now;
  for (const ReplicaNode& who : replicas.nodes) {
    const auto known = std::find_if(before.begin(), before.end(),
                                    [&](const NodeRef& node) { return node->who.key == who.key; });
    now.push_back(known != before.end() ? *known : make_node(who));
  }
  const MutexLock lock(mutex_);
  for (const NodeRef& node : before)
    if (std::find(now.begin(), now.end(), node) == now.end()) gone_.push_back(node);
  nodes_ = std::move(now);
  generation_ = replicas.generation;
  write_quorum_ = replicas.write_quorum;
}

void SharedPages::follow_list(const std::vector<cluster::InSyncNode>& list) {
  const MutexLock lock(mutex_);
  list_.emplace();
  for (const cluster::InSyncNode& node : list) list_->push_back(node.name);
  changed_.notify_all();
}

size_t SharedPages::nodes_listed() const {
  const MutexLock lock(mutex_);
  return list_.has_value() ? list_->size() : 0;
}

SharedPages::Group SharedPages::group() {
  Group group;
  {
    const MutexLock lock(mutex_);
    group.all = nodes_;
    group.write_quorum = write_quorum_;
    for (const NodeRef& node : nodes_)
      if (!list_.has_value() ||
          std::find(list_->begin(), list_->end(), node->who.key) != list_->end())
        group.listed.push_back(node);
  }
  if (group.listed.empty()) return group;
  const size_t turn = turn_.fetch_add(1, std::memory_order_relaxed) % group.listed.size();
  std::rotate(group.listed.begin(), group.listed.begin() + static_cast<std::ptrdiff_t>(turn),
              group.listed.end());
  std::stable_partition(group.listed.begin(), group.listed.end(),
                        [](const NodeRef& node) { return !node->failed.load(); });
  return group;
}

bool SharedPages::may_try_again(uint64_t deadline_us) {
  MutexLock lock(mutex_);
  if (changed_.wait_for_us(lock, kPauseUs, [this]() STRATA_REQUIRES(mutex_) { return stopped_; }))
    return false;
  return monotonic_us() < deadline_us;
}

// --- calls ---

// At once; each ends by its timeout.
std::vector<SharedPages::Answer> SharedPages::ask(absl::Span<const NodeRef> nodes, uint16_t method,
                                                  const std::string& request, uint64_t timeout_us) {
  auto call = proto::call_of(method, world_.executor->now_us() + timeout_us, options_.epoch);
  call.wait_for_connection = true;
  const auto round = std::make_shared<Round>(nodes.size());
  counters_.calls.fetch_add(nodes.size(), std::memory_order_relaxed);
  for (size_t i = 0; i < nodes.size(); ++i)
    nodes[i]->channel->call(call, request, [round, i, node = nodes[i].get()](const auto& reply) {
      node->failed.store(!reply.answered || is_unsupported(reply.status));
      round->answer(i, reply);
    });
  return round->wait();
}

// --- pages ---

Status SharedPages::read(PageId id, Llsn at_least, char* page) {
  proto::GetPagesRequest request;
  request.stream = options_.stream;
  request.epoch = options_.epoch;
  request.pages.push_back({id, Llsn{}, Llsn{UINT64_MAX}});  // SHP2: what there is, whatever its age
  const uint64_t begin_us = monotonic_us();
  counters_.pages.fetch_add(1, std::memory_order_relaxed);
  for (;;) {
    const Status status = read_round(request, at_least, page);
    if (status.ok() || is_not_found(status)) {
      counters_.wait_us.fetch_add(monotonic_us() - begin_us, std::memory_order_relaxed);
      return status;
    }
    if (ends_right(status) || is_interrupted(status)) return status;
    counters_.retries.fetch_add(1, std::memory_order_relaxed);
    if (!may_try_again(begin_us + options_.read_timeout_us)) return status;
    if (is_interrupted_now(WaitInterrupt::current())) return error_interrupted();
  }
}

// As many as are needed at once, then the rest of those that may be asked.
Status SharedPages::read_round(const proto::GetPagesRequest& request, Llsn at_least, char* page) {
  const Group group = this->group();
  const size_t needed = group.read_quorum();
  const PageId id = request.pages[0].page;
  Votes votes(id, at_least, needed, page);
  const std::string bytes = proto::encode(request);
  const size_t first = std::min(at_least.is_zero() ? needed : 1, group.listed.size());
  const absl::Span<const NodeRef> listed = group.listed;
  for (const auto& nodes : {listed.subspan(0, first), listed.subspan(first)}) {
    if (nodes.empty() || votes.decided() || votes.ends()) continue;
    const std::vector<Answer> answers =
        ask(nodes, proto::kGetPages, bytes, options_.call_timeout_us);
    for (size_t i = 0; i < answers.size(); ++i)
      votes.take(request, nodes[i]->who.key, answers[i], &counters_);
  }
  if (!votes.decided() && group.listed.size() < needed && !votes.ends())
    return error_peer_down("fewer than " + std::to_string(needed) +
                           " storage nodes have all pages, as the registry says");
  return votes.outcome();
}

Status SharedPages::write(PageId id, const char*) {
  return error_unsupported(name_of(id) + " is written by the memory node");
}

Status SharedPages::sync() {
  return error_unsupported("pages are written, and synced, by the memory node");
}

// --- spaces ---

// What enough nodes of those listed answer.
StatusOr<std::vector<std::string>> SharedPages::ask_quorum(uint16_t method) {
  const uint64_t deadline_us = monotonic_us() + options_.read_timeout_us;
  for (;;) {
    const Group group = this->group();
    const std::vector<Answer> answers = ask(group.listed, method, {}, options_.call_timeout_us);
    std::vector<std::string> got;
    Status error = error_peer_down("too few storage nodes have all pages, as the registry says");
    for (const Answer& answer : answers) {
      if (answer.status.ok())
        got.push_back(answer.payload);
      else
        error = answer.status;
    }
    if (got.size() >= group.read_quorum()) return got;
    if (ends_right(error) || is_interrupted(error) || !may_try_again(deadline_us)) return error;
  }
}

template <class Reply, class Decode, class Take>
Status SharedPages::from_quorum(uint16_t method, Decode decode, Take take) {
  STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> answers, ask_quorum(method));
  for (const std::string& bytes : answers) {
    STRATA_ASSIGN_OR_RETURN(const Reply reply, decode(bytes));
    take(reply);
  }
  return ok_status();
}

// SHP4: whoever has it, since another may have missed it.
StatusOr<std::vector<SpaceId>> SharedPages::list_spaces() {
  std::set<SpaceId> spaces;
  STRATA_RETURN_IF_ERROR(from_quorum<proto::ListSpacesReply>(
      proto::kListSpaces, proto::decode_list_spaces_reply,
      [&](const auto& reply) { spaces.insert(reply.spaces.begin(), reply.spaces.end()); }));
  return std::vector<SpaceId>(spaces.begin(), spaces.end());
}

StatusOr<bool> SharedPages::space_exists(SpaceId space) {
  STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> all, list_spaces());
  return std::find(all.begin(), all.end(), space) != all.end();
}

StatusOr<uint32_t> SharedPages::space_pages(SpaceId space) {
  std::optional<uint32_t> pages;
  STRATA_RETURN_IF_ERROR(from_quorum<proto::ListSpaceSizesReply>(
      proto::kListSpaceSizes, proto::decode_list_space_sizes_reply, [&](const auto& reply) {
        for (const proto::SpaceSize& size : reply.spaces)
          if (size.space == space) pages = std::max(pages.value_or(0), size.pages);
      }));
  if (!pages.has_value()) return error_not_found();
  return *pages;
}

Status SharedPages::create_space(SpaceId space) {
  return change_space(proto::kCreateSpace, space, 0);
}

Status SharedPages::delete_space(SpaceId space) {
  return change_space(proto::kDeleteSpace, space, 0);
}

Status SharedPages::grow_space(SpaceId space, uint32_t pages) {
  return change_space(proto::kGrowSpace, space, pages);
}

Status SharedPages::change_space(uint16_t method, SpaceId space, uint32_t pages) {
  const InterruptScope carried_through(nullptr);
  const std::string request =
      proto::encode(proto::SpaceRequest{{options_.stream, options_.epoch, 0}, space, pages});
  const uint64_t deadline_us = monotonic_us() + options_.read_timeout_us;
  for (;;) {
    const Status status = change_space_round(method, request);
    if (status.ok() || ends_right(status) || is_no_space(status)) return status;
    if (!may_try_again(deadline_us)) return status;
  }
}

// OK: of the nodes in the list all that answer have done it, and as many of them as are a write
// quorum. What others have done goes when they copy what a node of the list has.
Status SharedPages::change_space_round(uint16_t method, const std::string& request) {
  const Group group = this->group();
  const std::vector<Answer> answers = ask(group.all, method, request, options_.call_timeout_us);
  size_t done = 0;
  Status refused, silent = error_peer_down("too few storage nodes answer");
  for (size_t i = 0; i < answers.size(); ++i) {
    const Status& status = answers[i].status;
    const bool listed =
        std::find(group.listed.begin(), group.listed.end(), group.all[i]) != group.listed.end();
    if (status.ok()) {
      done += listed ? 1 : 0;
      continue;
    }
    if (ends_right(status)) return status;
    (listed && answers[i].answered ? refused : silent) = status;
  }
  if (!refused.ok()) return refused;
  return done >= group.write_quorum ? ok_status() : silent;
}

}  // namespace strata::clients
