#include "clients/storage/written_nodes.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "base/diag.h"
#include "proto/methods.h"
#include "proto/page_messages.h"

namespace strata::clients {

namespace {

constexpr uint64_t kPauseUsMin = 50'000;
constexpr uint64_t kLookUs = 100'000;     // at what the keeper has to do
constexpr uint64_t kCopyLookUs = 50'000;  // at how far a copy is
constexpr uint64_t kLateUs = 1'000'000;
constexpr uint64_t kBeginTimeoutUs = 1'000'000;
constexpr uint64_t kContinueTimeoutUs = 300'000;  // others wait for it: time for a reconnection
constexpr uint64_t kReconnectUsMax = 100'000;
constexpr uint64_t kListTimeoutUs = 10'000'000;

// Others do harm when they run once more, later: over something newer.
bool may_run_twice(uint16_t method) {
  return method == proto::kSyncPages || method == proto::kCopyPages || method == proto::kGetPages ||
         method == proto::kListSpaces;
}

std::string text(const Status& status) { return std::string(status.message()); }

}  // namespace

// Calls under way to several nodes; the last answer wakes whoever waits.
class WrittenNodes::Round {
 public:
  explicit Round(size_t calls) : answers_(calls), missing_(calls) {}
  void answer(size_t i, const transport::Reply& reply) {
    const MutexLock lock(mutex_);
    answers_[i] = {reply.status, reply.answered, std::string(reply.payload)};
    if (--missing_ == 0) all_.notify_all();
  }
  std::vector<Answer> wait() {
    MutexLock lock(mutex_);
    all_.wait(lock, [this] { return missing_ == 0; });
    return std::move(answers_);
  }

 private:
  Mutex mutex_{LatchRank::kLeaf};
  CondVar all_;
  std::vector<Answer> answers_;  // guarded by mutex_
  size_t missing_;               // guarded by mutex_
};

WrittenNodes::WrittenNodes(const transport::World& world, const transport::Secret& secret,
                           WrittenNodesOptions options, InSyncSet* in_sync)
    : options_(std::move(options)),
      world_(world),
      in_sync_(in_sync),
      nodes_(options_.nodes.size()) {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    node.name = options_.nodes[i].name;
    node.address = options_.nodes[i].address;
    transport::ChannelOptions channel;
    channel.link_model = options_.link_model;
    channel.counters = options_.counters;
    channel.reconnect_us_max = kReconnectUsMax;
    node.writes = std::make_unique<transport::Channel>(
        world_, secret, node.address, channel, [this, i](bool connected, uint64_t, const Status&) {
          if (!connected) lost_connection(i);
        });
    transport::BlockingChannelOptions blocking;
    blocking.link_model = options_.link_model;
    blocking.counters = options_.counters;
    node.calls = std::make_unique<transport::BlockingChannel>(secret, node.address, blocking);
  }
}

StatusOr<std::unique_ptr<WrittenNodes>> WrittenNodes::open(const transport::World& world,
                                                           const transport::Secret& secret,
                                                           WrittenNodesOptions options,
                                                           InSyncSet* in_sync) {
  auto nodes =
      std::unique_ptr<WrittenNodes>(new WrittenNodes(world, secret, std::move(options), in_sync));
  STRATA_RETURN_IF_ERROR(nodes->begin_all());
  STRATA_RETURN_IF_ERROR(nodes->options_.founding ? nodes->forget_spaces()
                                                  : nodes->equalise_spaces());
  nodes->say();
  nodes->keeper_ = std::thread([self = nodes.get()] { self->keep(); });
  return nodes;
}

WrittenNodes::~WrittenNodes() {
  stop();
  for (Node& node : nodes_) node.writes.reset();  // their observers use what goes before nodes_
}

// Whether that was a restart is asked at once, not with the next write.
void WrittenNodes::lost_connection(size_t node) {
  const MutexLock lock(mutex_);
  if (nodes_[node].state != State::kInSync) return;
  nodes_[node].suspected = true;
  changed_.notify_all();
}

void WrittenNodes::stop() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (keeper_.joinable()) keeper_.join();
}

// --- calls to one node ---

Status WrittenNodes::call(size_t node, uint16_t method, Bytes request, uint64_t timeout_us,
                          transport::BlockingReply* reply) {
  transport::CallOptions call;
  call.method = method;
  call.epoch = options_.epoch.value;
  call.deadline_us = monotonic_us() + timeout_us;
  call.idempotent = may_run_twice(method);
  return nodes_[node].calls->call(call, request, reply);
}

