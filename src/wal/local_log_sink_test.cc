#include "wal/local_log_sink.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/fault.h"
#include "base/testing/wait_until.h"
#include "io/file_system.h"
#include "wal/log_reader.h"
#include "wal/testing/test_sink.h"

namespace strata {
namespace {

struct LocalLog : ::testing::Test {
  void SetUp() override {
    options.directory = "/log";
    options.database_id = 42;
    options.segment_bytes = 4096 + 8192;
    options.spare_segments_max = 2;
  }
  std::vector<std::string> names(const std::string& prefix) {
    std::vector<std::string> found;
    const StatusOr<std::vector<std::string>> listed = fs->list("/log");
    EXPECT_TRUE(listed.ok());
    for (const std::string& name : *listed)
      if (name.rfind(prefix, 0) == 0) found.push_back(name);
    return found;
  }
  // Appends `bytes` of groups through a Log and persists them.
  void write(LogSink* sink, Lsn start, uint64_t bytes) {
    Log log({.buffer_bytes = 8192, .node = NodeId{1}}, sink, start, 0);
    while (log.next_lsn().value < start.value + bytes) {
      const StatusOr<LogReservation> r = write_test_group(&log, std::string(500, 'x'));
      ASSERT_TRUE(r.ok()) << r.status();
      ASSERT_TRUE(log.persist(r->end).ok());
    }
    end = log.next_lsn();
  }
  Status scan(LogSink* sink, Lsn start, Lsn* found) {
    LogReader reader(sink, start);
    redo::GroupView group;
    for (;;) {
      STRATA_ASSIGN_OR_RETURN(const bool more, reader.next(&group));
      if (!more) break;
    }
    *found = reader.end_lsn();
    return ok_status();
  }
  std::unique_ptr<SimFileSystem> fs = make_sim_file_system();
  LocalLogOptions options;
  Lsn end;
};

TEST_F(LocalLog, SurvivesACrashAcrossSegments) {
  {
    auto sink = create_local_log(fs.get(), options, Lsn{4096});
    ASSERT_TRUE(sink.ok()) << sink.status();
    write(sink->get(), Lsn{4096}, 50000);
  }
  fs->crash(1);
  auto sink = open_local_log(fs.get(), options);
  ASSERT_TRUE(sink.ok()) << sink.status();
  EXPECT_EQ((*sink)->begin_lsn(), Lsn{4096});
  Lsn found;
  ASSERT_TRUE(scan(sink->get(), Lsn{4096}, &found).ok());
  EXPECT_EQ(found, end);
  EXPECT_EQ(create_local_log(fs.get(), options, Lsn{0}).status().code(),
            StatusCode::kAlreadyExists);
}

// LS7: one file more than the log needs, which only prepare_reserved_room() takes.
TEST_F(LocalLog, KeepsAReserve) {
  options.reserve_segments = 1;
  auto sink = create_local_log(fs.get(), options, Lsn{4096});
  ASSERT_TRUE(sink.ok());
  const uint64_t segment = options.segment_bytes - 4096;
  const auto room = [&] { return (*sink)->room_end().value - 4096; };
  ASSERT_TRUE((*sink)->prepare_room((*sink)->room_end()).ok());
  EXPECT_EQ(names("spare-").size(), 1u);
  ASSERT_TRUE((*sink)->prepare_room(Lsn{4096 + 2 * segment}).ok());
  EXPECT_EQ(names("spare-").size(), 1u);
  fs->set_capacity(0);
  EXPECT_EQ((*sink)->prepare_room(Lsn{4096 + 3 * segment}).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(room(), 2 * segment);
  EXPECT_TRUE((*sink)->prepare_reserved_room(Lsn{4096 + 3 * segment}).ok());
  EXPECT_EQ(room(), 3 * segment);
  EXPECT_FALSE((*sink)->prepare_reserved_room(Lsn{4096 + 4 * segment}).ok());
  EXPECT_FALSE((*sink)->prepare_room((*sink)->room_end()).ok()) << "the reserve is not whole";
  // A checkpoint gives it back, without a byte of the disk.
  ASSERT_TRUE((*sink)->truncate_below(Lsn{4096 + segment}).ok());
  EXPECT_TRUE((*sink)->prepare_room((*sink)->room_end()).ok());
  EXPECT_EQ(room(), 3 * segment);
}

TEST_F(LocalLog, RecyclesSegmentsByRename) {
  auto sink = create_local_log(fs.get(), options, Lsn{4096});
  ASSERT_TRUE(sink.ok());
  write(sink->get(), Lsn{4096}, 50000);
  const size_t before = names("log-").size();
  ASSERT_TRUE((*sink)->truncate_below(end).ok());
  EXPECT_LT(names("log-").size(), before);
  EXPECT_EQ(names("spare-").size(), 2u);
  EXPECT_LE((*sink)->begin_lsn(), end);
  const Lsn begin = end;
  write(sink->get(), begin, 50000);  // through recycled segments, whose old groups must not count
  fs->crash(2);
  sink = open_local_log(fs.get(), options);
  ASSERT_TRUE(sink.ok()) << sink.status();
  Lsn found;
  ASSERT_TRUE(scan(sink->get(), begin, &found).ok());
  EXPECT_EQ(found, end);
  EXPECT_EQ(scan(sink->get(), Lsn{4096}, &found).code(), StatusCode::kDataLoss);
}

TEST_F(LocalLog, MissingSegmentsAreReportedByPath) {
  {
    auto sink = create_local_log(fs.get(), options, Lsn{4096});
    ASSERT_TRUE(sink.ok());
    write(sink->get(), Lsn{4096}, 50000);
  }
  const std::vector<std::string> segments = names("log-");
  ASSERT_GE(segments.size(), 4u);
  ASSERT_TRUE(fs->remove("/log/" + segments[1]).ok());
  auto sink = open_local_log(fs.get(), options);
  ASSERT_TRUE(sink.ok()) << sink.status();
  Lsn found;
  const Status gap = scan(sink->get(), Lsn{4096}, &found);
  EXPECT_EQ(gap.code(), StatusCode::kDataLoss);
  EXPECT_NE(std::string(gap.message()).find(segments[1]), std::string::npos) << gap;
  EXPECT_EQ(names("log-").size(), segments.size() - 1);  // nothing is touched
  ASSERT_TRUE(fs->remove("/log/" + segments[0]).ok());
  sink = open_local_log(fs.get(), options);
  ASSERT_TRUE(sink.ok()) << sink.status();
  const Status first = scan(sink->get(), Lsn{4096}, &found);
  EXPECT_EQ(first.code(), StatusCode::kDataLoss);
  EXPECT_NE(std::string(first.message()).find("/log/"), std::string::npos) << first;
}

TEST_F(LocalLog, AGapIsReportedEvenIfNothingBehindItWasUsed) {
  {
    auto sink = create_local_log(fs.get(), options, Lsn{4096});
    ASSERT_TRUE(sink.ok());
    ASSERT_TRUE((*sink)->prepare_room(Lsn{4096 + 3 * 8192}).ok());
  }
  const std::vector<std::string> segments = names("log-");
  ASSERT_EQ(segments.size(), 3u);
  ASSERT_TRUE(fs->remove("/log/" + segments[1]).ok());
  auto sink = open_local_log(fs.get(), options);
  ASSERT_TRUE(sink.ok()) << sink.status();
  Lsn found;
  const Status gap = scan(sink->get(), Lsn{4096}, &found);
  EXPECT_EQ(gap.code(), StatusCode::kDataLoss);
  EXPECT_NE(std::string(gap.message()).find(segments[1]), std::string::npos) << gap;
}

// Without a journal a power loss may keep some removals and lose others.
TEST_F(LocalLog, WhatIsLeftBelowAHoleThatNobodyNeedsIsRemoved) {  // LS5
  {
    auto sink = create_local_log(fs.get(), options, Lsn{4096});
    ASSERT_TRUE(sink.ok());
    write(sink->get(), Lsn{4096}, 50000);
  }
  const std::vector<std::string> segments = names("log-");
  ASSERT_GE(segments.size(), 4u);
  ASSERT_TRUE(fs->remove("/log/" + segments[1]).ok());
  auto sink = open_local_log(fs.get(), options);
  ASSERT_TRUE(sink.ok()) << sink.status();
  const Lsn begin = (*sink)->begin_lsn();
  EXPECT_EQ(begin, Lsn{4096 + 2 * 8192});
  ASSERT_TRUE((*sink)->truncate_below(begin).ok());
  EXPECT_EQ(names("log-").size(), segments.size() - 2);
  EXPECT_EQ(names("log-").front(), segments[2]);
}

TEST_F(LocalLog, ForeignAndDamagedSegmentsAreRefused) {  // LS1
  {
    auto sink = create_local_log(fs.get(), options, Lsn{4096});
    ASSERT_TRUE(sink.ok());
  }
  const std::string path = "/log/" + names("log-").front();
  LocalLogOptions other = options;
  other.database_id = 43;
  EXPECT_TRUE(is_wrong_database(open_local_log(fs.get(), other).status()));
  other = options;
  other.segment_bytes *= 2;
  EXPECT_EQ(open_local_log(fs.get(), other).status().code(), StatusCode::kDataLoss);
  fs->flip_bit(path, 8 * 17);
  const Status damaged = open_local_log(fs.get(), options).status();
  EXPECT_EQ(damaged.code(), StatusCode::kDataLoss);
  EXPECT_NE(std::string(damaged.message()).find(path), std::string::npos);
  fs->flip_bit(path, 8 * 17);
  EXPECT_TRUE(open_local_log(fs.get(), options).ok());
  options.directory = "/nothing";
  ASSERT_TRUE(fs->make_directory("/nothing").ok());
  EXPECT_EQ(open_local_log(fs.get(), options).status().code(), StatusCode::kDataLoss);
}

TEST_F(LocalLog, AnyCrashWhileASegmentIsMadeLeavesAnOpenableLog) {  // LS2, LS3
  for (uint64_t seed = 0; seed < 40; seed++) {
    fs = make_sim_file_system();
    auto sink = create_local_log(fs.get(), options, Lsn{4096});
    ASSERT_TRUE(sink.ok());
    write(sink->get(), Lsn{4096}, 30000);
    const Lsn durable_end = end;
    if (seed % 2 == 1) {
      ASSERT_TRUE((*sink)->truncate_below(durable_end).ok());
    }
    ASSERT_TRUE(arm_fault("wal_segment_create:1:error"));
    EXPECT_FALSE((*sink)->prepare_room(Lsn{durable_end.value + 100000}).ok());
    disarm_faults();
    if (seed % 4 >= 2) {
      EXPECT_TRUE((*sink)->prepare_room(Lsn{durable_end.value + 30000}).ok());
    }
    fs->crash(seed);
    sink = open_local_log(fs.get(), options);
    ASSERT_TRUE(sink.ok()) << sink.status();
    Lsn found;
    const Lsn from = seed % 2 == 1 ? durable_end : Lsn{4096};
    ASSERT_TRUE(scan(sink->get(), from, &found).ok());
    EXPECT_EQ(found, durable_end);
    write(sink->get(), durable_end, 30000);
  }
}

TEST_F(LocalLog, AFullDiskIsResourceExhaustedAndRecovers) {
  auto sink = create_local_log(fs.get(), options, Lsn{4096});
  ASSERT_TRUE(sink.ok());
  fs->set_capacity(5 * options.segment_bytes);
  const Status full = (*sink)->prepare_room(Lsn{4096 + 20 * 8192});
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted) << full;
  EXPECT_TRUE(names("spare-").empty()) << "the half made file is removed";
  const Lsn room = (*sink)->room_end();
  EXPECT_GT(room, Lsn{4096 + 8192});
  fs->set_capacity(UINT64_MAX);
  EXPECT_TRUE((*sink)->prepare_room(Lsn{4096 + 20 * 8192}).ok());
}

TEST_F(LocalLog, ASegmentIsMadeInPiecesUntilSomebodyWaitsForIt) {
  options.segment_bytes = 2u << 20;
  options.fill_pause_us = 3'600'000'000;
  auto sink = create_local_log(fs.get(), options, Lsn{4096});  // does not pause
  ASSERT_TRUE(sink.ok()) << sink.status();
  const Lsn room = (*sink)->room_end();
  std::atomic<bool> made{false};
  std::thread helper([&] {
    EXPECT_TRUE((*sink)->prepare_room(Lsn{room.value + 1}).ok());
    made = true;
  });
  EXPECT_TRUE(testing::wait_until([&] { return names("spare-").size() == 1; }));
  EXPECT_FALSE(made);
  (*sink)->hurry();
  helper.join();
  EXPECT_GT((*sink)->room_end(), room);
}

// Appended and never synced, as a killed process leaves it: once recovery has read it, it stays.
TEST_F(LocalLog, WhatAReaderHasSeenIsDurableAfterEraseTail) {  // LS4, LR3
  for (uint64_t seed = 1; seed < 40; ++seed) {
    fs = make_sim_file_system();
    {
      auto sink = create_local_log(fs.get(), options, Lsn{4096});
      ASSERT_TRUE(sink.ok());
      TestSink inner;
      Log log({.buffer_bytes = 8192, .node = NodeId{1}}, &inner, Lsn{4096}, 0);
      for (int i = 0; i < 40; ++i) {
        const StatusOr<LogReservation> r = write_test_group(&log, std::string(500, 'x'));
        ASSERT_TRUE(r.ok());
        ASSERT_TRUE(log.persist(r->end).ok());
        std::string bytes(r->end.value - r->start.value, '\0');
        ASSERT_TRUE(inner.read(r->start, bytes.data(), bytes.size()).ok());
        ASSERT_TRUE((*sink)->prepare_room(r->end).ok());
        ASSERT_TRUE((*sink)->append(r->start, bytes).ok());
      }
    }
    auto sink = open_local_log(fs.get(), options);
    ASSERT_TRUE(sink.ok());
    LogReader reader(sink->get(), Lsn{4096});
    redo::GroupView group;
    for (auto more = reader.next(&group); more.ok() && *more;) more = reader.next(&group);
    EXPECT_GT(reader.group_count(), 30u);
    ASSERT_TRUE(reader.erase_tail().ok());
    fs->crash(seed);
    auto again = open_local_log(fs.get(), options);
    ASSERT_TRUE(again.ok());
    Lsn found;
    ASSERT_TRUE(scan(again->get(), Lsn{4096}, &found).ok());
    EXPECT_EQ(found, reader.end_lsn()) << seed;
  }
}

TEST_F(LocalLog, DamageIsLocatedByFileAndByte) {
  {
    auto sink = create_local_log(fs.get(), options, Lsn{4096});
    ASSERT_TRUE(sink.ok());
    write(sink->get(), Lsn{4096}, 50000);
  }
  const std::string path = "/log/" + names("log-")[1];
  fs->flip_bit(path, 8 * 8000);
  auto sink = open_local_log(fs.get(), options);
  ASSERT_TRUE(sink.ok());
  Lsn found;
  const Status status = scan(sink->get(), Lsn{4096}, &found);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(std::string(status.message()).find(path), std::string::npos) << status;
}

}  // namespace
}  // namespace strata
