// Goal: SERIALIZABLE transactions give the results of some serial order, and that order is the one
// in which they commit: no phantom, no write skew, nothing lost. Method: threads run random
// transactions (range reads both ways over every index, with limits, bounds and entries passed over
// unread; point reads; inserts, updates that move rows and entries, deletes; savepoints) and write
// down what they saw. A number is drawn while all locks are still held; replayed in that order on a
// map, every result must come out the same. REPEATABLE READ writers take part; of them only what
// they changed counts. Pages split and merge, purge and checkpoints run meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <thread>

#include "base/rng.h"
#include "base/testing/sanitized.h"
#include "engine/testing/cluster.h"
#include "engine/testing/test_database.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

constexpr uint64_t kIds = 160;
constexpr uint64_t kValues = 200;
constexpr uint32_t kGroups = 12;
constexpr size_t kCoveringBytes = 100;  // test_database.h: shorter texts are in the entry

struct Read {
  uint32_t index = 0;
  bool backwards = false;
  bool bounded = false;  // the kernel was told the bounds
  bool exclusive = false;
  bool conditional = false;  // entries whose covering text says no are not fetched
  uint64_t from = 0;         // key numbers: from <= key < to
  uint64_t to = 0;
  size_t limit = 0;
};
using Result = std::vector<std::pair<uint64_t, Row>>;

struct Action {
  enum class Kind : uint8_t { kRead, kGet, kInsert, kUpdate, kDelete, kSavepoint, kRollback };
  Kind kind = Kind::kRead;
  Read read;
  Result result;  // kRead, kGet
  uint64_t id = 0;
  uint64_t new_id = 0;
  Row row;
  bool duplicate = false;
};

Action action_of(Action::Kind kind, uint64_t id = 0, uint64_t new_id = 0) {
  Action action;
  action.kind = kind;
  action.id = id;
  action.new_id = new_id;
  return action;
}

struct History {
  uint64_t order = 0;
  bool serializable = true;
  bool committed = true;
  std::vector<Action> actions;
};

std::string describe(const Action& action) {
  constexpr const char* kNames[] = {"read",   "get",       "insert",  "update",
                                    "delete", "savepoint", "rollback"};
  const auto text = [](uint64_t id, const Row& row) {
    return " " + std::to_string(id) + ":" + std::to_string(row.unique_value) + "/" +
           std::to_string(row.group) + row.text[0] + std::to_string(row.text.size());
  };
  std::string out = kNames[static_cast<size_t>(action.kind)];
  const Read& r = action.read;
  if (action.kind == Action::Kind::kRead) {
    out += " index " + std::to_string(r.index) + " [" + std::to_string(r.from) + ", " +
           std::to_string(r.to) + ")" + (r.limit == SIZE_MAX ? "" : " limited") +
           (r.backwards ? " backwards" : "") + (r.bounded ? " bounded" : "") +
           (r.conditional ? " conditional" : "") + (r.exclusive ? " exclusive:" : ":");
  } else {
    out += " " + std::to_string(action.id);
  }
  for (const auto& [id, row] : action.result) out += text(id, row);
  if (!action.row.text.empty()) out += " ->" + text(action.new_id, action.row);
  return out + (action.duplicate ? " duplicate" : "");
}

std::string describe(const History& history) {
  std::string out = "transaction " + std::to_string(history.order) +
                    (history.serializable ? "" : " (repeatable read)") +
                    (history.committed ? "\n" : " (rolled back)\n");
  for (const Action& action : history.actions) out += "  " + describe(action) + "\n";
  return out;
}

bool is_wanted(const Row& row) {
  return row.text.size() >= kCoveringBytes || (row.text[0] & 1) == 0;
}

std::string key_of(uint32_t index, uint64_t n) {
  return index == 2 ? be32(static_cast<uint32_t>(n)) : be64(n);
}
uint64_t number_of(uint32_t index, uint64_t id, const Row& row) {
  return index == 0 ? id : index == 1 ? row.unique_value : row.group;
}