Status WrittenNodes::begin_one(size_t node, uint64_t session, uint64_t continues,
                               proto::BeginWritesReply* reply) {
  const proto::BeginWritesRequest request{{options_.stream, options_.epoch, session}, continues};
  transport::CallOptions call;
  call.method = proto::kBeginWrites;
  call.epoch = options_.epoch.value;
  call.deadline_us =
      world_.executor->now_us() + (continues == 0 ? kBeginTimeoutUs : kContinueTimeoutUs);
  call.idempotent = true;
  call.wait_for_connection = true;  // what is written next goes over the same connection
  auto round = std::make_shared<Round>(1);
  nodes_[node].writes->call(call, proto::encode(request),
                            [round](const transport::Reply& answer) { round->answer(0, answer); });
  const std::vector<Answer> answers = round->wait();
  STRATA_RETURN_IF_ERROR(answers[0].status);
  STRATA_ASSIGN_OR_RETURN(*reply, proto::decode_begin_writes_reply(answers[0].payload));
  return ok_status();
}

Status WrittenNodes::to_one(const Reader& reader, uint16_t method, Encode encode) {
  const proto::Writer writer{options_.stream, options_.epoch, reader.session};
  transport::BlockingReply answer;
  const Status status =
      call(reader.node, method, encode(writer), options_.write_timeout_us, &answer);
  if (status.ok()) return status;
  suspect(reader);
  return status;
}

StatusOr<std::vector<SpaceId>> WrittenNodes::list_spaces_of(size_t node) {
  transport::BlockingReply answer;
  STRATA_RETURN_IF_ERROR(call(node, proto::kListSpaces, {}, kListTimeoutUs, &answer));
  STRATA_ASSIGN_OR_RETURN(proto::ListSpacesReply reply,
                          proto::decode_list_spaces_reply(answer.payload));
  return std::move(reply.spaces);
}

// --- the start ---

// Asks those in question until all have answered, or enough have and the others had their time.
Status WrittenNodes::begin_all() {
  const std::vector<registry::InSyncNode>& known = in_sync_->nodes();
  if (known.empty() && !options_.founding)
    return error_corruption("the registry does not say which storage nodes have the pages");
  uint64_t deadline_us = monotonic_us() + options_.open_timeout_us;
  size_t begun = 0;
  uint64_t waited_us = 0;
  for (uint64_t pause_us = kPauseUsMin;; pause_us = std::min(2 * pause_us, kLookUs * 5)) {
    size_t missing = 0;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      const auto named = std::find_if(known.begin(), known.end(),
                                      [&](const auto& one) { return one.name == node.name; });
      if (node.state == State::kInSync) continue;
      if (!options_.founding && named == known.end()) {
        node.why = "it was out of sync when this compute node started";
        continue;
      }
      if (node.store != 0) continue;  // WS2 is not enough: another store in the old place
      const uint64_t session = next_session();
      proto::BeginWritesReply reply;
      const Status status = begin_one(i, session, 0, &reply);
      if (is_fenced(status)) return status;
      if (!status.ok()) {
        node.why = "it did not answer when this compute node started: " + text(status);
        ++missing;
        continue;
      }
      node.store = reply.store;
      if (!options_.founding && named->store != reply.store) {
        node.why = "it lost its pages: its store is another one";
        continue;
      }
      node.session = session;
      node.state = State::kInSync;
      ++begun;
    }
    // Those that are late have to copy everything: worth a moment, not more.
    if (begun >= options_.write_quorum)
      deadline_us = std::min(deadline_us, monotonic_us() + kLateUs - std::min(kLateUs, waited_us));
    if (missing == 0 || monotonic_us() >= deadline_us) break;
    waited_us += pause_us;
    MutexLock lock(mutex_);
    changed_.wait_for_us(lock, pause_us, [this] { return stopped_; });
  }
  const size_t needed = options_.founding ? options_.write_quorum : 1;
  const MutexLock lock(mutex_);
  return begun >= needed ? ok_status() : too_few();
}

// What an earlier attempt at founding left behind.
Status WrittenNodes::forget_spaces() {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state != State::kInSync) continue;
    STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> spaces, list_spaces_of(i));
    for (const SpaceId space : spaces)
      STRATA_RETURN_IF_ERROR(
          to_one({i, nodes_[i].session}, proto::kDeleteSpace, [&](const proto::Writer& writer) {
            return proto::encode(proto::SpaceRequest{writer, space, 0});
          }));
  }
  return publish();
}

