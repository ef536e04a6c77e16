#include "clients/storage/written_nodes.h"

#include <algorithm>
#include <map>
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

std::string text(const Status& status) { return status.ok() ? std::string() : cause_of(status); }

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
    all_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return missing_ == 0; });
    return std::move(answers_);
  }

 private:
  Mutex mutex_{LatchRank::kLeaf};
  CondVar all_;
  std::vector<Answer> answers_ STRATA_GUARDED_BY(mutex_);
  size_t missing_ STRATA_GUARDED_BY(mutex_);
};

WrittenNodes::WrittenNodes(const transport::World& world, const transport::Secret& secret,
                           WrittenNodesOptions options, InSyncSet* in_sync)
    : options_(std::move(options)),
      world_(world),
      secret_(secret),
      in_sync_(in_sync),
      write_quorum_(options_.write_quorum),
      generation_(options_.generation) {
  for (const WrittenNode& who : options_.nodes) nodes_.push_back(make_node(who));
}

// It begins to connect.
WrittenNodes::NodeRef WrittenNodes::make_node(const WrittenNode& who) {
  auto node = std::make_shared<Node>(who);
  transport::ChannelOptions channel;
  channel.link_model = options_.link_model;
  channel.counters = options_.counters;
  channel.reconnect_us_max = kReconnectUsMax;
  node->writes = std::make_unique<transport::Channel>(
      world_, secret_, node->address, channel,
      [this, of = node.get()](bool connected, uint64_t, const Status&) {
        if (!connected) lost_connection(of);
      });
  node->reads = std::make_unique<transport::Channel>(world_, secret_, node->address, channel);
  transport::BlockingChannelOptions blocking;
  blocking.link_model = options_.link_model;
  blocking.counters = options_.counters;
  node->calls = std::make_unique<transport::BlockingChannel>(secret_, node->address, blocking);
  return node;
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
  for (const auto* nodes : {&nodes_, &gone_})  // their observers use what lives here
    for (const NodeRef& node : *nodes) node->writes.reset();
}

