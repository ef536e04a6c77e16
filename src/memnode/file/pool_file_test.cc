// Goal: a pool's file keeps its promises (MF1-MF7, MST1, MST2). Method: each by hand; children
// that are killed while they use one; a medium whose syncs fail, or that loses power at any of
// them; files of any bytes, of which nothing may crash and no wrong page may come.
#include "memnode/file/pool_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <vector>

#include "base/diag.h"
#include "base/rng.h"
#include "memnode/file/testing/medium.h"
#include "memnode/pool/slot_header.h"
#include "memnode/pool/testing/pool_memory.h"
#include "transport/calls/testing/io_node.h"

namespace strata::memnode {
namespace {

using test::page_of;
using test::put;
using Checkpoint = StateRecords::Checkpoint;
using User = StateRecords::User;

constexpr uint32_t kSlots = 32;
constexpr PageId kPage{300, 1};

uint32_t lines_logged = 0;

class PoolFiles : public ::testing::Test {
 protected:
  PoolFiles() {
    lines_logged = 0;
    set_diag_sink([](Severity, std::string_view) { lines_logged++; });
  }
  PoolFileOptions options() {
    return {.path = folder_ / "pool",
            .stream = StreamId{7},
            .node = 42,
            .pool = {.slots = kSlots},
            .boot = std::nullopt};
  }
  std::unique_ptr<PoolFile> open() {
    auto file = PoolFile::open(options());
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  void flip(off_t at, int bit = 3) {
    const transport::FileDescriptor file(::open(options().path.c_str(), O_RDWR));
    char byte = 0;
    ASSERT_EQ(::pread(file.get(), &byte, 1, at), 1);
    byte ^= static_cast<char>(1 << bit);
    ASSERT_EQ(::pwrite(file.get(), &byte, 1, at), 1);
  }
  ino_t inode() {
    struct stat info {};
    EXPECT_EQ(::stat(options().path.c_str(), &info), 0);
    return info.st_ino;
  }
  transport::test::Folder folder_;
};

constexpr off_t kState = transport::kRegionHeaderBytes;

TEST_F(PoolFiles, WhatAnEarlierProcessLeftIsThere) {
  uint64_t incarnation = 0;
  {
    const auto file = open();
    EXPECT_FALSE(file->found());
    EXPECT_EQ(file->user(), User());
    EXPECT_EQ(file->checkpoint(), Checkpoint());
    incarnation = file->incarnation();
    EXPECT_NE(incarnation, 0u);
    ASSERT_TRUE(put(file->pool(), kPage, Llsn{5}, Lsn{10}).ok());
    ASSERT_TRUE(file->accept({Epoch{3}, 1}).ok());
    ASSERT_TRUE(file->set_checkpoint({Epoch{3}, Lsn{9}, 17}).ok());
  }
  const auto file = open();
  EXPECT_TRUE(file->found());
  EXPECT_EQ(file->incarnation(), incarnation);
  EXPECT_EQ(file->pool()->lookup(kPage)->llsn, Llsn{5});
  EXPECT_EQ(file->pool()->oldest_dirty(), Lsn{10});
  EXPECT_EQ(file->user(), (User{Epoch{3}, 1}));
  EXPECT_EQ(file->checkpoint(), (Checkpoint{Epoch{3}, Lsn{9}, 17}));
  EXPECT_EQ(lines_logged, 0u);
}

TEST_F(PoolFiles, AFileThatIsThereKeepsItsNumberOfSlots) {
  { open(); }
  PoolFileOptions more = options();
  more.pool.slots = 100;
  const auto file = PoolFile::open(more);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->slots(), kSlots);
  EXPECT_TRUE((*file)->found());
}

TEST_F(PoolFiles, PeersFindHeadersAndPagesWhereItSays) {
  const auto file = open();
  const auto slot = put(file->pool(), kPage, Llsn{5});
  ASSERT_TRUE(slot.ok());
  const char* const data = file->region()->data();
  SlotHeader header;
  std::memcpy(&header, data + file->headers_at() + slot->number * sizeof header, sizeof header);
  EXPECT_EQ(header.generation, slot->generation);
  EXPECT_EQ(Bytes(data + file->pages_at() + slot->number * kPageBytes, kPageBytes),
            page_of(kPage, Llsn{5}));
  EXPECT_EQ(file->region()->bytes(), PoolFile::region_bytes(kSlots));
}

TEST_F(PoolFiles, MF1DiscardedContentEndsItsIncarnationInTheSameFile) {
  const auto file = open();
  const ino_t before = inode();
  const uint64_t incarnation = file->incarnation();
  const auto slot = put(file->pool(), kPage, Llsn{5}, Lsn{10});
  ASSERT_TRUE(slot.ok());
  ASSERT_TRUE(file->accept({Epoch{3}, 2}).ok());
  ASSERT_TRUE(file->set_checkpoint({Epoch{3}, Lsn{9}, 17}).ok());
  ASSERT_TRUE(file->discard().ok());
  EXPECT_NE(file->incarnation(), incarnation);
  EXPECT_EQ(file->pool()->lookup(kPage), std::nullopt);
  EXPECT_EQ(file->checkpoint(), Checkpoint()) << "it was of the other content";
  EXPECT_EQ(file->user(), (User{Epoch{3}, 2})) << "MF4";
  const auto* const headers =
      reinterpret_cast<const SlotHeader*>(file->region()->data() + file->headers_at());
  EXPECT_GT(headers[slot->number].generation, slot->generation) << "a reader who slept sees that";
  EXPECT_EQ(inode(), before);
}

TEST_F(PoolFiles, MF2OneFailureDiscardsAllOfIt) {
  const off_t headers = kState + static_cast<off_t>(kStateBytes);
  const off_t pages = kState + static_cast<off_t>(PoolFile::pages_at(kSlots));
  for (const off_t at : {headers, headers + 33, pages + 5000}) {
    uint64_t incarnation = 0;
    {
      const auto file = open();
      incarnation = file->incarnation();
      ASSERT_EQ(put(file->pool(), kPage, Llsn{5}, Lsn{10})->number, 0u);
      ASSERT_TRUE(put(file->pool(), PageId{300, 2}, Llsn{5}).ok());
    }
    const ino_t before = inode();
    flip(at);
    lines_logged = 0;
    {
      const auto file = open();
      EXPECT_EQ(lines_logged, 1u);
      EXPECT_FALSE(file->found());
      EXPECT_NE(file->incarnation(), incarnation);
      EXPECT_EQ(file->pool()->counts().free, kSlots);
      EXPECT_EQ(inode(), before);
    }
    lines_logged = 0;
    const auto file = open();
    EXPECT_TRUE(file->found()) << "it is as good as new";
    EXPECT_EQ(lines_logged, 0u);
    ASSERT_EQ(::unlink(options().path.c_str()), 0);
  }
}

TEST_F(PoolFiles, MF2AFileThatIsNoPoolIsMadeOne) {
  // Not a region at all; a region of another size; a region in which a process was killed at once.
  const std::string path = options().path;
  {
    const transport::FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT, 0600));
    ASSERT_EQ(::write(file.get(), "something", 9), 9);
  }
  { EXPECT_FALSE(open()->found()); }
  EXPECT_EQ(lines_logged, 1u);
  { ASSERT_TRUE(transport::Region::create(path, 8192, 1).ok()); }
  { EXPECT_FALSE(open()->found()); }
  EXPECT_EQ(lines_logged, 1u) << "there was nothing in it";
  { ASSERT_TRUE(transport::Region::create(path, PoolFile::region_bytes(kSlots), 1).ok()); }
  const ino_t before = inode();
  EXPECT_FALSE(open()->found());
  EXPECT_EQ(lines_logged, 1u);
  EXPECT_EQ(inode(), before);
  EXPECT_TRUE(open()->found());
}