// A space made after the last checkpoint may be missing where the call did not arrive any more.
Status WrittenNodes::equalise_spaces() {
  std::vector<std::vector<SpaceId>> of(nodes_.size());
  std::set<SpaceId> all;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state != State::kInSync) continue;
    auto spaces = list_spaces_of(i);
    if (!spaces.ok()) {
      const MutexLock lock(mutex_);
      put_out(i, text(spaces.status()));
      continue;
    }
    of[i] = *std::move(spaces);
    all.insert(of[i].begin(), of[i].end());
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].state != State::kInSync) continue;
    const std::set<SpaceId> own(of[i].begin(), of[i].end());
    for (const SpaceId space : all) {
      if (own.count(space) != 0) continue;
      const Status made =
          to_one({i, nodes_[i].session}, proto::kCreateSpace, [&](const proto::Writer& writer) {
            return proto::encode(proto::SpaceRequest{writer, space, 0});
          });
      if (made.ok()) continue;
      const MutexLock lock(mutex_);
      put_out(i, text(made));
      break;
    }
  }
  const MutexLock lock(mutex_);
  return in_sync_count() > 0 ? ok_status() : too_few();
}

// --- what is known of the nodes; mutex_ is held ---

proto::Writer WrittenNodes::writer_of(size_t node) const {
  return {options_.stream, options_.epoch, nodes_[node].session};
}

size_t WrittenNodes::in_sync_count() const {
  return static_cast<size_t>(std::count_if(
      nodes_.begin(), nodes_.end(), [](const Node& node) { return node.state == State::kInSync; }));
}

Status WrittenNodes::too_few() const {
  std::string why;
  for (const Node& node : nodes_)
    if (node.state != State::kInSync)
      why += (why.empty() ? "" : "; ") + node.name + ": " + node.why;
  return error_peer_down("only " + std::to_string(in_sync_count()) + " of " +
                         std::to_string(nodes_.size()) + " storage nodes are in sync, " +
                         std::to_string(options_.write_quorum) + " are needed (" + why + ")");
}

void WrittenNodes::put_out(size_t node, const std::string& why) {
  Node& of = nodes_[node];
  if (of.state == State::kOut) return;
  const bool was_in_sync = of.state == State::kInSync;
  of.state = State::kOut;
  of.suspected = false;
  of.why = why;
  of.next_try_us = 0;
  of.pause_us = kPauseUsMin;
  if (was_in_sync)
    notes_.push_back("storage node " + of.name + " is out of sync: " + why +
                     "; it copies what it misses as soon as it can be reached");
  changed_.notify_all();
}

void WrittenNodes::say() {
  std::vector<std::string> notes;
  {
    const MutexLock lock(mutex_);
    notes.swap(notes_);
  }
  for (const std::string& note : notes) diag(Severity::kWarning, "%s", note.c_str());
}

Status WrittenNodes::end(const Status& why) {
  {
    const MutexLock lock(mutex_);
    if (!ended_.ok()) return ended_;
    ended_ = why;
  }
  changed_.notify_all();
  diag(Severity::kError, "%s", text(why).c_str());
  return why;
}

Status WrittenNodes::ended() const {
  const MutexLock lock(mutex_);
  return ended_;
}

std::vector<WrittenNodes::NodeState> WrittenNodes::states() const {
  const MutexLock lock(mutex_);
  std::vector<NodeState> states;
  for (const Node& node : nodes_) {
    const bool in_sync = node.state == State::kInSync && !node.suspected;
    std::string why = node.suspected ? "it is asked whether it was restarted" : node.why;
    if (in_sync) why.clear();
    states.push_back(
        {node.name, in_sync, node.state == State::kCopying, node.pages_copied, std::move(why)});
  }
  return states;
}

// --- reading ---

std::vector<WrittenNodes::Reader> WrittenNodes::readers() {
  const MutexLock lock(mutex_);
  std::vector<Reader> readers;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const size_t node = (preferred_ + i) % nodes_.size();
    if (nodes_[node].state == State::kInSync) readers.push_back({node, nodes_[node].session});
  }
  return readers;
}

void WrittenNodes::prefer(size_t node) {
  const MutexLock lock(mutex_);
  preferred_ = node;
}