// Whether that was a restart is asked at once, not with the next write.
void WrittenNodes::lost_connection(Node* node) {
  const MutexLock lock(mutex_);
  if (node->state != State::kInSync) return;
  node->suspected = true;
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

Status WrittenNodes::call(const NodeRef& node, uint16_t method, Bytes request, uint64_t timeout_us,
                          transport::BlockingReply* reply) {
  transport::CallOptions call;
  call.method = method;
  call.epoch = options_.epoch.value;
  call.deadline_us = monotonic_us() + timeout_us;
  call.idempotent = proto::may_repeat(method);
  return node->calls->call(call, request, reply);
}

void WrittenNodes::start_call(const NodeRef& node, uint16_t method, std::string request,
                              uint64_t timeout_us, transport::Channel::Callback done) {
  transport::CallOptions call;
  call.method = method;
  call.epoch = options_.epoch.value;
  call.deadline_us = world_.executor->now_us() + timeout_us;
  call.idempotent = proto::may_repeat(method);
  node->reads->call(call, std::move(request), std::move(done));
}

Status WrittenNodes::begin_one(const NodeRef& node, uint64_t session, uint64_t continues,
                               proto::BeginWritesReply* reply) {
  const proto::BeginWritesRequest request{{options_.stream, options_.epoch, session}, continues};
  transport::CallOptions call;
  call.method = proto::kBeginWrites;
  call.epoch = options_.epoch.value;
  call.deadline_us =
      world_.executor->now_us() + (continues == 0 ? kBeginTimeoutUs : kContinueTimeoutUs);
  call.idempotent = proto::may_repeat(call.method);
  call.wait_for_connection = true;  // what is written next goes over the same connection
  auto round = std::make_shared<Round>(1);
  node->writes->call(call, proto::encode(request),
                     [round](const transport::Reply& answer) { round->answer(0, answer); });
  const std::vector<Answer> answers = round->wait();
  STRATA_RETURN_IF_ERROR(answers[0].status);
  STRATA_ASSIGN_OR_RETURN(*reply, proto::decode_begin_writes_reply(answers[0].payload));
  return ok_status();
}

Status WrittenNodes::to_one(const Reader& reader, uint16_t method, Encode encode) {
  const proto::Writer writer{options_.stream, options_.epoch, reader.session};
  const std::string request = encode(writer);
  transport::BlockingReply answer;
  const Status status = call(reader.node, method, request, options_.write_timeout_us, &answer);
  if (status.ok()) {
    if (method != proto::kWritePages) return status;
    const MutexLock lock(mutex_);
    unsynced_.note(method, request);  // a copy that was mended: the others have the same
    return status;
  }
  suspect(reader);
  return status;
}

std::string WrittenNodes::address(const Reader& reader) { return reader.node->address.now(); }

StatusOr<std::vector<SpaceId>> WrittenNodes::list_spaces_of(const NodeRef& node) {
  transport::BlockingReply answer;
  STRATA_RETURN_IF_ERROR(call(node, proto::kListSpaces, {}, kListTimeoutUs, &answer));
  STRATA_ASSIGN_OR_RETURN(proto::ListSpacesReply reply,
                          proto::decode_list_spaces_reply(answer.payload));
  return std::move(reply.spaces);
}

// --- the start ---

// Not OK: fenced. Others that do not answer are missing.
Status WrittenNodes::begin_at_start(const NodeRef& node, size_t* begun, size_t* missing) {
  const std::vector<cluster::InSyncNode>& known = in_sync_->nodes();
  const auto named = std::find_if(known.begin(), known.end(),
                                  [&](const auto& one) { return one.name == node->name; });
  uint64_t session = 0;
  {
    const MutexLock lock(mutex_);
    if (node->state == State::kInSync) return ok_status();
    if (!options_.founding && named == known.end()) {
      node->why = "it was out of sync when this compute node started";
      return ok_status();
    }
    if (node->store != 0) return ok_status();  // WS2 is not enough: another store in the old place
    session = next_session();
  }
  proto::BeginWritesReply reply;
  const Status status = begin_one(node, session, 0, &reply);
  if (ends_right(status)) return status;
  const MutexLock lock(mutex_);
  if (!status.ok()) {
    node->why = "it did not answer when this compute node started: " + text(status);
    ++*missing;
    return ok_status();
  }
  node->store = reply.store;
  if (!options_.founding && named->store != reply.store) {
    node->why = "it lost its pages: its store is another one";
    return ok_status();
  }
  node->session = session;
  node->state = State::kInSync;
  ++*begun;
  return ok_status();
}

// Asks those in question until all have answered, or enough have and the others had their time.
Status WrittenNodes::begin_all() {
  if (in_sync_->nodes().empty() && !options_.founding)
    return error_corruption("the registry does not say which storage nodes have the pages");
  uint64_t deadline_us = monotonic_us() + options_.open_timeout_us;
  size_t begun = 0;
  uint64_t waited_us = 0;
  for (uint64_t pause_us = kPauseUsMin;; pause_us = std::min(2 * pause_us, kLookUs * 5)) {
    size_t missing = 0;
    for (const NodeRef& node : nodes())
      STRATA_RETURN_IF_ERROR(begin_at_start(node, &begun, &missing));
    // Those that are late have to copy everything: worth a moment, not more.
    if (begun >= options_.write_quorum)
      deadline_us = std::min(deadline_us, monotonic_us() + kLateUs - std::min(kLateUs, waited_us));
    if (missing == 0 || monotonic_us() >= deadline_us) break;
    waited_us += pause_us;
    MutexLock lock(mutex_);
    changed_.wait_for_us(lock, pause_us, [this]() STRATA_REQUIRES(mutex_) { return stopped_; });
  }
  const size_t needed = options_.founding ? options_.write_quorum : 1;
  const MutexLock lock(mutex_);
  return begun >= needed ? ok_status() : too_few();
}

// What an earlier attempt at founding left behind.
Status WrittenNodes::forget_spaces() {
  for (const Reader& reader : readers()) {
    STRATA_ASSIGN_OR_RETURN(const std::vector<SpaceId> spaces, list_spaces_of(reader.node));
    for (const SpaceId space : spaces)
      STRATA_RETURN_IF_ERROR(to_one(reader, proto::kDeleteSpace, [&](const proto::Writer& writer) {
        return proto::encode(proto::SpaceRequest{writer, space, 0});
      }));
  }
  return publish();
}

// A space made after the last checkpoint may be missing where the call did not arrive any more.
Status WrittenNodes::equalise_spaces() {
  std::map<Node*, std::set<SpaceId>> of;
  std::set<SpaceId> all;
  for (const Reader& reader : readers()) {
    const auto spaces = list_spaces_of(reader.node);
    if (!spaces.ok()) {
      const MutexLock lock(mutex_);
      put_out(reader.node.get(), text(spaces.status()));
      continue;
    }
    of[reader.node.get()] = {spaces->begin(), spaces->end()};
    all.insert(spaces->begin(), spaces->end());
  }
  for (const Reader& reader : readers()) {
    for (const SpaceId space : all) {
      if (of[reader.node.get()].count(space) != 0) continue;
      const Status made = to_one(reader, proto::kCreateSpace, [&](const proto::Writer& writer) {
        return proto::encode(proto::SpaceRequest{writer, space, 0});
      });
      if (made.ok()) continue;
      const MutexLock lock(mutex_);
      put_out(reader.node.get(), text(made));
      break;
    }
  }
  const MutexLock lock(mutex_);
  return in_sync_count() > 0 ? ok_status() : too_few();
}

// --- other nodes ---

// A node that is known goes on as it is. The lists of before go when mutex_ is free: the last one
// to let go of a node waits for the transport's thread.
void WrittenNodes::follow(const ReplicaSet& replicas) {
  std::vector<NodeRef> before, now;
  {
    const MutexLock lock(mutex_);
    if (replicas.generation <= generation_) return;
    before = nodes_;
  }
  for (const ReplicaNode& one : replicas.nodes) {
    const auto known = std::find_if(before.begin(), before.end(),
                                    [&](const NodeRef& node) { return node->name == one.key; });
    now.push_back(known != before.end() ? *known : make_node({one.key, one.address}));
  }
  bool nobody = false;
  {
    const MutexLock lock(mutex_);
    if (replicas.generation <= generation_) return;  // told of a newer one meanwhile
    take_place(now, replicas);
    nobody = in_sync_count() == 0;
  }
  changed_.notify_all();
  say();
  if (nobody)  // kept: every later call hears it, nobody waits for it here
    (void)end(error_ended(
        "the storage nodes that had every page lost their places in the group before another one "
        "had copied them; to do: restart this server, it recovers from the log"));
}

// WN6
void WrittenNodes::take_place(std::vector<NodeRef> nodes, const ReplicaSet& replicas) {
  const NodeRef preferred = preferred_ < nodes_.size() ? nodes_[preferred_] : nullptr;
  nodes_.swap(nodes);
  for (const NodeRef& old : nodes) {
    if (std::find(nodes_.begin(), nodes_.end(), old) != nodes_.end()) continue;
    notes_.push_back("storage node " + old->name + " has lost its place in the group");
    old->state = State::kGone;
    old->suspected = false;
    old->why = "it has lost its place in the group";
    gone_.push_back(old);
  }
  const auto again = std::find(nodes_.begin(), nodes_.end(), preferred);
  preferred_ = again == nodes_.end() ? 0 : static_cast<size_t>(again - nodes_.begin());
  generation_ = replicas.generation;
  write_quorum_ = replicas.write_quorum;
  const bool stays =
      leaving_.has_value() && std::any_of(nodes_.begin(), nodes_.end(),
                                          [this](const NodeRef& node) STRATA_REQUIRES(mutex_) {
                                            return node->name == leaving_->name;
                                          });
  if (!stays) leaving_.reset();
}

// WN7. The list is changed by one thread at a time; a sync that is under way is not waited for.
bool WrittenNodes::prepare_leave(const std::string& key, uint64_t generation,
                                 uint32_t write_quorum) {
  {
    const MutexLock lock(mutex_);
    if (generation != generation_ || !ended_.ok() || stopped_) return false;
    leaving_ = Leaving{key, write_quorum};
    if (syncing_ || !enough()) return false;
    syncing_ = true;
  }
  const Status published = publish();
  {
    const MutexLock lock(mutex_);
    syncing_ = false;
  }
  changed_.notify_all();
  if (ends_right(published)) (void)end(published);  // kept: every later call hears it
  return published.ok();
}

void WrittenNodes::cancel_leave() {
  const MutexLock lock(mutex_);
  leaving_.reset();
}

std::vector<bool> WrittenNodes::well() const {
  std::vector<bool> well;
  for (const NodeState& state : states()) well.push_back(state.in_sync);
  return well;
}

// --- what is known of the nodes ---

proto::Writer WrittenNodes::writer_of(const Node& node) const {
  return {options_.stream, options_.epoch, node.session};
}

size_t WrittenNodes::in_sync_count() const {
  return static_cast<size_t>(std::count_if(nodes_.begin(), nodes_.end(), [](const NodeRef& node) {
    return node->state == State::kInSync;
  }));
}

// WN1, WN7
bool WrittenNodes::enough() const {
  if (in_sync_count() < write_quorum_) return false;
  if (!leaving_.has_value()) return true;
  const auto others = std::count_if(
      nodes_.begin(), nodes_.end(), [this](const NodeRef& node) STRATA_REQUIRES(mutex_) {
        return node->state == State::kInSync && node->name != leaving_->name;
      });
  return static_cast<size_t>(others) >= leaving_->write_quorum;
}

// WN4: that many are told again. Nothing but what all nodes in sync have is acknowledged while
// there are too few of them, so then it takes all.
bool WrittenNodes::enough(const std::vector<Target>& nodes) const {
  if (nodes.size() == in_sync_count()) return true;
  const auto stay =
      std::count_if(nodes.begin(), nodes.end(), [this](const Target& one) STRATA_REQUIRES(mutex_) {
        return !leaving_.has_value() || one.node->name != leaving_->name;
      });
  return nodes.size() >= write_quorum_ &&
         (!leaving_.has_value() || static_cast<size_t>(stay) >= leaving_->write_quorum);
}

Status WrittenNodes::too_few() const {
  std::string why;
  for (const NodeRef& node : nodes_)
    if (node->state != State::kInSync)
      why += (why.empty() ? "" : "; ") + node->name + ": " + node->why;
  return error_peer_down(
      "only " + std::to_string(in_sync_count()) + " of " + std::to_string(nodes_.size()) +
      " storage nodes are in sync, " + std::to_string(write_quorum_) + " are needed" +
      (leaving_.has_value()
           ? ", without " + leaving_->name + " " + std::to_string(leaving_->write_quorum)
           : "") +
      " (" + why + ")");
}

void WrittenNodes::put_out(Node* node, const std::string& why) {
  if (node->state == State::kOut || node->state == State::kGone) return;
  const bool was_in_sync = node->state == State::kInSync;
  node->state = State::kOut;
  node->suspected = false;
  node->why = why;
  node->next_try_us = 0;
  node->pause_us = kPauseUsMin;
  if (was_in_sync)
    notes_.push_back("storage node " + node->name + " is out of sync: " + why +
                     "; it copies what it misses as soon as it can be reached");
  changed_.notify_all();
}

std::vector<WrittenNodes::NodeRef> WrittenNodes::nodes() const {
  const MutexLock lock(mutex_);
  return nodes_;
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
  for (const NodeRef& of : nodes_) {
    const Node& node = *of;
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
    const NodeRef& node = nodes_[(preferred_ + i) % nodes_.size()];
    if (node->state == State::kInSync) readers.push_back({node, node->session});
  }
  return readers;
}

void WrittenNodes::prefer(const Reader& reader) {
  const MutexLock lock(mutex_);
  const auto found = std::find(nodes_.begin(), nodes_.end(), reader.node);
  if (found != nodes_.end()) preferred_ = static_cast<size_t>(found - nodes_.begin());
}

void WrittenNodes::suspect(const Reader& reader) {
  const MutexLock lock(mutex_);
  Node& node = *reader.node;
  if (node.state == State::kInSync && node.session == reader.session) node.suspected = true;
  changed_.notify_all();
}

// --- calls to all ---

Status WrittenNodes::to_all(uint16_t method, Encode encode) {
  return to_all(method, options_.write_timeout_us, encode);
}

Status WrittenNodes::to_all(uint16_t method, uint64_t timeout_us, Encode encode) {
  STRATA_RETURN_IF_ERROR(keep_few_unsynced(method));
  STRATA_RETURN_IF_ERROR(check_sessions());
  std::vector<Target> targets;
  uint64_t operation = 0;
  STRATA_RETURN_IF_ERROR(take_targets(&targets, &operation));
  const std::vector<Answer> answers = ask(targets, method, timeout_us, encode);
  const std::string request = encode(targets.front().writer);
  Status status;
  {
    const MutexLock lock(mutex_);
    under_way_.erase(operation);
    status = judge(targets, answers);
    if (status.ok()) unsynced_.note(method, request);
  }
  changed_.notify_all();
  say();
  return ends_right(status) ? end(status) : status;
}

// What has to be remembered for WN4 is bounded.
Status WrittenNodes::keep_few_unsynced(uint16_t method) {
  if (method != proto::kWritePages) return ok_status();
  {
    const MutexLock lock(mutex_);
    if (unsynced_.bytes() < options_.unsynced_bytes_max) return ok_status();
  }
  return sync();
}

Status WrittenNodes::take_targets(std::vector<Target>* targets, uint64_t* operation) {
  MutexLock lock(mutex_);
  changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return !asking_sessions_ || stopped_; });
  if (!ended_.ok()) return ended_;
  if (!enough()) return too_few();
  for (const NodeRef& node : nodes_)
    if (node->state != State::kOut)
      targets->push_back({node, writer_of(*node), node->state == State::kInSync});
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
    targets[i].node->writes->call(
        call, encode(targets[i].writer),
        [round, i](const transport::Reply& reply) { round->answer(i, reply); });
  }
  return round->wait();
}

