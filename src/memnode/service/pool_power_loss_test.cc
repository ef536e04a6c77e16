// Goal: on a persistent medium nothing that a memory node has answered for is lost, and nothing
// that was dropped comes back, when the power goes or a sync fails (PUS9, PSL9); a sync that fails
// ends the content, is told to its user, said in the status and counted, and the node serves on.
// Method: calls over sockets, on a medium that keeps what was synced (file/testing/medium.h): the
// power goes at each sync of a call, and of what was stored since the last one any part is there.
// By hand, and with random calls against a map (STRATA_SEED, STRATA_ROUNDS).
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>
#include <thread>

#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "memnode/file/testing/medium.h"
#include "memnode/service/testing/memory_node_fixture.h"

namespace strata::memnode {
namespace {

using strata::testing::wait_until;
using testing::Image;
using testing::StorageNode;

constexpr PageId kPage{300, 7};
constexpr PageId kOther{301, 8};

class PoolsOfAMedium : public testing::MemoryNodeFixture {
 protected:
  void SetUp() override {
    persistent_ = true;
    storage_.push_back(std::make_unique<StorageNode>());
    start();
  }
  // A user with a number that none before had; of that content, or of a fresh one.
  StatusOr<proto::PoolAttachReply> enter(uint64_t incarnation, bool fresh) {
    user_ = {StreamId{1}, Epoch{1}, ++number_of_user_, incarnation};
    auto reply = attach({user_, fresh, 64, token_});
    if (reply.ok()) user_.incarnation = reply->incarnation;
    return reply;
  }
  uint64_t enter_fresh() {
    const auto reply = enter(0, true);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? reply->incarnation : 0;
  }
  // The process ends with the power, and another one finds what is left.
  void lose_power(const std::function<bool(uint64_t at)>& keeps_new) {
    stop();
    medium_.restore(keeps_new);
    start();
  }
  Status write_to_storage() {
    const auto written = write(targets());
    return written.ok() ? synced(written->report).status() : written.status();
  }

