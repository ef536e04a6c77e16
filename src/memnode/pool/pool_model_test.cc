// Goal: whatever happens in whichever order, a pool agrees with a plain map, and what it says
// that storage may lack is never too little (PSL1-PSL8); a process killed at any place leaves
// memory from which everything published comes back, and nothing half-made; damage is found; a
// reader who sees a generation twice has a whole page (PSL2). Method: random operations beside a
// model of the map and of a storage that forgets what was not synced; copies of the memory, some
// with flipped bits, are recovered; children that are killed; threads that read while one writes.
// STRATA_SEED and STRATA_ROUNDS: one seed, and more rounds.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/rng.h"
#include "memnode/pool/pool.h"
#include "memnode/pool/slot_header.h"
#include "memnode/pool/testing/pool_memory.h"

namespace strata::memnode {
namespace {

using test::Memory;
using test::page_of;

constexpr uint32_t kSlots = 48;  // six of them in reserve
constexpr uint32_t kPages = 64;
constexpr uint32_t kSpaces = 4;
constexpr PoolOptions kOptions{.slots = kSlots};

PageId id_of(uint32_t page) { return {300 + page % kSpaces, page}; }

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// --- the model ---------------------------------------------------------------------------------

struct ModelPage {
  enum class State { kAbsent, kClean, kDirty, kWriting, kWritten };
  struct Claim {
    Lsn first;
    uint64_t report = 0;  // 0: the write is under way
  };
  State state = State::kAbsent;
  uint64_t llsn = 0;  // in the pool
  Lsn own = kNeverChanged;
  uint64_t report = 0;
  std::vector<Claim> behind;
  bool merged = false;  // there were more claims than a slot keeps apart
  // Of the page, not of the pool: Lsns of its changes by llsn; what storage has for certain.
  std::vector<Lsn> changes{Lsn()};
  uint64_t durable = 0;

  [[nodiscard]] bool there() const { return state != State::kAbsent; }
  [[nodiscard]] uint64_t newest() const { return changes.size() - 1; }
  [[nodiscard]] bool write_behind() const {
    return std::any_of(behind.begin(), behind.end(), [](const Claim& c) { return c.report == 0; });
  }
  [[nodiscard]] Lsn dirty_from() const {
    Lsn from = own;
    for (const Claim& claim : behind) from = std::min(from, claim.first);
    return from;
  }
  void put(uint64_t new_llsn, Lsn first) {
    if (state == State::kWriting) behind.push_back({own, 0});
    if (state == State::kWritten) behind.push_back({own, report});
    if (state != State::kDirty) own = kNeverChanged;
    own = std::min(own, first);
    llsn = new_llsn;
    report = 0;
    state = own == kNeverChanged ? State::kClean : State::kDirty;
    merged = merged || behind.size() > 2;
  }
  void lower(Lsn first) {
    if (first == kNeverChanged) return;
    own = std::min(own, first);
    if (state == State::kClean) state = State::kDirty;
  }
  void gone() {
    state = State::kAbsent;
    own = kNeverChanged;
    behind.clear();
    merged = false;
  }
};

class Model {
 public:
  explicit Model(uint64_t seed)
      : rng_(seed), memory_(kSlots), pool_(std::make_unique<Pool>(kOptions, memory_.get())) {}

  void step() {
    const uint64_t what = rng_.below(100);
    if (what < 35) return begin_image(true);
    if (what < 40) return begin_image(false);
    if (what < 55) return end_image();
    if (what < 67) return take();
    if (what < 77) return end_write();
    if (what < 84) return sync();
    if (what < 94) return drop();
    if (what < 95) return forget();
    if (what < 96) return doubt();
    if (what < 98) return look_at_a_copy();
    if (what < 99) return damage_a_copy();
    if (rng_.one_in(5)) restart();
  }
  void finish() {
    while (!fills_.empty()) end_image();
    for (int i = 0; i < 1000 && (!writes_.empty() || pool_->unclean() > 0); i++) {
      take();
      if (!writes_.empty()) end_write();
      sync_all();
    }
    EXPECT_EQ(pool_->oldest_dirty(), kNeverChanged);
    compare(*pool_, &memory_, true);
  }
  void compare(bool bytes) { compare(*pool_, &memory_, bytes); }