// WN1, WN3; of a node that is gone nothing counts (WN6).
Status WrittenNodes::judge(const std::vector<Target>& targets, const std::vector<Answer>& answers) {
  size_t have_it = 0;
  Status first_error, full;
  for (size_t i = 0; i < targets.size(); ++i) {
    const Status& status = answers[i].status;
    if (ends_right(status)) return status;
    const Node& node = *targets[i].node;
    const bool in_sync = targets[i].in_sync && node.state == State::kInSync &&
                         targets[i].writer.session >= node.first_session;
    if (in_sync && status.ok()) ++have_it;
    if (in_sync && !status.ok() && first_error.ok()) first_error = status;
    if (in_sync && answers[i].answered && is_no_space(status)) full = status;
  }
  const bool give_up = have_it == 0 || (!full.ok() && have_it < write_quorum_);
  for (size_t i = 0; i < targets.size(); ++i) {
    Node& node = *targets[i].node;
    const Status& status = answers[i].status;
    if (status.ok() || targets[i].writer.session < node.first_session) continue;
    const bool in_sync = node.state == State::kInSync;
    // One that was put out and began again since waits for this call before it copies (WN5).
    if (!in_sync && node.session != targets[i].writer.session) continue;
    if (in_sync && give_up) {
      // Nothing is acknowledged that it misses: it may stay, if it knows its session.
      node.suspected |= !is_no_space(status);
      continue;
    }
    put_out(&node, text(status));
  }
  if (give_up) {
    if (!full.ok()) return full;
    return first_error.ok() ? too_few() : error_peer_down(text(first_error));
  }
  return enough() ? ok_status() : too_few();
}

