// The nodes, the start, the placement. Calls to several nodes and their coming back are in
// written_nodes_tasks.cc.
#include "clients/storage/written_nodes.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "base/diag.h"
#include "proto/calls/calls.h"
#include "proto/methods.h"
#include "proto/page_messages.h"

namespace strata::clients {

namespace {

constexpr uint64_t kPauseUsMin = 50'000;
constexpr uint64_t kLookUs = 100'000;  // at what the keeper has to do
constexpr uint64_t kLateUs = 1'000'000;
constexpr uint64_t kReconnectUsMax = 100'000;
constexpr uint64_t kListTimeoutUs = 10'000'000;

}  // namespace

WrittenNodes::WrittenNodes(const transport::World& world, const transport::Secret& secret,
                           WrittenNodesOptions options, InSyncSet* in_sync)
    : options_(std::move(options)),
      world_(world),
      secret_(secret),
      in_sync_(in_sync),
      sessions_(of_sessions(options_)) {
  for (const WrittenNode& who : options_.nodes) nodes_.push_back(make_node(who));
}

// Nodes are numbered as make_node() does it.
WriteSessions::Options WrittenNodes::of_sessions(const WrittenNodesOptions& options) {
  WriteSessions::Options of;
  for (const WrittenNode& who : options.nodes)
    of.places.push_back({of.places.size() + 1, who.name});
  of.write_quorum = options.write_quorum;
  of.generation = options.generation;
  of.founding = options.founding;
  of.come_back_us_max = options.come_back_us_max;
  of.unsynced_bytes_max = options.unsynced_bytes_max;
  return of;
}

// It begins to connect.
WrittenNodes::NodeRef WrittenNodes::make_node(const WrittenNode& who) {
  auto node = std::make_shared<Node>(++numbers_, who);
  transport::ChannelOptions channel;
  channel.link_model = options_.link_model;
  channel.counters = options_.counters;
  channel.reconnect_us_max = kReconnectUsMax;
  node->writes = std::make_unique<transport::Channel>(
      world_, secret_, node->address, channel,
      [this, of = node->number](bool connected, uint64_t, const Status&) {
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

void WrittenNodes::lost_connection(WriteSessions::NodeNumber node) {
  {
    const MutexLock lock(mutex_);
    sessions_.lost_connection(node);
  }
  changed_.notify_all();
}

void WrittenNodes::stop() {
  {
    const MutexLock lock(mutex_);
    sessions_.stop();
  }
  changed_.notify_all();
  if (keeper_.joinable()) keeper_.join();
}

WrittenNodes::NodeRef WrittenNodes::find(WriteSessions::NodeNumber number) const {
  const auto found = std::find_if(nodes_.begin(), nodes_.end(),
                                  [&](const NodeRef& node) { return node->number == number; });
  return found == nodes_.end() ? nullptr : *found;
}

// --- calls to one node ---

Status WrittenNodes::call(const NodeRef& node, uint16_t method, Bytes request, uint64_t timeout_us,
                          transport::BlockingReply* reply) {
  const auto call = proto::call_of(method, monotonic_us() + timeout_us, options_.epoch);
  return node->calls->call(call, request, reply);
}

void WrittenNodes::start_call(const NodeRef& node, uint16_t method, std::string request,
                              uint64_t timeout_us, transport::Channel::Callback done) {
  const auto call = proto::call_of(method, world_.executor->now_us() + timeout_us, options_.epoch);
  node->reads->call(call, std::move(request), std::move(done));
}

Status WrittenNodes::to_one(const Reader& reader, uint16_t method, Encode encode) {
  const std::string request = encode(writer(reader.session));
  transport::BlockingReply answer;
  const Status status = call(reader.node, method, request, options_.write_timeout_us, &answer);
  if (status.ok()) {
    if (method != proto::kWritePages) return status;
    const MutexLock lock(mutex_);
    sessions_.note(method, request);  // a copy that was mended: the others have the same
    return status;
  }
  suspect(reader);
  return status;
}

std::string WrittenNodes::address(const Reader& reader) { return reader.node->address.now(); }

StatusOr<std::vector<SpaceId>> WrittenNodes::list_spaces_of(const NodeRef& node) {
  transport::BlockingReply answer;
  STRATA_RETURN_IF_ERROR(call(node, proto::kListSpaces, proto::encode(proto::ListSpacesRequest{}),
                              kListTimeoutUs, &answer));
  STRATA_ASSIGN_OR_RETURN(proto::ListSpacesReply reply,
                          proto::decode_list_spaces_reply(answer.payload));
  return std::move(reply.spaces);
}

// --- the start ---

// Not OK: fenced. Others that do not answer are missing.
Status WrittenNodes::begin_missing(size_t* missing) {
  const std::vector<cluster::InSyncNode>& listed = in_sync_->nodes();
  Now now;
  {
    const MutexLock lock(mutex_);
    now.step.targets = sessions_.starting(listed);
    for (const Target& target : now.step.targets) now.targets.push_back(find(target.node));
  }
  const std::vector<WriteSessions::Answer> answers = begin_sessions(now);
  const MutexLock lock(mutex_);
  for (size_t i = 0; i < answers.size(); ++i) {
    STRATA_RETURN_IF_ERROR(sessions_.started(now.step.targets[i], listed, answers[i]));
    if (!answers[i].status.ok()) ++*missing;
  }
  return ok_status();
}

// Asks those in question until all have answered, or enough have and the others had their time.
Status WrittenNodes::begin_all() {
  if (in_sync_->nodes().empty() && !options_.founding)
    return error_corruption("the registry does not say which storage nodes have the pages");
  uint64_t deadline_us = monotonic_us() + options_.open_timeout_us;
  uint64_t waited_us = 0;
  for (uint64_t pause_us = kPauseUsMin;; pause_us = std::min(2 * pause_us, kLookUs * 5)) {
    size_t missing = 0;
    STRATA_RETURN_IF_ERROR(begin_missing(&missing));
    MutexLock lock(mutex_);
    // Those that are late have to copy everything: worth a moment, not more.
    if (sessions_.in_sync_count() >= options_.write_quorum)
      deadline_us = std::min(deadline_us, monotonic_us() + kLateUs - std::min(kLateUs, waited_us));
    if (missing == 0 || monotonic_us() >= deadline_us) break;
    waited_us += pause_us;
    changed_.wait_for_us(lock, pause_us,
                         [this]() STRATA_REQUIRES(mutex_) { return sessions_.stopped(); });
  }
  const MutexLock lock(mutex_);
  return sessions_.may_start() ? ok_status() : sessions_.too_few();
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
  std::vector<cluster::InSyncNode> list;
  {
    const MutexLock lock(mutex_);
    STRATA_ASSIGN_OR_RETURN(list, sessions_.list());
  }
  return in_sync_->publish(list);
}

// A space made after the last checkpoint may be missing where the call did not arrive any more.
Status WrittenNodes::equalise_spaces() {
  std::map<Node*, std::set<SpaceId>> of;
  std::set<SpaceId> all;
  for (const Reader& reader : readers()) {
    const auto spaces = list_spaces_of(reader.node);
    if (!spaces.ok()) {
      const MutexLock lock(mutex_);
      sessions_.give_up(reader.node->number, cause_of(spaces.status()));
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
      sessions_.give_up(reader.node->number, cause_of(made));
      break;
    }
  }
  const MutexLock lock(mutex_);
  return sessions_.in_sync_count() > 0 ? ok_status() : sessions_.too_few();
}

// --- other nodes ---

// A node that is known goes on as it is. What is left over goes when mutex_ is free: the last one
// to let go of a node waits for the transport's thread.
void WrittenNodes::follow(const ReplicaSet& replicas) {
  std::vector<NodeRef> now;
  {
    const MutexLock lock(mutex_);
    if (replicas.generation <= sessions_.generation()) return;
    now = nodes_;
  }
  const auto named = [](const std::vector<NodeRef>& nodes, const std::string& name) {
    return std::find_if(nodes.begin(), nodes.end(),
                        [&](const NodeRef& node) { return node->name == name; });
  };
  for (const ReplicaNode& one : replicas.nodes)
    if (named(now, one.key) == now.end()) now.push_back(make_node({one.key, one.address}));
  std::vector<NodeRef> before;
  {
    const MutexLock lock(mutex_);
    std::vector<NodeRef> nodes;
    std::vector<WriteSessions::Place> places;
    for (const ReplicaNode& one : replicas.nodes) {
      const auto known = named(nodes_, one.key);  // perhaps told of meanwhile
      nodes.push_back(known != nodes_.end() ? *known : *named(now, one.key));
      places.push_back({nodes.back()->number, one.key});
    }
    if (!sessions_.follow(places, replicas.write_quorum, replicas.generation)) return;
    before = nodes_;
    nodes_ = std::move(nodes);
    for (const NodeRef& old : before)
      if (find(old->number) == nullptr) gone_.push_back(old);
  }
  changed_.notify_all();
  say();
}

bool WrittenNodes::prepare_leave(const std::string& key, uint64_t generation,
                                 uint32_t write_quorum) {
  std::optional<Task> task;
  {
    const MutexLock lock(mutex_);
    task = sessions_.begin_leave(key, generation, write_quorum);
  }
  return task.has_value() && run(*std::move(task)).ok();
}

void WrittenNodes::cancel_leave() {
  const MutexLock lock(mutex_);
  sessions_.cancel_leave();
}

std::vector<bool> WrittenNodes::well() const {
  std::vector<bool> well;
  for (const NodeState& state : states()) well.push_back(state.in_sync);
  return well;
}

// --- what is known of the nodes ---

void WrittenNodes::say() {
  std::vector<WriteSessions::Note> notes;
  {
    const MutexLock lock(mutex_);
    notes = sessions_.take_notes();
  }
  for (const WriteSessions::Note& note : notes)
    diag(note.error ? Severity::kError : Severity::kWarning, "%s", note.text.c_str());
}

Status WrittenNodes::ended() const {
  const MutexLock lock(mutex_);
  return sessions_.ended();
}

std::vector<WrittenNodes::NodeState> WrittenNodes::states() const {
  const MutexLock lock(mutex_);
  return sessions_.states();
}

std::vector<WrittenNodes::Reader> WrittenNodes::readers() {
  const MutexLock lock(mutex_);
  std::vector<Reader> readers;
  for (const Target& one : sessions_.readers()) readers.push_back({find(one.node), one.session});
  return readers;
}

void WrittenNodes::prefer(const Reader& reader) {
  const MutexLock lock(mutex_);
  sessions_.prefer(reader.node->number);
}

void WrittenNodes::suspect(const Reader& reader) {
  {
    const MutexLock lock(mutex_);
    sessions_.suspect(reader.node->number, reader.session);
  }
  changed_.notify_all();
}

}  // namespace strata::clients
