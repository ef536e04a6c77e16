// Goal: damage and loss of files are found, reported with their place, and repaired by a peer's
// bytes; nothing else suffers. Method: bits flipped and files removed on a simulated disk.
#include "storenode/logstore/internal/segment_format.h"
#include "storenode/logstore/testing/log_store_fixture.h"

namespace strata::testing {
namespace {

using quorum::ChangeReply;
using quorum::Tenure;

struct LogStoreDamage : LogStoreTest {
  void fill(int appends) {
    start();
    for (int i = 0; i < appends; ++i) write(900);
  }
  void flip(const std::string& path, uint64_t offset) { fs->flip_bit(path, offset * 8 + 3); }
  void lose(const std::string& path) {
    ASSERT_TRUE(fs->remove(path).ok());
    ASSERT_TRUE(fs->sync_directory("/node").ok());
  }
  LogDamage only_damage() {
    const auto status = store->store().status(kStream);
    EXPECT_EQ(status->damages.size(), 1u);
    return status->damages.empty() ? LogDamage{} : status->damages[0];
  }
  void expect_repair(const LogDamage& damage) {
    EXPECT_EQ(store->read(kStream, damage.from, damage.to).status().code(), StatusCode::kDataLoss);
    std::string bytes = content.substr(damage.from.value, damage.to.value - damage.from.value);
    EXPECT_EQ(store->repair(kStream, damage.from, bytes.substr(1)).status.code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(store->repair(kStream, Lsn{damage.from.value + 1}, bytes).status.code(),
              StatusCode::kInvalidArgument);
    const ChangeReply repaired = store->repair(kStream, damage.from, bytes);
    ASSERT_TRUE(repaired.status.ok()) << repaired.status;
    expect_content(store->state(kStream).start.value);
    EXPECT_TRUE(store->store().verify(kStream).ok());
    write(100);
    crash(9);
    expect_content(store->state(kStream).start.value);
    EXPECT_TRUE(store->store().verify(kStream).ok());
    EXPECT_TRUE(store->store().status(kStream)->damages.empty());
  }
};

TEST_F(LogStoreDamage, InAClosedSegmentIsReportedWithItsPlaceAndRepaired) {
  fill(40);
  const std::string path = names("log-")[1];
  flip(path, 4096 + 40 + 100);
  const Status found = store->read(kStream, Lsn{0}, Lsn{content.size()}, Epoch{1}).status();
  EXPECT_EQ(found.code(), StatusCode::kDataLoss);
  EXPECT_TRUE(has(found, path)) << found;
  EXPECT_TRUE(has(found, "byte 4096")) << found;
  const LogDamage damage = only_damage();
  EXPECT_EQ(damage.path, path);
  EXPECT_EQ(damage.offset, 4096u);
  // Bytes before and behind are served.
  EXPECT_EQ(*store->read(kStream, Lsn{0}, damage.from), content.substr(0, damage.from.value));
  const Lsn end = store->state(kStream).quorum_durable;
  EXPECT_EQ(*store->read(kStream, damage.to, end),
            content.substr(damage.to.value, end.value - damage.to.value));
  // Other bytes than those that were there do not pass.
  std::string wrong = content.substr(damage.from.value, damage.to.value - damage.from.value);
  wrong[7] = static_cast<char>(wrong[7] ^ 1);
  EXPECT_EQ(store->repair(kStream, damage.from, wrong).status.code(), StatusCode::kDataLoss);
  expect_repair(damage);
}

// SG4: a place of an older segment that the disk does not read any more is damage like any other.
TEST_F(LogStoreDamage, APlaceThatCannotBeReadIsReportedAndRepaired) {
  fill(40);
  open();
  const std::string path = names("log-")[1];
  uint64_t refused = 0;
  faulty.judge_read = [&](const std::string& of, uint64_t offset, size_t bytes) {
    if (of != path || offset > 5000 || offset + bytes <= 5000) return ok_status();
    ++refused;
    return error_internal("read " + of + ": Input/output error");
  };
  faulty.judge = [&](const char* operation, const std::string& of) {
    if (operation == std::string("rename") && of.find("repair-") != std::string::npos)
      faulty.judge_read = nullptr;  // from now on it is another file
    return ok_status();
  };
  const Status found = store->read(kStream, Lsn{0}, Lsn{content.size()}, Epoch{1}).status();
  EXPECT_EQ(found.code(), StatusCode::kDataLoss);
  EXPECT_TRUE(has(found, path)) << found;
  EXPECT_GT(refused, 3u) << "it was tried again";
  const LogDamage damage = only_damage();
  EXPECT_EQ(damage.path, path);
  EXPECT_EQ(*store->read(kStream, Lsn{0}, damage.from), content.substr(0, damage.from.value));
  expect_repair(damage);
}

// One that can be read at the next try is not; and another error says nothing about the disk.
TEST_F(LogStoreDamage, AnErrorThatPassesIsNoDamage) {
  fill(40);
  open();
  const std::string path = names("log-")[1];
  int left = 2;
  std::string error = "Input/output error";
  faulty.judge_read = [&](const std::string& of, uint64_t, size_t) {
    return of == path && left-- > 0 ? error_internal("read " + of + ": " + error) : ok_status();
  };
  EXPECT_TRUE(store->read(kStream, Lsn{0}, Lsn{content.size()}, Epoch{1}).ok());
  open();
  left = 1000;
  error = "Too many open files";
  EXPECT_EQ(store->read(kStream, Lsn{0}, Lsn{content.size()}, Epoch{1}).status().code(),
            StatusCode::kInternal);
  EXPECT_TRUE(store->store().status(kStream)->damages.empty());
  left = 0;
  EXPECT_TRUE(store->read(kStream, Lsn{0}, Lsn{content.size()}, Epoch{1}).ok());
}

TEST_F(LogStoreDamage, AppliersReadRecentBytesFromMemory) {  // LG7
  options.recent_bytes_max = 2000;
  open();
  fill(10);
  const Lsn end = store->state(kStream).quorum_durable;
  const Lsn from{end.value - 200};
  flip(names("log-").back(), 4096 + 40 + 200);  // in the chunk that ends there
  EXPECT_EQ(*store->read(kStream, from, end), content.substr(from.value, 200));
  EXPECT_EQ(*store->read(kStream, Lsn{0}, Lsn{500}), content.substr(0, 500));  // from the file
  EXPECT_EQ(store->read(kStream, from, end, Epoch{1}).status().code(), StatusCode::kDataLoss);
  // What is cut off is gone from memory, too.
  ASSERT_TRUE(store->begin(kStream, tenure(2, end.value, history({{1, 0}}))).status.ok());
  EXPECT_EQ(store->read(kStream, from, end).status().code(), StatusCode::kDataLoss);
}

TEST_F(LogStoreDamage, OfAChunkHeaderReachesToTheNextWholeOne) {
  fill(40);
  flip(names("log-")[2], 4096 + 9);
  EXPECT_EQ(store->store().verify(kStream).code(), StatusCode::kDataLoss);
  expect_repair(only_damage());
}

TEST_F(LogStoreDamage, OfASegmentHeaderConcernsTheWholeSegment) {
  fill(40);
  const std::string path = names("log-")[2];
  flip(path, 20);
  EXPECT_TRUE(store->store().verify(kStream).ok());  // this life knows the header
  crash();
  const LogDamage damage = only_damage();
  EXPECT_EQ(damage.path, path);
  EXPECT_TRUE(has(error_corruption(damage.what), path));
  expect_repair(damage);
}

TEST_F(LogStoreDamage, AMissingSegmentIsNamed) {
  for (size_t victim : {0u, 2u}) {
    fs = make_sim_file_system();
    content.clear();
    store = std::make_unique<SyncStore>(fs.get(), options);
    fill(40);
    lose(names("log-")[victim]);
    fs->crash(4);
    store = std::make_unique<SyncStore>(fs.get(), options);
    EXPECT_EQ(store->state(kStream).end.value, content.size());
    const Status found = store->read(kStream, Lsn{0}, Lsn{30000}).status();
    EXPECT_EQ(found.code(), StatusCode::kDataLoss);
    (void)store->store().verify(kStream);
    const LogDamage damage = only_damage();
    EXPECT_TRUE(
        has(error_corruption(damage.what),
            "number 000000000000000" + std::to_string(victim + 1) + " of stream 7 is missing"))
        << damage.what;
    const std::string bytes =
        content.substr(damage.from.value, damage.to.value - damage.from.value);
    ASSERT_TRUE(store->repair(kStream, damage.from, bytes).status.ok());
    fs->crash(5);
    store = std::make_unique<SyncStore>(fs.get(), options);
    expect_content();
    EXPECT_TRUE(store->store().verify(kStream).ok());
  }
}

TEST_F(LogStoreDamage, BeforeWhatALaterChunkProvesDurableIsNoTornTail) {
  fill(3);
  const uint64_t chunk = logstore::chunk_bytes(900);
  flip(names("log-")[0], 4096 + chunk + 200);  // the second of three, payload
  crash();
  EXPECT_EQ(store->state(kStream).end.value, content.size());
  LogDamage damage = only_damage();
  EXPECT_EQ(damage.from, Lsn{900});
  EXPECT_EQ(damage.to, Lsn{1800});
  flip(names("log-")[0], 4096 + 4);  // and the header of the first
  crash();
  EXPECT_EQ(store->state(kStream).end.value, content.size());
  ASSERT_EQ(store->store().status(kStream)->damages.size(), 2u);
  ASSERT_TRUE(store->repair(kStream, Lsn{900}, content.substr(900, 900)).status.ok());
  damage = only_damage();
  EXPECT_EQ(damage.from, Lsn{0});
  expect_repair(damage);
}

TEST_F(LogStoreDamage, AtTheVeryEndIsFoundAfterAnOrderlyClose) {
  fill(3);
  const auto unclosed = fs->fork();
  ASSERT_TRUE(store->store().close().ok());
  const uint64_t last = 4096 + 2 * logstore::chunk_bytes(900) + 77;
  flip(names("log-")[0], last);
  crash();
  EXPECT_EQ(store->state(kStream).end.value, content.size());
  EXPECT_EQ(store->store().verify(kStream).code(), StatusCode::kDataLoss);
  const LogDamage damage = only_damage();
  EXPECT_EQ(damage.from, Lsn{1800});
  ASSERT_TRUE(store->repair(kStream, damage.from, content.substr(1800)).status.ok());
  expect_content();
  // Without it, damage of the last batch cannot be told from a torn write.
  unclosed->flip_bit("/node/log-00000007-0000000000000001-0000000000000000.seg", last * 8);
  SyncStore other(unclosed.get(), options);
  EXPECT_EQ(other.state(kStream).end, Lsn{1800});
}

TEST_F(LogStoreDamage, AReplicaThatLostItsTailDoesNotVoteUntilItHasJoinedAnew) {
  fill(40);
  lose(names("log-").back());
  crash();
  const quorum::ReplicaState lost = store->state(kStream);
  EXPECT_FALSE(lost.voting);
  EXPECT_LT(lost.end.value, content.size());
  crash(2);
  EXPECT_FALSE(store->state(kStream).voting);
  // The writer of its epoch fills it up and says from where on it may vote.
  const uint64_t end = store->state(kStream).end.value;
  ASSERT_TRUE(store->append(kStream, Epoch{1}, Lsn{end}, content.substr(end, 10)).status.ok());
  ASSERT_TRUE(store->begin(kStream, tenure(1, 0), Lsn{content.size()}).status.ok());
  EXPECT_FALSE(store->state(kStream).voting);
  ASSERT_TRUE(
      store->append(kStream, Epoch{1}, Lsn{end + 10}, content.substr(end + 10)).status.ok());
  EXPECT_TRUE(store->state(kStream).voting);
  crash(3);
  EXPECT_TRUE(store->state(kStream).voting);
  expect_content();
}

TEST_F(LogStoreDamage, OfTheControlFileStopsTheStreamOnly) {
  fill(3);
  ASSERT_TRUE(store->begin(StreamId{8}, tenure(1, 0)).status.ok());
  flip("/node/stream-00000007.ctl", 100);
  crash();
  expect_content();  // the other slot is whole
  flip("/node/stream-00000007.ctl", 16384 + 100);
  flip("/node/stream-00000007.ctl", 200);
  crash(2);
  const auto status = store->store().status(kStream);
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->failure.code(), StatusCode::kDataLoss);
  EXPECT_TRUE(has(status->failure, "/node/stream-00000007.ctl")) << status->failure;
  EXPECT_EQ(store->append(kStream, Epoch{1}, Lsn{0}, "x").status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(store->seal(kStream, {Epoch{9}, 1}).status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(store->read(kStream, Lsn{0}, Lsn{1}).status().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(store->append(StreamId{8}, Epoch{1}, Lsn{0}, "x").status.ok());
  lose("/node/stream-00000007.ctl");
  crash(3);
  EXPECT_TRUE(has(store->store().status(kStream)->failure, "no control file"));
}

TEST_F(LogStoreDamage, FilesOfAnotherClusterAreRefused) {
  fill(3);
  options.cluster_id = 43;
  crash();
  EXPECT_TRUE(is_wrong_database(store->store().status(kStream)->failure));
  EXPECT_TRUE(has(store->store().status(kStream)->failure, "another cluster"));
}

}  // namespace
}  // namespace strata::testing