TEST_F(PoolFiles, MF3AFileOfAnotherNodeOrStreamIsNotTouched) {
  {
    const auto file = open();
    ASSERT_TRUE(put(file->pool(), kPage, Llsn{5}, Lsn{10}).ok());
  }
  PoolFileOptions other = options();
  other.node = 43;
  EXPECT_TRUE(is_wrong_database(PoolFile::open(other).status()));
  other = options();
  other.stream = StreamId{8};
  EXPECT_TRUE(is_wrong_database(PoolFile::open(other).status()));
  EXPECT_TRUE(open()->pool()->lookup(kPage).has_value());
}

TEST_F(PoolFiles, MF4WhoWasRefusedOnceStaysRefused) {
  {
    const auto file = open();
    EXPECT_TRUE(is_fenced(file->accept({Epoch{0}, 0})));
    ASSERT_TRUE(file->accept({Epoch{3}, 2}).ok());
    EXPECT_TRUE(is_fenced(file->accept({Epoch{3}, 2})));
    EXPECT_TRUE(is_fenced(file->accept({Epoch{3}, 1})));
    EXPECT_TRUE(is_fenced(file->accept({Epoch{2}, 9})));
    ASSERT_TRUE(file->discard().ok());
    EXPECT_TRUE(is_fenced(file->accept({Epoch{3}, 2})));
  }
  const auto file = open();
  EXPECT_TRUE(is_fenced(file->accept({Epoch{3}, 2})));
  EXPECT_TRUE(file->accept({Epoch{3}, 3}).ok());
  EXPECT_TRUE(file->accept({Epoch{4}, 1}).ok());
}