// WN3, WN4
Status WrittenNodes::check_sessions() {
  std::vector<Asked> asked;
  {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return !asking_sessions_ || stopped_; });
    if (!ended_.ok()) return ended_;
    if (!take_suspected(&asked)) return ok_status();
    asking_sessions_ = true;
  }
  for (Asked& one : asked) one.status = begin_one(one.node, one.session, one.before, &one.reply);
  std::vector<Target> restarted;
  Status status;
  {
    const MutexLock lock(mutex_);
    status = judge_sessions(asked, &restarted);
  }
  if (!restarted.empty()) status = tell_again(std::move(restarted));
  {
    const MutexLock lock(mutex_);
    asking_sessions_ = false;
  }
  changed_.notify_all();
  say();
  return ends_right(status) ? end(status) : status;
}

bool WrittenNodes::take_suspected(std::vector<Asked>* asked) {
  for (const NodeRef& node : nodes_)
    if (node->state == State::kInSync && node->suspected)
      asked->push_back({node, next_session(), node->session, {}, {}});
  return !asked->empty();
}

// Those that know their session go on; of the others, none is needed if one does. If
// none does, those that were restarted may have to be told again.
Status WrittenNodes::judge_sessions(const std::vector<Asked>& asked,
                                    std::vector<Target>* restarted) {
  Status missing;
  std::vector<Target> forgot;
  for (const Asked& one : asked) {
    if (ends_right(one.status)) return one.status;
    if (one.node->state != State::kInSync) continue;  // it was put out, or lost its place
    if (one.continued()) {
      one.node->session = one.session;
      one.node->suspected = false;
    } else if (one.forgot() && one.reply.store == one.node->store) {
      forgot.push_back({one.node, {options_.stream, options_.epoch, one.session}, true});
    } else {
      missing = one.status.ok() ? error_peer_down("it lost its pages") : one.status;
    }
  }
  const bool one_is_well = std::any_of(nodes_.begin(), nodes_.end(), [](const NodeRef& node) {
    return node->state == State::kInSync && !node->suspected;
  });
  if (one_is_well) {
    for (const Asked& one : asked)
      if (one.node->state == State::kInSync && one.node->suspected)
        put_out(one.node.get(), one.status.ok() ? "it was restarted" : text(one.status));
    return ok_status();
  }
  if (!forgot.empty() && enough(forgot)) *restarted = std::move(forgot);
  return missing.ok() ? ok_status() : error_peer_down(text(missing));
}

