// Rows with the longest keys and the largest entries that the kernel takes: every change of them,
// undone, purged and after a crash at any moment, leaves trees that are whole and hold what a
// std::map holds. What is larger is refused, and its row undone.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "engine/testing/test_database.h"

namespace strata::engine {
namespace {

using namespace testing;  // NOLINT: test helpers

struct LongRow {
  std::string entry, covering;
  bool operator==(const LongRow&) const = default;
};
using LongRows = std::map<std::string, LongRow>;  // by clustered key

class EntrySizeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    start();
    TableSpec spec = table_spec("t");
    spec.indexes.resize(2);
    spec.indexes[1].unique = false;
    session_->begin(Isolation::kRepeatableRead);
    ASSERT_TRUE(session_->create_table(spec, nullptr).ok());
    ASSERT_TRUE(session_->commit().ok());
  }
  void start() {
    auto opened = Kernel::open(options_on(disk_.get()));
    ASSERT_TRUE(opened.ok()) << opened.status();
    kernel_ = std::move(opened).value();
    session_ = kernel_->new_session();
    table_ = nullptr;
  }
  void restart(uint64_t seed) {
    table_.reset();
    session_.reset();
    disk_->crash(seed);
    kernel_.reset();
    start();
  }
  TableRef table() {
    if (table_ == nullptr) table_ = *session_->open_table("test", "t");
    return table_;
  }

  // Long beginnings in common, so that separators and fences are long, too.
  std::string key_of(size_t bytes) {
    std::string key(bytes, static_cast<char>('a' + random_() % 3));
    const size_t differs = std::min<size_t>(bytes, 6);
    for (size_t i = bytes - differs; i < bytes; ++i) key[i] = static_cast<char>(random_());
    return key;
  }
  // Of one length each, so that none is the beginning of another.
  std::string clustered_key() { return key_of(1800); }
  LongRow row() {
    const std::string entry = key_of(1800);
    return {entry,
            std::string(random_() % 4 == 0 ? 0 : kMaxEntryBytes - 3600 - random_() % 2, 'c')};
  }

  static RowImage image_of(const std::string& key, const LongRow& row, EntryImage* entry) {
    *entry = {1, row.entry, false, row.covering};
    RowImage image;
    image.key = key;
    image.inline_bytes = row.entry;
    image.entries = entry;
    image.entry_count = 1;
    return image;
  }
  Status insert(const std::string& key, const LongRow& row) {
    EntryImage entry;
    uint32_t duplicate = 0;
    return session_->insert_row(table().get(), image_of(key, row, &entry), &duplicate);
  }
  Status update(const std::string& old_key, const LongRow& old, const std::string& key,
                const LongRow& row) {
    EntryImage entry;
    const EntryImage before{1, old.entry, false, Bytes()};
    uint32_t duplicate = 0;
    return session_->update_row(table().get(), old_key, image_of(key, row, &entry), &before, 1,
                                &duplicate);
  }
  Status erase(const std::string& key, const LongRow& row) {
    const EntryImage before{1, row.entry, false, Bytes()};
    return session_->delete_row(table().get(), key, &before, 1);
  }

  void change(LongRows* rows) {
    const uint64_t roll = random_() % 10;
    if (rows->empty() || roll < 5) {
      const std::string key = clustered_key();
      if (rows->count(key) != 0) return;
      const LongRow added = row();
      ASSERT_TRUE(insert(key, added).ok());
      (*rows)[key] = added;
      return;
    }
    auto it = rows->begin();
    std::advance(it, static_cast<ptrdiff_t>(random_() % rows->size()));
    if (roll < 8) {
      const std::string key = roll == 5 ? clustered_key() : it->first;
      if (key != it->first && rows->count(key) != 0) return;
      const LongRow changed = row();
      ASSERT_TRUE(update(it->first, it->second, key, changed).ok());
      rows->erase(it);
      (*rows)[key] = changed;
    } else {
      ASSERT_TRUE(erase(it->first, it->second).ok());
      rows->erase(it);
    }
  }