 private:
  struct Fill {
    uint32_t slot, page;
    uint64_t llsn;
    Lsn first;
    bool replaces, forgotten = false;
  };

  uint32_t any_page() { return static_cast<uint32_t>(rng_.below(kPages)); }

  // What a compute node would put: dirty, from its first change that it has not put yet.
  void begin_image(bool dirty) {
    const uint32_t page = any_page();
    ModelPage& m = pages_[page];
    uint64_t llsn = m.durable;
    Lsn first = kNeverChanged;
    if (dirty) {
      if (!rng_.one_in(8)) m.changes.push_back(Lsn{++lsn_});
      if (m.newest() == 0) return;
      llsn = rng_.one_in(8) ? 1 + rng_.below(m.newest()) : m.newest();
      const uint64_t known = m.there() ? m.llsn : m.durable;
      first = m.changes[std::min(known, llsn - 1) + 1];
    } else if (m.durable == 0 || m.there()) {
      return;
    }
    Pool::Slot there;
    const auto slot =
        pool_->begin_fill(id_of(page), Llsn{llsn}, dirty, dirty ? first : Lsn(), &there);
    if (m.there() && llsn < m.llsn) {
      ASSERT_TRUE(is_conflict(slot.status()));
    } else if (m.there() && llsn == m.llsn) {
      ASSERT_TRUE(is_duplicate_key(slot.status()));
      ASSERT_EQ(there.llsn, Llsn{llsn});
      m.lower(first);
    } else if (!slot.ok()) {
      ASSERT_EQ(slot.status().code(), StatusCode::kResourceExhausted);
      if (m.there()) {
        ASSERT_GE(pool_->counts().filling, 3u) << "PSL8";
      }
    } else {
      pool_->fill(*slot, page_of(id_of(page), Llsn{llsn}).data());
      fills_.push_back({*slot, page, llsn, first, m.there()});
      if (!rng_.one_in(4) || fills_.size() > 3) end_image();
    }
  }
  void end_image() {
    if (fills_.empty()) return;
    const size_t at = rng_.below(fills_.size());
    const Fill fill = fills_[at];
    fills_.erase(fills_.begin() + static_cast<ptrdiff_t>(at));
    if (rng_.one_in(20)) return pool_->abandon(fill.slot);
    ModelPage& m = pages_[fill.page];
    // Its first Lsn was told with what was there then; a page that was dropped meanwhile is
    // durable.
    const auto slot = pool_->publish(fill.slot);
    if (fill.forgotten || (m.there() && m.llsn > fill.llsn)) {
      ASSERT_TRUE(is_conflict(slot.status()));
    } else if (m.there() && m.llsn == fill.llsn) {
      ASSERT_TRUE(slot.ok());
      m.lower(fill.first);
    } else if (!slot.ok()) {
      ASSERT_EQ(slot.status().code(), StatusCode::kResourceExhausted);
      ASSERT_TRUE(fill.replaces);
      ASSERT_FALSE(m.there());
    } else {
      ASSERT_EQ(slot->number, fill.slot);
      if (fill.first == kNeverChanged && m.there()) {
        const Lsn before = m.dirty_from();
        m.put(fill.llsn, before);
      } else {
        m.put(fill.llsn, fill.first);
      }
      auto [generation, fresh] = generations_.emplace(slot->number, 0);
      ASSERT_GT(slot->generation, generation->second) << "PSL2";
      generation->second = slot->generation;
    }
  }
  void take() {
    const Lsn below = rng_.one_in(2) ? kNeverChanged : Lsn{1 + rng_.below(lsn_ + 1)};
    const auto max = static_cast<uint32_t>(1 + rng_.below(3));
    const auto taken = pool_->take_writes(below, max);
    ASSERT_LE(taken.size(), max);
    Lsn last{0};
    for (const Pool::Write& write : taken) {
      ModelPage& m = pages_[write.id.number];
      ASSERT_EQ(m.state, ModelPage::State::kDirty);
      ASSERT_FALSE(m.write_behind()) << "PSL7";
      ASSERT_FALSE(being_written(write.id)) << "PSL7";
      ASSERT_EQ(write.llsn, Llsn{m.llsn});
      ASSERT_LT(dirty_from_of(write.slot), below);
      last = std::max(last, dirty_from_of(write.slot));
      m.state = ModelPage::State::kWriting;
    }
    ASSERT_TRUE(std::is_sorted(taken.begin(), taken.end(),
                               [](const auto& a, const auto& b) { return a.id < b.id; }));
    if (taken.empty()) return;
    for (uint32_t page = 0; page < kPages; page++) {  // oldest first
      const ModelPage& m = pages_[page];
      if (m.state == ModelPage::State::kDirty && !being_written(id_of(page))) {
        ASSERT_GE(dirty_from_of(pool_->lookup(id_of(page))->number), last);
      }
    }
    writes_.push_back(taken);
  }
  void end_write() {
    if (writes_.empty()) return;
    const size_t at = rng_.below(writes_.size());
    const std::vector<Pool::Write> writes = writes_[at];
    writes_.erase(writes_.begin() + static_cast<ptrdiff_t>(at));
    for (const Pool::Write& write : writes)  // PSL6
      ASSERT_EQ(Bytes(pool_->bytes_of(write.slot), kPageBytes), page_of(write.id, write.llsn));
    uint64_t report = 0;
    if (rng_.one_in(4)) {
      pool_->failed(writes);
    } else {
      report = pool_->wrote(writes);
      for (const Pool::Write& write : writes)
        reports_.push_back({report, write.id.number, write.llsn.value});
    }
    for (const Pool::Write& write : writes) {
      ModelPage& m = pages_[write.id.number];
      if (m.state == ModelPage::State::kWriting && m.llsn == write.llsn.value) {
        m.state = report == 0 ? ModelPage::State::kDirty : ModelPage::State::kWritten;
        m.report = report;
        continue;
      }
      for (ModelPage::Claim& claim : m.behind) {
        if (claim.report != 0) continue;
        if (report == 0) m.own = std::min(m.own, claim.first);
        claim.report = report;
      }
      std::erase_if(m.behind, [](const ModelPage::Claim& claim) { return claim.report == 0; });
    }
  }
  void sync() { sync_until(rng_.below(pool_->last_report() + 1)); }
  void sync_all() { sync_until(pool_->last_report()); }
  // Storage first, then the pool is told.
  void sync_until(uint64_t report) {
    for (const Report& r : reports_)
      if (r.report <= report) pages_[r.page].durable = std::max(pages_[r.page].durable, r.llsn);
    pool_->synced(report);
    for (ModelPage& m : pages_) {
      std::erase_if(m.behind, [&](const ModelPage::Claim& claim) {
        return claim.report != 0 && claim.report <= report;
      });
      if (m.state == ModelPage::State::kWritten && m.report <= report) {
        m.state = ModelPage::State::kClean;
        m.own = kNeverChanged;
      }
      if (m.dirty_from() == kNeverChanged) m.merged = false;
    }
  }
  void drop() {
    const uint32_t page = any_page();
    ModelPage& m = pages_[page];
    const Status status = pool_->drop(id_of(page));
    if (m.state == ModelPage::State::kClean) {
      ASSERT_TRUE(status.ok());
      ASSERT_GE(m.durable, m.llsn) << "PSL5: what is thrown away is in storage";
      m.gone();
    } else if (m.there()) {
      ASSERT_TRUE(is_busy(status));
    } else {
      ASSERT_EQ(status.code(), StatusCode::kNotFound);
    }
  }
  // Its pages begin anew, as far as storage goes.
  void forget() {
    const auto space = static_cast<uint32_t>(rng_.below(kSpaces));
    pool_->forget_space(SpaceId{300 + space});
    for (uint32_t page = space; page < kPages; page += kSpaces) {
      pages_[page].gone();
      pages_[page].durable = pages_[page].newest();
    }
    for (Fill& fill : fills_)
      if (fill.page % kSpaces == space) fill.forgotten = true;
    bool written = false;
    for (const auto& writes : writes_)
      for (const Pool::Write& write : writes) written |= write.id.space == 300 + space;
    ASSERT_EQ(pool_->writes_of(SpaceId{300 + space}), written);
  }
  void doubt() {
    if (!writes_.empty()) return;
    pool_->doubt_written();
    doubt_model();
  }
  void doubt_model() {
    reports_.clear();  // storage may have forgotten it
    for (ModelPage& m : pages_) {
      if (!m.there()) continue;
      m.own = m.dirty_from();  // the pool's may be less, if it had merged them
      m.behind.clear();
      m.report = 0;
      m.state = m.own == kNeverChanged ? ModelPage::State::kClean : ModelPage::State::kDirty;
    }
  }
  void copy_to(Memory* copy) {
    for (uint32_t slot = 0; slot < kSlots; slot++) copy->header(slot) = memory_.header(slot);
    std::memcpy(copy->pages(), memory_.pages(), memory_.page_bytes());
  }
  void look_at_a_copy() {
    Memory copy(kSlots);
    copy_to(&copy);
    const auto recovered = Pool::recover(kOptions, copy.get());
    ASSERT_TRUE(recovered.ok()) << recovered.status();
    compare(**recovered, &copy, true);
  }
  void damage_a_copy() {
    Memory copy(kSlots);
    copy_to(&copy);
    for (uint64_t n = 1 + rng_.below(2); n > 0; n--) {
      const auto slot = static_cast<uint32_t>(rng_.below(kSlots));
      char* const where = rng_.one_in(2) ? reinterpret_cast<char*>(&copy.header(slot)) +
                                               rng_.below(sizeof(SlotHeader))
                                         : copy.page(slot) + rng_.below(kPageBytes);
      *where ^= static_cast<char>(1 << rng_.below(8));
    }
    const auto recovered = Pool::recover(kOptions, copy.get());
    if (recovered.ok()) {
      compare(**recovered, &copy, true);
    } else {
      ASSERT_EQ(recovered.status().code(), StatusCode::kDataLoss);
    }
  }
  // The process ends, and another one goes on with its memory.
  void restart() {
    auto recovered = Pool::recover(kOptions, memory_.get());
    ASSERT_TRUE(recovered.ok()) << recovered.status();
    pool_ = *std::move(recovered);
    fills_.clear();
    writes_.clear();
    doubt_model();
  }
  bool being_written(PageId id) const {
    for (const auto& writes : writes_)
      for (const Pool::Write& write : writes)
        if (write.id == id) return true;
    return false;
  }
  Lsn dirty_from_of(uint32_t slot) { return read_header(memory_.header(slot))->dirty_from; }

