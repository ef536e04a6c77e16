#include "fusion_sim.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "proto/fusion.h"
#include "transport/regions/region_memory.h"

namespace strata::sim {

using clients::FusionLease;
using clients::HorizonClient;
using clients::LeaseCheck;
using clients::TimestampFetcher;
using clients::TitOwners;
using clients::TitReader;
using clients::TitRegion;
using fusion::TimeService;
using transport::RegionOperation;

namespace {

constexpr uint8_t kServers = 3;
constexpr uint64_t kSlots = 32;
constexpr uint64_t kLeaseUs = 100'000;
constexpr uint64_t kRenewUs = 15'000;
constexpr uint64_t kTickUs = 5'000;
constexpr uint64_t kBeatUs = 15'000;

// Of a process, which goes by a clock of its own, up to one part in 40 fast or slow.
class Process {
 public:
  explicit Process(Rng* rng) : rate_(975 + rng->below(51)), offset_(rng->below(1'000'000)) {}
  [[nodiscard]] uint64_t local(uint64_t now) const noexcept { return offset_ + now * rate_ / 1000; }
  uint64_t paused_until = 0;
  bool dead = false;
  // Links from and to others are down until then.
  uint64_t deaf_until = 0, mute_until = 0;

 private:
  const uint64_t rate_, offset_;
};

}  // namespace

// --- memory nodes ---

class FusionSim::MemoryNode : public Process {
 public:
  MemoryNode(FusionSim* sim, Epoch epoch) : Process(&sim->rng_), sim_(sim), epoch_(epoch) {}

  // The stream is sealed under its epoch.
  void begin() {
    std::optional<fusion::AuthorityRecord> last;
    if (!sim_->last_record_.empty()) {
      auto decoded = fusion::decode_authority_record(sim_->last_record_);
      if (!decoded.ok()) return sim_->fail("the last record is damaged");
      last = *decoded;
    }
    fusion::TimeServiceOptions options;
    options.authority = {
        .lease_us = kLeaseUs,
        .renew_us = kRenewUs,
        .takeover_wait_us =
            sim_->mutation_ == FusionMutation::kSuccessorWithoutWait ? 0 : kLeaseUs + kLeaseUs / 8};
    options.oracle.step = 40;
    service_.emplace(options, epoch_, last, local(sim_->now_), times_.data());
    tick();
  }

  void tick() {
    if (dead) return;
    run_when_awake([this] {
      const auto append = service_->tick(local(sim_->now_));
      if (sim_->mutation_ == FusionMutation::kHorizonBeforeRecord && append.has_value())
        show(append->bytes, proto::kHorizonOffset);
      if (sim_->mutation_ == FusionMutation::kCeilingBeforeRecord && append.has_value())
        show(append->bytes, proto::kCeilingOffset);
      if (append.has_value()) send(*append);
    });
    sim_->after(kTickUs, [this] { tick(); });
  }

  [[nodiscard]] bool serves() {
    return !dead && service_.has_value() && service_->authority()->serves(local(sim_->now_));
  }
  [[nodiscard]] uint64_t local_now() const { return local(sim_->now_); }
  [[nodiscard]] Epoch epoch() const noexcept { return epoch_; }
  [[nodiscard]] TimeService* service() noexcept {
    return service_.has_value() ? &*service_ : nullptr;
  }
  [[nodiscard]] char* times() noexcept { return times_.data(); }
  void run_when_awake(std::function<void()> action) {
    if (dead) return;
    if (sim_->now_ >= paused_until) return action();
    sim_->after(paused_until - sim_->now_,
                [this, action = std::move(action)] { run_when_awake(action); });
  }

 private:
  void show(const std::string& bytes, uint64_t offset) {
    const auto record = *fusion::decode_authority_record(bytes);
    store_u64(times_.data() + offset,
              offset == proto::kHorizonOffset ? record.horizon : record.ceiling);
  }
  void send(const fusion::Authority::Append& append) {
    const bool away = sim_->now_ < mute_until || sim_->lost();
    sim_->after(sim_->delay(), [this, append, away] {
      const bool refused = !away && epoch_ < sim_->sealed_;
      if (!away && !refused) sim_->last_record_ = append.bytes;
      const bool reply_lost = away || sim_->now_ < deaf_until || sim_->lost();
      sim_->after(reply_lost ? kLeaseUs / 2 : sim_->delay(), [=, this] {
        run_when_awake([=, this] {
          if (reply_lost) return service_->append_failed(append.number);
          if (refused) return service_->refused();
          service_->append_durable(append.number);
        });
      });
    });
  }