void WrittenNodes::suspect(const Reader& reader) {
  const MutexLock lock(mutex_);
  Node& node = nodes_[reader.node];
  if (node.state == State::kInSync && node.session == reader.session) node.suspected = true;
  changed_.notify_all();
}

// --- calls to all ---

Status WrittenNodes::to_all(uint16_t method, Encode encode) {
  return to_all(method, options_.write_timeout_us, encode);
}

Status WrittenNodes::to_all(uint16_t method, uint64_t timeout_us, Encode encode) {
  STRATA_RETURN_IF_ERROR(check_sessions());
  std::vector<Target> targets;
  uint64_t operation = 0;
  STRATA_RETURN_IF_ERROR(take_targets(&targets, &operation));
  const std::vector<Answer> answers = ask(targets, method, timeout_us, encode);
  Status status;
  {
    const MutexLock lock(mutex_);
    under_way_.erase(operation);
    status = judge(targets, answers);
  }
  changed_.notify_all();
  say();
  return is_fenced(status) ? end(status) : status;
}

Status WrittenNodes::take_targets(std::vector<Target>* targets, uint64_t* operation) {
  const MutexLock lock(mutex_);
  if (!ended_.ok()) return ended_;
  if (in_sync_count() < options_.write_quorum) return too_few();
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].state != State::kOut)
      targets->push_back({i, writer_of(i), nodes_[i].state == State::kInSync});
  *operation = ++operations_;
  under_way_.insert(*operation);
  return ok_status();
}

std::vector<WrittenNodes::Answer> WrittenNodes::ask(const std::vector<Target>& targets,
                                                    uint16_t method, uint64_t timeout_us,
                                                    Encode encode) {
  auto round = std::make_shared<Round>(targets.size());
  for (size_t i = 0; i < targets.size(); ++i) {
    transport::CallOptions call;
    call.method = method;
    call.epoch = options_.epoch.value;
    call.deadline_us = world_.executor->now_us() + timeout_us;
    nodes_[targets[i].node].writes->call(
        call, encode(targets[i].writer),
        [round, i](const transport::Reply& reply) { round->answer(i, reply); });
  }
  return round->wait();
}

// mutex_ held. WN1, WN3
Status WrittenNodes::judge(const std::vector<Target>& targets, const std::vector<Answer>& answers) {
  size_t have_it = 0;
  Status first_error, full;
  for (size_t i = 0; i < targets.size(); ++i) {
    const Status& status = answers[i].status;
    if (is_fenced(status)) return status;
    const bool in_sync = targets[i].in_sync && nodes_[targets[i].node].state == State::kInSync;
    if (in_sync && status.ok()) ++have_it;
    if (in_sync && !status.ok() && first_error.ok()) first_error = status;
    if (in_sync && answers[i].answered && is_no_space(status)) full = status;
  }
  const bool give_up = have_it == 0 || (!full.ok() && have_it < options_.write_quorum);
  for (size_t i = 0; i < targets.size(); ++i) {
    const size_t node = targets[i].node;
    const Status& status = answers[i].status;
    if (status.ok()) continue;
    const bool in_sync = nodes_[node].state == State::kInSync;
    // One that was put out and began again since waits for this call before it copies (WN5).
    if (!in_sync && nodes_[node].session != targets[i].writer.session) continue;
    if (in_sync && give_up) {
      // Nothing is acknowledged that it misses: it may stay, if it knows its session.
      nodes_[node].suspected |= !is_no_space(status);
      continue;
    }
    put_out(node, text(status));
  }
  if (give_up) {
    if (!full.ok()) return full;
    return first_error.ok() ? too_few() : error_peer_down(text(first_error));
  }
  return in_sync_count() >= options_.write_quorum ? ok_status() : too_few();
}