TEST_F(PoolFiles, ACheckpointDoesNotGoBack) {
  const auto file = open();
  ASSERT_TRUE(file->set_checkpoint({Epoch{3}, Lsn{9}, 1}).ok());
  ASSERT_TRUE(file->set_checkpoint({Epoch{3}, Lsn{9}, 1}).ok()) << "told again";
  EXPECT_TRUE(is_conflict(file->set_checkpoint({Epoch{3}, Lsn{8}, 1})));
  EXPECT_TRUE(is_conflict(file->set_checkpoint({Epoch{2}, Lsn{10}, 1})));
  ASSERT_TRUE(file->set_checkpoint({Epoch{3}, Lsn{10}, 2}).ok());
  ASSERT_TRUE(file->set_checkpoint({Epoch{4}, Lsn{5}, 3}).ok()) << "redo from there, too, is right";
  EXPECT_EQ(file->checkpoint(), (Checkpoint{Epoch{4}, Lsn{5}, 3}));
}

TEST_F(PoolFiles, MS2OfTheTwoPlacesOfACheckpointOneMayBeDamaged) {
  for (const off_t place : {6, 7}) {
    {
      const auto file = open();
      ASSERT_TRUE(file->discard().ok());
      ASSERT_TRUE(file->set_checkpoint({Epoch{3}, Lsn{9}, 1}).ok());
      ASSERT_TRUE(file->set_checkpoint({Epoch{3}, Lsn{10}, 2}).ok());
    }
    flip(kState + 64 * place + 17);
    const auto file = open();
    const Lsn lsn = file->checkpoint().lsn;
    EXPECT_TRUE(lsn == Lsn{9} || lsn == Lsn{10});
    EXPECT_EQ(file->checkpoint().bias, lsn.value - 8);
    ASSERT_TRUE(file->set_checkpoint({Epoch{3}, Lsn{11}, 3}).ok());
    EXPECT_EQ(file->checkpoint().lsn, Lsn{11});
  }
}

TEST_F(PoolFiles, MF5WhatAnEarlierBootLeftIsDiscarded) {
  PoolFileOptions before = options();
  before.boot = Boot{1, 2};
  uint64_t incarnation = 0;
  {
    const auto file = PoolFile::open(before);
    ASSERT_TRUE(file.ok());
    incarnation = (*file)->incarnation();
    ASSERT_TRUE(put((*file)->pool(), kPage, Llsn{5}, Lsn{10}).ok());
    ASSERT_TRUE((*file)->accept({Epoch{3}, 2}).ok());
  }
  {
    const auto file = PoolFile::open(before);
    ASSERT_TRUE(file.ok());
    EXPECT_TRUE((*file)->found());
  }
  EXPECT_EQ(lines_logged, 0u);
  PoolFileOptions after = options();
  after.boot = Boot{1, 3};
  const auto file = PoolFile::open(after);
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE((*file)->found());
  EXPECT_NE((*file)->incarnation(), incarnation);
  EXPECT_EQ((*file)->pool()->lookup(kPage), std::nullopt);
  EXPECT_EQ(lines_logged, 1u);
}