// WN4. asking_sessions_ is ours: no call begins meanwhile.
Status WrittenNodes::tell_again(std::vector<Target> restarted) {
  std::vector<UnsyncedPages::Call> calls;
  {
    MutexLock lock(mutex_);
    changed_.wait(lock,
                  [this]() STRATA_REQUIRES(mutex_) { return under_way_.empty() || stopped_; });
    if (stopped_) return error_peer_down("this node stops");
    calls = unsynced_.calls();
    notes_.push_back(
        "all storage nodes that had every page were restarted at once: they are told again what "
        "was written since the last sync");
  }
  Status error = error_peer_down("none of them answers");
  for (const UnsyncedPages::Call& call : calls) {
    const std::vector<Answer> answers =
        ask(restarted, call.method, options_.write_timeout_us,
            [&call](const proto::Writer& writer) { return call.encode(writer); });
    for (size_t i = restarted.size(); i-- > 0;) {
      if (answers[i].status.ok()) continue;
      error = answers[i].status;
      if (ends_right(error)) return error;
      restarted.erase(restarted.begin() + static_cast<ptrdiff_t>(i));
    }
    if (restarted.empty()) return is_no_space(error) ? error : error_peer_down(text(error));
  }
  const MutexLock lock(mutex_);
  std::erase_if(restarted, [](const Target& one) { return one.node->state != State::kInSync; });
  if (restarted.empty() || !enough(restarted))
    return is_no_space(error) ? error : error_peer_down(text(error));
  for (const Target& one : restarted) {
    one.node->session = one.node->first_session = one.writer.session;
    one.node->suspected = false;
  }
  for (const NodeRef& node : nodes_)
    if (node->state == State::kInSync && node->suspected)
      put_out(node.get(), "it was away when the others were restarted");
  return ok_status();
}