// WN3, WN4
Status WrittenNodes::check_sessions() {
  std::vector<size_t> asked;
  std::vector<uint64_t> sessions, before;
  {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this] { return !asking_sessions_ || stopped_; });
    if (!ended_.ok()) return ended_;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].state != State::kInSync || !nodes_[i].suspected) continue;
      asked.push_back(i);
      sessions.push_back(next_session());
      before.push_back(nodes_[i].session);
    }
    if (asked.empty()) return ok_status();
    asking_sessions_ = true;
  }
  std::vector<StatusOr<proto::BeginWritesReply>> replies;
  for (size_t i = 0; i < asked.size(); ++i) {
    proto::BeginWritesReply reply;
    const Status status = begin_one(asked[i], sessions[i], before[i], &reply);
    if (status.ok())
      replies.emplace_back(reply);
    else
      replies.emplace_back(status);
  }
  Status fenced, missing;
  bool all_lost = false;
  {
    const MutexLock lock(mutex_);
    asking_sessions_ = false;
    judge_sessions(asked, sessions, replies);
    size_t lost = 0;
    for (size_t i = 0; i < asked.size(); ++i) {
      if (is_fenced(replies[i].status())) fenced = replies[i].status();
      if (!replies[i].ok()) missing = replies[i].status();
      if (replies[i].ok() && !replies[i]->continued) ++lost;
    }
    all_lost = lost == asked.size() && in_sync_count() == lost;
    if (in_sync_count() > asked.size()) missing = ok_status();
    for (const size_t node : asked)
      if (nodes_[node].state == State::kInSync && !nodes_[node].suspected) missing = ok_status();
  }
  changed_.notify_all();
  say();
  if (!fenced.ok()) return end(fenced);
  if (all_lost)
    return end(
        error_fenced("all storage nodes that had every page were restarted at once, and what they "
                     "had not synced "
                     "may be lost: restart this server, it recovers from the log"));
  return missing.ok() ? ok_status() : error_peer_down(text(missing));
}

// mutex_ held. Those that know their session go on; of the others, none is needed if one does.
void WrittenNodes::judge_sessions(const std::vector<size_t>& asked,
                                  const std::vector<uint64_t>& sessions,
                                  const std::vector<StatusOr<proto::BeginWritesReply>>& replies) {
  for (size_t i = 0; i < asked.size(); ++i) {
    if (!replies[i].ok() || !replies[i]->continued) continue;
    if (nodes_[asked[i]].state != State::kInSync) continue;
    nodes_[asked[i]].session = sessions[i];
    nodes_[asked[i]].suspected = false;
  }
  const bool one_is_well = std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
    return node.state == State::kInSync && !node.suspected;
  });
  if (!one_is_well) return;
  for (size_t i = 0; i < asked.size(); ++i) {
    if (!nodes_[asked[i]].suspected) continue;
    put_out(asked[i], replies[i].ok() ? "it was restarted" : text(replies[i].status()));
  }
}

// --- syncs, and the registry's list ---

Status WrittenNodes::sync() {
  {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this] { return !syncing_ || stopped_; });
    if (stopped_) return error_peer_down("this node stops");
    syncing_ = true;
  }
  Status status = to_all(
      proto::kSyncPages, options_.sync_timeout_us,
      [](const proto::Writer& writer) { return proto::encode(proto::SyncPagesRequest{writer}); });
  if (status.ok()) status = publish();
  {
    const MutexLock lock(mutex_);
    syncing_ = false;
  }
  changed_.notify_all();
  return is_fenced(status) ? end(status) : status;
}

// syncing_ is ours. WN2
Status WrittenNodes::publish() {
  std::vector<registry::InSyncNode> nodes;
  {
    const MutexLock lock(mutex_);
    if (in_sync_count() < options_.write_quorum) return too_few();
    for (const Node& node : nodes_)
      if (node.state == State::kInSync) nodes.push_back({node.name, node.store});
  }
  std::sort(nodes.begin(), nodes.end());
  return in_sync_->publish(nodes);
}

// --- coming back (WN5) ---

// Blocks until a node may come back or is suspected. Nothing of both: it is over.
std::vector<size_t> WrittenNodes::wait_for_work(bool* suspected) {
  MutexLock lock(mutex_);
  for (std::vector<size_t> out; !stopped_;) {
    const uint64_t now_us = monotonic_us();
    uint64_t next_us = UINT64_MAX;
    *suspected = false;
    for (size_t i = 0; i < nodes_.size() && ended_.ok(); ++i) {
      const Node& node = nodes_[i];
      *suspected |= node.state == State::kInSync && node.suspected;
      if (node.state != State::kOut) continue;
      next_us = std::min(next_us, node.next_try_us);
      if (node.next_try_us <= now_us) out.push_back(i);
    }
    if (*suspected || !out.empty()) return out;
    if (next_us == UINT64_MAX)
      changed_.wait(lock);
    else
      changed_.wait_for_us(lock, next_us - now_us);
  }
  *suspected = false;
  return {};
}

