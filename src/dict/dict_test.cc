#include <gtest/gtest.h>

#include "base/rng.h"
#include "dict/table_spec.h"

namespace strata {
namespace {

TableSpec example() {
  TableSpec spec;
  spec.schema = "shop";
  spec.name = "orders";
  spec.definition = std::string(5000, 'd');
  spec.version = std::string(16, 'v');
  spec.table_id = 77;
  spec.space_id = 300;
  spec.indexes = {{"PRIMARY", true, "", 20, 3}, {"by_date", false, "meta", 21, 4}};
  return spec;
}

TEST(TableSpec, RoundTrips) {
  const std::string bytes = encode_table_spec(example());
  const auto back = decode_table_spec(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(encode_table_spec(*back), bytes);
  EXPECT_EQ(back->indexes[1].meta, "meta");
}

TEST(TableSpec, ATableKeepsTheFormatItWasMadeIn) {
  EXPECT_EQ(example().format, kSpecFormat);
  TableSpec old = example();
  old.format = kSpecFormatOfUnboundedKeys;
  const auto back = decode_table_spec(encode_table_spec(old));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->format, kSpecFormatOfUnboundedKeys);
  old.format = kSpecFormat + 1;
  EXPECT_TRUE(is_corruption(decode_table_spec(encode_table_spec(old)).status()));
}

TEST(TableSpec, EveryTruncationIsReportedAndNoByteFlipCrashes) {
  const std::string bytes = encode_table_spec(example());
  for (size_t n = 0; n < bytes.size(); n += 7) {
    EXPECT_TRUE(is_corruption(decode_table_spec(Bytes(bytes).substr(0, n)).status())) << n;
  }
  Rng rng(1);
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = bytes;
    damaged[rng.below(damaged.size())] ^= static_cast<char>(1 + rng.below(255));
    const auto result = decode_table_spec(damaged);
    if (!result.ok()) {
      EXPECT_TRUE(is_corruption(result.status()));
    }
  }
}

TEST(TableKey, OrdersBySchemaFirst) {
  EXPECT_LT(table_key("a", "z"), table_key("ab", "a"));
  EXPECT_LT(table_key("a", "a"), table_key("a", "b"));
}

}  // namespace
}  // namespace strata