  void expect_rows(const LongRows& rows) {
    auto session = kernel_->new_session();
    session->begin(Isolation::kRepeatableRead);
    TableRef t = *session->open_table("test", "t");
    TableCursor by_key(session.get(), t, 0);
    ASSERT_TRUE(by_key.seek(Bytes()).ok());
    for (const auto& [key, row] : rows) {
      ASSERT_TRUE(by_key.valid());
      ASSERT_TRUE(by_key.entry().key == key);
      ASSERT_TRUE(by_key.next().ok());
    }
    EXPECT_FALSE(by_key.valid());
    std::map<std::string, std::string> entries;
    for (const auto& [key, row] : rows) entries[row.entry + key] = row.covering;
    TableCursor by_entry(session.get(), t, 1);
    ASSERT_TRUE(by_entry.seek(Bytes()).ok());
    for (const auto& [whole, covering] : entries) {
      ASSERT_TRUE(by_entry.valid());
      ASSERT_TRUE(by_entry.entry().whole == whole);
      ASSERT_TRUE(by_entry.entry().covering == covering);
      ASSERT_TRUE(by_entry.next().ok());
    }
    EXPECT_FALSE(by_entry.valid());
    CheckResult result;
    const auto entries_of = [&rows](Bytes key, Bytes, const auto&,
                                    const Kernel::EmitEntry& emit) -> Status {
      emit(1, rows.at(std::string(key)).entry);
      return ok_status();
    };
    ASSERT_TRUE(kernel_->check_table(session.get(), t, true, entries_of, &result).ok());
    for (const std::string& problem : result.problems) ADD_FAILURE() << problem;
    ASSERT_TRUE(session->rollback().ok());
  }

  std::unique_ptr<SimFileSystem> disk_ = make_sim_file_system();
  std::unique_ptr<Kernel> kernel_;
  std::unique_ptr<Session> session_;
  TableRef table_;
  std::mt19937_64 random_{environment("STRATA_SEED", 1)};
};

TEST_F(EntrySizeTest, TheLargestEntriesAreChangedUndonePurgedAndRecovered) {
  LongRows committed;
  for (int round = 0; round < 24; ++round) {
    LongRows rows = committed;
    session_->begin(Isolation::kRepeatableRead);
    const uint64_t changes = 1 + random_() % 40;
    for (uint64_t i = 0; i < changes; ++i) change(&rows);
    switch (random_() % 4) {
      case 0:
        ASSERT_TRUE(session_->rollback().ok());
        break;
      case 1:
        ASSERT_TRUE(kernel_->persist_log().ok());
        restart(static_cast<uint64_t>(round) + 1);  // in the middle of the transaction
        break;
      default:
        ASSERT_TRUE(session_->commit().ok());
        committed = std::move(rows);
        break;
    }
    const uint64_t purged = round % 3 == 0 ? 1000000 : 0;
    ASSERT_TRUE(kernel_->run_purge(purged).ok());
    if (round % 6 == 5) restart(static_cast<uint64_t>(round) + 1000);
    expect_rows(committed);
  }
  EXPECT_GT(committed.size(), 50u);
}

TEST_F(EntrySizeTest, WhatIsLargerIsRefusedAndItsRowUndone) {
  session_->begin(Isolation::kRepeatableRead);
  const std::string key = clustered_key();
  LongRow fits{key_of(1800), std::string(kMaxEntryBytes - 3600, 'c')};
  LongRow covers_too_much{fits.entry, fits.covering + "c"};
  LongRow too_long{fits.entry + "k", ""};
  EXPECT_EQ(insert(key, covers_too_much).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(insert(key, too_long).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(insert(key, fits).ok());
  EXPECT_EQ(update(key, fits, key, covers_too_much).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(session_->commit().ok());
  expect_rows({{key, fits}});
}

}  // namespace
}  // namespace strata::engine
