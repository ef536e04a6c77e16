// Damaged files. Random work makes a database with a ledger; then, many times over, a copy of its
// disk is damaged in one place (flipped bits, garbage, zeroes, files cut or missing, pages swapped
// or put back from earlier) and opened. Every read must give what the ledger says or fail with an
// error that names file or page: wrong rows, missing rows, assertions and endless loops are
// failures. What cannot be detected, and is not asked for: bufpool/README.md, "Damage".
//
// STRATA_SEED chooses the work and the damage, STRATA_CORRUPTION_TRIALS how many copies,
// STRATA_CORRUPTION_ONLY=n runs trial n only.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <map>

#include "base/diag.h"
#include "base/testing/sanitized.h"
#include "engine/testing/workload.h"
#include "page/page.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

char current_trial[512];

void tell_trial(int signal) {
  (void)!write(2, current_trial, strlen(current_trial));
  std::signal(signal, SIG_DFL);
  raise(signal);
}

enum class Kind { kDamage, kLogDamage, kStale };

struct Damage {
  std::string what;
  Kind kind = Kind::kDamage;
};

class Damager {
 public:
  // `older`: the same database some time ago.
  Damager(SimFileSystem* disk, SimFileSystem* older, Rng* rng)
      : disk_(disk), older_(older), rng_(rng) {}

  Damage run() {
    std::string path = some_file();
    const uint64_t choice = rng_->below(20);
    if (choice < 11) return flip(path, 1 + (rng_->one_in(4) ? rng_->below(20) : 0));
    if (choice < 13) return overwrite(path, 512, rng_->one_in(2));
    if (choice < 14) return cut(path);
    if (choice < 15) return remove(path);
    while (path.find(".pages") == std::string::npos) path = some_file();
    if (choice < 16) return overwrite(path, kPageBytes, true);
    if (choice < 18) return swap_pages(path);
    return put_back(path);
  }

 private:
  static Kind kind_of(const std::string& path) {
    return path.find("/log/") != std::string::npos ? Kind::kLogDamage : Kind::kDamage;
  }
  // The kind of file first, so that the few small ones get their share.
  std::string some_file() {
    static const char* const kFolders[] = {"/db", "/db/log", "/db/pages", "/db/pages"};
    for (;;) {
      const std::string folder = kFolders[rng_->below(4)];
      std::vector<std::string> files;
      const auto listed = disk_->list(folder);
      for (const std::string& name : *listed)
        if (name.find('.') != std::string::npos || name.starts_with("control-"))
          files.push_back(folder + "/" + name);
      if (!files.empty()) return files[rng_->below(files.size())];
    }
  }
  uint64_t size_of(const std::string& path) { return *(*disk_->open(path, {}))->size(); }
  std::string bytes_at(SimFileSystem* disk, const std::string& path, uint64_t at, size_t count) {
    std::string bytes(count, '\0');
    size_t got = 0;
    (void)(*disk->open(path, {}))->read_at(at, bytes.data(), count, &got);
    return bytes;
  }
  // Mostly where something is stored.
  uint64_t some_place(const std::string& path, uint64_t unit) {
    const uint64_t units = std::max<uint64_t>(1, size_of(path) / unit);
    uint64_t at = 0;
    for (int tries = 0; tries < 60; ++tries) {
      at = rng_->below(units) * unit;
      const std::string bytes = bytes_at(disk_, path, at, unit);
      if (bytes.find_first_not_of('\0') != std::string::npos || rng_->one_in(50)) break;
    }
    return at;
  }
  Damage flip(const std::string& path, uint64_t count) {
    const uint64_t size = size_of(path);
    if (size == 0) return {path + " is empty"};
    const uint64_t unit = std::min<uint64_t>(512, size);
    const uint64_t at = some_place(path, unit);
    for (uint64_t i = 0; i < count; ++i) disk_->flip_bit(path, at * 8 + rng_->below(unit * 8));
    return {std::to_string(count) + " bits flipped in " + path + " at " + std::to_string(at) +
                ", page " + std::to_string(at / kPageBytes),
            kind_of(path)};
  }
  Damage overwrite(const std::string& path, uint64_t unit, bool zeroes) {
    const uint64_t at = some_place(path, unit);
    std::string bytes(unit, '\0');
    if (!zeroes)
      for (char& c : bytes) c = static_cast<char>(rng_->next());
    if (at + unit <= size_of(path))
      (void)(*disk_->open(path, {}))->write_at(at, bytes.data(), bytes.size());
    return {std::string(zeroes ? "zeroes" : "garbage") + " over " + std::to_string(unit) +
                " bytes of " + path + " at " + std::to_string(at),
            kind_of(path)};
  }
  Damage cut(const std::string& path) {
    const uint64_t to = rng_->below(size_of(path) + 1);
    (void)(*disk_->open(path, {}))->truncate(to);
    return {path + " cut to " + std::to_string(to), kind_of(path)};
  }
  Damage remove(const std::string& path) {
    (void)disk_->remove(path);
    return {path + " removed", kind_of(path)};
  }
  Damage swap_pages(const std::string& path) {
    std::string other = path;
    if (rng_->one_in(2)) do
        other = some_file();
      while (other.find(".pages") == std::string::npos);
    const uint64_t from = some_place(other, kPageBytes);
    const uint64_t to = some_place(path, kPageBytes);
    const std::string bytes = bytes_at(disk_, other, from, kPageBytes);
    (void)(*disk_->open(path, {}))->write_at(to, bytes.data(), bytes.size());
    return {"page " + std::to_string(from / kPageBytes) + " of " + other + " over page " +
            std::to_string(to / kPageBytes) + " of " + path};
  }
  // A write that the disk acknowledged and lost: the page is whole, but old.
  Damage put_back(const std::string& path) {
    if (!*older_->exists(path)) return {path + " is new"};
    const uint64_t at = some_place(path, kPageBytes);
    const std::string bytes = bytes_at(older_, path, at, kPageBytes);
    if (bytes.find_first_not_of('\0') == std::string::npos) return {"nothing to put back"};
    (void)(*disk_->open(path, {}))->write_at(at, bytes.data(), bytes.size());
    return {"old page " + std::to_string(at / kPageBytes) + " put back in " + path, Kind::kStale};
  }