// --- the oracle ---

class Oracle {
 public:
  void replay(const History& history) {
    const Rows before = rows_;
    std::vector<Rows> savepoints;
    for (size_t i = 0; i < history.actions.size() && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("transaction " + std::to_string(history.order) + ", action " +
                   std::to_string(i));
      step(history.actions[i], history.serializable, &savepoints);
    }
    if (!history.committed) rows_ = before;
  }
  [[nodiscard]] const Rows& rows() const { return rows_; }

 private:
  void step(const Action& action, bool serializable, std::vector<Rows>* savepoints) {
    switch (action.kind) {
      case Action::Kind::kRead:
        if (serializable) compare(action, read(action.read));
        break;
      case Action::Kind::kGet: {
        Result result;
        if (const auto it = rows_.find(action.id); it != rows_.end()) result.push_back(*it);
        if (serializable || !action.result.empty()) compare(action, result);
        break;
      }
      case Action::Kind::kInsert:
        if (!serializable && action.duplicate) break;
        EXPECT_EQ(action.duplicate, is_taken(action.new_id, action.row, kIds)) << "insert";
        if (!action.duplicate) rows_[action.new_id] = action.row;
        break;
      case Action::Kind::kUpdate:
        if (!serializable && action.duplicate) break;
        EXPECT_TRUE(rows_.contains(action.id)) << "update";
        EXPECT_EQ(action.duplicate, is_taken(action.new_id, action.row, action.id)) << "update";
        if (action.duplicate) break;
        rows_.erase(action.id);
        rows_[action.new_id] = action.row;
        break;
      case Action::Kind::kDelete:
        EXPECT_EQ(rows_.erase(action.id), 1u) << "delete";
        break;
      case Action::Kind::kSavepoint:
        savepoints->push_back(rows_);
        break;
      case Action::Kind::kRollback:
        rows_ = savepoints->back();
        break;
    }
  }

  static void compare(const Action& action, const Result& expected) {
    if (action.result == expected) return;
    Action other = action;
    other.result = expected;
    ADD_FAILURE() << describe(action) << "\nthe serial order gives\n" << describe(other);
  }

  [[nodiscard]] Result read(const Read& read) const {
    std::vector<std::pair<std::pair<uint64_t, uint64_t>, Row>> found;
    for (const auto& [id, row] : rows_) {
      const uint64_t n = number_of(read.index, id, row);
      if (n >= read.from && n < read.to) found.push_back({{n, id}, row});
    }
    std::sort(found.begin(), found.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    if (read.backwards) std::reverse(found.begin(), found.end());
    Result result;
    for (const auto& [key, row] : found) {
      if (result.size() == read.limit) break;
      if (!read.conditional || is_wanted(row)) result.emplace_back(key.second, row);
    }
    return result;
  }

  [[nodiscard]] bool is_taken(uint64_t id, const Row& row, uint64_t except) const {
    for (const auto& [other, other_row] : rows_) {
      if (other == except) continue;
      if (other == id || other_row.unique_value == row.unique_value) return true;
    }
    return false;
  }

  Rows rows_;
};

// --- a session ---

class Client {
 public:
  Client(Kernel* kernel, TableRef table, uint64_t seed, std::atomic<uint64_t>* order)
      : rng_(seed), session_(kernel->new_session()), table_(std::move(table)), order_(order) {}

  void run(uint64_t transactions) {
    for (uint64_t i = 0; i < transactions && !::testing::Test::HasFailure(); ++i) transaction();
  }
  std::vector<History> histories;
  uint64_t deadlocks = 0;
  uint64_t timeouts = 0;