  uint64_t number_of_user_ = 0;
  test::Medium medium_{folder_ / "pool-1"};
};

TEST_F(PoolsOfAMedium, PSL9AnOlderImageDoesNotComeBackWhenItsPageIsDropped) {
  for (const bool of_space : {false, true}) {
    uint32_t syncs = 1;
    for (uint32_t after = 0; after <= syncs; ++after) {
      const uint64_t incarnation = enter_fresh();
      ASSERT_TRUE(put_one({kPage, 1, 100, 200}).ok());
      const uint32_t older = lookup(kPage)->at.slot;
      ASSERT_TRUE(put_one({kPage, 2, 300, 400}).ok());
      ASSERT_TRUE(write_to_storage().ok());
      const uint32_t before = medium_.syncs();
      medium_.lose_power(after);
      const Status gone = of_space ? forget(kPage.space) : drop(kPage);
      syncs = medium_.syncs() - before;
      EXPECT_TRUE(gone.ok()) << gone;
      // Of the headers that the drop has changed only the older image's is as it was.
      const bool answered = !medium_.lost();
      const uint64_t old_header = kStateBytes + uint64_t{older} * sizeof(SlotHeader);
      lose_power([&](uint64_t at) { return at != old_header; });
      ASSERT_TRUE(enter(incarnation, false).ok());
      const auto found = lookup(kPage);
      ASSERT_TRUE(found.ok());
      if (answered) {
        EXPECT_FALSE(found->there);
      }
      if (found->there) {
        EXPECT_EQ(found->at.llsn, Llsn{2}) << "storage has llsn 2, and this one would be read";
      }
    }
  }
}

// --- a sync that fails ---

class FailedSyncs : public PoolsOfAMedium {
 protected:
  // As it is after a call whose sync has failed.
  void expect_lost(uint64_t incarnation, uint64_t times) {
    user_.incarnation = incarnation;
    EXPECT_EQ(counters().not_durable, times);
    const PoolStatus status = pool_status();
    EXPECT_FALSE(status.attached);
    EXPECT_NE(status.trouble.find("cannot be made durable"), std::string::npos) << status.trouble;
    EXPECT_FALSE(service_->trouble().ok());
    EXPECT_TRUE(is_not_found(lookup(kPage).status()));
    EXPECT_TRUE(is_not_found(put_one({kPage, 9, 100, 200})));
    EXPECT_TRUE(is_not_found(synced(0).status()));
    EXPECT_TRUE(is_not_found(checkpoint(1000)));
    EXPECT_TRUE(is_not_found(enter(incarnation, false).status())) << "for good";
  }
  // The medium is sound again: another content, with nothing of the old one, and it can be used.
  void expect_usable(uint64_t incarnation) {
    EXPECT_NE(enter_fresh(), incarnation);
    EXPECT_TRUE(pool_status().trouble.empty());
    EXPECT_TRUE(service_->trouble().ok());
    EXPECT_FALSE(lookup(kPage)->there);
    EXPECT_TRUE(put_one({kPage, 1, 100, 200}).ok());
    EXPECT_TRUE(lookup(kPage)->there);
  }
};

TEST_F(FailedSyncs, PUS9EndTheContentWhateverTheCallAndTheNodeServesOn) {
  const std::map<std::string, std::function<Status()>> calls = {
      {"put",
       [this] {
         return put_one({kOther, 2, 300, 400});
       }},
      {"replace",
       [this] {
         return put_one({kPage, 3, 300, 400});
       }},
      {"lower dirty_from",
       [this] {
         return put_one({kPage, 2, 50, 60});
       }},
      {"drop", [this] { return drop(kPage); }},
      {"forget", [this] { return forget(kPage.space); }},
      {"checkpoint", [this] { return checkpoint(1000); }},
  };
  uint64_t times = 0;
  for (const auto& [name, call] : calls) {
    for (uint32_t after = 0;; ++after) {
      SCOPED_TRACE(name + " after " + std::to_string(after));
      const uint64_t incarnation = enter_fresh();
      ASSERT_TRUE(put_one({kPage, 1, 100, 200}).ok());
      ASSERT_TRUE(put_one({kPage, 2, 100, 200}).ok());
      ASSERT_TRUE(write_to_storage().ok());
      medium_.fail(after, 1);
      const Status status = call();
      medium_.heal();
      if (status.ok()) {
        EXPECT_GE(after, 1u) << "it does not wait for the medium";
        break;
      }
      EXPECT_TRUE(is_outcome_unknown(status)) << status;
      expect_lost(incarnation, ++times);
      expect_usable(incarnation);
      if (HasFailure()) return;
    }
  }
  EXPECT_GE(times, calls.size());
}

TEST_F(FailedSyncs, PUS9WhoAttachesIsToldAndTheContentEnds) {
  for (const bool fresh : {false, true}) {
    for (uint32_t after = 0;; ++after) {
      SCOPED_TRACE(after);
      const uint64_t incarnation = enter_fresh();
      ASSERT_TRUE(put_one({kPage, 2, 100, 200}).ok());
      const uint64_t times = counters().not_durable;
      medium_.fail(after, 1);
      const auto reply = enter(fresh ? 0 : incarnation, fresh);
      medium_.heal();
      if (reply.ok()) {
        EXPECT_EQ(after, fresh ? 3u : 1u);
        break;
      }
      EXPECT_NE(reply.status().message().find("cannot be made durable"), std::string_view::npos);
      expect_lost(incarnation, times + 1);
      expect_usable(incarnation);
      if (HasFailure()) return;
    }
  }
}

TEST_F(FailedSyncs, PUS9AWriteUnderWayEndsBeforeTheNextContentBegins) {
  const uint64_t incarnation = enter_fresh();
  ASSERT_TRUE(put_one({kPage, 2, 100, 200}).ok());
  storage_[0]->will(StorageNode::Does::kIsSilent);
  std::thread writer([this] { EXPECT_TRUE(write(targets()).ok()); });
  ASSERT_TRUE(wait_until([this] { return storage_[0]->held() == 1; }));
  medium_.fail(0, 1);
  EXPECT_TRUE(is_outcome_unknown(put_one({kOther, 2, 300, 400})));
  medium_.heal();
  EXPECT_TRUE(is_not_found(lookup(kPage).status()));
  storage_[0]->will(StorageNode::Does::kTakes);
  storage_[0]->release();
  writer.join();
  expect_lost(incarnation, 1);
  expect_usable(incarnation);
}

TEST_F(FailedSyncs, PUS9TheNextProcessDoesNotBelieveTheContent) {
  const uint64_t incarnation = enter_fresh();
  ASSERT_TRUE(put_one({kPage, 2, 100, 200}).ok());
  medium_.fail(0, 1);
  EXPECT_FALSE(put_one({kPage, 3, 300, 400}).ok());
  medium_.heal();
  stop();
  start();
  EXPECT_TRUE(is_not_found(enter(incarnation, false).status()));
  expect_usable(incarnation);
}

TEST_F(FailedSyncs, MF7OfAStartAreCountedAndTheContentIsNotBelieved) {
  const uint64_t incarnation = enter_fresh();
  ASSERT_TRUE(put_one({kPage, 2, 100, 200}).ok());
  stop();
  medium_.fail(0, 1);
  start();
  medium_.heal();
  EXPECT_EQ(counters().damaged, 1u);
  EXPECT_TRUE(is_not_found(enter(incarnation, false).status()));
  stop();
  start();
  EXPECT_TRUE(is_not_found(enter(incarnation, false).status()));
  expect_usable(incarnation);
}

// --- random calls ---

class RandomCalls : public PoolsOfAMedium {
 protected:
  void run(uint64_t seed) {
    rng_ = Rng(seed);
    incarnation_ = enter_fresh();
    pages_.clear();
    written_.clear();
    lsn_ = 100;
    checkpoint_ = tried_checkpoint_ = 0;
    for (int loss = 0; loss < 6 && !HasFailure(); ++loss) {
      medium_.lose_power(static_cast<uint32_t>(rng_.below(40)));
      while (!medium_.lost() && !HasFailure()) step();
      const bool little = rng_.one_in(3);
      lose_power([&](uint64_t) { return little ? rng_.one_in(20) : rng_.one_in(2); });
      compare();
    }
  }

