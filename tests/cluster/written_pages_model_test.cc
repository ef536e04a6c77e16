// Random writes and checkpoints while storage nodes stop, lose power or their disk, are replaced,
// added and taken out, with news of that on time or late, and compute nodes follow each other,
// against an oracle: a page that was acknowledged is read as it was, or newer ones since the
// checkpoint are there to be made again from the log; and in the end all nodes of the placement are
// alike. (STRATA_SEED, STRATA_ROUNDS)
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>

#include "base/rng.h"
#include "written_cluster.h"

namespace strata::testing {
namespace {

using storenode::testing::Batch;
using storenode::testing::differs;

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class Model {
 public:
  explicit Model(uint64_t seed) : rng_(seed) {
    cluster_.start_compute();
    for (uint32_t space = 300; space < 302; ++space)
      EXPECT_TRUE(source().create_space(SpaceId{space}).ok());
    EXPECT_TRUE(source().sync().ok());
  }
  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(::testing::Message() << "step " << i);
      step();
    }
    finish();
  }

 private:
  struct Versions {
    uint64_t newest = 0;  // of the page, in its log
    bool dirty = false;   // not acknowledged by the source
    bool logged = false;  // changed since the checkpoint
    uint64_t at_checkpoint = 0;
  };

  clients::WrittenPageSource& source() { return cluster_.source(); }

  void step() {
    if (!told_ && rng_.one_in(3)) tell();
    switch (rng_.below(17)) {
      case 0:
      case 1:
        return node_step();
      case 16:
        return change_step();
      case 2:
        return rng_.one_in(2) ? restart_compute() : checkpoint();
      case 3:
      case 4:
        return checkpoint();
      case 5:
      case 6:
      case 7:
        return read_some();
      default:
        return write_some();
    }
  }
  // WN4
  void all_lose_power() {
    for (const size_t i : cluster_.members())
      if (cluster_.node(i).runs()) {
        cluster_.node(i).lose_power(rng_.next());
        cluster_.node(i).start();
      }
  }
  // A minority is away at a time, or all are restarted at once.
  void node_step() {
    if (rng_.one_in(4)) return all_lose_power();
    for (const size_t i : cluster_.members()) {
      if (cluster_.node(i).runs()) continue;
      cluster_.node(i).start();
      if (rng_.one_in(2)) return;
      return wait_whole();
    }
    if (cluster_.in_sync() < all() && !rng_.one_in(4)) return;
    const size_t struck = random_member();
    if (!others_have_pages(struck)) return;
    WrittenNodeProcess& node = cluster_.node(struck);
    switch (rng_.below(4)) {
      case 0:
        return node.kill();
      case 1:
        // What is lost for good must be elsewhere: no second copy is missing then.
        tell();
        if (source().sync().ok() && cluster_.in_sync() == all()) return node.lose_disk();
        return node.kill();
      default:
        return node.lose_power(rng_.next());
    }
  }
  [[nodiscard]] size_t all() const { return cluster_.members().size(); }
  size_t random_member() { return cluster_.members()[rng_.below(all())]; }
  // Whoever is struck, one that has everything stays, for this compute node and
  // for the next one.
  bool others_have_pages(size_t but) {
    const std::vector<std::string> listed = cluster_.listed();
    const auto states = source().nodes()->states();
    return std::any_of(cluster_.members().begin(), cluster_.members().end(),
                       [&](const size_t member) {
                         const std::string name = WrittenCluster::name_of(member);
                         return member != but && cluster_.node(member).runs() &&
                                std::find(listed.begin(), listed.end(), name) != listed.end() &&
                                std::any_of(states.begin(), states.end(), [&](const auto& state) {
                                  return state.name == name && state.in_sync;
                                });
                       });
  }
  void tell() {
    cluster_.tell();
    told_ = true;
  }
  void wait_whole() {
    tell();
    const auto ended = [this] { return !source().nodes()->ended().ok(); };
    EXPECT_TRUE(wait_until([&] { return cluster_.in_sync() == all() || ended(); })) << why();
    if (ended()) restart_compute();  // WN4
  }

  // ND8 of storenode/node: every other node of the group is listed.
  [[nodiscard]] bool may_change(size_t but) {
    const std::vector<std::string> listed = cluster_.listed();
    return std::all_of(
        cluster_.members().begin(), cluster_.members().end(), [&](const size_t member) {
          const std::string name = WrittenCluster::name_of(member);
          return member == but || std::find(listed.begin(), listed.end(), name) != listed.end();
        });
  }
  void change_step() {
    const size_t node = random_member();
    switch (rng_.below(3)) {
      case 0:
        if (!may_change(node)) return;
        cluster_.replace(node);
        return lose_place(node);
      case 1:
        if (all() == 5 || !may_change(SIZE_MAX)) return;
        cluster_.add();
        told_ = false;
        return;
      default:
        return take_out(node);
    }
  }
  void take_out(size_t node) {
    if (!told_ || all() == 3) return;
    const auto quorum = static_cast<uint32_t>((all() - 1) / 2 + 1);
    const std::string name = WrittenCluster::name_of(node);
    if (source().nodes()->prepare_leave(name, cluster_.generation(), quorum)) {
      cluster_.take_out(node);
      lose_place(node);
    } else if (rng_.one_in(2)) {
      source().nodes()->cancel_leave();
    }
  }
  void lose_place(size_t node) {
    told_ = false;
    if (rng_.one_in(3)) cluster_.node(node).leave_group();
    if (rng_.one_in(3)) cluster_.node(node).kill();
    if (rng_.one_in(2)) tell();
  }