 private:
  void transaction() {
    history_ = History{};
    history_.serializable = !rng_.one_in(4);
    session_->set_lock_wait_timeout_us(rng_.one_in(20) ? 0 : 20000000);
    session_->begin(history_.serializable ? Isolation::kSerializable : Isolation::kRepeatableRead);
    std::vector<Savepoint> savepoints;
    const uint64_t steps = 1 + rng_.below(6);
    Status status;
    for (uint64_t i = 0; i < steps && status.ok(); ++i) {
      if (rng_.one_in(12)) {
        savepoints.push_back(session_->savepoint());
        add(action_of(Action::Kind::kSavepoint));
      } else if (!savepoints.empty() && history_.serializable && rng_.one_in(6)) {
        // (Of REPEATABLE READ nothing is promised about what was undone.)
        status = session_->rollback_to(savepoints.back());
        add(action_of(Action::Kind::kRollback));
      } else {
        status = step();
      }
      if (rng_.one_in(3)) std::this_thread::yield();
    }
    if (!status.ok()) {
      ASSERT_TRUE(is_deadlock(status) || is_lock_wait_timeout(status)) << status;
      ++(is_deadlock(status) ? deadlocks : timeouts);
      ASSERT_TRUE(session_->rollback().ok());
      return;
    }
    history_.committed = !rng_.one_in(8);
    history_.order = order_->fetch_add(1);
    const Status ended = history_.committed ? session_->commit() : session_->rollback();
    ASSERT_TRUE(ended.ok()) << ended;
    histories.push_back(std::move(history_));
  }

  void add(Action action) { history_.actions.push_back(std::move(action)); }

  Row random_row() {
    Row row;
    row.unique_value = rng_.below(kValues);
    row.group = static_cast<uint32_t>(rng_.below(kGroups));
    const size_t size = rng_.one_in(3) ? 1500 + rng_.below(1000) : 10 + rng_.below(80);
    row.text.assign(size, static_cast<char>('a' + rng_.below(26)));
    if (rng_.one_in(16)) row.blob.assign(20000, row.text[0]);
    return row;
  }

  Status step() {
    switch (rng_.below(8)) {
      case 0:
      case 1:
      case 2:
        return read();
      case 3:
        return get();
      case 4:
      case 5: {
        Action action = action_of(Action::Kind::kInsert, 0, rng_.below(kIds));
        action.row = random_row();
        const Status status = insert(session_.get(), table_, action.new_id, action.row);
        action.duplicate = is_duplicate_key(status);
        add(action);
        return action.duplicate ? ok_status() : status;
      }
      case 6:
        return change(false);
      default:
        return change(true);
    }
  }

  Status read() {
    Action action;
    Read& r = action.read;
    r.index = static_cast<uint32_t>(rng_.below(3));
    const uint64_t keys = r.index == 0 ? kIds : r.index == 1 ? kValues : kGroups;
    r.from = rng_.one_in(10) ? 0 : rng_.below(keys);
    r.to = rng_.one_in(10) ? keys : r.from + 1 + rng_.below(r.index == 2 ? 2 : 8);
    r.limit = rng_.one_in(3) ? 1 + rng_.below(3) : SIZE_MAX;
    r.backwards = rng_.one_in(3);
    r.bounded = rng_.one_in(2);
    r.conditional = r.index == 2 && rng_.one_in(2);
    TableCursor cursor(session_.get(), table_, r.index);
    r.exclusive = rng_.one_in(4);
    cursor.set_lock_mode(r.exclusive ? LockMode::kExclusive : LockMode::kShared);
    const std::string low = key_of(r.index, r.from);
    const std::string high = key_of(r.index, r.to);
    if (r.bounded) cursor.set_bounds(low, high);
    STRATA_RETURN_IF_ERROR(r.backwards ? cursor.seek_before(high) : cursor.seek(low));
    while (cursor.valid() && action.result.size() < r.limit) {
      if (r.backwards ? cursor.entry().key < Bytes(low) : cursor.entry().key >= Bytes(high)) break;
      const Bytes covering = cursor.entry().covering;
      if (!r.conditional || covering.empty() || (covering[0] & 1) == 0) {
        bool gone = false;
        STRATA_RETURN_IF_ERROR(cursor.fetch(&gone));
        if (!gone) {
          Row row;
          STRATA_RETURN_IF_ERROR(decode(&cursor, &row));
          action.result.emplace_back(load_be64(cursor.clustered_key().data()), std::move(row));
        }
      }
      if (action.result.size() == r.limit) break;
      STRATA_RETURN_IF_ERROR(r.backwards ? cursor.prev() : cursor.next());
    }
    add(std::move(action));
    return ok_status();
  }

