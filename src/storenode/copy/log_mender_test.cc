// Goal: what is damaged in a log is mended with a peer's bytes (MR1), be it flipped bits or a
// missing file. Method: two log stores on simulated disks, one thread.
#include "storenode/copy/log_mender.h"

#include <gtest/gtest.h>

#include <string>

#include "base/diag.h"
#include "base/rng.h"
#include "storenode/logstore/log_store_runner.h"
#include "storenode/logstore/testing/sync_store.h"

namespace strata::storenode {
namespace {

using strata::testing::SyncStore;

constexpr StreamId kStream{1};
constexpr Epoch kEpoch{1};

LogMender::Place first_of_two() { return {0, 2}; }

class Mending : public ::testing::Test {
 protected:
  Mending() {
    set_diag_sink([](Severity, std::string_view) {});
    Rng rng(3);
    for (char& c : bytes_) c = static_cast<char>(rng.next());
    for (const auto& disk : disks_) {
      SyncStore store(disk.get(), options());
      store.make(kStream, {.last_given = {}, .never_begun = true});
      quorum::Tenure tenure;
      tenure.holder = {kEpoch, 1};
      EXPECT_TRUE(store.begin(kStream, tenure).status.ok());
      for (size_t at = 0; at < bytes_.size(); at += 500)
        EXPECT_TRUE(store.append(kStream, kEpoch, Lsn{at}, bytes_.substr(at, 500), Lsn{at + 500})
                        .status.ok());
      EXPECT_TRUE(store->close().ok());
    }
  }
  ~Mending() override { set_diag_sink(nullptr); }
  static LogStoreOptions options() {
    LogStoreOptions options;
    options.directory = "/node";
    options.segment_bytes = 4096 + 4096;
    options.chunk_bytes_max = 700;
    options.spare_segments_max = 0;
    return options;
  }
  std::string segment(size_t index) {
    std::string found;
    const auto names = disks_[0]->list("/node");
    for (const std::string& name : *names)
      if (name.starts_with("log-") && index-- == 0) found = "/node/" + name;
    EXPECT_FALSE(found.empty());
    return found;
  }
  // Opens the damaged log, mends it, and reads all of it.
  void expect_mended() {
    auto peer = *LogStore::open(disks_[1].get(), options());
    auto store = *LogStore::open(disks_[0].get(), options());
    {
      const LogStoreRunner runner(store.get());
      (void)store->verify(kStream);
      LogMender mender(
          store.get(), first_of_two,
          [&peer](StreamId stream, quorum::ReplicaIndex index, const quorum::ReadRequest& request,
                  SelfCatchUp::FetchDone done) {
            EXPECT_EQ(index, 1u);
            done(peer->read(stream, request));
          },
          [](StreamId, Lsn, Lsn) { ADD_FAILURE() << "the peer has it"; });
      EXPECT_FALSE(store->status(kStream)->damages.empty());
      for (int i = 0; i < 10 && mender.mend(); ++i) (void)store->verify(kStream);
      EXPECT_TRUE(store->verify(kStream).ok()) << store->verify(kStream);
      EXPECT_TRUE(store->status(kStream)->damages.empty());
      EXPECT_GT(mender.mended_ranges(), 0u);
      std::string all;
      while (all.size() < bytes_.size()) {
        const auto read = store->read(kStream, {Lsn{all.size()}, 1u << 20, false, {}});
        ASSERT_TRUE(read.status.ok()) << read.status;
        ASSERT_FALSE(read.bytes.empty());
        all += read.bytes;
      }
      EXPECT_EQ(all, bytes_);
    }
  }
  std::string bytes_ = std::string(40'000, '\0');
  std::unique_ptr<SimFileSystem> disks_[2] = {make_sim_file_system(), make_sim_file_system()};
};

TEST_F(Mending, FlippedBits) {
  disks_[0]->flip_bit(segment(0), 5000 * 8);
  disks_[0]->flip_bit(segment(2), 4500 * 8);
  disks_[0]->flip_bit(segment(2), 7000 * 8);
  expect_mended();
}

TEST_F(Mending, AHeaderThatIsDamaged) {
  disks_[0]->flip_bit(segment(1), 42 * 8);
  expect_mended();
}

TEST_F(Mending, AFileThatIsGone) {
  ASSERT_TRUE(disks_[0]->remove(segment(1)).ok());
  expect_mended();
}

TEST_F(Mending, TheFirstFileIsGone) {
  ASSERT_TRUE(disks_[0]->remove(segment(0)).ok());
  expect_mended();
}

TEST_F(Mending, WithoutAPeerItStaysAsItIs) {
  disks_[0]->flip_bit(segment(0), 5000 * 8);
  auto store = *LogStore::open(disks_[0].get(), options());
  const LogStoreRunner runner(store.get());
  EXPECT_FALSE(store->verify(kStream).ok());
  const auto no_answer = [](StreamId, quorum::ReplicaIndex, const quorum::ReadRequest&,
                            const SelfCatchUp::FetchDone& done) {
    quorum::ReadReply reply;
    reply.status = error_peer_down("down");
    done(std::move(reply));
  };
  LogMender mender(store.get(), first_of_two, no_answer,
                   [](StreamId, Lsn, Lsn) { ADD_FAILURE() << "nobody said so"; });
  EXPECT_FALSE(mender.mend());
  EXPECT_FALSE(store->status(kStream)->damages.empty());
}

TEST_F(Mending, WhatWasCutOffEverywhereIsLost) {
  disks_[0]->flip_bit(segment(0), 5000 * 8);
  auto store = *LogStore::open(disks_[0].get(), options());
  const LogStoreRunner runner(store.get());
  EXPECT_FALSE(store->verify(kStream).ok());
  const Lsn to = store->status(kStream)->damages.front().to;
  SyncStore peer(disks_[1].get(), options());
  ASSERT_TRUE(peer.truncate_prefix(kStream, Lsn{30'000}).status.ok());
  const auto ask_peer =
      [&peer](StreamId stream, quorum::ReplicaIndex, const quorum::ReadRequest& request,
              const SelfCatchUp::FetchDone& done) { done(peer->read(stream, request)); };
  Lsn lost;
  Lsn peers_begin;
  LogMender mender(store.get(), first_of_two, ask_peer, [&](StreamId, Lsn end, Lsn begin) {
    lost = end;
    peers_begin = begin;
  });
  EXPECT_FALSE(mender.mend());
  EXPECT_EQ(lost, to);
  EXPECT_EQ(peers_begin, Lsn{30'000});
  lost = {};
  EXPECT_FALSE(mender.mend());
  EXPECT_EQ(lost, Lsn{}) << "it pauses";
}

}  // namespace
}  // namespace strata::storenode
