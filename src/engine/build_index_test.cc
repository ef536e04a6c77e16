// ADD INDEX in place: what is in the new tree, who may read it, and what is left when it fails.
#include <gtest/gtest.h>

#include "base/fault.h"
#include "engine/testing/test_database.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

class BuildIndexTest : public ::testing::Test {
 protected:
  void SetUp() override {
    start();
    session_->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(session_->create_table(table_spec("t"), nullptr).ok());
    ASSERT_TRUE(session_->commit().ok());
  }
  void start() {
    auto opened = Kernel::open(options_on(disk_.get()));
    ASSERT_TRUE(opened.ok()) << opened.status();
    kernel_ = std::move(opened).value();
    session_ = kernel_->new_session();
  }
  void restart(uint64_t seed) {
    session_.reset();
    disk_->crash(seed);
    kernel_.reset();
    start();
  }
  TableRef table() { return *kernel_->new_session()->open_table("test", "t"); }
  void fill(uint64_t first, uint64_t last) {
    session_->begin(Isolation::kRepeatableRead);
    const TableRef t = table();
    for (uint64_t id = first; id <= last; ++id) {
      const Row row{id * 1000, static_cast<uint32_t>(id * 7919 % 100003),
                    "text " + std::to_string(id), id % 50 == 0 ? std::string(30000, 'b') : ""};
      ASSERT_TRUE(insert(session_.get(), t, id, row).ok());
      rows_[id] = row;
    }
    ASSERT_TRUE(session_->commit().ok());
  }
  void add(bool unique) {
    session_->begin(Isolation::kReadCommitted);
    const Status added = add_index(session_.get(), "t", unique);
    ASSERT_TRUE(added.ok()) << added;
    ASSERT_TRUE(session_->commit().ok());
  }
  void expect_all() {
    const TableRef t = table();
    auto session = kernel_->new_session();
    session->begin(Isolation::kRepeatableRead);
    for (uint32_t i = 0; i < t->spec().indexes.size(); ++i) {
      EXPECT_TRUE(*scan(session.get(), t, i) == rows_) << i;
      EXPECT_TRUE(*scan(session.get(), t, i, true) == rows_) << i;
    }
    ASSERT_TRUE(session->rollback().ok());
    expect_consistent(kernel_.get(), t);
  }
  size_t files() { return disk_->list("/db/pages")->size(); }

  std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  std::unique_ptr<Kernel> kernel_;
  std::unique_ptr<Session> session_;
  Rows rows_;
};

TEST_F(BuildIndexTest, HoldsEveryRowWhateverFitsInMemoryAndSurvivesACrash) {
  fill(1, 4000);  // 64 KiB of memory: several sorted files
  add(false);
  add(true);
  expect_all();
  EXPECT_TRUE(disk_->list("/db/sort")->empty());
  restart(3);
  expect_all();
  fill(4001, 4500);  // the new indexes are kept up
  expect_all();
}

TEST_F(BuildIndexTest, AnEmptyTableGetsEmptyIndexes) {
  add(true);
  add(false);
  expect_all();
  fill(1, 10);
  expect_all();
}