  FusionSim* const sim_;
  const Epoch epoch_;
  alignas(64) std::array<char, proto::kTimesBytes> times_ = {};
  std::optional<TimeService> service_;
};

// The words of one memory node, as one server reaches them: slowly, and whether it lives or not.
class FusionSim::TimesRegion final : public transport::RemoteRegion {
 public:
  TimesRegion(FusionSim* sim, MemoryNode* node, std::function<void(std::function<void()>)> deliver)
      : sim_(sim), node_(node), deliver_(std::move(deliver)) {}
  Status run(absl::Span<RegionOperation> batch, uint64_t) override {
    for (RegionOperation& operation : batch) transport::apply_operation(&operation, node_->times());
    return ok_status();
  }
  Status persist(uint64_t, uint64_t, uint64_t) override { return ok_status(); }
  void start(absl::Span<RegionOperation> batch, uint64_t, transport::RegionDone done) override {
    // The batch is the caller's until `done`, and done operation by operation.
    auto shared = std::make_shared<transport::RegionDone>(std::move(done));
    next(batch, 0, sim_->lost(), shared);
  }
  [[nodiscard]] bool truly_one_sided() const noexcept override { return true; }
  [[nodiscard]] uint64_t bytes() const noexcept override { return proto::kTimesBytes; }
  [[nodiscard]] uint64_t epoch() const noexcept override { return 0; }