TEST_F(PoolFiles, MF5OnAPersistentMediumItIsThereAfterTheMachinesRestart) {
  const auto open_as = [&](bool persistent, uint64_t boot) {
    PoolFileOptions as = options();
    as.persistent = persistent;
    as.boot = Boot{1, boot};
    auto file = PoolFile::open(as);
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  };
  uint64_t incarnation = 0;
  {
    const auto file = open_as(true, 2);
    incarnation = file->incarnation();
    ASSERT_TRUE(put(file->pool(), kPage, Llsn{5}, Lsn{10}).ok());
    ASSERT_TRUE(file->persist().ok());
    ASSERT_TRUE(file->accept({Epoch{3}, 2}).ok());
  }
  {
    const auto file = open_as(true, 3);
    EXPECT_TRUE(file->found());
    EXPECT_EQ(file->incarnation(), incarnation);
    EXPECT_EQ(file->pool()->lookup(kPage)->llsn, Llsn{5});
    EXPECT_EQ(file->user(), (User{Epoch{3}, 2}));
    ASSERT_TRUE(file->discard().ok());
    EXPECT_NE(file->incarnation(), incarnation);
    ASSERT_TRUE(put(file->pool(), kPage, Llsn{6}, Lsn{10}).ok());
  }
  // Once it was used without syncs, it is as good as memory.
  { EXPECT_TRUE(open_as(false, 3)->found()); }
  { EXPECT_FALSE(open_as(true, 4)->found()); }
  // From memory to persistent within a boot: all of it was synced then.
  { ASSERT_TRUE(open_as(false, 4)->discard().ok()); }
  {
    const auto file = open_as(false, 4);
    ASSERT_TRUE(put(file->pool(), kPage, Llsn{7}, Lsn{10}).ok());
  }
  { EXPECT_TRUE(open_as(true, 4)->found()); }
  EXPECT_EQ(open_as(true, 5)->pool()->lookup(kPage)->llsn, Llsn{7});
}

TEST_F(PoolFiles, MF5AMachineThatDoesNotTellItsBootFindsNothing) {
  PoolFileOptions silent = options();
  silent.boot = Boot{};
  { ASSERT_TRUE(PoolFile::open(silent).ok()); }
  const auto file = PoolFile::open(silent);
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE((*file)->found());
}

TEST_F(PoolFiles, MF6OneProcessUsesItAtATime) {
  {
    const auto file = open();
    EXPECT_TRUE(is_in_use(PoolFile::open(options()).status()));
    ASSERT_TRUE(put(file->pool(), kPage, Llsn{5}).ok());
  }
  EXPECT_TRUE(open()->found());
}

// --- a medium that fails, or loses power ---------------------------------------------------------