  SimFileSystem* disk_;
  SimFileSystem* older_;
  Rng* rng_;
};

struct Outcomes {
  uint64_t refused = 0, read_failed = 0, harmless = 0, undetected = 0, last_commit_lost = 0;
};

class Trial {
 public:
  Trial(SimFileSystem* disk, const std::vector<LedgerStatePtr>& states, Kind kind, Rng* rng,
        Outcomes* outcomes)
      : disk_(disk), states_(states), kind_(kind), rng_(rng), outcomes_(outcomes) {}

  // What is wrong with how the engine took it; empty: nothing.
  std::string run() {
    auto opened = Kernel::open(small_options(disk_));
    if (!opened.ok()) {
      ++outcomes_->refused;
      return check_error("open", opened.status());
    }
    kernel_ = std::move(opened).value();
    std::string problem = read_all();
    if (problem.empty()) problem = work_on();
    kernel_.reset();
    return problem;
  }

 private:
  // An error must say that something is damaged, and where.
  static std::string check_error(const std::string& what, const Status& status) {
    const std::string text(status.message());
    const bool names = text.find("/db") != std::string::npos ||
                       text.find("page ") != std::string::npos ||
                       text.find("space ") != std::string::npos;
    const bool kind = error_class(status) == ErrorClass::fatal && !is_internal(status);
    if (kind && names) return "";
    return what + " fails, but without saying what is damaged: " + status.ToString();
  }
  std::string failed(const std::string& what, const Status& status) {
    read_failed_ = true;
    return check_error(what, status);
  }