 private:
  void next(absl::Span<RegionOperation> batch, size_t at, bool reply_lost,
            const std::shared_ptr<transport::RegionDone>& done) {
    sim_->after(sim_->delay(), [=, this] {
      if (at < batch.size()) {
        transport::apply_operation(&batch[at], node_->times());
        return next(batch, at + 1, reply_lost, done);
      }
      deliver_([=] { (*done)(reply_lost ? error_outcome_unknown() : ok_status()); });
    });
  }
  FusionSim* const sim_;
  MemoryNode* const node_;
  const std::function<void(std::function<void()>)> deliver_;
};

// --- servers ---

class FusionSim::Server : public Process, public TitOwners {
 public:
  Server(FusionSim* sim, NodeId id, uint64_t life, uint64_t first_sequence)
      : Process(&sim->rng_),
        sim_(sim),
        id_(id),
        life_(life),
        next_sequence_(first_sequence),
        lease_([this] { return local(sim_->now_); }),
        check_(this),
        fetcher_(
            &check_, [this] { return local(sim_->now_); }, 10'000),
        horizon_(&check_),
        tit_(table_.data(), kSlots),
        reader_(&check_, this, &tit_) {}

  void begin() {
    // What others have that were here before.
    for (const auto& other : sim_->servers_) {
      if (other == nullptr || other.get() == this) continue;
      if (!other->released_) open(other.get());
      if (!other->dead) other->open(this);
    }
    beat();
    commit_some();
    view_some();
  }

  [[nodiscard]] NodeId id() const noexcept { return id_; }
  [[nodiscard]] uint64_t life() const noexcept { return life_; }
  [[nodiscard]] uint64_t next_sequence() const noexcept { return next_sequence_; }
  [[nodiscard]] const clients::FetchCounters& counters() const { return fetcher_.counters(); }
  [[nodiscard]] std::string describe() const {
    return "life " + std::to_string(life_) + ", epoch " + std::to_string(epoch_.value) +
           (dead ? ", dead" : "") + (fenced ? ", fenced" : "") + (sealed ? ", sealed" : "") +
           (released_ ? ", released" : "") + ", lease at " + std::to_string(last_lease_at) +
           ", refused: " + refusal_ + ", commits " + std::to_string(commits) + ", views " +
           std::to_string(views) + ", newest memory node " +
           std::to_string(sim_->memory_nodes_.back()->epoch().value) +
           (sim_->memory_nodes_.back()->serves() ? " serves" : " does not serve");
  }
  uint64_t last_lease_at = 0;       // when it got one last
  bool fenced = false;              // asked to be
  bool sealed = false;              // its log
  uint64_t commits = 0, views = 0;  // acknowledged since faults ended

  // Another server may decide for it.
  void release() {
    if (released_) return;
    released_ = true;
    auto it = sim_->transactions_.lower_bound({id_.value, first_sequence_});
    for (; it != sim_->transactions_.end() && it->first.first == id_.value; ++it) {
      const uint64_t sequence = it->first.second;
      if (prepared_.contains(sequence)) {
        adopt(sequence);
      } else if (it->second.state != Transaction::State::kCommitted) {
        it->second.state = Transaction::State::kAborted;  // its log is sealed without it
      }
    }
  }
  [[nodiscard]] bool released() const noexcept { return released_; }

  // --- TitOwners: how others ask, as this server reaches them ---
  Status join(NodeId, OwnTransactions*) override { return ok_status(); }
  void leave(NodeId) noexcept override {}
  StatusOr<TrxLookup> read(TrxId id) override {
    Server* const owner = sim_->servers_[node_of(id).value].get();
    if (!owner->owns(sequence_of(id))) {
      // An earlier life's: its place has been adopted, or nobody answers for it yet.
      return told(id);
    }
    if (owner->released_) return told(id);
    if (owner->dead || owner->sealed || owner->paused_until > sim_->now_) return error_peer_down();
    return told(id);
  }
  StatusOr<TrxLookup> wait_decided(TrxId) override { return error_peer_down(); }

 private:
  struct Check final : LeaseCheck {
    explicit Check(Server* server) : server(server) {}
    [[nodiscard]] bool valid(Epoch epoch) const noexcept override {
      const bool any = server->sim_->mutation_ == FusionMutation::kValueOfAnotherEpoch;
      return server->lease_.valid(any ? server->lease_.epoch() : epoch);
    }
    [[nodiscard]] Epoch epoch() const noexcept override { return server->lease_.epoch(); }
    Server* const server;
  };
  struct Asked final : TimestampFetcher::Request {
    Asked(Server* s, bool fresh, std::function<void(Asked*)> d)
        : Request(fresh),
          server(s),
          done(std::move(d)),
          had_before(fresh ? s->sim_->largest_had_ : s->sim_->largest_fresh_) {}
    void answered() noexcept override {
      if (status.ok()) server->sim_->note_value(fresh, value.value, had_before);
      done(this);
      server->asked_.erase(this);
    }
    void lead() noexcept override { server->fetcher_.lead(); }
    Server* const server;
    const std::function<void(Asked*)> done;
    const uint64_t had_before;
  };
  struct View {
    uint64_t slot = 0;
    uint64_t snapshot = 0;
    uint64_t acknowledged_before = 0;
    uint64_t reads_left = 0;
    std::vector<std::pair<uint8_t, uint64_t>> invisible, visible;
  };

  // This life of it runs `action` when it is awake; nothing of a dead one runs.
  void deliver(std::function<void()> action) {
    if (dead) return;
    if (sim_->now_ >= paused_until) return action();
    sim_->after(paused_until - sim_->now_, [this, action = std::move(action)] { deliver(action); });
  }
  void later(uint64_t us, std::function<void()> action) {
    sim_->after(us, [this, action = std::move(action)] { deliver(action); });
  }
  void ask(bool fresh, std::function<void(Asked*)> done) {
    auto asked = std::make_unique<Asked>(this, fresh, std::move(done));
    Asked* const request = asked.get();
    asked_[request] = std::move(asked);
    fetcher_.ask(request);
  }
  // What this life has given out; earlier ones have all been adopted.
  [[nodiscard]] bool owns(uint64_t sequence) const noexcept { return sequence >= first_sequence_; }
  StatusOr<TrxLookup> told(TrxId id) {
    const auto it = sim_->transactions_.find({node_of(id).value, sequence_of(id)});
    if (it == sim_->transactions_.end()) return TrxLookup{};
    switch (it->second.state) {
      case Transaction::State::kActive:
        return TrxLookup{TrxState::kActive, Cts{}, Lsn{}};
      case Transaction::State::kPrepared:
        return TrxLookup{TrxState::kPrepared, Cts{}, Lsn{}};
      case Transaction::State::kCommitting:
        return TrxLookup{TrxState::kCommitting, Cts{it->second.cts}, Lsn{}};
      case Transaction::State::kCommitted:
        return TrxLookup{TrxState::kCommitted, Cts{it->second.cts}, Lsn{}};
      case Transaction::State::kAborted:
        return TrxLookup{TrxState::kAborted, Cts{}, Lsn{}};
    }
    return error_internal();
  }

  void open(Server* other) {
    reader_.opened(other->id_, std::make_shared<TableRegion>(other->table_.data()), kSlots);
  }
  class TableRegion final : public transport::RemoteRegion {
   public:
    explicit TableRegion(char* memory) : memory_(memory) {}
    Status run(absl::Span<RegionOperation> batch, uint64_t) override {
      for (RegionOperation& operation : batch) transport::apply_operation(&operation, memory_);
      return ok_status();
    }
    Status persist(uint64_t, uint64_t, uint64_t) override { return ok_status(); }
    [[nodiscard]] bool truly_one_sided() const noexcept override { return true; }
    [[nodiscard]] uint64_t bytes() const noexcept override { return 4096; }
    [[nodiscard]] uint64_t epoch() const noexcept override { return 0; }

   private:
    char* const memory_;
  };

  // --- heartbeats ---
  void use(MemoryNode* node) {
    if (node->epoch() <= epoch_) return;
    epoch_ = node->epoch();
    node_ = node;
    const auto region = std::make_shared<TimesRegion>(
        sim_, node, [this](std::function<void()> action) { deliver(std::move(action)); });
    fetcher_.use(region, epoch_);
    horizon_.use(region, epoch_);
  }
  void beat() {
    // The registry tells of a newer memory node, sooner or later.
    MemoryNode* const newest =
        sim_->memory_nodes_.empty() ? nullptr : sim_->memory_nodes_.back().get();
    if (newest != nullptr && newest->service() != nullptr && sim_->rng_.one_in(2)) use(newest);
    if (node_ != nullptr) {
      // FU12: the clock, then the views.
      if (sim_->mutation_ == FusionMutation::kScanBeforeClock) {
        const uint64_t scanned = oldest_registered();
        later(sim_->delay(), [this, scanned] {
          ask(false, [this, scanned](Asked* now) {
            send_beat(now->status.ok(), std::min(scanned, now->value.value));
          });
        });
      } else {
        ask(false, [this](Asked* now) {
          send_beat(now->status.ok(), std::min(oldest_registered(), now->value.value));
        });
      }
    }
    later(kBeatUs, [this] { beat(); });
  }
  uint64_t oldest_registered() const {
    return registered_.empty() ? UINT64_MAX : *registered_.begin();
  }
  void send_beat(bool has_views, uint64_t oldest) {
    proto::Heartbeat beat;
    beat.server = id_;
    beat.life = life_;
    beat.epoch = epoch_;
    beat.fences_heard = fences_heard_;
    beat.has_views = has_views;
    beat.oldest_view = Cts{oldest};
    MemoryNode* const node = node_;
    const uint64_t asked_us = local(sim_->now_);
    if (sim_->now_ < mute_until || sim_->lost()) return;
    sim_->after(sim_->delay(), [=, this] {
      if (sim_->now_ < node->deaf_until) return;
      node->run_when_awake([=, this] {
        const uint64_t now = node->local_now();
        const Status joined = node->service()->join(id_, life_, now);
        const StatusOr<proto::HeartbeatReply> reply = joined.ok()
                                                          ? node->service()->heartbeat(beat, now)
                                                          : StatusOr<proto::HeartbeatReply>(joined);
        if (sim_->now_ < node->mute_until || sim_->now_ < deaf_until || sim_->lost()) return;
        sim_->after(sim_->delay(), [=, this] { deliver([=, this] { heard(reply, asked_us); }); });
      });
    });
  }
  void heard(const StatusOr<proto::HeartbeatReply>& reply, uint64_t asked_us) {
    if (!reply.ok()) {
      refusal_ = reply.status().ToString();
      return;
    }
    if (reply->epoch != epoch_) return;
    for (const proto::Fence& fence : reply->fences) {
      if (sim_->mutation_ != FusionMutation::kTablesStayOpen && fence.number > fences_heard_)
        close_fenced(fence);
      fences_heard_ = std::max(fences_heard_, fence.number);
    }
    lease_.granted(
        reply->epoch,
        sim_->mutation_ == FusionMutation::kLeaseFromTheReply ? local(sim_->now_) : asked_us,
        reply->lease_us);
    last_lease_at = sim_->now_;
    sim_->note_horizon(reply->horizon.value);
    horizon_.heard(reply->horizon);
    const auto newest = horizon_.newest();
    if (!newest.ok()) return;
    if (newest->value < sim_->largest_horizon_)
      sim_->fail("FS5: the newest horizon, " + std::to_string(newest->value) + ", is older than " +
                 std::to_string(sim_->largest_horizon_) + ", which was told");
    sim_->note_horizon(newest->value);
  }
  void close_fenced(const proto::Fence& fence) {
    if (fence.server == id_) return;
    // A later life's table is not the one that was fenced.
    Server* const now = sim_->servers_[fence.server.value].get();
    if (now->fenced || now->dead) reader_.closed(fence.server);
  }

  // --- commits ---
  void commit_some() {
    if (last_lease_at != 0) begin_commit();  // FA1: it has nothing before it has joined
    later(1 + sim_->rng_.below(16'000), [this] { commit_some(); });
  }
  void begin_commit() {
    const uint64_t sequence = next_sequence_++;
    if (busy_[sequence % kSlots]) return;
    busy_[sequence % kSlots] = true;
    Transaction& trx = sim_->transactions_[{id_.value, sequence}];
    tit_.claim(sequence, TrxState::kActive);
    if (sim_->rng_.one_in(6)) {
      trx.state = Transaction::State::kPrepared;
      tit_.set(sequence, TrxState::kPrepared, Cts{});
      prepared_.insert(sequence);
      later(20'000 + sim_->rng_.below(200'000), [=, this] { mark(sequence); });
      return;
    }
    later(sim_->rng_.below(5'000), [=, this] { mark(sequence); });
  }
  void mark(uint64_t sequence) {
    if (sealed || !log_takes()) return die();
    Transaction* const trx = &sim_->transactions_[{id_.value, sequence}];
    const bool late = sim_->mutation_ == FusionMutation::kMarkAfterFetch;
    if (!late) set(sequence, Transaction::State::kCommitting, 0);
    ask(true, [=, this](Asked* cts) {
      if (!cts->status.ok()) {  // it goes back, and on later
        set(sequence,
            prepared_.contains(sequence) ? Transaction::State::kPrepared
                                         : Transaction::State::kActive,
            0);
        later(5'000 + sim_->rng_.below(20'000), [=, this] { mark(sequence); });
        return;
      }
      const uint64_t value = cts->value.value;
      const auto go_on = [=, this] {
        set(sequence, Transaction::State::kCommitting, value);
        later(sim_->delay(), [=, this] { append(sequence, trx); });
      };
      if (late) return later(sim_->delay(), go_on);
      go_on();
    });
  }
  // The commit group comes to the log.
  void append(uint64_t sequence, Transaction* trx) {
    if (sealed || !log_takes()) return die();
    sim_->note_durable(trx);
    prepared_.erase(sequence);
    set(sequence, Transaction::State::kCommitted, trx->cts);
    busy_[sequence % kSlots] = false;
    later(sim_->rng_.below(2'000), [=, this] {
      if (!lease_.valid(lease_.epoch())) return;  // FC1: no answer
      sim_->note_answer(lease_.epoch());
      sim_->largest_acknowledged_ = std::max(sim_->largest_acknowledged_, trx->cts);
      ++sim_->counts_.commits;
      if (!sim_->faulty()) ++commits;
    });
  }
  [[nodiscard]] bool log_takes() const noexcept { return !released_; }
  void set(uint64_t sequence, Transaction::State state, uint64_t cts) {
    // Of one that was fenced, and finds it out late, others have decided: it has its own table
    // only.
    if (!released_) {
      Transaction& trx = sim_->transactions_[{id_.value, sequence}];
      trx.state = state;
      trx.cts = cts;
    }
    constexpr TrxState kStates[] = {TrxState::kActive, TrxState::kPrepared, TrxState::kCommitting,
                                    TrxState::kCommitted, TrxState::kAborted};
    tit_.set(sequence, kStates[static_cast<size_t>(state)], Cts{cts});
  }
  // It has found that it is fenced.
  void die() { dead = true; }

  // What was prepared is committed by another server, which has a lease.
  void adopt(uint64_t sequence) {
    Transaction& trx = sim_->transactions_[{id_.value, sequence}];
    trx.state = Transaction::State::kCommitting;
    trx.cts = 0;
    for (const auto& other : sim_->servers_) {
      if (other == nullptr || other->dead || other->fenced || other.get() == this) continue;
      other->ask(true, [this, sequence, server = other.get()](Asked* cts) {
        Transaction& adopted = sim_->transactions_[{id_.value, sequence}];
        if (!cts->status.ok()) {
          sim_->after(10'000, [this, sequence] { adopt(sequence); });
          return;
        }
        adopted.cts = cts->value.value;
        sim_->note_durable(&adopted);
        adopted.state = Transaction::State::kCommitted;
        ++sim_->counts_.adopted;
        if (!server->lease_.valid(server->lease_.epoch())) return;
        sim_->note_answer(server->lease_.epoch());
        sim_->largest_acknowledged_ = std::max(sim_->largest_acknowledged_, adopted.cts);
      });
      return;
    }
    sim_->after(10'000, [this, sequence] { adopt(sequence); });
  }

  // --- views ---
  void view_some() {
    if (last_lease_at != 0) begin_view();
    later(1 + sim_->rng_.below(16'000), [this] { view_some(); });
  }
  void begin_view() {
    auto view = std::make_shared<View>();
    view->acknowledged_before = sim_->largest_acknowledged_;
    view->reads_left = 1 + sim_->rng_.below(6);
    view->slot = horizon_.known().value;  // FU12
    registered_.insert(view->slot);
    ask(false, [=, this](Asked* snapshot) {
      registered_.erase(registered_.find(view->slot));
      if (!snapshot->status.ok()) return;
      view->snapshot = snapshot->value.value;
      registered_.insert(view->snapshot);
      read_some(view);
    });
  }
  void read_some(const std::shared_ptr<View>& view) {
    if (view->reads_left-- == 0) return answer(view);
    const uint8_t server = static_cast<uint8_t>(1 + sim_->rng_.below(kServers));
    const uint64_t last = sim_->servers_[server]->next_sequence_;
    const uint64_t sequence = last - std::min<uint64_t>(last, 1 + sim_->rng_.below(2 * kSlots));
    const std::pair<uint8_t, uint64_t> which{server, sequence};
    if (sim_->transactions_.contains(which)) {
      StatusOr<TrxLookup> found = server == id_.value
                                      ? told(make_trx_id(id_, sequence))
                                      : reader_.read(make_trx_id(NodeId{server}, sequence));
      if (!found.ok()) {
        // Nobody can tell at the moment: this view gives no answer.
        registered_.erase(registered_.find(view->snapshot));
        return;
      }
      const uint64_t cts = found->cts.value;
      if (found->state == TrxState::kCommitted) {
        (cts <= view->snapshot ? view->visible : view->invisible).push_back(which);
      } else if (found->state != TrxState::kCommitting || cts > view->snapshot) {
        view->invisible.push_back(which);
      }  // else it would wait for the outcome
    }
    const uint64_t think =
        sim_->rng_.one_in(10) ? sim_->rng_.below(150'000) : sim_->rng_.below(4'000);
    later(think, [=, this] { read_some(view); });
  }
  void answer(const std::shared_ptr<View>& view) {
    registered_.erase(registered_.find(view->snapshot));
    if (!lease_.valid(lease_.epoch())) return;  // FC1
    sim_->note_answer(lease_.epoch());
    ++sim_->counts_.views;
    if (!sim_->faulty()) ++views;
    if (view->snapshot < view->acknowledged_before)
      sim_->fail("FS3: a view at " + std::to_string(view->snapshot) + " misses the commit " +
                 std::to_string(view->acknowledged_before) + " acknowledged before it");
    if (sim_->largest_horizon_ > view->snapshot)
      sim_->fail("FS5: the horizon " + std::to_string(sim_->largest_horizon_) +
                 " passed an open view at " + std::to_string(view->snapshot));
    for (const auto& which : view->visible)
      if (sim_->transactions_[which].state != Transaction::State::kCommitted)
        sim_->fail("FS4: a view saw what is not durable");
    for (const auto& which : view->invisible) {
      Transaction& trx = sim_->transactions_[which];
      trx.invisible_at = std::max(trx.invisible_at, view->snapshot);
      if (trx.state == Transaction::State::kCommitted && trx.cts <= view->snapshot)
        sim_->fail("FS4: a view at " + std::to_string(view->snapshot) + " took transaction " +
                   std::to_string(which.first) + ":" + std::to_string(which.second) +
                   " for uncommitted, which has committed at " + std::to_string(trx.cts));
    }
  }

  FusionSim* const sim_;
  const NodeId id_;
  const uint64_t life_;
  uint64_t next_sequence_;
  const uint64_t first_sequence_ = next_sequence_;
  FusionLease lease_;
  Check check_;
  TimestampFetcher fetcher_;
  HorizonClient horizon_;
  alignas(64) std::array<char, TitRegion::bytes_of(kSlots)> table_ = {};
  TitRegion tit_;
  TitReader reader_;
  Epoch epoch_;
  MemoryNode* node_ = nullptr;
  bool released_ = false;
  uint64_t fences_heard_ = 0;
  std::multiset<uint64_t> registered_;
  std::array<bool, kSlots> busy_ = {};
  std::string refusal_;
  std::set<uint64_t> prepared_;
  std::map<Asked*, std::unique_ptr<Asked>> asked_;
};

// --- what must hold ---

void FusionSim::note_value(bool fresh, uint64_t value, uint64_t had_before) {
  if (fresh) {
    if (!used_.insert(value).second)
      fail("FS1: the timestamp " + std::to_string(value) + " was given twice");
    if (value <= had_before)
      fail("FS1: the timestamp " + std::to_string(value) + " was given after " +
           std::to_string(had_before));
    largest_fresh_ = std::max(largest_fresh_, value);
  } else if (value < had_before) {
    fail("FS1: the snapshot " + std::to_string(value) + " was given after the commit " +
         std::to_string(had_before));
  }
  largest_had_ = std::max(largest_had_, value);
}

void FusionSim::note_answer(Epoch epoch) {
  if (epoch < newest_answered_) fail("FS2: two epochs answer");
  newest_answered_ = std::max(newest_answered_, epoch);
}

void FusionSim::note_horizon(uint64_t told) { largest_horizon_ = std::max(largest_horizon_, told); }

void FusionSim::note_durable(Transaction* trx) {
  if (trx->cts <= trx->invisible_at)
    fail("FS4: a transaction commits at " + std::to_string(trx->cts) + ", but a view at " +
         std::to_string(trx->invisible_at) + " has taken it for undecided");
}

// --- the world ---

FusionSim::FusionSim(uint64_t seed, FusionMutation mutation) : rng_(seed), mutation_(mutation) {
  servers_.resize(kServers + 1);
}
FusionSim::~FusionSim() = default;

uint64_t FusionSim::delay() {
  if (faulty() && rng_.one_in(50)) return rng_.below(60'000);
  return 20 + rng_.below(1'500);
}

void FusionSim::start_memory_node() {
  if (starting_) return;
  starting_ = true;
  memory_nodes_.push_back(std::make_unique<MemoryNode>(this, Epoch{++last_epoch_}));
  MemoryNode* const node = memory_nodes_.back().get();
  after(delay(), [this, node] {
    sealed_ = std::max(sealed_, node->epoch());
    after(delay(), [this, node] {
      starting_ = false;
      ++counts_.takeovers;
      node->begin();
    });
  });
}

FusionSim::MemoryNode* FusionSim::serving() {
  for (auto it = memory_nodes_.rbegin(); it != memory_nodes_.rend(); ++it)
    if ((*it)->serves()) return it->get();
  return nullptr;
}

// Another life of a server, which knows nothing.
void FusionSim::restart(NodeId id) {
  std::unique_ptr<Server>& server = servers_[id.value];
  const uint64_t next = server->next_sequence();
  server->dead = true;
  graveyard_.push_back(std::move(server));
  server = std::make_unique<Server>(this, id, ++last_life_, next);
  server->begin();
}

// Fences who is silent, lets others adopt what it had, and starts it again.
void FusionSim::supervise() {
  after(3'000, [this] { supervise(); });
  MemoryNode* const node = serving();
  if (node == nullptr || now_ < node->paused_until) return;
  fusion::Authority* const authority = node->service()->authority();
  for (uint8_t number = 1; number <= kServers; ++number) {
    const NodeId id{number};
    Server* const server = servers_[number].get();
    const auto of_it = [&](const fusion::Member& m) { return m.server == id; };
    const std::vector<fusion::Member> members = authority->members();
    const auto member = std::find_if(members.begin(), members.end(), of_it);
    if (member != members.end() && member->life != server->life()) {
      // An earlier life that came in late, or that is not forgotten yet: nothing of it is left.
      authority->fence(id).IgnoreError();  // it is there
      if (authority->may_release(id, node->local_now())) authority->forget(id);
      continue;
    }
    if (member == members.end()) {
      if (server->released() || server->dead) {
        server->release();
        restart(id);
      }
      continue;
    }
    const bool silent =
        server->dead || (server->last_lease_at + 3 * kLeaseUs < now_ && rng_.one_in(20));
    if (member->fence == 0) {
      if (!silent && !server->fenced) continue;
      if (!server->fenced) ++counts_.fences;
      server->fenced = true;
      authority->fence(id).IgnoreError();  // it is there
      continue;
    }
    const std::vector<fusion::Member>& durable = authority->durable().members;
    const auto known = std::find_if(durable.begin(), durable.end(), of_it);
    if (known == durable.end() || known->fence == 0) continue;
    server->fenced = server->sealed = true;
    if (!authority->may_release(id, node->local_now())) continue;
    if (!server->released()) server->release();
    authority->forget(id);
  }
}

void FusionSim::next_fault() {
  after(10'000 + rng_.below(120'000), [this] {
    if (!faulty()) return heal();
    one_fault();
    next_fault();
  });
}

void FusionSim::one_fault() {
  MemoryNode* const node = memory_nodes_.back().get();
  Server* const server = servers_[1 + rng_.below(kServers)].get();
  switch (rng_.below(8)) {
    case 0:
      node->dead = true;
      ++counts_.kills;
      after(rng_.below(100'000), [this] { start_memory_node(); });
      break;
    case 1:
      start_memory_node();  // though there is one
      break;
    case 2:
      node->paused_until = now_ + rng_.below(4 * kLeaseUs);
      ++counts_.pauses;
      if (rng_.one_in(2)) after(rng_.below(50'000), [this] { start_memory_node(); });
      break;
    case 3:
    case 4:
      server->paused_until = now_ + rng_.below(4 * kLeaseUs);
      ++counts_.pauses;
      break;
    case 5:
      server->dead = true;
      ++counts_.kills;
      break;
    case 6:
      (rng_.one_in(2) ? node->deaf_until : node->mute_until) = now_ + rng_.below(2 * kLeaseUs);
      break;
    default:
      (rng_.one_in(2) ? server->deaf_until : server->mute_until) = now_ + rng_.below(4 * kLeaseUs);
      break;
  }
}

void FusionSim::heal() {
  horizon_at_heal_ = largest_horizon_;
  if (memory_nodes_.back()->dead) start_memory_node();
}

void FusionSim::run_until(uint64_t us) {
  while (!queue_.empty() && queue_.top().at <= us && failure_.empty()) {
    Event event = queue_.top();
    queue_.pop();
    now_ = event.at;
    event.action();
  }
}

// What has not gone on since faults ended.
std::string FusionSim::standstill() const {
  for (uint8_t id = 1; id <= kServers; ++id)
    if (servers_[id]->commits == 0 || servers_[id]->views == 0)
      return "server " + std::to_string(id) + " does not go on: " + servers_[id]->describe();
  if (largest_horizon_ > horizon_at_heal_) return "";
  return "the horizon stays at " + std::to_string(largest_horizon_) + ", the clock is at " +
         std::to_string(largest_had_);
}

std::string FusionSim::run() {
  for (uint8_t id = 1; id <= kServers; ++id)
    servers_[id] = std::make_unique<Server>(this, NodeId{id}, ++last_life_, 1);
  start_memory_node();
  for (uint8_t id = 1; id <= kServers; ++id) servers_[id]->begin();
  supervise();
  next_fault();
  run_until(kEndUs);
  for (uint64_t until = kEndUs; until < kPatienceEndsUs && !standstill().empty();)
    run_until(until += 100'000);
  if (const std::string what = standstill(); !what.empty()) fail("FS6: " + what);
  for (const auto& server : servers_) {
    if (server == nullptr) continue;
    counts_.fetches += server->counters().fetches.load();
    counts_.served += server->counters().views.load() + server->counters().commits.load();
  }
  return failure_;
}

}  // namespace strata::sim