class PersistentFiles : public PoolFiles {
 protected:
  PoolFileOptions persistent() {
    PoolFileOptions as = options();
    as.persistent = true;
    return as;
  }
  std::unique_ptr<PoolFile> open_persistent() {
    auto file = PoolFile::open(persistent());
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  // A content with kPage, durable. Its incarnation.
  uint64_t make_content() {
    const auto file = open_persistent();
    EXPECT_TRUE(file->discard().ok());
    EXPECT_TRUE(put(file->pool(), kPage, Llsn{5}, Lsn{10}).ok());
    EXPECT_TRUE(file->persist().ok());
    return file->incarnation();
  }
  // Which parts of what was not synced a power loss has kept: what of the state, of the headers, of
  // the pages; or any.
  std::vector<std::function<bool(uint64_t)>> ways() {
    std::vector<std::function<bool(uint64_t)>> ways;
    for (uint32_t kept = 0; kept < 4; kept++)
      ways.emplace_back([kept](uint64_t at) { return ((at < kStateBytes ? 1u : 2u) & kept) != 0; });
    for (int any = 0; any < 8; any++)
      ways.emplace_back([this](uint64_t) { return rng_.one_in(2); });
    return ways;
  }
  Rng rng_{7};
  test::Medium medium_{options().path};
};

TEST_F(PersistentFiles, MF7ASyncThatFailsWhileItIsOpenedEndsTheContent) {
  for (uint32_t after = 0;; after++) {
    const uint64_t incarnation = make_content();
    {
      const auto file = open_persistent();
      // A process that is killed here has told nobody of it.
      ASSERT_TRUE(put(file->pool(), kPage, Llsn{6}, Lsn{10}).ok());
    }
    medium_.fail(after, 1);
    const auto failed = PoolFile::open(persistent());
    medium_.heal();
    if (failed.ok()) {
      EXPECT_GE(after, 2u);
      EXPECT_EQ((*failed)->incarnation(), incarnation);
      break;
    }
    EXPECT_NE(failed.status().message().find("cannot be made durable"), std::string_view::npos);
    // The medium has lost llsn 6, and the next sync goes well all the same.
    const auto file = open_persistent();
    EXPECT_FALSE(file->found());
    EXPECT_NE(file->incarnation(), incarnation);
    EXPECT_EQ(file->pool()->lookup(kPage), std::nullopt);
  }
}

TEST_F(PersistentFiles, MF7TheEndOfAContentIsDurableBeforeAnythingOfItChanges) {
  for (uint32_t after = 0; after < 4; after++) {
    for (const auto& way : ways()) {
      const uint64_t incarnation = make_content();
      open_persistent()->end_content();  // and the process is killed
      medium_.lose_power(after);
      open_persistent();
      medium_.restore(way);
      const auto file = open_persistent();
      if (file->incarnation() == incarnation) {
        ASSERT_TRUE(file->pool()->lookup(kPage).has_value()) << after;
      } else {
        ASSERT_FALSE(file->pool()->lookup(kPage).has_value()) << after;
      }
    }
  }
}

TEST_F(PersistentFiles, MF7AContentThatBeganWithAFailedSyncIsNotBelieved) {
  for (uint32_t after = 0; after < 4; after++) {
    for (const auto& way : ways()) {
      const uint64_t incarnation = make_content();
      {
        const auto file = open_persistent();
        medium_.fail(after, 1);
        EXPECT_EQ(file->discard().ok(), after >= 3) << after;
        medium_.heal();
      }
      uint64_t next = 0;
      {
        const auto file = open_persistent();
        next = file->incarnation();
        ASSERT_NE(next, incarnation);
        ASSERT_EQ(file->pool()->lookup(kPage), std::nullopt);
        ASSERT_TRUE(put(file->pool(), PageId{300, 2}, Llsn{5}, Lsn{10}).ok());
        ASSERT_TRUE(file->persist().ok());
      }
      medium_.restore(way);
      const auto file = open_persistent();
      ASSERT_EQ(file->incarnation(), next);
      ASSERT_EQ(file->pool()->lookup(kPage), std::nullopt) << "a page of the content before it";
      ASSERT_TRUE(file->pool()->lookup(PageId{300, 2}).has_value());
    }
  }
}

// --- killed at any place -----------------------------------------------------------------------

// Says after each round, in a byte, that it is published and stated.
[[noreturn]] void use_file(const PoolFileOptions& options, int say) {
  auto file = PoolFile::open(options);
  if (!file.ok()) ::_exit(1);
  const uint64_t begin = (*file)->user().number;
  for (uint64_t round = begin + 1;; round++) {
    if (round % 64 == 0 && !(*file)->discard().ok()) ::_exit(4);
    const Status put_there = put((*file)->pool(), kPage, Llsn{round}, Lsn{round}).status();
    if (!put_there.ok() || !(*file)->accept({Epoch{1}, round}).ok() ||
        !(*file)->set_checkpoint({Epoch{1}, Lsn{round}, round}).ok())
      ::_exit(2);
    if (round % 16 == 0 && ::write(say, "x", 1) != 1) ::_exit(3);
  }
}

TEST_F(PoolFiles, AKilledProcessLeavesAWholeFile) {
  Rng rng(5);
  uint64_t last = 0;
  for (int kill = 0; kill < 25; kill++) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const transport::FileDescriptor hear(pipe[0]);
    transport::FileDescriptor say(pipe[1]);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) use_file(options(), say.get());
    say.reset();
    for (uint64_t n = 1 + rng.below(10); n > 0; n--) {
      char byte;
      ASSERT_EQ(::read(hear.get(), &byte, 1), 1) << "the child has failed";
    }
    for (uint64_t n = rng.below(20'000); n > 0; n--) asm volatile("");  // anywhere in its round
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const auto file = open();
    EXPECT_EQ(lines_logged, 0u) << "nothing was damaged";
    const uint64_t number = file->user().number;
    EXPECT_GT(number, last);
    last = number;
    // It may have been killed while it discarded; then nothing is there.
    const auto slot = file->pool()->lookup(kPage);
    if (slot.has_value()) {
      EXPECT_TRUE(slot->llsn.value == number || slot->llsn.value == number + 1);
      EXPECT_EQ(Bytes(file->pool()->bytes_of(slot->number), kPageBytes),
                page_of(kPage, slot->llsn));
    } else {
      EXPECT_EQ((number + 1) % 64, 0u);
    }
    const Checkpoint checkpoint = file->checkpoint();
    EXPECT_EQ(checkpoint.bias, checkpoint.lsn.value);
    if (!checkpoint.lsn.is_zero()) {
      EXPECT_TRUE(checkpoint.lsn.value == number || checkpoint.lsn.value + 1 == number);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

// --- any bytes ---------------------------------------------------------------------------------

// The file is opened, every page in it is the one that it says it is, and it can be used.
void expect_harmless(const PoolFileOptions& options, bool may_be_refused) {
  const auto file = PoolFile::open(options);
  if (!file.ok()) {
    EXPECT_TRUE(may_be_refused && is_wrong_database(file.status())) << file.status();
    return;
  }
  Pool* const pool = (*file)->pool();
  pool->check();
  for (uint32_t slot = 0; slot < (*file)->slots(); slot++) {
    const auto id = pool->page_at(slot);
    if (!id.has_value()) continue;
    EXPECT_EQ(Bytes(pool->bytes_of(slot), kPageBytes), page_of(*id, pool->lookup(*id)->llsn));
  }
  EXPECT_TRUE((*file)->accept({Epoch{UINT64_MAX}, UINT64_MAX}).ok() || may_be_refused);
  EXPECT_TRUE(put(pool, PageId{77, 7}, Llsn{UINT64_MAX}, Lsn{3}).ok());
}

TEST_F(PoolFiles, OfAnyBytesDoNoHarm) {
  const char* const wanted = std::getenv("STRATA_SEED");
  const uint64_t seed = wanted == nullptr ? 3 : std::strtoull(wanted, nullptr, 10);
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  Rng rng(seed);
  std::string good(transport::kRegionHeaderBytes + PoolFile::region_bytes(kSlots), '\0');
  {
    const auto file = open();
    for (uint32_t i = 0; i < 20; i++)
      ASSERT_TRUE(put(file->pool(), PageId{300, i}, Llsn{i + 1}, Lsn{i + 1}).ok());
    ASSERT_TRUE(file->accept({Epoch{3}, 2}).ok());
    ASSERT_TRUE(file->set_checkpoint({Epoch{3}, Lsn{9}, 17}).ok());
  }
  {
    const transport::FileDescriptor file(::open(options().path.c_str(), O_RDONLY));
    ASSERT_EQ(::pread(file.get(), good.data(), good.size(), 0), static_cast<ssize_t>(good.size()));
  }
  const size_t pages = transport::kRegionHeaderBytes + PoolFile::pages_at(kSlots);
  for (int round = 0; round < 300; round++) {
    std::string bad = good;
    const uint64_t manner = rng.below(4);
    for (uint64_t n = 1 + rng.below(manner == 0 ? 1 : 40); n > 0; n--) {
      const size_t at = rng.below(rng.one_in(4) ? bad.size() : pages);
      if (manner == 3) {  // a piece of it from another place
        const size_t bytes = std::min<size_t>(1 + rng.below(200), bad.size() - at);
        const size_t from = rng.below(bad.size() - bytes);
        bad.replace(at, bytes, good.substr(from, bytes));
      } else {
        bad[at] = manner == 2 ? static_cast<char>(rng.next())
                              : static_cast<char>(bad[at] ^ (1 << rng.below(8)));
      }
    }
    if (rng.one_in(10)) bad.resize(rng.below(bad.size()));
    {
      const transport::FileDescriptor file(
          ::open(options().path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600));
      ASSERT_EQ(::pwrite(file.get(), bad.data(), bad.size(), 0), static_cast<ssize_t>(bad.size()));
    }
    expect_harmless(options(), true);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace strata::memnode