  std::string why() {
    std::string out;
    for (const auto& node : source().nodes()->states()) out += node.name + ": " + node.why + "; ";
    return out + std::string(source().nodes()->ended().message());
  }

  // Changes some pages and writes back those and some that failed before.
  void write_some() {
    std::set<PageId> chosen;
    for (uint64_t n = 1 + rng_.below(20); n > 0; --n)
      chosen.insert(
          {300 + static_cast<uint32_t>(rng_.below(2)), static_cast<uint32_t>(rng_.below(40))});
    for (const PageId id : chosen) {
      Versions& page = pages_[id];
      page.newest = ++llsn_;
      page.dirty = page.logged = true;
    }
    (void)write_back(chosen);
  }
  Status write_back(const std::set<PageId>& chosen) {
    Batch batch;
    for (const PageId id : chosen) batch.add(id, pages_[id].newest);
    bool ok[kWriteBatchPages] = {};
    const Status status = source().write_batch(batch.ids(), batch.count(), batch.pages(), ok);
    for (uint32_t i = 0; i < batch.count(); ++i)
      if (ok[i]) pages_[batch.ids()[i]].dirty = false;
    return status;
  }
  Status write_dirty() {
    std::set<PageId> some;
    for (const auto& [id, page] : pages_) {
      if (!page.dirty) continue;
      some.insert(id);
      if (some.size() < kWriteBatchPages) continue;
      STRATA_RETURN_IF_ERROR(write_back(some));
      some.clear();
    }
    return some.empty() ? ok_status() : write_back(some);
  }
  void checkpoint() {
    if (!write_dirty().ok() || !source().sync().ok()) return;
    for (auto& [id, page] : pages_) {
      page.logged = false;
      page.at_checkpoint = page.newest;
    }
  }
  void read_some() {
    for (int n = 0; n < 5 && !pages_.empty(); ++n) {
      auto it = pages_.begin();
      std::advance(it, static_cast<long>(rng_.below(pages_.size())));
      if (!it->second.dirty) expect(it->first, it->second.newest);
    }
  }
  void expect(PageId id, uint64_t llsn) {
    const Status read = source().read(id, Llsn{}, page_.get());
    if (ends_right(read)) return restart_compute();  // WN4
    ASSERT_TRUE(read.ok()) << read << " " << why();
    EXPECT_EQ(differs(page_.get(), id, llsn), "") << id.space << ":" << id.number;
  }
  // Redo: what was logged since the checkpoint is made again and counts as dirty.
  void restart_compute() {
    cluster_.stop_compute();
    if (rng_.one_in(4))
      for (const size_t i : cluster_.members())
        if (cluster_.node(i).runs()) {
          cluster_.node(i).lose_power(rng_.next());
          cluster_.node(i).start();
        }
    const Status started = cluster_.try_start_compute();
    ASSERT_TRUE(started.ok()) << started;
    told_ = true;
    for (auto& [id, page] : pages_) {
      const Status read = source().read(id, Llsn{}, page_.get());
      if (is_not_found(read)) {
        EXPECT_EQ(page.at_checkpoint, 0u) << id.space << ":" << id.number;
      } else {
        ASSERT_TRUE(read.ok()) << read;
        const uint64_t found = header_of(page_.get())->llsn;
        EXPECT_EQ(differs(page_.get(), id, found), "");
        EXPECT_GE(found, page.at_checkpoint) << id.space << ":" << id.number;
        EXPECT_LE(found, page.newest);
        EXPECT_TRUE(page.logged || found == page.newest) << id.space << ":" << id.number;
      }
      page.dirty = page.logged;
    }
  }
  void finish() {
    tell();
    source().nodes()->cancel_leave();
    for (const size_t i : cluster_.members())
      if (!cluster_.node(i).runs()) cluster_.node(i).start();
    Status done = error_internal("not tried");
    for (int tries = 0; !done.ok() && tries < 3 && !::testing::Test::HasFailure(); ++tries) {
      if (!source().nodes()->ended().ok()) restart_compute();  // WN4
      (void)wait_until(
          [&] { return cluster_.in_sync() == all() || !source().nodes()->ended().ok(); });
      done = write_dirty();
      if (done.ok()) done = source().sync();
    }
    EXPECT_TRUE(done.ok()) << done;
    EXPECT_TRUE(cluster_.wait_in_sync(all())) << why();
    for (const auto& [id, page] : pages_)
      for (const size_t i : cluster_.members())
        EXPECT_EQ(cluster_.node(i).llsn_of(id), page.newest)
            << id.space << ":" << id.number << " on " << i;
  }

  Rng rng_;
  WrittenCluster cluster_;
  std::map<PageId, Versions> pages_;
  uint64_t llsn_ = 0;
  bool told_ = true;  // compute goes by the placement of now
  const AlignedBytes page_{kPageBytes, 4096};
};

TEST(WrittenPagesModel, NothingAcknowledgedIsLostOrOld) {
  const uint64_t first = number_from("STRATA_SEED", 1);
  const uint64_t rounds = number_from("STRATA_ROUNDS", 2);
  for (uint64_t seed = first; seed < first + rounds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "STRATA_SEED=" << seed);
    Model(seed).run(80);
  }
}

}  // namespace
}  // namespace strata::testing