  std::string read_all() {
    Contents contents;
    std::vector<std::string> names;
    kernel_->for_each_table(true, [&names](const TableSpec& spec) { names.push_back(spec.name); });
    std::set<std::string> unreadable;
    for (const std::string& name : names) {
      for (uint32_t index = 0; index < 3; ++index) {
        auto session = kernel_->new_session();
        session->begin(Isolation::kRepeatableRead);
        const TableRef table = *session->open_table("test", name);
        auto rows = scan(session.get(), table, index, rng_->one_in(2));
        if (!rows.ok()) {
          if (kind_ == Kind::kStale && rows.status().message() == kReturnedTwice) {
            ++outcomes_->undetected;  // by the engine; the test found it
            return "";
          }
          unreadable.insert(name);
          const std::string problem = failed("scan", rows.status());
          if (!problem.empty()) return problem;
        } else if (contents.tables.count(name) == 0) {
          contents.tables[name] = *std::move(rows);
        } else if (contents.tables[name] != *rows && kind_ != Kind::kStale) {
          return "table " + name + ": index " + std::to_string(index) + " disagrees";
        }
      }
    }
    for (const PreparedTransaction& p : kernel_->prepared_transactions())
      contents.prepared.insert(p.xid);
    std::string first;
    const size_t allowed = kind_ == Kind::kLogDamage ? std::min<size_t>(2, states_.size()) : 1;
    for (size_t back = 0; back < allowed; ++back) {
      const LedgerState& state = *states_[states_.size() - 1 - back];
      const std::string problem = compare_readable(contents, unreadable, names, state);
      if (problem.empty()) {
        outcomes_->last_commit_lost += back;
        outcomes_->read_failed += read_failed_ ? 1 : 0;
        outcomes_->harmless += read_failed_ ? 0 : 1;
        return point_reads(state);
      }
      if (first.empty()) first = problem;
    }
    if (kind_ == Kind::kStale) {
      ++outcomes_->undetected;
      return "";
    }
    return first;
  }

  std::string compare_readable(const Contents& found, const std::set<std::string>& unreadable,
                               const std::vector<std::string>& names, const LedgerState& state) {
    const std::set<std::string> named(names.begin(), names.end());
    for (const auto& [name, rows] : state.tables) {
      if (named.count(name) == 0) return "table " + name + " is lost";
      const auto it = found.tables.find(name);
      if (it == found.tables.end()) continue;  // no index of it could be read
      if (!same_rows(it->second, *rows))
        return "table " + name + ": " + difference(it->second, *rows);
    }
    if (names.size() != state.tables.size()) return "a table is there that should not be";
    for (const auto& [xid, changes] : state.prepared)
      if (found.prepared.count(xid) == 0) return "prepared transaction " + xid + " is lost";
    if (found.prepared.size() != state.prepared.size()) return "an unknown transaction is prepared";
    return "";
  }

  std::string point_reads(const LedgerState& state) {
    for (const auto& [name, rows] : state.tables) {
      auto session = kernel_->new_session();
      session->begin(Isolation::kRepeatableRead);
      const TableRef table = *session->open_table("test", name);
      for (int n = 0; n < 10; ++n) {
        const uint64_t id = 1 + rng_->below(400);
        TableCursor cursor(session.get(), table, 0);
        bool gone = false;
        const Status got = cursor.get(be64(id), &gone);
        if (!got.ok()) {
          const std::string problem = failed("get", got);
          if (!problem.empty()) return problem;
        } else if (gone != (rows->count(id) == 0) && kind_ != Kind::kStale) {
          return "row " + std::to_string(id) + (gone ? " is not found" : " is found");
        }
      }
    }
    return "";
  }

  // Changes may fail, but only with errors; and CHECK TABLE comes to an end.
  std::string work_on() {
    std::vector<std::string> names;
    kernel_->for_each_table(true, [&names](const TableSpec& spec) { names.push_back(spec.name); });
    for (const std::string& name : names) {
      auto session = kernel_->new_session();
      session->set_lock_wait_timeout_us(0);
      session->begin(Isolation::kRepeatableRead);
      const TableRef table = *session->open_table("test", name);
      CheckResult result;
      (void)kernel_->check_table(session.get(), table, true, entries_of(table), &result);
      for (int n = 0; n < 20; ++n) {
        Row row;
        const uint64_t id = 1 + rng_->below(800);
        row.unique_value = id * 10 + 5;
        row.text = std::string(rng_->below(1200), 'w');
        const Status inserted = insert(session.get(), table, id, row);
        if (is_corruption(inserted)) {
          const std::string problem = check_error("insert", inserted);
          if (!problem.empty()) return problem;
        }
        if (session->must_rollback()) break;
      }
      (void)(rng_->one_in(2) ? session->commit() : session->rollback());
    }
    (void)kernel_->run_purge(200);
    if (rng_->one_in(2)) (void)kernel_->shutdown();
    return "";
  }