  void compare(const Pool& pool, Memory* memory, bool bytes) {
    pool.check();
    Lsn oldest = kNeverChanged;
    uint32_t unclean = 0;
    for (uint32_t page = 0; page < kPages; page++) {
      const ModelPage& m = pages_[page];
      const PageId id = id_of(page);
      const auto slot = pool.lookup(id);
      ASSERT_EQ(slot.has_value(), m.there()) << page;
      if (!m.there()) continue;
      ASSERT_EQ(slot->llsn, Llsn{m.llsn});
      ASSERT_EQ(slot->dirty, m.state != ModelPage::State::kClean);
      const auto header = read_header(memory->header(slot->number));
      ASSERT_TRUE(header.ok());
      ASSERT_EQ(header->generation, slot->generation);
      ASSERT_EQ(header->id, id);
      ASSERT_LE(header->dirty_from, m.dirty_from());
      if (!m.merged) {
        ASSERT_EQ(header->dirty_from, m.dirty_from());
      }
      if (m.llsn > m.durable) {
        ASSERT_LE(header->dirty_from, m.changes[m.durable + 1])
            << "PSL4: storage lacks that change";
      }
      if (bytes) {
        ASSERT_EQ(Bytes(memory->page(slot->number), kPageBytes), page_of(id, Llsn{m.llsn}));
      }
      oldest = std::min(oldest, header->dirty_from);
      unclean += slot->dirty ? 1 : 0;
    }
    ASSERT_EQ(pool.oldest_dirty(), oldest);
    ASSERT_EQ(pool.unclean(), unclean);
  }

