// Drives a tree as the row layer does: every change is one mtr of its own. For tests and benches.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "btree/btree.h"
#include "page/record.h"
#include "space/testing/test_store.h"

namespace strata::testing {

using Model = std::map<std::string, std::string>;

// A leaf value has room for a record header.
inline std::string record_value(Bytes payload) {
  return std::string(kRecordHeaderBytes, '\1').append(payload);
}
inline std::string be_key(uint64_t n) {
  std::string key;
  append_be64(&key, n);
  return key;
}

class TreeDriver {
 public:
  TreeDriver(TestStore* store, TreeId tree)
      : context_{store->pool(), store->log(), store->spaces()}, tree_(tree) {}

  static TreeId create(TestStore* store, SpaceId space, uint32_t index) {
    TreeContext context{store->pool(), store->log(), store->spaces()};
    EXPECT_TRUE(store->spaces()->ensure_room(space, 8).ok());
    Mtr mtr(context.pool, context.log);
    EXPECT_TRUE(mtr.begin_write().ok());
    StatusOr<TreeId> tree = create_tree(&context, &mtr, space, IndexId{index});
    EXPECT_TRUE(tree.ok()) << tree.status();
    mtr.publish();
    return *tree;
  }

  TreeContext* context() { return &context_; }
  [[nodiscard]] TreeId tree() const { return tree_; }

  // Inserts or replaces. *end gets the end Lsn of the change.
  Status put(Bytes key, Bytes value, Lsn* end = nullptr) {
    for (;;) {
      Mtr mtr(context_.pool, context_.log);
      STRATA_RETURN_IF_ERROR(mtr.begin_write());
      TreeCursor cursor(&context_, tree_, &mtr);
      STRATA_RETURN_IF_ERROR(seek(&cursor, key, LatchMode::kExclusive));
      if (!cursor.leaf_covers(key)) return error_internal("seek ended on the wrong leaf");
      const bool there = cursor.equals(key);
      if (there ? cursor.fits_replace(value.size()) : cursor.fits_insert(key, value.size())) {
        if (there)
          cursor.replace(value);
        else
          cursor.insert(key, value);
        const Lsn lsn = mtr.publish();
        if (end != nullptr) *end = lsn;
        return ok_status();
      }
      cursor.reset();
      mtr.abandon();
      STRATA_RETURN_IF_ERROR(make_room(&context_, tree_, key, value.size()));
    }
  }

  // *found says whether there was something to erase.
  Status erase(Bytes key, bool* found, Lsn* end = nullptr, bool merge = true) {
    {
      Mtr mtr(context_.pool, context_.log);
      STRATA_RETURN_IF_ERROR(mtr.begin_write());
      TreeCursor cursor(&context_, tree_, &mtr);
      STRATA_RETURN_IF_ERROR(seek(&cursor, key, LatchMode::kExclusive));
      *found = cursor.equals(key);
      if (!*found) return ok_status();
      cursor.erase();
      const Lsn lsn = mtr.publish();
      if (end != nullptr) *end = lsn;
    }
    return merge ? try_merge(&context_, tree_, key) : ok_status();
  }

  StatusOr<std::optional<std::string>> get(Bytes key) {
    Mtr mtr(context_.pool, context_.log);
    TreeCursor cursor(&context_, tree_, &mtr);
    STRATA_RETURN_IF_ERROR(seek(&cursor, key, LatchMode::kShared));
    if (!cursor.equals(key)) return std::optional<std::string>();
    return std::optional<std::string>(cursor.value());
  }

  // Up to `limit` records from `key` on, upwards or downwards (downwards: strictly below).
  StatusOr<std::vector<std::pair<std::string, std::string>>> scan(Bytes key, bool up, bool infinite,
                                                                  size_t limit) {
    std::vector<std::pair<std::string, std::string>> records;
    Mtr mtr(context_.pool, context_.log);
    TreeCursor cursor(&context_, tree_, &mtr);
    if (up) {
      STRATA_RETURN_IF_ERROR(cursor.seek(key, LatchMode::kShared));
      STRATA_RETURN_IF_ERROR(cursor.settle());
    } else {
      STRATA_RETURN_IF_ERROR(cursor.seek_before(key, infinite));
    }
    while (!cursor.at_end() && records.size() < limit) {
      if (!cursor.on_record()) return error_internal("neither on a record nor at the end");
      if (mtr.page_count() != 1) return error_internal("a scan latches one leaf");
      std::string k;
      cursor.copy_key(&k);
      records.emplace_back(std::move(k), std::string(cursor.value()));
      STRATA_RETURN_IF_ERROR(up ? cursor.next() : cursor.prev());
    }
    return records;
  }

  TreeCheck check(bool expect_fine = true) {
    TreeCheck result;
    const Status status = check_tree(&context_, tree_, {}, &result);
    EXPECT_TRUE(status.ok()) << status;
    if (expect_fine) {
      EXPECT_TRUE(result.problems.empty()) << result.problems.front();
    }
    return result;
  }

  // The tree holds exactly the model's records.
  void expect_equals(const Model& model) {
    Model found;
    std::string last;
    TreeCheck result;
    const Status status = check_tree(
        &context_, tree_,
        [&](Bytes key, Bytes value) {
          EXPECT_TRUE(found.empty() || last < key);
          last = key;
          found.emplace(key, value);
        },
        &result);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(result.problems.empty()) << result.problems.front();
    EXPECT_EQ(result.records, model.size());
    EXPECT_TRUE(found == model);
    const auto up = scan({}, true, false, SIZE_MAX);
    ASSERT_TRUE(up.ok()) << up.status();
    EXPECT_TRUE(std::equal(up->begin(), up->end(), model.begin(), model.end(), same));
    const auto down = scan({}, false, true, SIZE_MAX);
    ASSERT_TRUE(down.ok()) << down.status();
    EXPECT_TRUE(std::equal(down->begin(), down->end(), model.rbegin(), model.rend(), same));
  }

 private:
  // By way of the leaf that this thread has used last, which may be another tree's.
  static Status seek(TreeCursor* cursor, Bytes key, LatchMode mode) {
    static thread_local PageId last;
    STRATA_RETURN_IF_ERROR(cursor->seek_near(last, key, mode));
    last = cursor->leaf()->id();
    return ok_status();
  }
  static bool same(const std::pair<std::string, std::string>& a,
                   const std::pair<const std::string, std::string>& b) {
    return a.first == b.first && a.second == b.second;
  }
  TreeContext context_;
  TreeId tree_;
};

}  // namespace strata::testing
