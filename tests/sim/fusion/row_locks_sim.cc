#include "row_locks_sim.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/bytes.h"
#include "proto/fusion.h"

namespace strata::sim {

using clients::RowLockClient;
using clients::RowLockHints;
using clients::TitRegion;
using fusion::RowLocks;
using proto::LockBatch;
using proto::LockReply;
using proto::LockRequestKind;

namespace {

constexpr uint64_t kSlots = 16;  // few: some transactions are not shown (FC7)
constexpr IndexId kIndex{1};
constexpr uint64_t kPollUs = 20'000;
constexpr size_t kThreads = 4;

std::string key_of(uint64_t row) { return std::string(1, static_cast<char>('a' + row)); }

}  // namespace

struct RowLocksSim::Trx {
  TrxId id;
  std::vector<uint64_t> rows;  // to be locked, in this order
  std::vector<bool> shared;
  size_t next = 0;
  std::set<uint64_t> registered;  // shared locks
  uint64_t turn_of = kRows;       // the row it has the turn of
};

// One life of a server.
class RowLocksSim::Server {
 public:
  Server(RowLocksSim* sim, uint8_t id, uint64_t life)
      : first_sequence(sim->next_sequence_[id]),
        sim_(sim),
        id_(id),
        client_(NodeId{id}, life, &hints_) {}

  void begin() {
    use();
    for (size_t thread = 0; thread < kThreads; ++thread) later(thread * 100, [this] { work(); });
    poll();
    send();
  }
  void use() { client_.use(Epoch{sim_->epoch_}); }
  [[nodiscard]] bool runs() const noexcept { return !dead && sim_->now_ >= paused_until; }
  // When it is awake, if it lives by then.
  void later(uint64_t us, std::function<void()> action) {
    sim_->after(us, [this, action = std::move(action)]() mutable {
      if (dead) return;
      if (sim_->now_ < paused_until) return later(paused_until - sim_->now_ + 1, std::move(action));
      action();
    });
  }
  // What it reads of another's table.
  void open(uint8_t place, Server* owner) { tables_[place] = owner; }
  void close(uint8_t place) { tables_.erase(place); }
  // It ends a transaction of another life or place.
  void end_adopted(TrxId trx) {
    if (!sim_->undecided(trx)) return;
    sim_->publish(trx);
    if (node_of(trx) == NodeId{id_}) tit_.set(sequence_of(trx), TrxState::kAborted, Cts{});
    later(sim_->rng_.below(500), [this, trx] { tell_end(trx); });
  }
  // Recovery shows what it has found (K11).
  void show(TrxId trx) { tit_.claim(sequence_of(trx), TrxState::kActive); }

  bool dead = false;
  uint64_t paused_until = 0;
  uint64_t commits_in_calm = 0;
  bool released = false;
  const uint64_t first_sequence;
  [[nodiscard]] std::string describe() const {
    std::string out;
    for (const auto& [trx, waiting] : waits_) out += waiting.second;
    return out;
  }
  [[nodiscard]] const clients::RowLockClientCounters& counters() const {
    return client_.counters();
  }
  [[nodiscard]] bool waits_since(uint64_t us) const {
    return std::any_of(waits_.begin(), waits_.end(),
                       [us](const auto& waiting) { return waiting.second.first < us; });
  }

 private:
  friend class RowLocksSim::Waiting;