  struct Report {
    uint64_t report;
    uint32_t page;
    uint64_t llsn;
  };
  Rng rng_;
  Memory memory_;
  std::unique_ptr<Pool> pool_;
  std::vector<ModelPage> pages_ = std::vector<ModelPage>(kPages);
  std::vector<Fill> fills_;
  std::vector<std::vector<Pool::Write>> writes_;
  std::vector<Report> reports_;
  std::map<uint32_t, uint64_t> generations_;  // the last one of each slot
  uint64_t lsn_ = 0;
};

TEST(PoolModel, AgreesWithAMap) {
  const uint64_t one = number_from("STRATA_SEED", 0);
  const uint64_t rounds = number_from("STRATA_ROUNDS", 40);
  for (uint64_t seed = one != 0 ? one : 1; seed <= (one != 0 ? one : rounds); seed++) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
    Model model(seed);
    for (int i = 0; i < 1500; i++) {
      model.step();
      model.compare(i % 100 == 0);
      if (::testing::Test::HasFatalFailure()) return;
    }
    model.finish();
    if (::testing::Test::HasFailure()) return;
  }
}

// --- a process that is killed ------------------------------------------------------------------

// What a child has been told and had told, in memory that outlives it.
struct Told {
  std::atomic<uint64_t> operations;
  struct Page {
    std::atomic<uint64_t> begun;          // largest llsn it began to put
    std::atomic<uint64_t> published;      // largest one it was told to be there
    std::atomic<uint64_t> durable;        // in storage
    std::atomic<uint64_t> dropping;       // it may be gone
    std::atomic<uint64_t> changes[4096];  // Lsns by llsn
  } pages[kPages];
};

template <typename T>
T* share(size_t count) {
  void* const at =
      ::mmap(nullptr, sizeof(T) * count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(at, MAP_FAILED);
  return static_cast<T*>(at);
}

[[noreturn]] void use_pool(PoolMemory memory, Told* told, uint64_t seed) {
  Rng rng(seed);
  auto recovered = Pool::recover(kOptions, memory);
  if (!recovered.ok()) ::_exit(1);
  Pool* const pool = recovered->get();
  uint64_t lsn = told->operations.load() * 100 + 1;
  for (;;) {
    told->operations.fetch_add(1);
    const auto number = static_cast<uint32_t>(rng.below(kPages));
    Told::Page& page = told->pages[number];
    const PageId id = id_of(number);
    const uint64_t what = rng.below(10);
    if (what < 6) {
      const uint64_t llsn = page.begun.load() + 1;
      if (llsn >= 4096) ::_exit(0);
      page.changes[llsn] = ++lsn;
      page.begun = llsn;
      const uint64_t known = std::max(page.published.load(), page.durable.load());
      const auto slot = test::put(pool, id, Llsn{llsn}, Lsn{page.changes[known + 1].load()});
      if (slot.ok()) {
        page.published = llsn;
        page.dropping = 0;
      }
    } else if (what < 8) {
      const auto writes = pool->take_writes(kNeverChanged, 3);
      if (rng.one_in(3)) {
        pool->failed(writes);
      } else {
        const uint64_t report = pool->wrote(writes);
        for (const Pool::Write& write : writes) {
          std::atomic<uint64_t>& durable = told->pages[write.id.number].durable;
          durable = std::max(durable.load(), write.llsn.value);
        }
        pool->synced(report);
      }
    } else {
      page.dropping = 1;
      if (is_busy(pool->drop(id))) page.dropping = 0;
    }
  }
}

void expect_whole(const Pool& pool, PoolMemory memory, const Told& told) {
  pool.check();
  for (uint32_t number = 0; number < kPages; number++) {
    const Told::Page& page = told.pages[number];
    const auto slot = pool.lookup(id_of(number));
    if (!slot.has_value()) {
      EXPECT_TRUE(page.published == 0 || page.dropping == 1) << number;
      if (page.dropping == 1) {
        EXPECT_GE(page.durable.load(), page.published.load());
      }
      continue;
    }
    EXPECT_GE(slot->llsn.value, page.published.load()) << number;
    EXPECT_LE(slot->llsn.value, page.begun.load()) << number;
    EXPECT_EQ(Bytes(memory.pages + uint64_t{slot->number} * kPageBytes, kPageBytes),
              page_of(id_of(number), slot->llsn));
    if (slot->llsn.value > page.durable) {
      const auto header = read_header(memory.headers[slot->number]);
      EXPECT_LE(header->dirty_from.value, page.changes[page.durable + 1].load()) << number;
    }
  }
}

TEST(PoolKilled, LeavesAllThatItHasPublished) {
  const uint64_t seed = number_from("STRATA_SEED", 11);
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  const uint64_t kills = number_from("STRATA_ROUNDS", 60);
  Rng rng(seed);
  Told* const told = share<Told>(1);
  const PoolMemory memory{share<SlotHeader>(kSlots), share<char>(size_t{kSlots} * kPageBytes)};
  { const Pool begun(kOptions, memory); }
  for (uint64_t kill = 0; kill < kills; kill++) {
    const uint64_t until = told->operations + 1 + rng.below(300);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) use_pool(memory, told, seed + kill);
    // It ends by itself only if it is wrong.
    while (told->operations < until && ::waitpid(child, nullptr, WNOHANG) == 0) ::sched_yield();
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
    const auto recovered = Pool::recover(kOptions, memory);
    ASSERT_TRUE(recovered.ok()) << recovered.status();
    expect_whole(**recovered, memory, *told);
    if (::testing::Test::HasFailure()) return;
    // What the child was about to tell is as the pool has it now.
    for (uint32_t number = 0; number < kPages; number++) {
      const auto slot = (*recovered)->lookup(id_of(number));
      Told::Page& page = told->pages[number];
      page.published = slot.has_value() ? slot->llsn.value : page.durable.load();
      page.dropping = slot.has_value() ? 0 : 1;
    }
  }
}

// --- power loss ---------------------------------------------------------------------------------

// Goal: of a persistent pool everything that was answered for survives a power loss, nothing that
// was dropped comes back, and no other image is taken for a page's (PSL9). Method: a medium that
// keeps what was synced, and of what was stored since then any part: each 64 bytes of a header's,
// each 512 of a page's may be old or new. The pool is used as the node's service uses it, and the
// power goes at any step of it.
class PowerLoss {
 public:
  explicit PowerLoss(uint64_t seed)
      : rng_(seed), memory_(kFewSlots), medium_(kFewSlots), told_(share<Told>(1)) {
    pool_ = std::make_unique<Pool>(kPersistent, memory_.get());
    persist();
  }
  ~PowerLoss() { ::munmap(told_, sizeof(Told)); }

