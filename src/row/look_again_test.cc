// RowCursor::look_again() beside read_dirty(), while others change, delete and purge what is shown
// and what is around it; and the scan goes on where it was.
// STRATA_SEED chooses another seed.
#include <map>

#include "base/rng.h"
#include "row/row_store.h"
#include "row/testing/mini_kernel.h"
#include "row/testing/row_model.h"

namespace strata {
namespace {

using testing::MiniKernel;
using testing::MiniOptions;
using Read = RowCursor::Read;

class LookAgainTest : public ::testing::Test {
 protected:
  static constexpr int kKeys = 400;  // of some leaves

  LookAgainTest() {
    disk_ = make_sim_file_system();
    kernel_ = std::make_unique<MiniKernel>(disk_.get(), MiniOptions{});
    EXPECT_TRUE(kernel_->open().ok());
  }
  RowContext* rows() { return kernel_->rows(); }
  TreeId tree() { return kernel_->tree(0); }
  static std::string key_of(int n) { return "key" + std::to_string(1000 + n); }

  // One change that is committed; some purge what was deleted.
  void change(const std::string& key) {
    Trx trx;
    kernel_->trxs()->begin(&trx);
    const auto at = rows_.find(key);
    const std::string fresh(40 + random_.below(60), static_cast<char>('a' + random_.below(26)));
    if (at == rows_.end()) {
      ASSERT_TRUE(insert_record(rows(), &trx, tree(), key, encode_payload({}, fresh), 0).ok());
      rows_[key] = fresh;
    } else if (random_.one_in(2)) {
      ASSERT_TRUE(update_record(rows(), &trx, tree(), key, encode_payload({}, fresh)).ok());
      at->second = fresh;
    } else {
      ASSERT_TRUE(delete_record(rows(), &trx, tree(), key).ok());
      rows_.erase(at);
    }
    ASSERT_TRUE(kernel_->trxs()->commit(&trx).ok());
    if (random_.one_in(2)) {
      ASSERT_TRUE(kernel_->purge_all().ok());
    }
  }

  std::unique_ptr<SimFileSystem> disk_;
  std::unique_ptr<MiniKernel> kernel_;
  Rng random_{1};
  std::map<std::string, std::string> rows_;
};

TEST_F(LookAgainTest, AsReadDirtyAndTheScanGoesOn) {
  const uint64_t seed = testing::environment_number("STRATA_SEED", 1);
  SCOPED_TRACE("STRATA_SEED=" + std::to_string(seed));
  random_ = Rng(seed);
  for (int i = 0; i < kKeys; i += 2) change(key_of(i));
  for (int round = 0; round < 6; ++round) {
    Trx reader;
    kernel_->trxs()->begin(&reader);
    RowCursor cursor(rows(), tree());
    ASSERT_TRUE(cursor.seek(&reader, Read::kLatest, Bytes()).ok());
    while (cursor.valid()) {
      const std::string shown(cursor.key());
      for (uint64_t n = random_.below(3); n > 0; --n)
        change(random_.one_in(2) ? shown : key_of(static_cast<int>(random_.below(kKeys))));
      for (uint64_t times = random_.below(3); times > 0; --times) {
        std::string again;
        std::string expected;
        const Status status = read_dirty(rows(), tree(), shown, &expected);
        ASSERT_EQ(status.ok(), rows_.count(shown) == 1) << shown;
        const Status looked = cursor.look_again(&again);
        ASSERT_EQ(is_not_found(looked), is_not_found(status)) << shown << ": " << looked;
        if (!looked.ok()) break;
        ASSERT_EQ(again, expected) << shown;
      }
      ASSERT_TRUE(cursor.next().ok());
      const auto after = rows_.upper_bound(shown);
      ASSERT_EQ(cursor.valid(), after != rows_.end()) << shown;
      if (cursor.valid()) {
        ASSERT_EQ(std::string(cursor.key()), after->first);
      }
    }
    ASSERT_TRUE(kernel_->trxs()->commit(&reader).ok());
  }
}

}  // namespace
}  // namespace strata