  SimFileSystem* disk_;
  const std::vector<LedgerStatePtr>& states_;
  const Kind kind_;
  Rng* rng_;
  Outcomes* outcomes_;
  std::unique_ptr<Kernel> kernel_;
  bool read_failed_ = false;
};

void silent(Severity, std::string_view) {}

void run_trials(bool clean) {
  set_diag_sink(&silent);
  std::signal(SIGABRT, &tell_trial);
  std::signal(SIGALRM, &tell_trial);
  std::signal(SIGSEGV, &tell_trial);
  const uint64_t first_seed = environment("STRATA_SEED", 1);
  const uint64_t trials =
      environment("STRATA_CORRUPTION_TRIALS", strata::testing::fewer_if_sanitized(1200, 100));
  const uint64_t only = environment("STRATA_CORRUPTION_ONLY", 0);
  constexpr uint64_t kTrialsPerBase = 300;
  Outcomes outcomes;
  std::unique_ptr<SimFileSystem> disk, older;
  Ledger* ledger = nullptr;
  std::vector<std::unique_ptr<Ledger>> ledgers;
  std::vector<LedgerStatePtr> states;
  for (uint64_t trial = 0; trial < trials; ++trial) {
    const uint64_t base_seed = first_seed * 1000 + trial / kTrialsPerBase;
    if (trial % kTrialsPerBase == 0) {
      disk = make_sim_file_system();
      ledgers.push_back(std::make_unique<Ledger>());
      ledger = ledgers.back().get();
      Workload work(disk.get(), base_seed, ledger);
      ASSERT_TRUE(work.start().ok());
      ASSERT_TRUE(work.run(150).ok());
      ASSERT_TRUE(work.kernel()->checkpoint().ok());
      older = disk->fork();
      ASSERT_TRUE(work.run(60).ok());
      if (clean) {
        ASSERT_TRUE(work.shutdown().ok());
      } else {
        disk->crash(base_seed);
      }
      states = ledger->allowed_from(0);
    }
    if (only != 0 && trial != only) continue;
    Rng rng(mix64(base_seed) + trial);
    const auto copy = disk->fork();
    const auto old_copy = older->fork();
    const Damage damage = Damager(copy.get(), old_copy.get(), &rng).run();
    std::snprintf(current_trial, sizeof current_trial,
                  "\nSTRATA_SEED=%llu STRATA_CORRUPTION_ONLY=%llu %s database: %s\n",
                  static_cast<unsigned long long>(first_seed),
                  static_cast<unsigned long long>(trial), clean ? "closed" : "crashed",
                  damage.what.c_str());
    if (only != 0) std::printf("%s", current_trial);
    alarm(120);
    const std::string problem = Trial(copy.get(), states, damage.kind, &rng, &outcomes).run();
    alarm(0);
    if (!problem.empty()) {
      ADD_FAILURE() << current_trial << problem;
      if (environment("STRATA_CORRUPTION_GO_ON", 0) == 0) break;
    }
  }
  std::printf(
      "%s, STRATA_SEED=%llu: %llu refused at open, %llu with failing reads, %llu harmless, "
      "%llu old pages not detected, %llu times the last commit lost with the end of the log\n",
      clean ? "closed" : "crashed", static_cast<unsigned long long>(first_seed),
      static_cast<unsigned long long>(outcomes.refused),
      static_cast<unsigned long long>(outcomes.read_failed),
      static_cast<unsigned long long>(outcomes.harmless),
      static_cast<unsigned long long>(outcomes.undetected),
      static_cast<unsigned long long>(outcomes.last_commit_lost));
  set_diag_sink(nullptr);
}

TEST(Corruption, OfAClosedDatabaseIsReportedAndNeverServed) { run_trials(true); }
TEST(Corruption, OfACrashedDatabaseIsReportedAndNeverServed) { run_trials(false); }

}  // namespace
}  // namespace strata::engine