  // One call, or less if the power goes.
  void step() {
    lost_ = false;
    const uint64_t what = rng_.below(10);
    if (what < 6)
      put();
    else if (what < 8)
      write();
    else
      drop();
    if (!lost_ && rng_.one_in(30)) lose_power();
  }

 private:
  // So few that slots are filled again soon.
  static constexpr uint32_t kFewSlots = 16, kFewPages = 20;
  static constexpr PoolOptions kPersistent{.slots = kFewSlots, .persistent = true};
  static constexpr size_t kSector = 512;
  struct Filled {
    uint32_t slot, number;
    uint64_t llsn;
  };

  // Of a call's pages: bytes, sync, headers, sync, answers. Writes that end and another call's
  // bytes may come between the headers and that sync: slots that may not be filled then are not to
  // be had.
  void put() {
    if (!fill(1 + rng_.below(4), true) || !sync()) return;
    std::vector<Filled> taken;
    for (const Filled& one : std::exchange(filled_, {})) {
      if (pool_->publish(one.slot).ok()) taken.push_back(one);
      if (maybe_lose_power()) return;
    }
    for (uint64_t n = rng_.below(3); n > 0 && !lost_; n--) write();
    if (lost_ || (rng_.one_in(2) && !fill(1 + rng_.below(3), false)) || !sync()) return;
    for (const Filled& one : taken) {
      told_->pages[one.number].published = one.llsn;
      told_->pages[one.number].dropping = 0;
    }
  }
  // False: the power went, or there is an end to the llsns.
  bool fill(uint64_t pages, bool may_sync) {
    for (uint64_t n = pages; n > 0; n--) {
      const auto number = static_cast<uint32_t>(rng_.below(kFewPages));
      Told::Page& page = told_->pages[number];
      const uint64_t llsn = page.begun + 1;
      if (llsn >= 4096) return false;
      page.changes[llsn] = ++lsn_;
      const uint64_t known = std::max(page.published.load(), page.durable.load());
      const Lsn first{page.changes[known + 1].load()};
      Pool::Slot there;
      auto slot = pool_->begin_fill(id_of(number), Llsn{llsn}, true, first, &there);
      if (is_no_space(slot.status()) && may_sync && filled_.empty()) {
        for (int round = 0; round < 2; round++)
          if (!sync()) return false;
        slot = pool_->begin_fill(id_of(number), Llsn{llsn}, true, first, &there);
      }
      if (!slot.ok()) continue;
      page.begun = llsn;
      pool_->fill(*slot, page_of(id_of(number), Llsn{llsn}).data());
      filled_.push_back({*slot, number, llsn});
      if (maybe_lose_power()) return false;
    }
    return true;
  }
  // Pages are replaced while they are on their way to storage, too.
  void write() {
    if (writes_.size() < 3 && rng_.one_in(2)) {
      writes_.push_back(pool_->take_writes(kNeverChanged, 2));
      return;
    }
    if (writes_.empty() || maybe_lose_power()) return;
    const std::vector<Pool::Write> writes = std::move(writes_.front());
    writes_.erase(writes_.begin());
    if (rng_.one_in(3)) return pool_->failed(writes);
    const uint64_t report = pool_->wrote(writes);
    for (const Pool::Write& written : writes) {
      std::atomic<uint64_t>& durable = told_->pages[written.id.number].durable;
      durable = std::max(durable.load(), written.llsn.value);
    }
    pool_->synced(report);
  }
  void drop() {
    const auto number = static_cast<uint32_t>(rng_.below(kFewPages));
    Told::Page& page = told_->pages[number];
    while (pool_->unsettled() != 0)
      if (!sync()) return;
    const Status dropped = pool_->drop(id_of(number));
    if (!dropped.ok()) return;
    page.dropping = 1;
    if (rng_.one_in(2)) return put();  // its slot is free, but not durably so
    if (!sync()) return;
    gone_[number] = page.published;  // what is answered for stays away
  }

