// Goal: SPG1-SPG3: a page counts as written only when its write and the sync behind it were OK, and
// no older version is ever written over a newer one. Method: a page source that does as told.
#include "memnode/host/stored_pages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "memnode/fusion/testing/fusion_node.h"

namespace strata::memnode {
namespace {

using testing::fusion_page;

class Storage final : public PageSource {
 public:
  Status read(PageId, Llsn, char*) override { return error_unsupported(); }
  Status write(PageId id, const char* page) override {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(page) % kDirectIoAlignment, 0u);
    EXPECT_LT(last.packed(), id.packed()) << "not in the order of pages";
    last = id;
    if (fails.contains(id.packed())) return error_peer_down("asked for by a test");
    pages[id.packed()].assign(page, kPageBytes);
    return ok_status();
  }
  Status sync() override {
    ++syncs;
    last = PageId{};
    return sync_fails ? error_peer_down("asked for by a test") : ok_status();
  }
  Status create_space(SpaceId) override { return ok_status(); }
  Status delete_space(SpaceId) override { return ok_status(); }
  StatusOr<bool> space_exists(SpaceId) override { return true; }
  StatusOr<std::vector<SpaceId>> list_spaces() override { return std::vector<SpaceId>(); }
  Status grow_space(SpaceId, uint32_t) override { return ok_status(); }
  [[nodiscard]] bool needs_page_images() const override { return false; }
  uint64_t llsn_of(PageId id) const {
    const auto found = pages.find(id.packed());
    return found == pages.end() ? 0 : header_of(found->second.data())->llsn;
  }

  std::map<uint64_t, std::string> pages;
  std::set<uint64_t> fails;
  bool sync_fails = false;
  int syncs = 0;
  PageId last;
};

class StoredPagesTest : public ::testing::Test {
 protected:
  struct Version {
    PageId page;
    uint64_t llsn;
  };
  std::vector<Status> write(const std::vector<Version>& versions) {
    std::vector<std::string> bytes;
    for (const Version& version : versions)
      bytes.push_back(fusion_page(version.page, version.llsn));
    std::vector<PageStore::Image> images;
    for (size_t i = 0; i < versions.size(); ++i)
      images.push_back({versions[i].page, Llsn{versions[i].llsn}, bytes[i].data()});
    std::vector<Status> results(images.size(), error_internal("not told"));
    pages_.write(images, absl::MakeSpan(results));
    return results;
  }
  static PageId page(uint32_t number) { return {300, number}; }

  Storage storage_;
  StoredPages pages_{&storage_};
};

TEST_F(StoredPagesTest, WritesAllAndSyncsOnce) {  // SPG1, SPG2
  std::vector<Version> versions;
  for (uint32_t i = 200; i > 0; --i) versions.push_back({page(i), i + 10});
  for (const Status& result : write(versions)) EXPECT_TRUE(result.ok()) << result;
  EXPECT_EQ(storage_.syncs, 1);
  for (const Version& version : versions) {
    EXPECT_EQ(storage_.pages[version.page.packed()], fusion_page(version.page, version.llsn));
  }
}

TEST_F(StoredPagesTest, WithoutASyncNothingIsWritten) {  // SPG1
  storage_.sync_fails = true;
  for (const Status& result : write({{page(1), 5}, {page(2), 5}}))
    EXPECT_TRUE(is_peer_down(result)) << result;
  storage_.sync_fails = false;
  for (const Status& result : write({{page(1), 5}, {page(2), 5}})) EXPECT_TRUE(result.ok());
  EXPECT_EQ(storage_.syncs, 2) << "written again, since nobody knew";
}

TEST_F(StoredPagesTest, OnePageThatFailsKeepsNoOtherBack) {
  storage_.fails.insert(page(2).packed());
  const std::vector<Status> results = write({{page(1), 5}, {page(2), 5}, {page(3), 5}});
  EXPECT_TRUE(results[0].ok());
  EXPECT_TRUE(is_peer_down(results[1]));
  EXPECT_TRUE(results[2].ok());
}

TEST_F(StoredPagesTest, TheLargerLlsnStays) {  // SPG2, SPG3
  const std::vector<Status> results = write({{page(1), 5}, {page(1), 9}, {page(1), 7}});
  for (const Status& result : results) EXPECT_TRUE(result.ok());
  EXPECT_EQ(storage_.llsn_of(page(1)), 9u);
  EXPECT_TRUE(write({{page(1), 8}})[0].ok()) << "a newer one is there";
  EXPECT_EQ(storage_.llsn_of(page(1)), 9u);
  EXPECT_TRUE(write({{page(1), 10}})[0].ok());
  EXPECT_EQ(storage_.llsn_of(page(1)), 10u);
}

TEST_F(StoredPagesTest, WhatFailedIsNoNewerVersion) {  // SPG3
  storage_.fails.insert(page(1).packed());
  EXPECT_FALSE(write({{page(1), 9}})[0].ok());
  storage_.fails.clear();
  EXPECT_TRUE(write({{page(1), 8}})[0].ok());
  EXPECT_EQ(storage_.llsn_of(page(1)), 8u);
}

TEST_F(StoredPagesTest, NothingIsNothing) {
  write({});
  EXPECT_EQ(storage_.syncs, 0);
}

}  // namespace
}  // namespace strata::memnode