void WrittenNodes::keep() {
  for (;;) {
    bool suspected = false;
    const std::vector<size_t> out = wait_for_work(&suspected);
    if (out.empty() && !suspected) return;
    for (const size_t node : out) come_back(node);
    if (!suspected || check_sessions().ok()) continue;
    MutexLock lock(mutex_);  // nobody answers: not at once again
    changed_.wait_for_us(lock, kLookUs, [this] { return stopped_; });
  }
}

void WrittenNodes::come_back(size_t node) {
  const Status status = try_come_back(node);
  {
    const MutexLock lock(mutex_);
    Node& of = nodes_[node];
    if (status.ok()) {
      notes_.push_back("storage node " + of.name + " is in sync again");
    } else {
      const uint64_t pause_us = 2 * of.pause_us;
      put_out(node, text(status));
      of.why = text(status);
      of.pause_us = std::clamp(pause_us, kPauseUsMin, options_.come_back_us_max);
      of.next_try_us = monotonic_us() + of.pause_us;
    }
  }
  say();
  if (is_fenced(status)) (void)end(status);
}

Status WrittenNodes::try_come_back(size_t node) {
  proto::Writer writer{options_.stream, options_.epoch, 0};
  {
    const MutexLock lock(mutex_);
    writer.session = next_session();
  }
  proto::BeginWritesReply begun;
  STRATA_RETURN_IF_ERROR(begin_one(node, writer.session, 0, &begun));
  {
    MutexLock lock(mutex_);
    Node& of = nodes_[node];
    of.store = begun.store;
    of.session = writer.session;
    of.state = State::kCopying;
    of.why = "it copies pages from another node";
    of.pages_copied = 0;
    // What began without it has arrived at the others before the copy begins.
    const uint64_t last = operations_;
    changed_.wait(lock,
                  [&] { return stopped_ || under_way_.empty() || *under_way_.begin() > last; });
  }
  STRATA_RETURN_IF_ERROR(copy_to(node, writer));
  return join(node, writer);
}

Status WrittenNodes::copy_to(size_t node, const proto::Writer& writer) {
  proto::CopyPagesRequest request{writer, {}, 0};
  for (const Reader& reader : readers()) {
    request.peer = address(reader.node);
    request.peer_session = reader.session;
    if (!request.peer.empty()) break;
  }
  if (request.peer.empty()) return error_peer_down("no storage node is in sync to copy from");
  for (;;) {
    transport::BlockingReply answer;
    STRATA_RETURN_IF_ERROR(
        call(node, proto::kCopyPages, proto::encode(request), options_.write_timeout_us, &answer));
    STRATA_ASSIGN_OR_RETURN(const proto::CopyPagesReply reply,
                            proto::decode_copy_pages_reply(answer.payload));
    using State = proto::CopyPagesReply::State;
    if (reply.state == State::kDone) return ok_status();
    if (reply.state == State::kFailed)
      return error_peer_down("copying from another node failed: " + text(reply.why));
    MutexLock lock(mutex_);
    nodes_[node].pages_copied = reply.pages_seen;
    changed_.wait_for_us(lock, kCopyLookUs, [this] { return stopped_; });
    if (stopped_) return error_peer_down("this node stops");
    if (nodes_[node].state != WrittenNodes::State::kCopying)
      return error_peer_down(nodes_[node].why);
  }
}

Status WrittenNodes::join(size_t node, const proto::Writer& writer) {
  {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this] { return !syncing_ || stopped_; });
    if (stopped_) return error_peer_down("this node stops");
    syncing_ = true;  // no checkpoint passes between its sync and its place in the list
  }
  transport::BlockingReply answer;
  Status status = call(node, proto::kSyncPages, proto::encode(proto::SyncPagesRequest{writer}),
                       options_.sync_timeout_us, &answer);
  bool may_publish = false;
  {
    const MutexLock lock(mutex_);
    Node& of = nodes_[node];
    if (status.ok() && of.state != State::kCopying) status = error_peer_down(of.why);
    if (status.ok()) {
      of.state = State::kInSync;
      of.suspected = false;
      of.pause_us = 0;
      of.why.clear();
    }
    may_publish = in_sync_count() >= options_.write_quorum;
  }
  // If this fails the next sync does it; until then the registry has fewer than there are.
  if (status.ok() && may_publish) (void)publish();
  {
    const MutexLock lock(mutex_);
    syncing_ = false;
  }
  changed_.notify_all();
  return status;
}

}  // namespace strata::clients
