#include "names_sim.h"

#include <algorithm>
#include <utility>

#include "clients/fusion/fusion_lease.h"
#include "clients/fusion/name_holds.h"
#include "clients/fusion/reuse_client.h"

namespace strata::sim {

using clients::FusionLease;
using clients::NameHolds;
using clients::ReuseMarks;
using proto::NameAsk;
using proto::NameCaller;
using proto::NameGiveUp;
using proto::NameGrant;
using proto::NameMode;
using proto::NameReport;

namespace {

constexpr uint32_t kThreads = 4;  // of a server
constexpr uint64_t kLeaseUs = 100'000;
constexpr uint64_t kBeatUs = 15'000;
constexpr uint64_t kTickUs = 5'000;
constexpr uint64_t kCallUs = 20'000;  // an answer does not come any more
constexpr uint32_t kGiversUp = 2;
constexpr Epoch kEpoch{1};

std::string name_of(size_t table) { return std::string("table") + static_cast<char>('a' + table); }
size_t table_of(const std::string& name) { return static_cast<size_t>(name.back() - 'a'); }

}  // namespace

// One life of a server.
class NamesSim::Server : public std::enable_shared_from_this<NamesSim::Server>,
                         public OwnOperations {
 public:
  Server(NamesSim* sim, NodeId id, uint64_t life)
      : sim_(sim),
        id_(id),
        life_(life),
        rate_(975 + sim->rng_.below(51)),
        offset_(sim->rng_.below(1'000'000)),
        lease_([this] { return local(); }),
        holds_({.ask_again_us = 30'000, .try_again_us = 2'000, .wanted_us = 60'000},
               [this] { pump_soon(); }) {}

  void begin() {
    beat();
    begin_names();
  }
  [[nodiscard]] uint64_t life() const noexcept { return life_; }
  [[nodiscard]] bool answers() const noexcept { return !dead && !ended_ && lease_.valid(kEpoch); }
  [[nodiscard]] const NameHolds& holds() const noexcept { return holds_; }
  // An operation that began before then is under way.
  [[nodiscard]] bool has_operation_of(uint64_t before_us) const {
    return std::any_of(operations_.begin(), operations_.end(),
                       [&](const auto& operation) { return operation.second < before_us; });
  }
  [[nodiscard]] std::string describe() const {
    std::string text = "life " + std::to_string(life_) + (dead ? " dead" : "") +
                       (ended_ ? " ended" : "") + (serving_ ? " serving" : "");
    for (size_t t = 0; t < kNames; ++t)
      text += "; " + name_of(t) + ": " + holds_.describe(name_of(t)) + ", " +
              std::to_string(memory_[t].users) + " users" + (memory_[t].loading ? " loading" : "");
    return text;
  }

  bool dead = false, sealed = false;
  uint64_t paused_until = 0, deaf_until = 0, mute_until = 0;
  std::array<uint64_t, kNames> used{};  // since it is calm
  std::array<uint64_t, kTables> changed{};
  std::array<uint64_t, kRights> shared{};
  uint64_t dropped = 0, rounds = 0;

  // --- from the memory node ---
  void heard(const NameGrant& grant) { holds_.granted(grant, local()); }
  void heard(const NameGiveUp& give_up) {
    if (sim_->mutation_ == NamesMutation::kUnnumberedGrant &&
        !holds_.has_grant(give_up.name, give_up.number)) {
      const std::vector<NameReport> reports = {{give_up.name, give_up.number, NameMode::kNone}};
      return call([=, this] { return sim_->names_->report(caller(), reports, sim_->now_); },
                  [](const Status&) {});
    }
    holds_.asked_back(give_up);
  }
  void heard(const proto::SpaceLeave& leave) {
    const auto say = [=, this] {
      const SpaceId space = leave.space;
      call(
          [=, this] {
            return sim_->spaces_->has_left(caller(), {&space, 1});
          },
          [](const Status&) {});
    };
    if (!serving_) return;  // it is asked again
    if (sim_->mutation_ == NamesMutation::kSaysLeftAtOnce) say();
    later(sim_->rng_.below(3'000), [=, this] {
      at_.erase(leave.space.value);
      say();
    });
  }
  void heard(const proto::SpaceIsLeft&) {}  // it is asked for now and then
  void heard(const proto::ReuseAsk& ask) {
    newest_ask_ = std::max(newest_ask_, ask.round);
    if (sim_->mutation_ == NamesMutation::kReportWithoutMark) return report_round(ask.round);
    marks_.asked(ask.round);
    look_at_marks();
  }
  void later(uint64_t us, std::function<void()> action) {
    sim_->after(
        us, [self = shared_from_this(), action = std::move(action)] { self->when_awake(action); });
  }

  void check_use_of(size_t t) {
    if (memory_[t].users != 0 && memory_[t].known) check(t);
  }

  // OwnOperations
  [[nodiscard]] uint64_t mark() const noexcept override { return last_operation_; }
  bool ended(uint64_t mark) noexcept override {
    return operations_.empty() || operations_.begin()->first > mark;
  }

 private:
  using Then = std::function<void()>;
  using Answered = std::function<void(const Status&)>;
  // What the kernel remembers of a table (engine/names.cc).
  struct Memory {
    bool known = false, loading = false, given_up = false;
    uint64_t version = 0;
    uint32_t space = 0;
    uint32_t users = 0;
    std::vector<Then> waiting;  // until it is neither loading nor given up
    Then unused;                // who gives it up waits for that
  };
  class Waiting final : public NameHolds::Request {
   public:
    Waiting(Server* server, const std::string& name, NameMode mode, Answered then)
        : Request(name, mode), server_(server), then_(std::move(then)) {}
    void answered() noexcept override {
      server_->later(server_->sim_->rng_.below(200), [this] { server_->wake(this); });
    }
    Server* const server_;
    Answered then_;
  };

  void when_awake(const std::function<void()>& action) {
    if (dead) return;
    if (sim_->now_ >= paused_until) return action();
    sim_->after(paused_until - sim_->now_,
                [self = shared_from_this(), action] { self->when_awake(action); });
  }
  [[nodiscard]] uint64_t local() const noexcept { return offset_ + sim_->now_ * rate_ / 1000; }
  [[nodiscard]] NameCaller caller() const { return {id_, life_, kEpoch}; }

  // A call to the memory node; `then` hears whether it was answered, and how.
  void call(std::function<Status()> action, Answered then) {
    const bool away = sim_->now_ < mute_until || sim_->lost();
    const auto answered = std::make_shared<bool>(false);
    later(kCallUs, [=] {
      if (!std::exchange(*answered, true)) then(error_outcome_unknown());
    });
    if (away) return;
    const auto arrives = [=, self = shared_from_this(), this] {
      const Status status = action();
      sim_->send_outgoing();
      if (is_fenced(status)) later(sim_->delay(), [=, this] { end(status); });
      if (sim_->now_ < deaf_until || sim_->lost()) return;
      later(sim_->delay(), [=] {
        if (!std::exchange(*answered, true)) then(status);
      });
    };
    sim_->after(sim_->delay(), arrives);
    if (sim_->faulty() && sim_->rng_.one_in(15)) sim_->after(sim_->delay(), arrives);
  }
  void end(const Status& why) {
    if (std::exchange(ended_, true)) return;
    lease_.end();
    holds_.end(why);
  }

  // --- membership ---
  void beat() {
    if (ended_) return;
    const uint64_t asked_us = local();
    const auto lease_us = std::make_shared<uint64_t>(0);
    call(
        [=, this]() -> Status {
          const auto it = sim_->seen_.find(id_.value);
          if (sim_->servers_[id_.value].get() != this || it == sim_->seen_.end() ||
              it->second.fenced)
            return error_fenced();
          Seen& seen = it->second;
          seen.heard_us = sim_->now_;
          seen.lease_ends_us = sim_->now_ + kLeaseUs;
          *lease_us = kLeaseUs;
          return ok_status();
        },
        [=, this](const Status& status) {
          if (status.ok() && !ended_) lease_.granted(kEpoch, asked_us, *lease_us);
        });
    later(kBeatUs, [this] { beat(); });
  }
  // What the last life was changing is undone first (NL4).
  void begin_names() {
    if (ended_) return;
    if (sim_->mutation_ != NamesMutation::kReleaseWithoutUndo) undo();
    call(
        [this]() -> Status {
          const Status adopted = sim_->names_->adopt(caller(), id_);
          if (is_not_found(adopted)) return ok_status();
          STRATA_RETURN_IF_ERROR(adopted);
          return sim_->names_->adoption_ended(caller(), id_, sim_->now_);
        },
        [this](const Status& status) {
          if (ended_ || serving_) return;
          if (!status.ok()) return later(3'000, [this] { begin_names(); });
          serving_ = true;
          if (sim_->mutation_ == NamesMutation::kReleaseWithoutUndo)
            later(10'000, [this] { undo(); });
          for (uint32_t i = 0; i < kThreads; ++i) work();
          background();
          for (const uint32_t space : sim_->to_drop_[id_.value]) drop(space);
        });
  }
  void undo() {
    for (Table& table : sim_->tables_) {
      if (table.changer == 0 || table.place != id_.value || table.changer == life_) continue;
      table.changer = 0;
      ++sim_->counts_.undone;
    }
    for (Right& right : sim_->rights_)
      std::erase_if(right.sharers, [this](const auto& sharer) {
        return sharer.second.place == id_.value && sharer.first != life_;
      });
  }
  void background() {
    if (ended_) return;
    holds_.repeat(local());
    look_at_marks();
    // Purge, and whatever else is at a space.
    for (const uint32_t space : at_)
      if (answers() && sim_->deleted_.contains(space))
        sim_->fail("NY2: server " + std::to_string(id_.value) + " is at space " +
                   std::to_string(space) + ", whose file is gone");
    later(2'000, [this] { background(); });
  }

  // --- messages ---
  void pump_soon() {
    if (std::exchange(pumping_, true)) return;
    later(sim_->rng_.below(50), [this] {
      pumping_ = false;
      pump();
    });
  }
  void pump() {
    if (ended_) return;
    if (std::vector<NameReport> reports = holds_.take_reports(); !reports.empty())
      call([=, this] { return sim_->names_->report(caller(), reports, sim_->now_); },
           [=, this](const Status& status) {
             if (status.ok() || ended_) return;
             holds_.reports_failed(reports);
             pump_soon();
           });
    if (const std::vector<NameAsk> asks = holds_.take_asks(); !asks.empty())
      call([=, this] { return sim_->names_->ask(caller(), asks, sim_->now_); },
           [](const Status&) {});
    while (giving_up_ < kGiversUp) {
      const auto name = holds_.take_ready();
      if (!name.has_value()) return;
      ++giving_up_;
      give_up(*name);
    }
  }

  // --- names ---
  void acquire(size_t table, NameMode mode, Answered then) {
    auto request = std::make_unique<Waiting>(this, name_of(table), mode, std::move(then));
    Waiting* const waiting = request.get();
    const uint64_t number = ++last_wait_;
    waits_[waiting] = {number, std::move(request)};
    if (holds_.acquire(waiting, local())) return waiting->answered();
    later(3'000 + sim_->rng_.below(80'000), [=, this] {
      const auto it = waits_.find(waiting);
      if (it == waits_.end() || it->second.first != number) return;
      if (!holds_.cancel(waiting, local())) return;
      ++sim_->counts_.timeouts;
      waiting->status = error_lock_wait_timeout();
      wake(waiting);
    });
  }
  void wake(Waiting* waiting) {
    const auto it = waits_.find(waiting);
    const std::unique_ptr<Waiting> request = std::move(it->second.second);
    waits_.erase(it);
    if (request->status.ok() && !lease_.valid(kEpoch)) {  // as NameLocks has it
      if (request->mode != NameMode::kUse) holds_.unlock(request->name, local());
      request->status = error_lease_lost();
    }
    request->then_(request->status);
  }
  static bool is_busy(const Memory& memory) { return memory.loading || memory.given_up; }
  static void wake_all(Memory* memory) {
    for (const Then& then : std::exchange(memory->waiting, {})) then();
  }
  void load(size_t t) {
    Memory& memory = memory_[t];
    memory.known = true;
    if (t >= kTables) return check(t);
    const Table& table = sim_->tables_[t];
    memory.version = table.version;
    memory.space = table.space;
    at_.insert(table.space);
    check(t);
  }
  // NY6: of a right in use.
  void check_right(const Right& right, const std::string& name) {
    for (const auto& [life, sharer] : right.sharers)
      if (life != life_)
        sim_->fail("NY6: server " + std::to_string(id_.value) + " uses " + name + ", which life " +
                   std::to_string(life) + " shares; " + sim_->names_->describe(name) + "; " +
                   describe());
  }
  // NY1, NY2: of a table in use.
  void check(size_t t) {
    if (!answers()) return;
    if (t >= kTables) return check_right(sim_->rights_[t - kTables], name_of(t));
    const Memory& memory = memory_[t];
    const Table& table = sim_->tables_[t];
    const std::string who = "server " + std::to_string(id_.value) + " uses " + name_of(t);
    if (table.changer != 0 && table.changer != life_)
      sim_->fail("NY1: " + who + ", which life " + std::to_string(table.changer) +
                 " is changing; " + sim_->names_->describe(name_of(t)) + "; " + describe());
    if (memory.version != table.version)
      sim_->fail("NY1: " + who + " of version " + std::to_string(memory.version) +
                 ", the newest is " + std::to_string(table.version));
    if (sim_->deleted_.contains(memory.space)) sim_->fail("NY2: " + who + ", whose file is gone");
  }
  void use(size_t t, Answered then) {
    Memory& memory = memory_[t];
    if (is_busy(memory)) return memory.waiting.push_back([=, this] { use(t, then); });
    ++memory.users;
    if (memory.known) return then(ok_status());
    memory.loading = true;
    acquire(t, NameMode::kUse, [=, this](const Status& status) {
      Memory& loaded = memory_[t];
      loaded.loading = false;
      if (!status.ok())
        unuse(t);
      else if (!loaded.known)
        load(t);
      wake_all(&loaded);
      then(status);
    });
  }
  void unuse(size_t t) {
    Memory& memory = memory_[t];
    if (--memory.users != 0 || !memory.unused) return;
    std::exchange(memory.unused, nullptr)();
  }
  void lock(size_t t, Answered then) {
    Memory& memory = memory_[t];
    if (is_busy(memory)) return memory.waiting.push_back([=, this] { lock(t, then); });
    acquire(t, NameMode::kExclusive, [=, this](const Status& status) {
      if (!status.ok()) return then(status);
      if (!memory_[t].known) load(t);
      ++memory_[t].users;
      then(status);
    });
  }
  void give_up(const std::string& name) {
    const size_t t = table_of(name);
    Memory& memory = memory_[t];
    memory.given_up = true;
    const auto over = std::make_shared<bool>(false);
    const auto finish = [=, this](bool is_forgotten) {
      if (std::exchange(*over, true)) return;
      Memory& of = memory_[t];
      of.unused = nullptr;
      of.given_up = false;
      if (is_forgotten) of.known = false;
      wake_all(&of);
      later(sim_->rng_.below(200), [=, this] {
        --giving_up_;
        if (sim_->mutation_ != NamesMutation::kGivenUpBeforeForgotten)
          holds_.gave_up(name, is_forgotten, local());
        ++(is_forgotten ? sim_->counts_.given_up : sim_->counts_.in_use);
        pump();
      });
    };
    if (sim_->mutation_ == NamesMutation::kGivenUpBeforeForgotten)
      holds_.gave_up(name, true, local());
    if (memory.users == 0) return finish(true);
    memory.unused = [=] { finish(true); };
    later(1'000 + sim_->rng_.below(5'000), [=] { finish(false); });
  }

  // --- threads ---
  void work() {
    if (ended_) return;
    later(sim_->rng_.below(4'000), [this] {
      if (ended_) return;
      const size_t t = sim_->rng_.below(kTables);
      switch (sim_->rng_.below(13)) {
        case 0:
        case 1:
          return change(t);
        case 2:
          return rename();
        case 3:
          return round();
        case 4:
          return operate();
        case 5:
          return share(sim_->rng_.below(kRights));
        case 6:
        case 7:
          return use_right(kTables + sim_->rng_.below(kRights));
        default:
          return use_some(t);
      }
    });
  }
  // A transaction: perhaps of two tables, in any order.
  void use_some(size_t t) {
    use(t, [=, this](const Status& status) {
      if (!status.ok()) return work();
      check(t);
      later(sim_->rng_.below(3'000), [=, this] {
        check(t);
        if (answers() && sim_->calm()) ++used[t];
        ++sim_->counts_.uses;
        const auto end = [=, this] {
          unuse(t);
          work();
        };
        const size_t other = sim_->rng_.below(kTables);
        if (other == t || !sim_->rng_.one_in(4)) return end();
        use(other, [=, this](const Status& second) {
          if (!second.ok()) return end();
          check(other);
          later(sim_->rng_.below(1'000), [=, this] {
            check(t);
            check(other);
            unuse(other);
            end();
          });
        });
      });
    });
  }
  // Rows are changed.
  void use_right(size_t t) {
    use(t, [=, this](const Status& status) {
      if (!status.ok()) return work();
      check(t);
      later(sim_->rng_.below(3'000), [=, this] {
        check(t);
        if (answers() && sim_->calm()) ++used[t];
        unuse(t);
        work();
      });
    });
  }
  // Rows are kept still.
  void share(size_t right) {
    const size_t t = kTables + right;
    acquire(t, NameMode::kShared, [=, this](const Status& status) {
      if (!status.ok()) return work();
      auto& sharers = sim_->rights_[right].sharers;
      if (!answers()) {
        holds_.unlock(name_of(t), local());
        return work();
      }
      sharers[life_].place = id_.value;
      ++sharers[life_].count;
      ++sim_->counts_.shares;
      sim_->counts_.shared_beside += sharers.size() > 1 ? 1 : 0;
      sim_->check_users_of(t);
      later(sim_->rng_.below(3'000), [=, this] {
        if (answers()) sim_->check_users_of(t);
        if (answers() && sim_->calm()) ++shared[right];
        auto& still = sim_->rights_[right].sharers;
        // A seal comes between: it is its next life's to end it.
        const auto own = still.find(life_);
        if (!sealed && own != still.end() && --own->second.count == 0) still.erase(own);
        holds_.unlock(name_of(t), local());
        work();
      });
    });
  }
  void change(size_t t) {
    lock(t, [=, this](const Status& status) {
      if (!status.ok()) return work();
      alter(t, [=, this] {
        unlock(t);
        work();
      });
    });
  }
  // Two names, in their order (MW18).
  void rename() {
    const size_t a = sim_->rng_.below(kTables - 1);
    const size_t b = a + 1 + sim_->rng_.below(kTables - 1 - a);
    lock(a, [=, this](const Status& first) {
      if (!first.ok()) return work();
      lock(b, [=, this](const Status& second) {
        if (!second.ok()) {
          unlock(a);
          return work();
        }
        alter(a, [=, this] {
          alter(b, [=, this] {
            unlock(a);
            unlock(b);
            work();
          });
        });
      });
    });
  }
  void unlock(size_t t) {
    holds_.unlock(name_of(t), local());
    unuse(t);
  }
  void alter(size_t t, const Then& then) {
    check(t);
    const bool early = sim_->mutation_ == NamesMutation::kUnlockBeforePublish;
    Table& table = sim_->tables_[t];
    if (!sealed) {
      table.changer = life_;
      table.place = id_.value;
    }
    if (early) holds_.unlock(name_of(t), local());
    const uint64_t us = sim_->rng_.one_in(5) ? 40'000 : 4'000;  // some copy rows
    later(sim_->rng_.below(us), [=, this] {
      Table& of = sim_->tables_[t];
      // A seal comes between: its next life finds it half done, and undoes it.
      if (sealed || of.changer != life_) return then();
      ++of.version;
      const uint32_t old = std::exchange(of.space, ++sim_->last_space_);
      of.changer = 0;
      sim_->to_drop_[id_.value].insert(old);
      memory_[t].version = of.version;
      memory_[t].space = of.space;
      at_.insert(of.space);
      at_.erase(old);
      ++sim_->counts_.changes;
      if (answers() && sim_->calm()) ++changed[t];
      later(sim_->rng_.below(300), [=, this] {
        then();
        drop(old);
      });
    });
  }

  // --- spaces ---
  void drop(uint32_t space) {
    if (ended_) return;
    const auto left = std::make_shared<bool>(false);
    call(
        [=, this]() -> Status {
          STRATA_ASSIGN_OR_RETURN(const bool all,
                                  sim_->spaces_->dropped(caller(), SpaceId{space}, sim_->now_));
          if (all) *left = true;
          return ok_status();
        },
        [=, this](const Status& status) {
          if (ended_) return;
          if (!status.ok() || !*left || !answers())
            return later(3'000 + sim_->rng_.below(5'000), [=, this] { drop(space); });
          if (sealed) return;
          sim_->deleted_.insert(space);
          sim_->to_drop_[id_.value].erase(space);
          ++sim_->counts_.drops;
          if (sim_->calm()) ++dropped;
        });
  }

  // --- rounds ---
  void operate() {
    const uint64_t number = ++last_operation_;
    operations_[number] = sim_->now_;
    later(sim_->rng_.one_in(4) ? sim_->rng_.below(30'000) : sim_->rng_.below(3'000), [=, this] {
      operations_.erase(number);
      work();
    });
  }
  void look_at_marks() {
    if (!serving_) return;
    auto due = marks_.due(this);
    if (!due.has_value()) return;
    if (sim_->mutation_ == NamesMutation::kMarkOfAnEarlierRound) due = newest_ask_;
    report_round(*due);
  }
  void report_round(uint64_t round) {
    call([=, this] { return sim_->rounds_->report(caller(), round); },
         [=, this](const Status& status) {
           if (!status.ok()) return;
           marks_.reported(round);
           look_at_marks();
         });
  }
  void round() {
    const auto number = std::make_shared<uint64_t>(0);
    const auto began_us = std::make_shared<uint64_t>(0);
    call(
        [=, this]() -> Status {
          STRATA_ASSIGN_OR_RETURN(*number, sim_->rounds_->begin(caller(), sim_->now_));
          *began_us = sim_->now_;
          return ok_status();
        },
        [=, this](const Status& status) {
          if (!status.ok()) return work();
          await_round(*number, *began_us);
        });
  }
  void await_round(uint64_t number, uint64_t began_us) {
    if (ended_) return;
    const auto over = std::make_shared<bool>(false);
    call(
        [=, this]() -> Status {
          STRATA_ASSIGN_OR_RETURN(*over, sim_->rounds_->ended(caller(), number));
          return ok_status();
        },
        [=, this](const Status& status) {
          if (!status.ok() || !*over)
            return later(2'000, [=, this] { await_round(number, began_us); });
          for (const auto* list : {&sim_->servers_, &sim_->graveyard_})
            for (const auto& other : *list)
              if (other != nullptr && other.get() != this && answers() && other->answers() &&
                  other->has_operation_of(began_us))
                sim_->fail("NY3: round " + std::to_string(number) +
                           " has ended, an older operation has not");
          ++sim_->counts_.rounds;
          if (sim_->calm()) ++rounds;
          work();
        });
  }

  NamesSim* const sim_;
  const NodeId id_;
  const uint64_t life_;
  const uint64_t rate_, offset_;
  FusionLease lease_;
  NameHolds holds_;
  ReuseMarks marks_;
  std::array<Memory, kNames> memory_;
  std::map<Waiting*, std::pair<uint64_t, std::unique_ptr<Waiting>>> waits_;
  std::set<uint32_t> at_;                    // spaces
  std::map<uint64_t, uint64_t> operations_;  // when they began
  uint64_t last_operation_ = 0, last_wait_ = 0, newest_ask_ = 0;
  uint32_t giving_up_ = 0;
  bool pumping_ = false, serving_ = false, ended_ = false;
};

// --- the world ---

NamesSim::NamesSim(uint64_t seed, NamesMutation mutation)
    : rng_(seed), mutation_(mutation), patience_us_(30'000 + rng_.below(150'000)) {
  servers_.resize(kServers + 1);
  names_.emplace(fusion::NamesOptions{.ask_again_us = 15'000}, kEpoch);
  spaces_.emplace(fusion::DroppedSpacesOptions{.ask_again_us = 15'000}, kEpoch);
  rounds_.emplace(fusion::ReuseRoundsOptions{.ask_again_us = 15'000}, kEpoch);
  for (Table& table : tables_) table.space = ++last_space_;
}
// Events keep servers, which look at the rest.
NamesSim::~NamesSim() { queue_ = {}; }

uint64_t NamesSim::delay() {
  if (faulty() && rng_.one_in(40)) return rng_.below(15'000);
  return 20 + rng_.below(300);
}

void NamesSim::deliver(NodeId to, uint64_t life, std::function<void(Server*)> what) {
  const std::shared_ptr<Server> server = servers_[to.value];
  if (server == nullptr || server->life() != life) return;
  const auto arrives = [=, this] {
    if (now_ >= server->deaf_until) server->later(0, [=] { what(server.get()); });
  };
  if (!lost()) after(delay(), arrives);
  if (faulty() && rng_.one_in(15)) after(delay(), arrives);
}

// NY6: of a right that was just granted to be shared, or is about to be let go.
void NamesSim::check_users_of(size_t t) {
  for (const auto* list : {&servers_, &graveyard_})
    for (const auto& server : *list)
      if (server != nullptr) server->check_use_of(t);
}

void NamesSim::send_outgoing() {
  for (auto& out : names_->take_outgoing())
    deliver(out.server, out.life, [message = std::move(out.message)](Server* server) {
      std::visit([server](const auto& one) { server->heard(one); }, message);
    });
  for (auto& out : spaces_->take_outgoing())
    deliver(out.server, out.life, [message = std::move(out.message)](Server* server) {
      std::visit([server](const auto& one) { server->heard(one); }, message);
    });
  for (auto& out : rounds_->take_outgoing())
    deliver(out.server, out.life,
            [message = out.message](Server* server) { server->heard(message); });
}

void NamesSim::tick() {
  names_->tick(now_);
  spaces_->tick(now_);
  rounds_->tick(now_);
  send_outgoing();
  if (const std::string wrong = names_->check(); !wrong.empty()) fail("NY5: " + wrong);
  after(kTickUs, [this] { tick(); });
}

void NamesSim::start(uint8_t id) {
  if (servers_[id] != nullptr) graveyard_.push_back(std::move(servers_[id]));
  const uint64_t life = ++last_life_;
  servers_[id] = std::make_shared<Server>(this, NodeId{id}, life);
  seen_[id] = Seen{.heard_us = now_, .lease_ends_us = 0, .fenced = false};
  if (!names_->joined(NodeId{id}, life).ok() || !spaces_->joined(NodeId{id}, life).ok() ||
      !rounds_->joined(NodeId{id}, life).ok())
    fail("a server cannot come back");
  servers_[id]->begin();
}

void NamesSim::fence(uint8_t id) {
  ++counts_.fences;
  seen_[id].fenced = true;
  servers_[id]->sealed = true;
  names_->fence(NodeId{id});
  spaces_->fence(NodeId{id});
  rounds_->fence(NodeId{id});
  if (mutation_ == NamesMutation::kReleaseBeforeTheLease) release(id);
}

void NamesSim::release(uint8_t id) {
  names_->release_fenced(NodeId{id});
  spaces_->release_fenced(NodeId{id});
  rounds_->release_fenced(NodeId{id});
  send_outgoing();
  seen_.erase(id);
  after(rng_.below(20'000), [this, id] { start(id); });
}

void NamesSim::supervise() {
  for (uint8_t id = 1; id <= kServers; ++id) {
    const auto it = seen_.find(id);
    if (it == seen_.end()) continue;
    const bool is_gone = servers_[id]->dead;
    if (!it->second.fenced && (is_gone || now_ > it->second.heard_us + patience_us_)) {
      fence(id);
      continue;
    }
    if (it->second.fenced && (is_gone || now_ > it->second.lease_ends_us)) release(id);
  }
  after(7'000, [this] { supervise(); });
}

void NamesSim::next_fault() {
  after(5'000 + rng_.below(50'000), [this] {
    if (!faulty()) return;
    Server* const server = servers_[1 + rng_.below(kServers)].get();
    switch (rng_.below(5)) {
      case 0:
        server->dead = true;
        break;
      case 1:
        server->mute_until = now_ + rng_.below(200'000);
        break;
      case 2:
        server->deaf_until = now_ + rng_.below(200'000);
        break;
      default:
        server->paused_until = now_ + rng_.below(rng_.one_in(2) ? 20'000 : 200'000);
        break;
    }
    next_fault();
  });
}

void NamesSim::run_until(uint64_t us) {
  while (!queue_.empty() && queue_.top().at <= us && failure_.empty()) {
    const Event event = queue_.top();
    queue_.pop();
    now_ = event.at;
    event.action();
  }
}

std::string NamesSim::missing() const {
  for (uint8_t id = 1; id <= kServers; ++id) {
    const Server& server = *servers_[id];
    const std::string who = "server " + std::to_string(id) + " has ";
    for (size_t t = 0; t < kTables; ++t) {
      if (server.used[t] == 0) return who + "not used " + name_of(t) + "; " + server.describe();
      if (server.changed[t] == 0)
        return who + "not changed " + name_of(t) + "; " + names_->describe(name_of(t)) + "; " +
               server.describe();
    }
    for (size_t r = 0; r < kRights; ++r) {
      const std::string right = name_of(kTables + r);
      if (server.used[kTables + r] == 0 || server.shared[r] == 0)
        return who + "not used and shared " + right + "; " + names_->describe(right) + "; " +
               server.describe();
    }
    if (server.dropped == 0) return who + "dropped no space";
    if (server.rounds == 0) return who + "ended no round";
  }
  return "";
}

std::string NamesSim::run() {
  for (uint8_t id = 1; id <= kServers; ++id) start(id);
  tick();
  supervise();
  next_fault();
  run_until(kEndUs);
  for (uint64_t until = kEndUs; until < kPatienceEndsUs && !missing().empty();)
    run_until(until += 100'000);
  if (const std::string what = missing(); failure_.empty() && !what.empty()) fail("NY4: " + what);
  counts_.dead = names_->counters().dead;
  for (const auto* list : {&servers_, &graveyard_})
    for (const auto& server : *list)
      if (server != nullptr) counts_.not_held += server->holds().counters().not_held;
  return failure_;
}

}  // namespace strata::sim
