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
  spec.indexes[1].most_key = 1768;
  spec.indexes[1].parts = {{"day", "date", true, true, false, 3, ""},
                           {"name", "utf8mb4_general_ci", false, false, true, 0, "\x08"}};
  spec.foreign_keys = {{"orders_ibfk_1",
                        {"day", "name"},
                        table_key("shop", "days"),
                        {"d", "n"},
                        ReferentialAction::kCascade,
                        ReferentialAction::kSetNull}};
  spec.children = {table_key("shop", "lines"), table_key("tax", "bills")};
  return spec;
}

TEST(TableSpec, RoundTrips) {
  const std::string bytes = encode_table_spec(example());
  const auto back = decode_table_spec(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(encode_table_spec(*back), bytes);
  EXPECT_EQ(back->indexes[1].meta, "meta");
  EXPECT_EQ(back->indexes[1].parts, example().indexes[1].parts);
  EXPECT_EQ(back->indexes[1].most_key, 1768u);
  EXPECT_EQ(back->foreign_keys, example().foreign_keys);
  EXPECT_EQ(back->children, example().children);
}

TableSpec without_references() {
  TableSpec spec = example();
  spec.foreign_keys.clear();
  spec.children.clear();
  return spec;
}

// Tables that were made before there were foreign keys open as before, and their bytes stay those
// that the older build reads, until they become a parent.
TEST(TableSpec, ATableOfTheFormatBeforeGetsTheNewOneWithItsFirstChild) {
  TableSpec old = without_references();
  old.format = kSpecFormatWithoutReferences;
  auto back = decode_table_spec(encode_table_spec(old));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->format, kSpecFormatWithoutReferences);
  EXPECT_TRUE(back->indexes[1].parts.empty());
  back->children = {table_key("shop", "lines")};
  const auto parent = decode_table_spec(encode_table_spec(*back));
  ASSERT_TRUE(parent.ok());
  EXPECT_EQ(parent->format, kSpecFormat);
  EXPECT_EQ(parent->children, back->children);
}

// The image of a value ends where the part says, whatever follows it.
TEST(KeyPart, MeasuresImages) {
  const KeyPartSpec number{"a", "int", false, false, false, 4, ""};
  EXPECT_EQ(number.measure("abcdefg"), 4u);
  EXPECT_EQ(number.measure("abc"), 0u);
  const KeyPartSpec padded{"a", "ci", false, false, false, 0, "\x08"};
  EXPECT_EQ(padded.measure("abcdefgh\x01ijklmnop\x02rest"), 18u);
  EXPECT_EQ(padded.measure("abcdefgh\x01ijkl"), 0u);
  const KeyPartSpec terminated{"a", "bin", false, true, false, 0, "\x88"};
  EXPECT_EQ(terminated.measure("abcdefgh\xf6"
                               "abcdefgh\xff"
                               "rest"),
            18u);
  const KeyPartSpec levels{"a", "as_cs", false, false, false, 0, std::string("\x08\x08")};
  EXPECT_EQ(levels.measure("abcdefgh\x02"
                           "abcdefgh\x02"
                           "abcdefgh\x02"),
            18u);
}

TEST(TableSpec, ATableKeepsTheFormatItWasMadeIn) {
  EXPECT_EQ(example().format, kSpecFormat);
  TableSpec old = without_references();
  old.format = kSpecFormatOfUnboundedKeys;
  const auto back = decode_table_spec(encode_table_spec(old));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->format, kSpecFormatOfUnboundedKeys);
  old.format = kSpecFormat + 1;
  const Status newer = decode_table_spec(encode_table_spec(old)).status();
  EXPECT_TRUE(is_unsupported(newer)) << newer;
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
      EXPECT_TRUE(is_corruption(result.status()) || is_unsupported(result.status()));
    }
  }
}

TEST(TableKey, OrdersBySchemaFirst) {
  EXPECT_LT(table_key("a", "z"), table_key("ab", "a"));
  EXPECT_LT(table_key("a", "a"), table_key("a", "b"));
}

}  // namespace
}  // namespace strata
