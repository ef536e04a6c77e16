#include "log_quorum_sim.h"

#include <algorithm>
#include <utility>

namespace strata::sim {

using quorum::CatchUpOrder;
using quorum::Outgoing;
using quorum::Reply;

namespace {

constexpr uint64_t kRequestDeadlineUs = 20'000;
constexpr uint64_t kTickUs = 5'000;
constexpr uint64_t kHealLimitUs = 3'000'000;

quorum::ReadReply no_answer(Lsn from) {
  quorum::ReadReply reply;
  reply.status = error_peer_down("no answer");
  reply.from = from;
  return reply;
}

}  // namespace

// --- a node ---

// Passes on to the simulated disk; the node makes syncs fail.
class Node::Disk final : public FileSystem {
 public:
  Disk(FileSystem* inner, int* failing) : inner_(inner), failing_(failing) {}
  StatusOr<std::unique_ptr<File>> open(const std::string& path, OpenOptions options) override {
    STRATA_ASSIGN_OR_RETURN(std::unique_ptr<File> file, inner_->open(path, options));
    return std::unique_ptr<File>(std::make_unique<OneFile>(std::move(file), failing_));
  }
  Status make_directory(const std::string& path) override { return inner_->make_directory(path); }
  Status remove(const std::string& path) override { return inner_->remove(path); }
  Status rename(const std::string& from, const std::string& to) override {
    return inner_->rename(from, to);
  }
  StatusOr<bool> exists(const std::string& path) override { return inner_->exists(path); }
  StatusOr<std::vector<std::string>> list(const std::string& path) override {
    return inner_->list(path);
  }
  Status sync_directory(const std::string& path) override { return inner_->sync_directory(path); }
  StatusOr<std::unique_ptr<FileLock>> lock_file(const std::string& path) override {
    return inner_->lock_file(path);
  }

 private:
  class OneFile final : public File {
   public:
    OneFile(std::unique_ptr<File> file, int* failing) : file_(std::move(file)), failing_(failing) {}
    Status read_at(uint64_t offset, void* data, size_t bytes, size_t* got) override {
      return file_->read_at(offset, data, bytes, got);
    }
    Status write_at(uint64_t offset, const void* data, size_t bytes) override {
      return file_->write_at(offset, data, bytes);
    }
    Status sync_data() override {
      if (*failing_ > 0 && --*failing_ >= 0) return error_internal("a sync fails");
      return file_->sync_data();
    }
    StatusOr<uint64_t> size() override { return file_->size(); }
    Status allocate(uint64_t bytes) override { return file_->allocate(bytes); }
    Status truncate(uint64_t bytes) override { return file_->truncate(bytes); }
    [[nodiscard]] const std::string& path() const override { return file_->path(); }

