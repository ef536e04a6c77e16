// Goal: what a pager's thread records is what replay() gets, also when the process is killed
// (FM31); versions and bytes that no writer wrote are refused, at whatever place (FM30); a
// recording that finds no room ends, and says so; a run that was recorded once comes to the same
// counts with each policy as ever (FM32). Method: hand-made recordings in files, and one of a real
// program.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "farmem/trace/trace_reader.h"
#include "farmem/trace/trace_writer.h"

namespace strata::farmem {
namespace {

constexpr uint64_t kPages = 1000;

class TraceTest : public testing::Test {
 protected:
  TraceTest()
      : path_(testing::TempDir() + "trace_test." + std::to_string(::getpid()) + "." +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {}
  ~TraceTest() override { std::filesystem::remove(path_); }

  std::unique_ptr<TraceWriter> writer() const {
    auto made = TraceWriter::create(
        path_,
        {.policy = {.frames = 64, .prefetch = 3}, .pages = kPages, .pid = 7, .name = "program"});
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  void record_a_little() const {
    const auto out = writer();
    out->add(TraceKind::kNew, 5, 0, kTraceWrite);
    out->add(TraceKind::kNew, 6);
    out->mark_quiet();
    out->add(TraceKind::kLeftWritten, 5);
    out->add(TraceKind::kLeftZero, 6);
    out->add(TraceKind::kFetched, 5, 2, 0);
    out->add(TraceKind::kLeftWritten, 7);  // had come along
    out->add(TraceKind::kPinned, 8);
    out->add(TraceKind::kDiscarded, 100, 50);
    out->add(TraceKind::kSoft, 9, 0, kTraceWrite);
    out->mark_quiet();
  }
  std::string bytes() const {
    std::ostringstream out;
    out << std::ifstream(path_, std::ios::binary).rdbuf();
    return out.str();
  }
  void put(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  Status read() const { return read_trace(path_).status(); }

  const std::string path_;
};

TEST_F(TraceTest, GivesBackWhatWasRecorded) {
  record_a_little();
  EXPECT_EQ(std::filesystem::file_size(path_), kTraceHeaderBytes + 9 * sizeof(TraceRecord));
  const Trace trace = *read_trace(path_);
  EXPECT_EQ(trace.program, "program");
  EXPECT_EQ(trace.pid, 7u);
  EXPECT_EQ(trace.pages, kPages);
  EXPECT_EQ(trace.policy.frames, 64u);
  EXPECT_EQ(trace.policy.prefetch, 3u);
  EXPECT_EQ(trace.pinned, 1u);
  EXPECT_EQ(trace.pages_end, 150u);
  EXPECT_EQ(trace.error, 0);
  EXPECT_EQ(trace.recorded, (PageCounts{.faults = 4,
                                        .soft_hits = 1,
                                        .zero_filled = 2,
                                        .fetched = 1,
                                        .prefetched = 2,
                                        .evicted_dirty = 2,
                                        .evicted_zero = 1}));
  ASSERT_EQ(trace.accesses.size(), 7u);
  const auto is = [&](size_t i, uint64_t page, Change change, Event event, bool quiet) {
    const Access& access = trace.accesses[i];
    return access.page == page && access.change == change && access.event == event &&
           access.quiet == quiet;
  };
  EXPECT_TRUE(is(0, 5, Change::kWritten, Event::kTouch, false));
  EXPECT_TRUE(is(1, 6, Change::kCleared, Event::kTouch, true));
  EXPECT_TRUE(is(2, 5, Change::kNone, Event::kTouch, false));  // it was read, and never left
  EXPECT_TRUE(is(3, 6, Change::kNone, Event::kChange, true));
  EXPECT_TRUE(is(4, 7, Change::kWritten, Event::kChange, true));
  EXPECT_TRUE(is(5, 100, Change::kNone, Event::kDiscard, true));
  EXPECT_EQ(trace.accesses[5].pages, 50u);
  EXPECT_TRUE(is(6, 9, Change::kWritten, Event::kTouch, true));  // it wanted to write
}

// More than one piece of the file is mapped for.
TEST_F(TraceTest, LongOnesToo) {
  constexpr uint64_t kRecords = 600'000;
  {
    const auto out = writer();
    for (uint64_t i = 0; i < kRecords; i++) {
      out->add(TraceKind::kNew, i % kPages);
      if (i % 2 == 0) out->mark_quiet();
    }
  }
  const Trace trace = *read_trace(path_);
  ASSERT_EQ(trace.accesses.size(), kRecords);
  for (uint64_t i = 0; i < kRecords; i++) {
    ASSERT_EQ(trace.accesses[i].page, i % kPages);
    ASSERT_EQ(trace.accesses[i].quiet, i % 2 == 0);
  }
}

TEST_F(TraceTest, AKilledProcessLeavesWhatItHadRecorded) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto out = writer();
    for (uint64_t i = 0; i < 100; i++) out->add(TraceKind::kNew, i);
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read_trace(path_)->accesses.size(), 100u);
  EXPECT_GT(std::filesystem::file_size(path_), kTraceHeaderBytes + 100 * sizeof(TraceRecord));
  trim_trace(path_);
  EXPECT_EQ(std::filesystem::file_size(path_), kTraceHeaderBytes + 100 * sizeof(TraceRecord));
  EXPECT_EQ(read_trace(path_)->accesses.size(), 100u);
}

TEST_F(TraceTest, WithoutRoomTheRecordingEndsAndSaysSo) {
  struct sigaction before {};
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &ignore, &before);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small{.rlim_cur = 1 << 20, .rlim_max = limit.rlim_max};
  const auto out = writer();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  out->add(TraceKind::kNew, 1);
  out->add(TraceKind::kNew, 2);
  out->mark_quiet();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  ::sigaction(SIGXFSZ, &before, nullptr);
  out->add(TraceKind::kNew, 3);  // a hole would be no trace
  const Trace trace = *read_trace(path_);
  EXPECT_EQ(trace.error, EFBIG);
  EXPECT_TRUE(trace.accesses.empty());
}

TEST_F(TraceTest, AnotherFileUnderItsNameIsLeftAlone) {
  const auto out = writer();
  std::filesystem::remove(path_);
  put("another one's");
  out->add(TraceKind::kNew, 1);
  EXPECT_EQ(bytes(), "another one's");
}

TEST_F(TraceTest, RefusesOtherVersions) {
  record_a_little();
  std::string changed = bytes();
  changed[offsetof(TraceHeader, version)] = 2;
  put(changed);
  EXPECT_TRUE(is_unsupported(read()));
}

TEST_F(TraceTest, RefusesWhatNoWriterWrote) {
  EXPECT_TRUE(is_not_found(read()));
  put("");
  EXPECT_TRUE(is_corruption(read()));
  put(std::string(10'000, 'x'));
  EXPECT_TRUE(is_corruption(read()));
  record_a_little();
  const std::string good = bytes();
  const size_t header_end = offsetof(TraceHeader, error) + sizeof(uint64_t);
  for (size_t at = 0; at < good.size(); at++) {
    if (at == header_end) at = kTraceHeaderBytes;
    // What ended a recording is any number.
    if (at >= offsetof(TraceHeader, error) && at < header_end) continue;
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x20);
    put(bad);
    ASSERT_FALSE(read().ok()) << at;
  }
  put(good.substr(0, good.size() - 1));
  EXPECT_TRUE(is_corruption(read()));
}

// Python, with 1 MiB of local memory: a table of 300 pages that is filled, probed at random, read
// through twice, with another one of 100 pages between. A policy that decides otherwise than ever
// shows here, and so does a version that reads old traces otherwise.
TEST(RecordedTrace, EachPolicyComesToTheCountsItEverDid) {
  struct Case {
    const char* policy;
    uint32_t frames;
    uint32_t prefetch;
    PageCounts counts;
  };
  const std::vector<Case> cases{
      {"fifo", 128, 0, {3861, 0, 1352, 2509, 0, 1069, 2045, 582}},
      {"fifo", 128, 7, {2407, 81, 1352, 974, 3157, 1099, 3639, 582}},
      {"fifo", 512, 0, {1099, 26, 823, 250, 0, 405, 0, 11}},
      {"fifo", 512, 7, {1260, 326, 823, 111, 208, 410, 40, 30}},
      {"second-chance", 128, 0, {3861, 0, 1352, 2509, 0, 1069, 2045, 582}},
      {"second-chance", 128, 7, {2472, 126, 1352, 994, 3209, 1099, 3711, 582}},
      {"second-chance", 512, 0, {1440, 364, 823, 253, 0, 404, 1, 11}},
      {"second-chance", 512, 7, {1265, 348, 823, 94, 208, 436, 33, 11}},
      {"assoc:1", 128, 0, {3678, 20, 1332, 2326, 0, 1059, 1876, 561}},
      {"assoc:1", 128, 7, {2476, 50, 1333, 1093, 2954, 1081, 3572, 563}},
      {"assoc:1", 512, 0, {1328, 226, 824, 278, 0, 385, 34, 29}},
      {"assoc:1", 512, 7, {1201, 244, 826, 131, 319, 420, 189, 31}},
      {"assoc:16", 128, 0, {3861, 0, 1352, 2509, 0, 1066, 2048, 582}},
      {"assoc:16", 128, 7, {2398, 48, 1352, 998, 3100, 1097, 3601, 582}},
      {"assoc:16", 512, 0, {1157, 76, 823, 258, 0, 405, 1, 10}},
      {"assoc:16", 512, 7, {1046, 125, 823, 98, 187, 420, 17, 11}},
  };
  const auto trace = read_trace(STRATA_TRACES "/hash_join.trace");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->program, "python3.11");
  EXPECT_EQ(*replay(trace->accesses, trace->policy, trace->pages_end), trace->recorded);  // FM32
  for (const Case& one : cases) {
    SCOPED_TRACE(std::string(one.policy) + ", " + std::to_string(one.frames) + " frames, " +
                 std::to_string(one.prefetch) + " along");
    PolicyOptions options{.frames = one.frames, .prefetch = one.prefetch};
    ASSERT_TRUE(parse_policy(one.policy, &options).ok());
    EXPECT_EQ(*replay(trace->accesses, options, trace->pages_end), one.counts);
  }
}

}  // namespace
}  // namespace strata::farmem