// --- syncs, and the registry's list ---

Status WrittenNodes::sync() {
  uint64_t covered = 0;
  {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return !syncing_ || stopped_; });
    if (stopped_) return error_peer_down("this node stops");
    syncing_ = true;
    covered = unsynced_.mark();
  }
  Status status = to_all(
      proto::kSyncPages, options_.sync_timeout_us,
      [](const proto::Writer& writer) { return proto::encode(proto::SyncPagesRequest{writer}); });
  if (status.ok()) status = publish();
  {
    const MutexLock lock(mutex_);
    syncing_ = false;
    if (status.ok()) unsynced_.forget(covered);
  }
  changed_.notify_all();
  return ends_right(status) ? end(status) : status;
}

// syncing_ is ours. WN2
Status WrittenNodes::publish() {
  std::vector<cluster::InSyncNode> nodes;
  {
    const MutexLock lock(mutex_);
    if (!enough()) return too_few();
    for (const NodeRef& node : nodes_)
      if (node->state == State::kInSync) nodes.push_back({node->name, node->store});
  }
  std::sort(nodes.begin(), nodes.end());
  return in_sync_->publish(nodes);
}

// --- coming back (WN5) ---

// Nothing: not before *next_us.
bool WrittenNodes::find_work(Work* work, uint64_t* next_us) {
  const uint64_t now_us = monotonic_us();
  *next_us = UINT64_MAX;
  *work = {};
  work->gone.swap(gone_);
  for (size_t i = 0; i < nodes_.size() && ended_.ok(); ++i) {
    const Node& node = *nodes_[i];
    work->suspected |= node.state == State::kInSync && node.suspected;
    if (node.state != State::kOut) continue;
    *next_us = std::min(*next_us, node.next_try_us);
    if (node.next_try_us <= now_us) work->out.push_back(nodes_[i]);
  }
  return work->suspected || !work->out.empty() || !work->gone.empty();
}