 private:
  struct Page {
    uint64_t llsn = 0;  // answered for; 0: it is not there
    uint64_t durable = 0;
    // What else may be found: images that nobody was answered for, and 0, if it may be gone.
    std::set<uint64_t> perhaps;
    uint64_t newest = 0;  // of all that were ever put
  };
  void step() {
    const uint64_t what = rng_.below(20);
    if (what < 10) return put_some();
    if (what < 13) return write_some();
    if (what < 18) return drop_one();
    if (what < 19) return forget_space();
    const uint64_t at = ++lsn_;
    tried_checkpoint_ = at;
    if (checkpoint(at).ok() && !medium_.lost()) checkpoint_ = at;
  }
  PageId any() {
    return {static_cast<uint32_t>(300 + rng_.below(2)),  //
            static_cast<uint32_t>(rng_.below(35))};
  }
  void put_some() {
    std::vector<Image> images;
    for (uint64_t n = 1 + rng_.below(12); n > 0; --n) {
      const PageId id = any();
      Page& page = pages_[id];
      lsn_ += 10;
      images.push_back({id, ++page.newest, lsn_, lsn_ + 5});
      page.perhaps.insert(page.newest);
    }
    const auto reply = put(images);
    if (medium_.lost()) return;
    ASSERT_TRUE(reply.ok()) << reply.status();
    for (size_t i = 0; i < images.size(); ++i) {
      Page& page = pages_[images[i].id];
      if (reply->taken[i].status.ok()) page.llsn = images[i].llsn;
      ASSERT_TRUE(reply->taken[i].status.ok() || is_no_space(reply->taken[i].status));
    }
    for (const Image& image : images) pages_[image.id].perhaps.clear();
  }
  void write_some() {
    const auto written = write(targets(), UINT64_MAX, static_cast<uint32_t>(1 + rng_.below(20)));
    ASSERT_TRUE(written.ok()) << written.status();
    for (const auto& page : written->pages) written_.push_back({page.id, page.llsn.value});
    if (rng_.one_in(3)) return;  // nobody says yet that storage has synced it
    ASSERT_TRUE(synced(written->report).ok());
    for (const auto& [id, llsn] : written_) pages_[id].durable = llsn;
    written_.clear();
  }
  void drop_one() {
    const PageId id = any();
    Page& page = pages_[id];
    page.perhaps.insert(0);
    const Status status = drop(id);
    if (medium_.lost()) return;
    if (status.ok()) page.llsn = 0;
    page.perhaps.clear();
  }
  void forget_space() {
    const auto space = static_cast<uint32_t>(300 + rng_.below(2));
    for (auto& [id, page] : pages_)
      if (id.space == space) page.perhaps.insert(0);
    const Status status = forget(space);
    if (medium_.lost()) return;
    ASSERT_TRUE(status.ok()) << status;
    for (auto& [id, page] : pages_)
      if (id.space == space) {
        page.llsn = 0;
        page.perhaps.clear();
      }
  }
  void compare() {
    const auto reply = enter(incarnation_, false);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_TRUE(reply->checkpoint.value == checkpoint_ ||
                reply->checkpoint.value == tried_checkpoint_);
    checkpoint_ = reply->checkpoint.value;
    written_.clear();  // for the pool, too
    for (auto& [id, page] : pages_) {
      const auto found = lookup(id);
      ASSERT_TRUE(found.ok());
      const uint64_t llsn = found->there ? found->at.llsn.value : 0;
      EXPECT_TRUE(llsn == page.llsn || page.perhaps.contains(llsn))
          << id.space << ':' << id.number << " has llsn " << llsn << " after " << page.llsn;
      if (llsn > page.durable) {
        EXPECT_TRUE(found->at.dirty) << "storage lacks it";
      }
      page.llsn = llsn;
      page.perhaps.clear();
    }
  }

  Rng rng_{1};
  uint64_t incarnation_ = 0, lsn_ = 100, checkpoint_ = 0, tried_checkpoint_ = 0;
  std::map<PageId, Page> pages_;
  std::vector<std::pair<PageId, uint64_t>> written_;  // and not synced
};

TEST_F(RandomCalls, PUS9NothingThatWasAnsweredForIsLostWithThePower) {
  const auto number_from = [](const char* name, uint64_t otherwise) {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
  };
  const uint64_t one = number_from("STRATA_SEED", 0);
  const uint64_t rounds = number_from("STRATA_ROUNDS", 12);
  for (uint64_t seed = one != 0 ? one : 1; seed <= (one != 0 ? one : rounds); ++seed) {
    SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
    run(seed);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace strata::memnode