  Status get_row(uint64_t id, LockMode mode, Action* action) {
    TableCursor cursor(session_.get(), table_, 0);
    cursor.set_lock_mode(mode);
    bool gone = false;
    STRATA_RETURN_IF_ERROR(cursor.get(be64(id), &gone));
    action->kind = Action::Kind::kGet;
    action->id = id;
    if (gone) return ok_status();
    Row row;
    STRATA_RETURN_IF_ERROR(decode(&cursor, &row));
    action->result.emplace_back(id, std::move(row));
    return ok_status();
  }

  Status get() {
    Action action;
    STRATA_RETURN_IF_ERROR(get_row(rng_.below(kIds), LockMode::kShared, &action));
    add(std::move(action));
    return ok_status();
  }

  Status change(bool erase) {
    Action found;
    STRATA_RETURN_IF_ERROR(get_row(rng_.below(kIds), LockMode::kExclusive, &found));
    add(found);
    if (found.result.empty()) return ok_status();
    const auto& [id, before] = found.result.front();
    if (erase) {
      STRATA_RETURN_IF_ERROR(remove(session_.get(), table_, id, before));
      add(action_of(Action::Kind::kDelete, id));
      return ok_status();
    }
    Action action = action_of(Action::Kind::kUpdate, id, id);
    if (rng_.one_in(4)) action.new_id = rng_.below(kIds);
    action.row = random_row();
    if (rng_.one_in(2)) action.row.unique_value = before.unique_value;
    if (rng_.one_in(2)) action.row.group = before.group;
    const Status status = update(session_.get(), table_, id, before, action.new_id, action.row);
    action.duplicate = is_duplicate_key(status);
    add(action);
    return action.duplicate ? ok_status() : status;
  }

  Rng rng_;
  std::unique_ptr<Session> session_;
  TableRef table_;
  std::atomic<uint64_t>* order_;
  History history_;
};

// Of one table, on one kernel or on each of several that work on the same database.
class Database {
 public:
  explicit Database(uint8_t nodes) {
    if (nodes > 1) {
      cluster_ = std::make_unique<Cluster>(nodes);
      for (uint8_t node = 1; node <= nodes; ++node) {
        kernels_.push_back(cluster_->kernel(node));
        auto session = kernels_.back()->new_session();
        tables_.push_back(cluster_->table(session.get()));
      }
      heartbeat_ = std::thread([this] {
        for (uint8_t node = 0; !stop_.load(); node = (node + 1) % cluster_->nodes()) {
          cluster_->hear(node + 1);
          std::this_thread::yield();
        }
      });
      return;
    }
    KernelOptions options = options_on(disk_.get());
    options.background = true;
    auto opened = Kernel::open(options);
    if (!opened.ok()) {
      ADD_FAILURE() << opened.status();
      return;
    }
    alone_ = std::move(opened).value();
    kernels_.push_back(alone_.get());
    auto session = alone_->new_session();
    session->begin(Isolation::kRepeatableRead);
    TableRef table;
    EXPECT_TRUE(session->create_table(table_spec("t"), &table).ok());
    EXPECT_TRUE(session->commit().ok());
    tables_.push_back(table);
  }
  ~Database() {
    stop_.store(true);
    if (heartbeat_.joinable()) heartbeat_.join();
    if (alone_ == nullptr) return;
    EXPECT_TRUE(alone_->shutdown().ok());
  }
  [[nodiscard]] size_t nodes() const { return kernels_.size(); }
  [[nodiscard]] Kernel* kernel(size_t i) const { return kernels_[i % nodes()]; }
  [[nodiscard]] TableRef table(size_t i) const { return tables_[i % nodes()]; }