TEST_F(BuildIndexTest, DuplicatesAreNamedAndNothingIsLeft) {
  fill(1, 300);
  const size_t before = files();
  session_->begin(Isolation::kReadCommitted);
  TableSpec spec = table()->spec();
  spec.indexes.push_back(new_index("groups", true));
  IndexBuild build;
  build.entries_of = [](Bytes key, Bytes bytes, const IndexBuild::External&,
                        const IndexBuild::Emit& emit) -> Status {
    Row row;
    STRATA_RETURN_IF_ERROR(decode(bytes, &row));
    const bool null = row.group % 2 == 0;  // nulls do not conflict
    const std::string group = be32(null ? 0 : row.group % 10 == 1 ? 1 : row.group);
    return emit(EntryImage{3, group, !null, key});
  };
  EXPECT_TRUE(is_duplicate_key(session_->build_indexes(table(), &spec, &build)));
  EXPECT_EQ(build.duplicate_index, 3u);
  ASSERT_EQ(build.duplicate_row.size(), 8u);
  EXPECT_EQ(rows_.at(load_be64(build.duplicate_row.data())).group % 10, 1u);
  ASSERT_TRUE(session_->rollback().ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(kernel_->checkpoint().ok());
  expect_all();
  restart(5);
  EXPECT_EQ(files(), before);
  EXPECT_TRUE(disk_->list("/db/sort")->empty());
}

TEST_F(BuildIndexTest, ABuildThatIsGivenUpOrFailsLeavesTheTableAsItWas) {
  fill(1, 3000);
  const size_t before = files();
  for (int kind = 0; kind < 4; ++kind) {
    session_->begin(Isolation::kReadCommitted);
    TableSpec spec = table()->spec();
    spec.indexes.push_back(new_index("more", false));
    IndexBuild build;
    if (kind == 0) build.progress = [](uint64_t, uint64_t) { return error_interrupted(); };
    if (kind == 1) arm_fault("index_build_half:3:error");
    if (kind == 2) arm_fault("index_build_done:1:error");
    if (kind == 3) disk_->set_capacity(1);
    const Status built = build_indexes(session_.get(), table(), &spec, &build);
    disarm_faults();
    disk_->set_capacity(UINT64_MAX);
    EXPECT_FALSE(built.ok()) << kind;
    EXPECT_EQ(is_interrupted(built), kind == 0) << built;
    EXPECT_EQ(is_no_space(built), kind == 3) << built;
    ASSERT_TRUE(session_->rollback().ok());
    expect_all();
  }
  restart(7);
  expect_all();
  EXPECT_EQ(files(), before);
}

TEST_F(BuildIndexTest, ACrashBeforeTheCommitLeavesNoTrace) {
  fill(1, 2000);
  const size_t before = files();
  session_->begin(Isolation::kReadCommitted);
  ASSERT_TRUE(add_index(session_.get(), "t", true).ok());
  ASSERT_TRUE(kernel_->persist_log().ok());
  auto lost = std::move(session_);
  disk_->crash(11);
  lost.reset();
  kernel_.reset();
  start();
  EXPECT_EQ(table()->spec().indexes.size(), 3u);
  expect_all();
  EXPECT_EQ(files(), before);
}

TEST_F(BuildIndexTest, OlderViewsReadTheTableButNotTheNewIndex) {  // E6
  fill(1, 100);
  auto reader = kernel_->new_session();
  reader->begin(Isolation::kRepeatableRead);
  const Rows before = *scan(reader.get(), table());
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(remove(session_.get(), table(), 7, rows_[7]).ok());
  rows_.erase(7);
  ASSERT_TRUE(session_->commit().ok());
  add(false);
  EXPECT_EQ(*scan(reader.get(), table()), before);
  EXPECT_EQ(*scan(reader.get(), table(), 2), before);
  EXPECT_TRUE(is_definition_changed(scan(reader.get(), table(), 3).status()));
  add(true);  // what was built before stays as old as it was
  EXPECT_TRUE(is_definition_changed(scan(reader.get(), table(), 3).status()));
  session_->begin(Isolation::kReadCommitted);  // twice in a transaction
  ASSERT_TRUE(add_index(session_.get(), "t", false).ok());
  ASSERT_TRUE(add_index(session_.get(), "t", false).ok());
  ASSERT_TRUE(session_->commit().ok());
  EXPECT_TRUE(is_definition_changed(scan(reader.get(), table(), 5).status()));
  EXPECT_TRUE(is_definition_changed(scan(reader.get(), table(), 6).status()));
  ASSERT_TRUE(reader->commit().ok());
  reader->begin(Isolation::kRepeatableRead);
  EXPECT_EQ(*scan(reader.get(), table(), 3), rows_);
  EXPECT_EQ(*scan(reader.get(), table(), 5), rows_);
  ASSERT_TRUE(reader->commit().ok());
}

TEST_F(BuildIndexTest, UncommittedRowsOfATransactionThatIsBeingUndoneAreNotInIt) {
  fill(1, 50);
  session_->begin(Isolation::kRepeatableRead);
  ASSERT_TRUE(insert(session_.get(), table(), 100, Row{100, 1, "gone", ""}).ok());
  ASSERT_TRUE(remove(session_.get(), table(), 3, rows_[3]).ok());
  Row changed = rows_[4];
  changed.unique_value = 77;
  ASSERT_TRUE(update(session_.get(), table(), 4, rows_[4], 4, changed).ok());
  auto undone = std::move(session_);
  session_ = kernel_->new_session();
  add(true);
  ASSERT_TRUE(undone->rollback().ok());
  expect_all();
}

TEST_F(BuildIndexTest, AnAddedIndexCanBeDroppedRenamedAndMoved) {
  fill(1, 500);
  add(true);
  add(false);
  session_->begin(Isolation::kReadCommitted);
  TableSpec spec = table()->spec();
  std::swap(spec.indexes[2], spec.indexes[4]);
  spec.indexes[2].name = "renamed";
  ASSERT_TRUE(session_->alter_table(spec).ok());
  ASSERT_TRUE(session_->commit().ok());
  EXPECT_EQ(table()->spec().indexes[2].name, "renamed");
  expect_all();
  const size_t before = files();
  session_->begin(Isolation::kReadCommitted);
  ASSERT_TRUE(drop_index(session_.get(), "t", 2).ok());
  ASSERT_TRUE(session_->rollback().ok());
  expect_all();
  session_->begin(Isolation::kReadCommitted);
  ASSERT_TRUE(drop_index(session_.get(), "t", 2).ok());
  ASSERT_TRUE(session_->commit().ok());
  expect_all();
  restart(9);
  expect_all();
  EXPECT_EQ(files(), before - 1);
}

TEST_F(BuildIndexTest, TruncateAndDropTakeTheIndexesWithThem) {
  fill(1, 500);
  const size_t before = files();
  add(true);
  session_->begin(Isolation::kReadCommitted);
  TableRef fresh;
  ASSERT_TRUE(session_->truncate_table("test", "t", &fresh).ok());
  ASSERT_TRUE(session_->commit().ok());
  rows_.clear();
  expect_all();
  fill(1, 20);
  expect_all();
  restart(13);
  expect_all();
  EXPECT_EQ(files(), before);
  add(false);
  session_->begin(Isolation::kReadCommitted);
  ASSERT_TRUE(session_->drop_table("test", "t").ok());
  ASSERT_TRUE(session_->commit().ok());
  restart(15);
  EXPECT_EQ(files(), before - 1);
}

TEST_F(BuildIndexTest, RefusesWhatWouldLoseRowsOrPages) {
  fill(1, 5);
  session_->begin(Isolation::kReadCommitted);
  TableSpec spec = table()->spec();
  spec.indexes.pop_back();  // in the table's own space
  EXPECT_FALSE(session_->alter_table(spec).ok());
  spec = table()->spec();
  spec.indexes.push_back(new_index("not_built", false));
  EXPECT_FALSE(session_->alter_table(spec).ok());
  spec = table()->spec();
  std::swap(spec.indexes[0], spec.indexes[1]);
  EXPECT_FALSE(session_->alter_table(spec).ok());
  ASSERT_TRUE(session_->rollback().ok());
  expect_all();
}

}  // namespace
}  // namespace strata::engine