  void persist() {
    for (uint32_t slot = 0; slot < kFewSlots; slot++) medium_.header(slot) = memory_.header(slot);
    std::memcpy(medium_.pages(), memory_.pages(), memory_.page_bytes());
  }
  // False: the power went.
  bool sync() {
    if (maybe_lose_power()) return false;
    persist();
    pool_->persisted();
    pool_->check();
    return true;
  }
  bool maybe_lose_power() {
    if (rng_.one_in(60)) lose_power();
    return lost_;
  }
  void lose_power() {
    lost_ = true;
    writes_.clear();
    filled_.clear();
    const bool all_or_little = rng_.one_in(3);
    const auto keeps_old = [&] { return all_or_little ? rng_.one_in(20) : rng_.one_in(2); };
    for (uint32_t slot = 0; slot < kFewSlots; slot++)
      if (keeps_old()) memory_.header(slot) = medium_.header(slot);
    for (size_t at = 0; at < memory_.page_bytes(); at += kSector)
      if (keeps_old()) std::memcpy(memory_.pages() + at, medium_.pages() + at, kSector);
    auto recovered = Pool::recover(kPersistent, memory_.get());
    ASSERT_TRUE(recovered.ok()) << recovered.status();
    pool_ = *std::move(recovered);
    persist();
    pool_->persisted();
    expect_whole(*pool_, memory_.get(), *told_);
    for (uint32_t number = 0; number < kPages; number++) {
      const auto slot = pool_->lookup(id_of(number));
      Told::Page& page = told_->pages[number];
      if (slot.has_value() && gone_[number] != 0) {
        EXPECT_GT(slot->llsn.value, gone_[number]) << "a dropped image came back";
      }
      page.published = slot.has_value() ? slot->llsn.value : page.durable.load();
      page.dropping = slot.has_value() ? 0 : 1;
    }
  }