   private:
    const std::unique_ptr<File> file_;
    int* const failing_;
  };
  FileSystem* const inner_;
  int* const failing_;
};

Node::Node(LogQuorumSim* sim, NodeNumber number, size_t view)
    : sim_(sim), number_(number), joined_(view), view_(view), files_(make_sim_file_system()) {
  start();
}

void Node::see(size_t view) {
  if (view <= view_) return;
  view_ = view;
  const std::vector<NodeNumber>& nodes = sim_->members(view).nodes;
  out_ = out_ || std::find(nodes.begin(), nodes.end(), number_) == nodes.end();
}

// What the store still answers goes nowhere: the clients are gone.
Node::~Node() {
  ++life_;
  catch_up_.reset();
  store_.reset();
}

void Node::start() {
  if (alive()) return;
  ++life_;
  failing_syncs_ = 0;
  LogStoreOptions options;
  options.directory = "/node";
  options.cluster_id = 1;
  options.segment_bytes = 4096 + 4096;
  options.chunk_bytes_max = 700;
  options.spare_segments_max = 1;
  options.history_entries_max = sim_->config().history_entries_max;
  disk_ = std::make_unique<Disk>(files_.get(), &failing_syncs_);
  auto opened = LogStore::open(disk_.get(), options);
  if (!opened.ok()) return sim_->fail("open: " + std::string(opened.status().message()));
  store_ = std::move(*opened);
  const auto status = store_->status(kStream);
  if (status.ok() && !status->failure.ok())
    sim_->fail("open: " + std::string(status->failure.message()));
  if (status.ok() && !status->damages.empty()) sim_->fail("open: " + status->damages[0].what);
  // Peers are asked as anybody asks them.
  catch_up_ = std::make_unique<SelfCatchUp>(
      store_.get(), kStream,
      [this](quorum::ReplicaIndex source, const quorum::ReadRequest& request,
             SelfCatchUp::FetchDone done) {
        const uint64_t life = life_;
        auto answered = std::make_shared<bool>(false);
        const auto finish = [this, life, answered, done](quorum::ReadReply reply) {
          if (std::exchange(*answered, true) || life != life_) return;
          done(std::move(reply));
          schedule();
        };
        sim_->clock().after(kRequestDeadlineUs,
                            [finish, from = request.from] { finish(no_answer(from)); });
        const std::vector<NodeNumber>& nodes = sim_->members(view_).nodes;
        if (source >= nodes.size()) return;  // it has not heard of that one yet
        Node& peer = sim_->node(nodes[source]);
        sim_->send([this, &peer, peer_life = peer.life(), request, finish] {
          if (!peer.alive() || peer.out_ || peer.life() != peer_life) return;
          quorum::ReadReply reply = peer.store()->read(kStream, request);
          sim_->send([finish, reply = std::move(reply)] { finish(reply); });
        });
      });
}

void Node::crash(bool power_loss) {
  if (!alive()) return;
  ++sim_->counts().crashes;
  voted_ = votes();
  ++life_;
  catch_up_.reset();
  if (power_loss) files_->crash(sim_->rng().next());
  store_.reset();
  scheduled_ = false;
}

bool Node::votes() const {
  if (!alive()) return voted_;
  const auto status = store_->status(kStream);
  return status.ok() && status->state.voting;
}

std::string Node::describe() const {
  if (!alive()) return "down";
  const auto status = store_->status(kStream);
  if (!status.ok()) return "no stream";
  const quorum::ReplicaState& s = status->state;
  return std::to_string(s.start.value) + " to " + std::to_string(s.end.value) + ", promised " +
         std::to_string(s.promised.value) + ", history " + quorum::describe(status->history) +
         (s.voting ? "" : ", not voting");
}

void Node::lose_disk() {
  crash(false);
  voted_ = false;
  files_ = make_sim_file_system();
}

// Batches are made a little later, so that they gather.
void Node::schedule() {
  if (std::exchange(scheduled_, true)) return;
  sim_->clock().after(20 + sim_->rng().below(300), [this, life = life_] {
    if (life != life_) return;
    scheduled_ = false;
    if (store_->persist_pending()) schedule();  // answers may have queued more
  });
}

template <typename R>
std::function<void(R)> Node::in_this_life(std::function<void(Reply)> reply) {
  return [this, life = life_, reply = std::move(reply)](R answer) {
    if (life == life_) reply(std::move(answer));
  };
}

void Node::handle(const Outgoing& request, std::function<void(Reply)> reply) {
  if (out_) return;
  if (!store_->status(kStream).ok())
    store_->make_stream(kStream, sim_->stream_origin(joined_), [](const quorum::ChangeReply&) {});
  if (const auto* seal = std::get_if<quorum::SealRequest>(&request.body)) {
    store_->seal(kStream, *seal, in_this_life<quorum::SealReply>(std::move(reply)));
  } else if (const auto* begin = std::get_if<quorum::BeginRequest>(&request.body)) {
    store_->begin_epoch(kStream, *begin, in_this_life<quorum::ChangeReply>(std::move(reply)));
  } else if (const auto* bytes = std::get_if<quorum::CatchUpRequest>(&request.body)) {
    store_->catch_up(kStream, *bytes, in_this_life<quorum::ChangeReply>(std::move(reply)));
  } else if (const auto* append = std::get_if<quorum::AppendRequest>(&request.body)) {
    store_->append(kStream, *append, in_this_life<quorum::ChangeReply>(std::move(reply)));
  } else if (const auto* read = std::get_if<quorum::ReadRequest>(&request.body)) {
    return reply(store_->read(kStream, *read));
  } else {
    catch_up_->order(std::get<CatchUpOrder>(request.body));
  }
  schedule();
}

// --- a client ---

Client::Client(LogQuorumSim* sim, quorum::Holder holder, std::optional<size_t> view)
    : sim_(sim), holder_(holder) {
  if (view.has_value()) {
    recover(*view);
    return;
  }
  sim_->clock().after(sim_->news_delay_us(), [this] {
    deliver([this] {
      const size_t read = sim_->newest_view();  // after the epoch was given
      sim_->clock().after(sim_->news_delay_us(), [this, read] { recover(read); });
    });
  });
}

void Client::recover(size_t view) {
  if (over()) return;
  if (sim_->members(view).taken_out_by > holder_.epoch) {  // PR6
    fenced_ = true;
    return;
  }
  view_ = view;
  newest_ = std::max(newest_, view);
  recovery_.emplace(sim_->options(view_), holder_, sim_->new_stream_start());
  send(recovery_->take_requests());
  sim_->clock().after(kTickUs, [this] { tick(); });
}

void Client::see(size_t view) {
  deliver([this, view] {
    newest_ = std::max(newest_, view);
    const bool follows_all = sim_->config().mutation == Mutation::kOldHolderFollows;
    if (sim_->members(newest_).taken_out_by > holder_.epoch && !follows_all) {  // PR6
      fenced_ = true;
      ++sim_->counts().fenced;
      return;
    }
    if (writer_.has_value()) follow();
  });
}

void Client::follow() {
  if (newest_ <= view_) return;
  const std::vector<NodeNumber>& before = sim_->members(view_).nodes;
  const Members& now = sim_->members(newest_);
  quorum::ReplicasBefore were(now.nodes.size());
  for (size_t i = 0; i < were.size(); ++i) {
    const auto found = std::find(before.begin(), before.end(), now.nodes[i]);
    if (found != before.end()) were[i] = static_cast<quorum::ReplicaIndex>(found - before.begin());
  }
  if (now.nodes.size() < before.size() && !writer_->leaves()) {
    if (sim_->config().mutation == Mutation::kNone)
      return sim_->fail("a holder hears of a removal that is not its own");
    // Mutations come here without what the writer insists on.
    const auto gone = std::find_if(before.begin(), before.end(), [&](NodeNumber node) {
      return std::find(now.nodes.begin(), now.nodes.end(), node) == now.nodes.end();
    });
    writer_->begin_leave(static_cast<quorum::ReplicaIndex>(gone - before.begin()),
                         now.write_quorum);
  }
  view_ = newest_;
  writer_->follow(now.write_quorum, were);
  progress();
}

// --- a client takes a node out ---

void Client::take_out(NodeNumber node) {
  deliver([this, node] {
    if (!writer_.has_value() || removal_.has_value() || newest_ > view_) return;
    const std::vector<NodeNumber>& nodes = sim_->members(view_).nodes;
    const auto found = std::find(nodes.begin(), nodes.end(), node);
    if (found == nodes.end() || nodes.size() <= sim_->config().nodes_min) return;
    removal_ = {node, view_};
    if (sim_->config().mutation != Mutation::kRemovalWithOneQuorum)
      writer_->begin_leave(static_cast<quorum::ReplicaIndex>(found - nodes.begin()),
                           static_cast<uint32_t>((nodes.size() - 1) / 2 + 1));
    progress();
  });
}

// What became of it is known when the placement is another one, or the registry has refused.
void Client::go_on_with_removal() {
  if (!removal_.has_value()) return;
  if (view_ > removal_->view) {
    removal_.reset();
    if (writer_->leaves()) writer_->cancel_leave();  // another change came first
    return;
  }
  const bool may_leave =
      sim_->config().mutation == Mutation::kRemovalWithOneQuorum || writer_->may_leave();
  if (removal_->in_flight || (!removal_->asked && !may_leave)) return;
  ask_registry();
}

void Client::ask_registry() {
  removal_->asked = removal_->in_flight = true;
  const Removal asked = *removal_;
  const auto answered = [this, asked](bool done) {
    deliver([this, asked, done] {
      if (!removal_.has_value() || removal_->view != asked.view) return;
      removal_->in_flight = false;
      on_removal(done);
    });
  };
  sim_->send([this, asked, answered] {
    const bool done = sim_->change_without(asked.node, asked.view, holder_.epoch);
    sim_->send([answered, done] { answered(done); });
  });
  sim_->clock().after(kRequestDeadlineUs, [this, asked] {
    deliver([this, asked] {  // the outcome is unknown: asked again
      if (removal_.has_value() && removal_->view == asked.view) removal_->in_flight = false;
    });
  });
}

void Client::on_removal(bool done) {
  if (done) {
    newest_ = std::max(newest_, removal_->view + 1);
    follow();
    return;
  }
  removal_.reset();
  if (writer_->leaves()) writer_->cancel_leave();
  progress();
}

void Client::pause(uint64_t us) { paused_until_ = sim_->clock().now() + us; }

// What arrives at a paused process is looked at when it wakes up.
void Client::deliver(std::function<void()> event) {
  if (over()) return;
  const uint64_t now = sim_->clock().now();
  if (now >= paused_until_) return event();
  sim_->clock().after(paused_until_ - now, [this, event = std::move(event)] { deliver(event); });
}

void Client::send(std::vector<Outgoing> requests) {
  for (Outgoing& request : requests) {
    const uint64_t id = request.id;
    Node& node = sim_->node(sim_->members(view_).nodes[request.replica]);
    const bool to_writer = writer_.has_value();
    // A reply to the recovery must not reach the writer that took over.
    const auto still_mine = [this, to_writer] { return to_writer == writer_.has_value(); };
    sim_->send([this, request = std::move(request), id, &node, life = node.life(), still_mine] {
      if (!node.alive() || node.life() != life) return;
      node.handle(request, [this, id, still_mine](const Reply& reply) {
        sim_->send([this, id, reply, still_mine] {
          deliver([this, id, reply, still_mine] {
            if (still_mine()) on_reply(id, reply);
          });
        });
      });
    });
    sim_->clock().after(kRequestDeadlineUs, [this, id, still_mine] {
      deliver([this, id, still_mine] {
        if (still_mine()) on_lost(id);
      });
    });
  }
}

void Client::on_reply(uint64_t id, Reply reply) {
  if (writer_.has_value()) {
    writer_->on_reply(id, std::move(reply));
  } else {
    recovery_->on_reply(id, std::move(reply));
  }
  progress();
}

void Client::on_lost(uint64_t id) {
  if (writer_.has_value()) {
    writer_->on_lost(id);
  } else {
    recovery_->on_lost(id);
  }
  progress();
}

void Client::tick() {
  if (over()) return;
  deliver([this] {
    if (writer_.has_value()) {
      writer_->tick();
      writer_->tell(writer_->quorum_durable());
      // Nobody waits for it any more.
      if (removal_.has_value() && !removal_->asked && sim_->rng().one_in(10)) on_removal(false);
    } else {
      recovery_->tick();
    }
    progress();
  });
  sim_->clock().after(kTickUs, [this] { tick(); });
}

void Client::progress() {
  if (over()) return;
  if (!writer_.has_value()) {
    send(recovery_->take_requests());
    if (recovery_->state() == quorum::Recovery::State::kFailed) {
      fenced_ = true;
      ++sim_->counts().fenced;
      // A holder whose epoch is over may go by nodes that were given up, and finds nothing there.
      if (is_corruption(recovery_->failure()) && !sim_->is_over(holder_.epoch))
        sim_->fail("recovery: " + std::string(recovery_->failure().message()));
    }
    if (recovery_->state() == quorum::Recovery::State::kDone) begin_writing();
    return;
  }
  acknowledge();
  if (writer_->fenced_by().has_value()) {
    fenced_ = true;
    ++sim_->counts().fenced;
    return;
  }
  go_on_with_removal();
  acknowledge();  // a removal that is over leaves one quorum
  if (sim_->rng().one_in(50)) writer_->tell(writer_->quorum_durable());  // somebody waits for it
  send(writer_->take_requests());
}

// Before anybody is told.
void Client::acknowledge() {
  if (writer_->quorum_durable() <= acknowledged_) return;
  const Lsn start = writer_->tenure().start;
  const Bytes all(written_);
  const Lsn until = writer_->quorum_durable();
  sim_->note_acknowledged(
      holder_.epoch, acknowledged_,
      all.substr(acknowledged_.value - start.value, until.value - acknowledged_.value));
  acknowledged_ = until;
}

void Client::begin_writing() {
  sim_->note_recovered(holder_.epoch, recovery_->tenure());
  writer_.emplace(sim_->options(view_), recovery_->tenure());
  acknowledged_ = writer_->tenure().start;
  progress();
  follow();
  write();
}

void Client::write() {
  if (over()) return;
  deliver([this] {
    std::string bytes = sim_->random_bytes();
    if (writer_->append(bytes).ok()) written_ += bytes;
    progress();
  });
  const uint64_t pause = sim_->faults() ? 100 + sim_->rng().below(3000) : 5000;
  sim_->clock().after(pause, [this] { write(); });
}

// --- the world ---

LogQuorumSim::LogQuorumSim(uint64_t seed, const LogQuorumConfig& config)
    : rng_(seed), config_(config), first_lsn_{rng_.below(3) * 4096} {
  placements_.push_back({{}, config.write_quorum});
  for (NodeNumber i = 0; i < config.replicas; ++i) {
    placements_[0].nodes.push_back(i);
    nodes_.push_back(std::make_unique<Node>(this, i, 0));
  }
}

quorum::QuorumOptions LogQuorumSim::options(size_t view) const {
  quorum::QuorumOptions options;
  options.replicas = static_cast<uint32_t>(members(view).nodes.size());
  options.write_quorum = members(view).write_quorum;
  options.request_bytes_max = 400;
  options.window_bytes = 1500;
  options.retain_bytes = 3000;
  return options;
}

std::optional<Lsn> LogQuorumSim::new_stream_start() const {
  if (stream_exists_) return std::nullopt;
  return first_lsn_;
}

quorum::StreamOrigin LogQuorumSim::stream_origin(size_t joined) const {
  quorum::StreamOrigin origin{Epoch{last_epoch_}, joined == 0 && !stream_exists_};
  if (joined > 0 && config_.mutation == Mutation::kNewNodeVotes) origin.never_begun = true;
  if (joined > 0 && config_.mutation == Mutation::kNewNodePromises) origin.last_given = {};
  return origin;
}

uint64_t LogQuorumSim::news_delay_us() {
  if (!faults()) return rng_.below(500);
  return rng_.below(rng_.one_in(4) ? 60'000 : 3'000);
}

std::string LogQuorumSim::random_bytes() {
  std::string bytes(1 + rng_.below(rng_.one_in(8) ? 900 : 90), '\0');
  for (char& c : bytes) c = static_cast<char>(rng_.next());
  return bytes;
}

void LogQuorumSim::send(std::function<void()> action) {
  int copies = 1;
  if (faults()) {
    if (rng_.below(1000) < config_.drop_of_1000) return;
    if (rng_.below(1000) < config_.double_of_1000) copies = 2;
  }
  while (copies-- > 0) {
    uint64_t delay = 20 + rng_.below(200);
    if (faults())
      delay += rng_.below(rng_.one_in(20) ? 20 * config_.delay_us_max : config_.delay_us_max);
    clock_.after(delay, action);
  }
}

void LogQuorumSim::start_client() {
  if (config_.mutation != Mutation::kPlacementBeforeEpoch || !faults())
    return add_client(std::nullopt);
  clock_.after(news_delay_us(), [this, view = newest_view()] {
    if (faults()) add_client(view);
  });
}

void LogQuorumSim::add_client(std::optional<size_t> view) {
  ++last_epoch_;
  clients_.push_back(
      std::make_unique<Client>(this, quorum::Holder{Epoch{last_epoch_}, rng_.next()}, view));
}

// --- changing nodes ---

// So many losses a quorum is made for.
bool LogQuorumSim::all_vote_but(NodeNumber number) {
  const std::vector<NodeNumber>& nodes = placements_.back().nodes;
  return std::all_of(nodes.begin(), nodes.end(),
                     [&](NodeNumber n) { return n == number || nodes_[n]->votes(); });
}

// Whoever wrote last is asked to; now and then one that did before.
void LogQuorumSim::take_one_out() {
  const std::vector<NodeNumber>& nodes = placements_.back().nodes;
  const NodeNumber number = nodes[rng_.below(nodes.size())];
  if (!all_vote_but(number)) return;
  for (auto client = clients_.rbegin(); client != clients_.rend(); ++client) {
    if ((*client)->over() || !(*client)->writing()) continue;
    clock_.after(news_delay_us(), [&one = **client, number] { one.take_out(number); });
    if (!rng_.one_in(3)) return;
  }
}

bool LogQuorumSim::change_without(NodeNumber node, size_t view, Epoch holder) {
  if (newest_view() > view) {  // done by an attempt before, or never
    const Members& next = placements_[view + 1];
    return next.taken_out_by == holder &&
           std::find(next.nodes.begin(), next.nodes.end(), node) == next.nodes.end();
  }
  if (last_epoch_ != holder.value && config_.mutation != Mutation::kRemovalByOldHolder)
    return false;
  Members next = placements_.back();
  std::erase(next.nodes, node);
  next.write_quorum = static_cast<uint32_t>(next.nodes.size() / 2 + 1);
  next.taken_out_by = holder;
  ++counts_.changes;
  ++counts_.removals;
  placements_.push_back(std::move(next));
  tell_placement();
  return true;
}

// One node in the place of another, one more, or one less.
void LogQuorumSim::change_nodes() {
  Members next = placements_.back();
  const auto count = static_cast<uint32_t>(next.nodes.size());
  if (count > config_.nodes_min && (config_.only_removals || rng_.one_in(2))) return take_one_out();
  const size_t place = rng_.below(count);
  const bool adds = count < config_.nodes_max && rng_.one_in(4);
  if (!all_vote_but(adds ? nodes_.size() : next.nodes[place])) return;
  if (adds) {
    next.nodes.push_back(nodes_.size());
    if (2 * next.write_quorum <= count + 1 || rng_.one_in(2)) ++next.write_quorum;
  } else {
    next.nodes[place] = nodes_.size();
  }
  ++counts_.changes;
  placements_.push_back(std::move(next));
  nodes_.push_back(std::make_unique<Node>(this, nodes_.size(), newest_view()));
  tell_placement();
}

void LogQuorumSim::tell_placement() {
  const size_t view = newest_view();
  for (auto& node : nodes_)
    clock_.after(news_delay_us(), [&node = *node, view] { node.see(view); });
  for (auto& client : clients_)
    clock_.after(news_delay_us(), [&client = *client, view] { client.see(view); });
}

// --- what must hold ---

void LogQuorumSim::compare(Lsn from, Bytes bytes, const char* where) {
  if (bytes.empty()) return;
  if (from < first_lsn_) return fail(std::string(where) + ": bytes before the stream's start");
  const uint64_t at = from.value - first_lsn_.value;
  if (at + bytes.size() > committed_.size())
    return fail(std::string(where) + ": bytes that were never acknowledged, up to lsn " +
                std::to_string(from.value + bytes.size()));
  if (Bytes(committed_).substr(at, bytes.size()) != bytes)
    fail(std::string(where) + ": other bytes at lsn " + std::to_string(from.value) + " than " +
         "those acknowledged");
}

// QS1: nothing acknowledged is missing. What the chosen log has beyond that is kept from now on.
void LogQuorumSim::note_recovered(Epoch epoch, const quorum::Tenure& tenure) {
  ++counts_.recoveries;
  stream_exists_ = true;
  const uint64_t had = committed_.size();
  if (tenure.start.value < first_lsn_.value + had && epoch > last_recovered_)
    return fail("the recovery of epoch " + std::to_string(epoch.value) + " ends at lsn " +
                std::to_string(tenure.start.value) + ", acknowledged was " +
                std::to_string(first_lsn_.value + had));
  if (tenure.base > std::max(checkpoint_, first_lsn_))  // QS5
    return fail("the log chosen by epoch " + std::to_string(epoch.value) + " begins at lsn " +
                std::to_string(tenure.base.value) + ", the checkpoint is at lsn " +
                std::to_string(checkpoint_.value));
  learn(epoch, tenure.start);
  if (first_lsn_.value + committed_.size() < tenure.start.value && epoch > last_recovered_) {
    for (auto& node : nodes_) node->start();  // who has it died right after saying so
    learn(epoch, tenure.start);
    if (failure_.empty() && first_lsn_.value + committed_.size() < tenure.start.value)
      fail("nobody has the log that epoch " + std::to_string(epoch.value) + " recovered");
  }
  last_recovered_ = std::max(last_recovered_, epoch);
}

// Replicas that have begun this epoch or a later one have what its recovery kept.
void LogQuorumSim::learn(Epoch epoch, Lsn end) {
  for (auto& node : nodes_) {
    if (!node->alive()) continue;
    const auto status = node->store()->status(kStream);
    if (!status.ok() || status->state.last_epoch < epoch) continue;
    const Lsn from = status->state.start;
    std::string found;
    while (from.value + found.size() < end.value) {
      const Lsn at{from.value + found.size()};
      const auto got = node->store()->read(
          kStream, {at, static_cast<uint32_t>(end.value - at.value), true, status->state.promised});
      if (!got.status.ok() || got.bytes.empty())
        return fail("after a recovery: " + std::string(got.status.message()));
      found += got.bytes;
    }
    if (from < first_lsn_) return fail("a log begins before the stream");
    const uint64_t skipped = from.value - first_lsn_.value;
    if (skipped > committed_.size()) continue;
    if (skipped + found.size() > committed_.size() && epoch > last_recovered_)
      committed_.append(found, committed_.size() - skipped, std::string::npos);
    compare(from, found, "after a recovery");
  }
}

void LogQuorumSim::note_acknowledged(Epoch epoch, Lsn from, Bytes bytes) {
  const uint64_t at = from.value - first_lsn_.value;
  counts_.acknowledged_bytes += bytes.size();
  if (at > committed_.size()) return fail("a hole in what was acknowledged");
  const uint64_t known = std::min<uint64_t>(bytes.size(), committed_.size() - at);
  compare(from, bytes.substr(0, known), "acknowledged again");
  if (known == bytes.size()) return;
  if (epoch < last_recovered_)  // QS2
    return fail("epoch " + std::to_string(epoch.value) + " acknowledged up to lsn " +
                std::to_string(from.value + bytes.size()) + " after epoch " +
                std::to_string(last_recovered_.value) + " had been recovered");
  committed_.append(bytes.substr(known));
}

// An applier reads whatever is served.
void LogQuorumSim::next_read() {
  Node& node = *nodes_[rng_.below(nodes_.size())];  // also of one that is out of its group
  if (node.alive()) {
    const auto status = node.store()->status(kStream);
    if (status.ok()) {
      const quorum::ReplicaState& s = status->state;
      const uint64_t back =
          rng_.below(std::min<uint64_t>(s.quorum_durable.value - s.start.value, 3000) + 1);
      const Lsn from{s.quorum_durable.value - back};
      const auto got = node.store()->read(kStream, {from, 2000, false, {}});
      ++counts_.reads;
      if (!got.status.ok()) return fail("read: " + std::string(got.status.message()));
      compare(from, got.bytes, "read");
    }
  }
  clock_.after(500 + rng_.below(2000), [this] { next_read(); });
}

// --- faults ---

void LogQuorumSim::next_fault() {
  if (!faults()) return;
  if (config_.sleepers && rng_.one_in(6))
    fall_asleep();
  else
    rng_.below(1000) < config_.changes_of_1000 ? change_nodes() : one_fault();
  clock_.after(rng_.below(12'000), [this] { next_fault(); });
}

void LogQuorumSim::fall_asleep() {
  if (!clients_.empty()) clients_.back()->pause(20'000 + rng_.below(150'000));
  start_client();
}

void LogQuorumSim::one_fault() {
  Node& node = *nodes_[rng_.below(nodes_.size())];
  switch (rng_.below(config_.cuts ? 9 : 8)) {
    case 8:
      return cut_off();
    case 0:
    case 1:
      node.crash(rng_.one_in(2));
      clock_.after(rng_.below(40'000), [&node] { node.start(); });
      return;
    case 2:  // everybody at once
      if (!rng_.one_in(4)) return;
      for (auto& each : nodes_) {
        each->crash(true);
        clock_.after(rng_.below(5'000), [&one = *each] { one.start(); });
      }
      return;
    case 3:
      if (!clients_.empty()) clients_[rng_.below(clients_.size())]->pause(rng_.below(100'000));
      return;
    case 4:
      if (!clients_.empty() && rng_.one_in(3)) clients_.back()->crash();
      return;
    case 5:
      return start_client();
    case 6:
      return node.fail_syncs(1 + static_cast<int>(rng_.below(3)));
    case 7: {
      // Only while all the others vote: that is how many losses a quorum is made for.
      if (!rng_.one_in(8) || !stream_exists_) return;
      const std::vector<NodeNumber>& members = placements_.back().nodes;
      const NodeNumber number = members[rng_.below(members.size())];
      if (!all_vote_but(number)) return;
      nodes_[number]->lose_disk();
      nodes_[number]->start();
      return;
    }
  }
}

// The log's user has no need of what is below a place that was acknowledged; some nodes hear of it,
// and nobody thinks of those that are behind (WR5).
void LogQuorumSim::cut_off() {
  const uint64_t end = first_lsn_.value + committed_.size();
  checkpoint_ = std::max(checkpoint_, first_lsn_);
  checkpoint_.value += rng_.below(end - checkpoint_.value + 1);
  for (auto& node : nodes_) {
    if (!node->alive() || rng_.one_in(3)) continue;
    const auto state = node->store()->state(kStream);
    if (!state.ok() || state->quorum_durable <= state->start) continue;
    ++counts_.cuts;
    node->store()->truncate_prefix(kStream, std::min(checkpoint_, state->quorum_durable),
                                   [](const quorum::ChangeReply&) {});
    node->schedule();
  }
}

// --- running ---

bool LogQuorumSim::run_until(const std::function<bool()>& done, uint64_t limit_us) {
  const uint64_t end = clock_.now() + limit_us;
  while (failure_.empty() && clock_.now() < end) {
    if (done()) return true;
    if (!clock_.step()) return done();
  }
  return false;
}

bool LogQuorumSim::everything_everywhere() {
  for (const NodeNumber number : placements_.back().nodes) {
    const auto status = nodes_[number]->store()->status(kStream);
    if (!status.ok() || !status->state.voting ||
        status->state.quorum_durable.value < first_lsn_.value + committed_.size())
      return false;
  }
  return true;
}

// QS4
void LogQuorumSim::heal_and_finish() {
  for (auto& node : nodes_) node->start();
  tell_placement();
  start_client();
  const Client& last = *clients_.back();
  const bool taken_over = run_until(
      [&] {
        return last.writing() && last.writer().quorum_durable() > last.writer().tenure().start;
      },
      kHealLimitUs);
  if (!failure_.empty()) return;
  if (!taken_over) {
    std::string where;
    for (auto& node : nodes_) where += "; " + node->describe();
    return fail("without faults the log did not come back" + where);
  }
  if (!run_until([&] { return everything_everywhere(); }, kHealLimitUs) && failure_.empty())
    return fail("without faults some replica did not catch up");
  if (!failure_.empty()) return;
  for (const NodeNumber number : placements_.back().nodes) {
    Node* const node = nodes_[number].get();
    std::string all;
    const auto status = node->store()->status(kStream);
    const Lsn from = status->state.start;
    if (from > first_lsn_) ++counts_.late_begins;
    while (from.value + all.size() < status->state.quorum_durable.value) {
      const auto got =
          node->store()->read(kStream, {Lsn{from.value + all.size()}, 1u << 20, false, {}});
      if (!got.status.ok()) return fail("at the end: " + std::string(got.status.message()));
      all += got.bytes;
    }
    compare(from, all, "at the end");
  }
}

std::string LogQuorumSim::run() {
  start_client();
  next_fault();
  next_read();
  run_until([&] { return !faults(); }, ~uint64_t{0} >> 1);
  if (failure_.empty()) heal_and_finish();
  return failure_;
}

}  // namespace strata::sim