// Blocks until a node may come back, is suspected or gone. False: it is over.
bool WrittenNodes::wait_for_work(Work* work) {
  MutexLock lock(mutex_);
  for (uint64_t next_us = 0; !stopped_;) {
    if (find_work(work, &next_us)) return true;
    const uint64_t now_us = monotonic_us();
    if (next_us == UINT64_MAX)
      changed_.wait(lock);
    else if (next_us > now_us)
      changed_.wait_for_us(lock, next_us - now_us);
  }
  return false;
}

void WrittenNodes::keep() {
  for (;;) {
    Work work;
    if (!wait_for_work(&work)) return;
    work.gone.clear();
    for (const NodeRef& node : work.out) come_back(node);
    if (!work.suspected || check_sessions().ok()) continue;
    MutexLock lock(mutex_);  // nobody answers: not at once again
    changed_.wait_for_us(lock, kLookUs, [this]() STRATA_REQUIRES(mutex_) { return stopped_; });
  }
}

void WrittenNodes::come_back(const NodeRef& node) {
  const Status status = try_come_back(node);
  {
    const MutexLock lock(mutex_);
    if (status.ok()) {
      notes_.push_back("storage node " + node->name + " is in sync again");
    } else if (node->state != State::kGone) {
      const uint64_t pause_us = 2 * node->pause_us;
      put_out(node.get(), text(status));
      node->why = text(status);
      node->pause_us = std::clamp(pause_us, kPauseUsMin, options_.come_back_us_max);
      node->next_try_us = monotonic_us() + node->pause_us;
    }
  }
  say();
  if (ends_right(status)) (void)end(status);  // kept: every later call hears it
}

Status WrittenNodes::try_come_back(const NodeRef& node) {
  proto::Writer writer{options_.stream, options_.epoch, 0};
  {
    const MutexLock lock(mutex_);
    writer.session = next_session();
  }
  proto::BeginWritesReply begun;
  STRATA_RETURN_IF_ERROR(begin_one(node, writer.session, 0, &begun));
  {
    MutexLock lock(mutex_);
    Node& of = *node;
    if (of.state != State::kOut) return error_peer_down(of.why);  // it is gone
    of.store = begun.store;
    of.session = writer.session;
    of.state = State::kCopying;
    of.why = "it copies pages from another node";
    of.pages_copied = 0;
    // What began without it has arrived at the others before the copy begins.
    const uint64_t last = operations_;
    changed_.wait(lock, [&]() STRATA_REQUIRES(mutex_) {
      return stopped_ || under_way_.empty() || *under_way_.begin() > last;
    });
  }
  STRATA_RETURN_IF_ERROR(copy_to(node, writer));
  return join(node, writer);
}

Status WrittenNodes::copy_to(const NodeRef& node, const proto::Writer& writer) {
  proto::CopyPagesRequest request{writer, {}, 0};
  for (const Reader& reader : readers()) {
    request.peer = address(reader);
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
    node->pages_copied = reply.pages_seen;
    changed_.wait_for_us(lock, kCopyLookUs, [this]() STRATA_REQUIRES(mutex_) { return stopped_; });
    if (stopped_) return error_peer_down("this node stops");
    if (node->state != WrittenNodes::State::kCopying) return error_peer_down(node->why);
  }
}

Status WrittenNodes::join(const NodeRef& node, const proto::Writer& writer) {
  {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() STRATA_REQUIRES(mutex_) { return !syncing_ || stopped_; });
    if (stopped_) return error_peer_down("this node stops");
    syncing_ = true;  // no checkpoint passes between its sync and its place in the list
  }
  transport::BlockingReply answer;
  Status status = call(node, proto::kSyncPages, proto::encode(proto::SyncPagesRequest{writer}),
                       options_.sync_timeout_us, &answer);
  bool may_publish = false;
  {
    const MutexLock lock(mutex_);
    Node& of = *node;
    if (status.ok() && of.state != State::kCopying) status = error_peer_down(of.why);
    if (status.ok()) {
      of.state = State::kInSync;
      of.suspected = false;
      of.pause_us = 0;
      of.why.clear();
    }
    may_publish = enough();
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