  Rng rng_;
  Memory memory_, medium_;
  std::unique_ptr<Pool> pool_;
  std::vector<std::vector<Pool::Write>> writes_;
  std::vector<Filled> filled_;  // and not published yet
  Told* const told_;
  uint64_t lsn_ = 0;
  bool lost_ = false;
  std::vector<uint64_t> gone_ = std::vector<uint64_t>(kPages, 0);
};

TEST(PoolPowerLoss, KeepsWhatWasAnsweredForAndNothingThatWasDropped) {
  const uint64_t one = number_from("STRATA_SEED", 0);
  const uint64_t rounds = number_from("STRATA_ROUNDS", 30);
  for (uint64_t seed = one != 0 ? one : 1; seed <= (one != 0 ? one : rounds); seed++) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
    PowerLoss model(seed);
    for (int i = 0; i < 1000; i++) {
      model.step();
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// --- readers -----------------------------------------------------------------------------------

uint64_t load(const uint64_t* word) {
  return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(word)).load(std::memory_order_acquire);
}

// What a compute node knows of a page's place.
class Directory {
 public:
  void set(uint32_t page, const std::optional<Pool::Slot>& slot) {
    const std::lock_guard lock(mutex_);
    places_[page] = slot;
  }
  std::optional<Pool::Slot> get(uint32_t page) {
    const std::lock_guard lock(mutex_);
    return places_[page];
  }

 private:
  std::mutex mutex_;
  std::vector<std::optional<Pool::Slot>> places_ = std::vector<std::optional<Pool::Slot>>(kPages);
};

TEST(PoolReaders, NeverTakeAWrongPageForARightOne) {
  Memory memory(kSlots);
  Pool pool(kOptions, memory.get());
  Directory directory;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> hits{0}, misses{0}, wrong{0};
  const auto read = [&](uint64_t seed) {
    Rng rng(seed);
    std::vector<uint64_t> bytes(kPageBytes / 8);
    while (!stop.load()) {
      const auto page = static_cast<uint32_t>(rng.below(kPages));
      const auto known = directory.get(page);
      if (!known.has_value()) continue;
      if (rng.one_in(4)) ::sched_yield();  // late
      const uint64_t* const generation = &memory.header(known->number).generation;
      const auto* const words = reinterpret_cast<const uint64_t*>(memory.page(known->number));
      const uint64_t before = load(generation);
      for (size_t i = 0; i < bytes.size(); i++) bytes[i] = load(words + i);
      const uint64_t after = load(generation);
      if (before != known->generation || after != known->generation) {
        misses++;
        continue;
      }
      hits++;
      const char* const got = reinterpret_cast<const char*>(bytes.data());
      if (!verify_page(got, id_of(page)).ok() || header_of(got)->llsn != known->llsn.value) wrong++;
    }
  };
  std::vector<std::thread> readers;
  for (uint64_t i = 0; i < 3; i++) readers.emplace_back(read, i);
  Rng rng(77);
  std::vector<uint64_t> llsns(kPages, 0);
  for (uint64_t i = 0; i < 20'000 || hits < 1000; i++) {
    const auto page = static_cast<uint32_t>(rng.below(kPages));
    if (rng.one_in(3)) {
      if (pool.drop(id_of(page)).ok()) directory.set(page, std::nullopt);
      continue;
    }
    const auto slot = test::put(&pool, id_of(page), Llsn{++llsns[page]});
    if (slot.ok()) directory.set(page, *slot);
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(hits, 0u);
  pool.check();
}

}  // namespace
}  // namespace strata::memnode