  // --- messages ---
  void send() {
    if (const auto batch = client_.next_batch()) return exchange(*batch, true);
    later(50, [this] { send(); });
  }
  void poll() { exchange(client_.poll(), false); }
  void exchange(LockBatch batch, bool sends) {
    if (sim_->mutation_ == RowLocksMutation::kNoReport && batch.number == 1)
      std::erase_if(batch.requests, [](const proto::LockRequest& request) {
        return request.kind == LockRequestKind::kAddShared ||
               request.kind == LockRequestKind::kAddRange;
      });
    const auto again = [this, sends] { sends ? send() : poll(); };
    if (sim_->lost()) return later(5'000, again);
    sim_->after(sim_->delay(), [this, batch = std::move(batch), again, sends] {
      if (released) return;
      auto reply = sim_->mutation_ == RowLocksMutation::kNobodyIsAsked
                       ? confirm_all(batch)
                       : sim_->locks_->exchange(batch);
      sim_->check_deadlock();
      if (sim_->lost()) return later(5'000, again);
      later(sim_->delay(), [this, reply = std::move(reply), epoch = batch.epoch, again, sends] {
        if (reply.ok()) client_.heard(epoch, *reply);
        if (!reply.ok() && client_.poll().epoch.value != sim_->epoch_)
          later(sim_->rng_.below(2'000), [this] { use(); });
        sends ? again() : later(200, again);
      });
    });
  }

  // Broken: what a server would be asked about a cycle counts as confirmed before it has heard it,
  // and before what it has said meanwhile. Such answers take numbers of the exchange.
  StatusOr<LockReply> confirm_all(LockBatch batch) {
    if (batch.epoch.value != sim_->epoch_) return sim_->locks_->exchange(batch);  // too late
    if (batch.epoch != confirmed_in_) {
      confirmed_in_ = batch.epoch;
      last_assigned_ = 0;
      assigned_.clear();
      confirmed_.clear();
    }
    if (batch.number != 0) {
      const auto [it, is_new] = assigned_.try_emplace(batch.number, last_assigned_ + 1);
      if (is_new) ++last_assigned_;
      batch.number = it->second;
    }
    auto reply = sim_->locks_->exchange(batch);
    if (!reply.ok()) return reply;
    for (const proto::LockEvent& event : reply->events) {
      if (event.kind != proto::LockEventKind::kConfirm) continue;
      if (!confirmed_.insert(event.number).second) continue;
      LockBatch answer = batch;
      answer.number = ++last_assigned_;
      answer.requests = {
          {.kind = LockRequestKind::kConfirmed, .number = event.number, .flag = true}};
      if (!sim_->locks_->exchange(answer).ok()) sim_->fail("an answer was not taken");
    }
    uint64_t accepted = 0;
    for (const auto& [number, as] : assigned_)
      if (as <= reply->accepted) accepted = number;
    reply->accepted = accepted;
    return reply;
  }

  // --- transactions ---
  void work() {
    if (!client_.joined()) return later(500, [this] { work(); });
    const uint64_t sequence = ++sim_->next_sequence_[id_];
    auto trx = std::make_shared<Trx>();
    trx->id = make_trx_id(NodeId{id_}, sequence);
    const size_t count = 1 + sim_->rng_.below(3);
    while (trx->rows.size() < count) {
      const uint64_t row = sim_->rng_.below(kRows);
      if (std::find(trx->rows.begin(), trx->rows.end(), row) != trx->rows.end()) continue;
      trx->rows.push_back(row);
      trx->shared.push_back(sim_->rng_.one_in(4));
      if (!trx->shared.back() || !sim_->rng_.one_in(3)) continue;
      trx->rows.push_back(row);  // to be changed after it was read
      trx->shared.push_back(false);
    }
    sim_->undecided_[trx->id];
    tit_.claim(sequence, TrxState::kActive);
    step(trx);
  }
  void step(const std::shared_ptr<Trx>& trx) {
    if (trx->next == trx->rows.size())
      return later(sim_->rng_.below(1'500), [this, trx] { end(trx, true); });
    const uint64_t row = trx->rows[trx->next];
    trx->shared[trx->next] ? lock_shared(trx, row) : lock(trx, row);
  }
  void done(const std::shared_ptr<Trx>& trx) {
    ++trx->next;
    later(sim_->rng_.below(400), [this, trx] { step(trx); });
  }
  // Whoever is undecided and has marked the row, or zero.
  [[nodiscard]] TrxId owner(const Trx& trx, uint64_t row) const {
    const TrxId mark = sim_->marks_[row];
    return mark != trx.id && sim_->undecided(mark) ? mark : TrxId{};
  }
  [[nodiscard]] bool must_queue(const Trx& trx, uint64_t row) const {
    const std::string key = key_of(row);
    return trx.turn_of != row && client_.has_waiters(RowId{kIndex, key});
  }
  void lock(const std::shared_ptr<Trx>& trx, uint64_t row) {
    const bool queue = must_queue(*trx, row);
    later(sim_->rng_.below(50), [=, this] {
      const TrxId holder = owner(*trx, row);
      if (!holder.is_zero() || queue) return wait(trx, row, holder, [=, this] { lock(trx, row); });
      sim_->marks_[row] = trx->id;
      sim_->undecided_[trx->id].insert(row);
      give_turn(trx, true);
      later(sim_->rng_.below(30), [=, this] { ask(trx, row); });
    });
  }
  // The row is marked: who holds it shared?
  void ask(const std::shared_ptr<Trx>& trx, uint64_t row) {
    if (hints_.of(kIndex).load() == 0) return alone(trx, row);
    wait_shared(trx, row);
  }
  void alone(const std::shared_ptr<Trx>& trx, uint64_t row) {
    for (const TrxId other : sim_->shared_[row])
      if (other != trx->id)
        sim_->fail("FS7: transaction " + std::to_string(trx->id.value) + " has row " +
                   std::to_string(row) + ", which " + std::to_string(other.value) +
                   " has read under a lock");
    done(trx);
  }
  void give_turn(const std::shared_ptr<Trx>& trx, bool took) {
    if (trx->turn_of == kRows) return;
    const std::string key = key_of(trx->turn_of);
    client_.settled(trx->id, RowId{kIndex, key}, took);
    trx->turn_of = kRows;
  }
  void lock_shared(const std::shared_ptr<Trx>& trx, uint64_t row);
  void read_shared(const std::shared_ptr<Trx>& trx, uint64_t row) {
    const TrxId holder = owner(*trx, row);
    if (holder.is_zero()) {
      sim_->shared_[row].insert(trx->id);
      ++sim_->counts_.shared;
      give_turn(trx, false);
      return done(trx);
    }
    const std::string key = key_of(row);
    trx->registered.erase(row);
    client_.drop_shared(trx->id, RowId{kIndex, key});
    wait(trx, row, holder, [=, this] { lock_shared(trx, row); });
  }

  void end(const std::shared_ptr<Trx>& trx, bool commits) {
    give_turn(trx, false);
    for (auto& holders : sim_->shared_) holders.erase(trx->id);
    const auto publish = [=, this] {
      sim_->publish(trx->id);
      tit_.set(sequence_of(trx->id), commits ? TrxState::kCommitted : TrxState::kAborted, Cts{});
    };
    const auto go_on = [=, this] {
      if (commits) {
        ++sim_->counts_.commits;
        if (sim_->calm()) ++commits_in_calm;
      } else {
        ++sim_->counts_.aborts;
      }
      later(sim_->rng_.below(1'000), [this] { work(); });
    };
    if (sim_->mutation_ == RowLocksMutation::kWordBeforeOutcome) {
      const bool word = tit_.may_be_waited_for(sequence_of(trx->id));
      const bool told = word || hints_.of(trx->id).load() != 0;
      later(sim_->rng_.below(200), [=, this] {
        publish();
        client_.release_shared(trx->id);
        if (told) client_.holder_ended(trx->id, word);
        go_on();
      });
      return;
    }
    publish();
    later(sim_->rng_.below(200), [=, this] {
      client_.release_shared(trx->id);
      tell_end(trx->id);
      go_on();
    });
  }
  void tell_end(TrxId trx) {
    const bool word = node_of(trx) == NodeId{id_} && tit_.may_be_waited_for(sequence_of(trx));
    if (word || hints_.of(trx).load() != 0) client_.holder_ended(trx, word);
  }

  // --- waiting ---
  void wait(const std::shared_ptr<Trx>& trx, uint64_t row, TrxId holder,
            std::function<void()> next);
  void wait_shared(const std::shared_ptr<Trx>& trx, uint64_t row);

  RowLocksSim* const sim_;
  const uint8_t id_;
  RowLockHints hints_;
  RowLockClient client_;
  alignas(64) std::array<char, TitRegion::bytes_of(kSlots)> memory_ = {};
  TitRegion tit_{memory_.data(), kSlots};
  std::map<uint8_t, Server*> tables_;  // of others, as it reads them
  Epoch confirmed_in_;                 // confirm_all()
  uint64_t last_assigned_ = 0;
  std::map<uint64_t, uint64_t> assigned_;
  std::set<uint64_t> confirmed_;
  std::map<TrxId, std::pair<uint64_t, std::string>> waits_;  // since when, what
  std::set<std::shared_ptr<Waiting>> alive_;                 // somebody may call them
};

// A thread that waits.
class RowLocksSim::Waiting final : public RowLockClient::Call,
                                   public std::enable_shared_from_this<Waiting> {
 public:
  enum class Kind : uint8_t { kRow, kSharedHolders, kAdd };
  Waiting(Server* server, std::shared_ptr<Trx> trx, Kind kind, uint64_t row)
      : server_(server), trx_(std::move(trx)), kind_(kind), row_(row), key_(key_of(row)) {}

  void start(TrxId holder, std::function<void()> next) {
    server_->alive_.insert(shared_from_this());
    holder_ = holder;
    next_ = std::move(next);
    RowLocksSim* const sim = server_->sim_;
    const RowId row{kIndex, key_};
    const bool early = sim->mutation_ == RowLocksMutation::kLookBeforeRegistering;
    if (early && kind_ == Kind::kRow && !holder.is_zero()) {
      announced_early_ = announce(holder);
      held_early_ = sim->undecided(holder);
      if (!held_early_) return finish(true);
    }
    switch (kind_) {
      case Kind::kRow: {
        const bool first = sim->shared_[row_].contains(trx_->id);
        server_->client_.wait(this, trx_->id, holder, row, first);
        break;
      }
      case Kind::kSharedHolders:
        server_->client_.wait_shared(this, trx_->id, row);
        break;
      case Kind::kAdd:
        server_->client_.add_shared(this, trx_->id, row);
        if (sim->mutation_ == RowLocksMutation::kLockBeforeAnswers)
          server_->later(10, [self = shared_from_this()] { self->assume_done(); });
        break;
    }
    if (kind_ != Kind::kAdd) {
      ++sim->counts_.waits;
      sim->intervals_[{trx_->id, number()}].begin = sim->now_;
      server_->waits_[trx_->id] = {sim->now_, "trx " + std::to_string(trx_->id.value) +
                                                  " for row " + key_ +
                                                  (kind_ == Kind::kRow ? " and trx " : " shared ") +
                                                  std::to_string(holder.value) + " since " +
                                                  std::to_string(sim->now_) + "; "};
      // Some are in a hurry, or killed; of the others nobody gives up while there are faults.
      const uint64_t us = sim->rng_.one_in(8) ? sim->rng_.below(15'000) : 5'000'000;
      server_->later(us, [self = shared_from_this()] { self->time_is_up(); });
      if (kind_ == Kind::kRow) poll();
    }
    changed();
  }
  void changed() noexcept override {
    if (scheduled_) return;
    scheduled_ = true;
    server_->later(server_->sim_->rng_.below(40), [self = shared_from_this()] { self->go_on(); });
  }

 private:
  void go_on() {
    scheduled_ = false;
    if (over_) {
      if (state == State::kDone) server_->alive_.erase(shared_from_this());
      return;
    }
    switch (state) {
      case State::kAsleep:
        return;
      case State::kLook:
        return begin_look();
      case State::kDone:
        return finish(true);
      case State::kVictim:
      case State::kEnded:
        return finish(false);
    }
  }
  // Adds to the holder's word, then reads its slot.
  bool announce(TrxId holder) {
    Server* const table = table_of(holder);
    if (table == nullptr) return false;
    char* const slot =
        table->memory_.data() + (sequence_of(holder) % kSlots) * sizeof(proto::TitSlot);
    char* const word = slot + offsetof(proto::TitSlot, waiters);
    store_u64(word, load_u64(word) + 1);
    return load_u64(slot + offsetof(proto::TitSlot, sequence)) == sequence_of(holder);
  }
  [[nodiscard]] Server* table_of(TrxId holder) const {
    const auto table = server_->tables_.find(node_of(holder).value);
    return table == server_->tables_.end() ? nullptr : table->second;
  }
  void begin_look() {
    RowLocksSim* const sim = server_->sim_;
    const uint64_t look_number = look;
    if (sim->mutation_ == RowLocksMutation::kLookBeforeRegistering && !holder_.is_zero()) {
      server_->client_.looked(this, look_number, true, true);
      return;
    }
    const bool told_already = told;
    const TrxId at = look_at;
    Server* const table = told_already ? nullptr : table_of(at);
    server_->later(sim->rng_.below(150), [=, self = shared_from_this()] {
      bool announced = told_already;
      if (!told_already) announced = self->announce(at) && self->table_of(at) == table;
      self->server_->later(self->server_->sim_->rng_.below(150), [=] {
        if (self->over_) return;
        const bool held = !self->holder_.is_zero() && self->server_->sim_->undecided(self->holder_);
        self->server_->client_.looked(self.get(), look_number, announced, held);
        if (self->state == State::kLook) self->changed();
      });
    });
  }
  void poll() {
    server_->later(kPollUs, [self = shared_from_this()] {
      if (self->over_) return;
      const RowLocksSim* const sim = self->server_->sim_;
      if (sim->calm() && self->state == State::kAsleep) {
        const bool held = !self->holder_.is_zero() && sim->undecided(self->holder_);
        if (!held && self->found_ended_) self->server_->client_.poll_found(self.get());
        self->found_ended_ = !held;
      }
      self->poll();
    });
  }
  void time_is_up() {
    if (over_ || state == State::kDone || state == State::kVictim) return;
    ++server_->sim_->counts_.timeouts;
    server_->client_.cancel(this);
    finish(false);
  }
  void assume_done() {
    if (over_) return;
    over_ = true;  // the answer still comes
    next_();
  }
  void finish(bool granted) {
    over_ = true;
    RowLocksSim* const sim = server_->sim_;
    const auto keep = shared_from_this();
    server_->alive_.erase(keep);
    if (kind_ != Kind::kAdd && number() != 0) {
      sim->intervals_[{trx_->id, number()}].end = sim->now_;
      server_->waits_.erase(trx_->id);
    }
    if (!granted) return server_->end(trx_, false);
    if (kind_ == Kind::kRow && number() != 0) trx_->turn_of = row_;
    next_();
  }

  Server* const server_;
  const std::shared_ptr<Trx> trx_;
  const Kind kind_;
  const uint64_t row_;
  const std::string key_;
  TrxId holder_;
  std::function<void()> next_;
  bool scheduled_ = false, over_ = false, found_ended_ = false;
  bool announced_early_ = false, held_early_ = false;
};

void RowLocksSim::Server::wait(const std::shared_ptr<Trx>& trx, uint64_t row, TrxId holder,
                               std::function<void()> next) {
  if (trx->turn_of != row) give_turn(trx, false);
  trx->turn_of = kRows;
  std::make_shared<Waiting>(this, trx, Waiting::Kind::kRow, row)->start(holder, std::move(next));
}

void RowLocksSim::Server::wait_shared(const std::shared_ptr<Trx>& trx, uint64_t row) {
  std::make_shared<Waiting>(this, trx, Waiting::Kind::kSharedHolders, row)
      ->start(TrxId{}, [=, this] { alone(trx, row); });
}

// Looks, registers, looks again.
void RowLocksSim::Server::lock_shared(const std::shared_ptr<Trx>& trx, uint64_t row) {
  const bool queue = must_queue(*trx, row);
  later(sim_->rng_.below(50), [=, this] {
    const TrxId holder = owner(*trx, row);
    if (!holder.is_zero() || queue)
      return wait(trx, row, holder, [=, this] { lock_shared(trx, row); });
    trx->registered.insert(row);
    std::make_shared<Waiting>(this, trx, Waiting::Kind::kAdd, row)->start(TrxId{}, [=, this] {
      later(sim_->rng_.below(30), [=, this] { read_shared(trx, row); });
    });
  });
}

// --- the world ---

RowLocksSim::RowLocksSim(uint64_t seed, RowLocksMutation mutation)
    : rng_(seed), mutation_(mutation) {
  servers_.resize(kServers + 1);
}
RowLocksSim::~RowLocksSim() = default;

uint64_t RowLocksSim::delay() {
  if (faulty() && rng_.one_in(50)) return rng_.below(10'000);
  return 20 + rng_.below(300);
}

void RowLocksSim::publish(TrxId trx) {
  const auto it = undecided_.find(trx);
  if (it == undecided_.end()) return;
  for (const uint64_t row : it->second)
    if (marks_[row] == trx) marks_[row] = TrxId{};
  undecided_.erase(it);
}

// FS9
void RowLocksSim::check_deadlock() {
  if (locks_->counters().deadlocks == deadlocks_seen_) return;
  deadlocks_seen_ = locks_->counters().deadlocks;
  ++counts_.deadlocks;
  uint64_t begin = 0, end = UINT64_MAX;
  for (const auto& member : locks_->last_deadlock()) {
    const auto interval = intervals_.find({member.trx, member.wait.second});
    if (interval == intervals_.end()) return fail("FS9: a wait that never was");
    begin = std::max(begin, interval->second.begin);
    end = std::min(end, interval->second.end);
  }
  if (begin >= end)
    fail("FS9: a victim of a deadlock that never was: the last wait began at " +
         std::to_string(begin) + ", the first one had ended at " + std::to_string(end));
}

void RowLocksSim::collect(const RowLocks& locks) {
  const fusion::RowLockCounters& counters = locks.counters();
  counts_.turns += counters.turns;
  counts_.unconfirmed += counters.unconfirmed;
  counts_.overtaken += counters.overtaken;
  if (counters.polls_found != 0) fail("FS8: a poll has found a wake-up that was lost");
}

void RowLocksSim::new_memory_node() {
  if (locks_ != nullptr) {
    collect(*locks_);
    ++counts_.takeovers;
  }
  std::vector<NodeId> expected;
  for (const uint8_t member : members_) expected.push_back(NodeId{member});
  locks_ = std::make_unique<RowLocks>(
      Epoch{++epoch_}, expected,
      fusion::RowLockOptions{.overtaken_max = 3, .consult_idle_us = 20'000});
  deadlocks_seen_ = 0;
  if (mutation_ == RowLocksMutation::kAdoptersAreNotTold) return;
  for (const auto& [place, by] : adopters_) locks_->adopted(NodeId{place}, NodeId{by});
}

void RowLocksSim::kill(uint8_t id) {
  Server* const server = servers_[id].get();
  if (server->dead) return;
  server->dead = true;
  ++counts_.kills;
  // Its shared locks are worth nothing from when it cannot answer any more.
  for (auto& holders : shared_)
    std::erase_if(holders, [id](TrxId trx) { return node_of(trx).value == id; });
  after(5'000 + rng_.below(20'000), [this, id] { release(id); });
}

// All others hear of the fence, then what it had is released.
void RowLocksSim::release(uint8_t id) {
  auto left = std::make_shared<int>(0);
  const auto heard = [this, id, left] {
    if (--*left != 0) return;
    servers_[id]->released = true;
    locks_->gone(NodeId{id});
    members_.erase(id);
    const uint8_t by = static_cast<uint8_t>(1 + rng_.below(kServers));
    if (by == id || servers_[by]->dead || rng_.one_in(2)) {
      after(rng_.below(10'000), [this, id] { start_again(id); });
      return;
    }
    ++counts_.adopted;
    adopters_[id] = by;
    if (mutation_ != RowLocksMutation::kAdoptersAreNotTold) locks_->adopted(NodeId{id}, NodeId{by});
    after(rng_.below(3'000), [this, id, by] { end_transactions(id, by); });
  };
  std::vector<Server*> others;
  for (uint8_t other = 1; other <= kServers; ++other)
    if (other != id && !servers_[other]->dead) others.push_back(servers_[other].get());
  *left = static_cast<int>(others.size()) + 1;
  for (Server* const other : others) {
    // One that is killed meanwhile reads nothing any more.
    const auto life = std::make_shared<bool>(false);
    other->later(rng_.below(5'000), [other, id, heard, life] {
      if (std::exchange(*life, true)) return;
      other->close(id);
      heard();
    });
    after(150'000, [heard, life] {
      if (!std::exchange(*life, true)) heard();
    });
  }
  heard();
}

// What a place has left undecided is rolled back, one after the other.
void RowLocksSim::end_transactions(uint8_t place, uint8_t by) {
  Server* const server = servers_[by].get();
  if (server->dead) {  // then the place's own next life does it
    adopters_.erase(place);
    return start_again(place);
  }
  TrxId next;
  for (const auto& [trx, rows] : undecided_)
    if (node_of(trx).value == place) next = trx;
  if (next.is_zero()) {
    if (place == by) return;
    // Some are away for long.
    const uint64_t us = rng_.one_in(3) ? kCalmFromUs + 100'000 : 0;
    after(us > now_ ? us - now_ : 0, [this, place] {
      adopters_.erase(place);
      start_again(place);
    });
    return;
  }
  server->later(rng_.below(2'000), [server, next] { server->end_adopted(next); });
  after(2'500, [this, place, by] { end_transactions(place, by); });
}

void RowLocksSim::start_again(uint8_t id) {
  std::vector<TrxId> found;
  for (const auto& [trx, rows] : undecided_)
    if (node_of(trx).value == id) found.push_back(trx);
  graveyard_.push_back(std::move(servers_[id]));
  servers_[id] = std::make_unique<Server>(this, id, ++last_life_);
  Server* const server = servers_[id].get();
  members_.insert(id);
  for (const TrxId trx : found) server->show(trx);
  server->begin();
  for (uint8_t other = 1; other <= kServers; ++other) {
    if (other == id || servers_[other] == nullptr) continue;
    Server* const there = servers_[other].get();
    if (!there->dead) server->open(other, there);
    there->later(rng_.below(8'000), [this, there, server, id] {
      if (servers_[id].get() == server && !server->dead) there->open(id, server);
    });
  }
  after(rng_.below(5'000), [this, id, server] {
    if (servers_[id].get() == server) end_old(id, server);
  });
}

// Those of its earlier lives only.
void RowLocksSim::end_old(uint8_t id, Server* server) {
  std::vector<TrxId> old;
  for (const auto& [trx, rows] : undecided_)
    if (node_of(trx).value == id && sequence_of(trx) <= server->first_sequence) old.push_back(trx);
  for (const TrxId trx : old)
    server->later(rng_.below(10'000), [server, trx] { server->end_adopted(trx); });
}

void RowLocksSim::next_fault() {
  after(5'000 + rng_.below(60'000), [this] {
    if (!faulty()) return;
    const uint8_t id = static_cast<uint8_t>(1 + rng_.below(kServers));
    switch (rng_.below(4)) {
      case 0:
        kill(id);
        break;
      case 1:
        new_memory_node();
        break;
      default:
        servers_[id]->paused_until = now_ + rng_.below(40'000);
        ++counts_.pauses;
        break;
    }
    next_fault();
  });
}

void RowLocksSim::run_until(uint64_t us) {
  while (!queue_.empty() && queue_.top().at <= us && failure_.empty()) {
    Event event = queue_.top();
    queue_.pop();
    now_ = event.at;
    event.action();
  }
}

std::string RowLocksSim::run() {
  for (uint8_t id = 1; id <= kServers; ++id) {
    servers_[id] = std::make_unique<Server>(this, id, ++last_life_);
    members_.insert(id);
  }
  new_memory_node();
  for (uint8_t id = 1; id <= kServers; ++id) {
    servers_[id]->begin();
    for (uint8_t other = 1; other <= kServers; ++other)
      if (other != id) servers_[id]->open(other, servers_[other].get());
  }
  const std::function<void()> tick = [&] {
    locks_->tick(now_ + 1);
    after(5'000, tick);
  };
  tick();
  next_fault();
  run_until(kEndUs);
  const auto all_go_on = [this] {
    return std::all_of(servers_.begin() + 1, servers_.end(),
                       [](const auto& server) { return server->commits_in_calm > 0; });
  };
  for (uint64_t until = kEndUs; until < kPatienceEndsUs && !all_go_on();)
    run_until(until += 100'000);
  if (failure_.empty()) collect(*locks_);
  for (uint8_t id = 1; id <= kServers && failure_.empty(); ++id)
    if (servers_[id]->waits_since(kCalmFromUs))
      fail("FS8: server " + std::to_string(id) + " still waits: " + servers_[id]->describe());
  for (uint8_t id = 1; id <= kServers && failure_.empty(); ++id)
    if (servers_[id]->commits_in_calm == 0)
      fail("FS10: server " + std::to_string(id) + " does not go on: " + servers_[id]->describe() +
           locks_->describe(20));
  for (const auto* list : {&servers_, &graveyard_})
    for (const auto& server : *list)
      if (server != nullptr) counts_.notes += server->counters().notes;
  return failure_;
}

}  // namespace strata::sim