 private:
  const std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  std::unique_ptr<Kernel> alone_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<Kernel*> kernels_;
  std::vector<TableRef> tables_;
  std::atomic<bool> stop_{false};
  std::thread heartbeat_;
};

void run_seed(uint64_t seed, uint64_t threads, uint64_t transactions, uint8_t nodes = 1) {
  const Database database(nodes);
  if (::testing::Test::HasFailure()) return;
  std::atomic<uint64_t> order{0};
  std::vector<std::unique_ptr<Client>> clients;
  for (uint64_t i = 0; i < threads; ++i)
    clients.push_back(
        std::make_unique<Client>(database.kernel(i), database.table(i), seed * 1000 + i, &order));
  {
    std::vector<std::thread> running;
    for (auto& client : clients) running.emplace_back([&] { client->run(transactions); });
    for (std::thread& thread : running) thread.join();
  }
  std::vector<const History*> histories;
  uint64_t deadlocks = 0;
  uint64_t timeouts = 0;
  for (const auto& client : clients) {
    for (const History& history : client->histories) histories.push_back(&history);
    deadlocks += client->deadlocks;
    timeouts += client->timeouts;
  }
  std::sort(histories.begin(), histories.end(),
            [](const History* a, const History* b) { return a->order < b->order; });
  Oracle oracle;
  for (size_t i = 0; i < histories.size(); ++i) {
    oracle.replay(*histories[i]);
    if (!::testing::Test::HasFailure()) continue;
    for (size_t j = i < 30 ? 0 : i - 30; j <= i; ++j)
      std::printf("%s", describe(*histories[j]).c_str());
    return;
  }
  std::printf("seed %llu: %zu transactions, %llu deadlocks, %llu timeouts, %zu rows at the end\n",
              static_cast<unsigned long long>(seed), histories.size(),
              static_cast<unsigned long long>(deadlocks), static_cast<unsigned long long>(timeouts),
              oracle.rows().size());
  // At least a third get through, or the test says little.
  EXPECT_GT(histories.size(), threads * transactions / 3);
  clients.clear();
  for (size_t node = 0; node < database.nodes(); ++node) {
    auto session = database.kernel(node)->new_session();
    session->begin(Isolation::kRepeatableRead);
    for (uint32_t index : {0u, 1u, 2u}) {
      auto rows = scan(session.get(), database.table(node), index);
      ASSERT_TRUE(rows.ok()) << rows.status();
      EXPECT_EQ(*rows, oracle.rows()) << "index " << index;
    }
    ASSERT_TRUE(session->commit().ok());
    expect_consistent(database.kernel(node), database.table(node));
  }
}

TEST(SerializableModel, ResultsAreThoseOfTheCommitOrder) {
  const uint64_t first = environment("STRATA_SEED", 1);
  const uint64_t rounds = environment("STRATA_ROUNDS", strata::testing::fewer_if_sanitized(3, 2));
  const uint64_t threads = environment("STRATA_THREADS", 6);
  const uint64_t transactions = environment("STRATA_TRANSACTIONS", 400);
  for (uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
    run_seed(seed, threads, transactions);
  }
}

// The same over several kernels: the clients are spread over them.
TEST(SerializableModel, ResultsAreThoseOfTheCommitOrderOverSeveralKernels) {
  const uint64_t first = environment("STRATA_SEED", 1);
  const uint64_t rounds = environment("STRATA_ROUNDS", 2);
  const uint64_t threads = environment("STRATA_THREADS", 6);
  const uint64_t transactions =
      environment("STRATA_TRANSACTIONS", strata::testing::fewer_if_sanitized(150, 80));
  for (uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
    run_seed(seed, threads, transactions, static_cast<uint8_t>(2 + seed % 2));
  }
}

}  // namespace
}  // namespace strata::engine
