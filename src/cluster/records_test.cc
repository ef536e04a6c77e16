// Goal: the values of the cluster's keys come back as they were written (RE2), and nothing that
// breaks a rule of its type is ever returned (RE1). Method: round trips, and hand-made values.
#include "cluster/internal/records.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace strata::cluster::internal {
namespace {

KeyValue entry(std::string value) {
  return {"/strata/c/members/n1", std::move(value), Version{9}, LeaseId{5}};
}

TEST(RegistryRecords, WhatIsWrittenIsReadBack) {
  const auto epoch = decode_epoch(entry(encode_epoch({Epoch{kEpochMax}, "compute-1"})));
  ASSERT_TRUE(epoch.ok()) << epoch.status();
  EXPECT_EQ(epoch->epoch, Epoch{kEpochMax});
  EXPECT_EQ(epoch->holder, "compute-1");

  for (const Role role : {Role::kCompute, Role::kStorage, Role::kMemory}) {
    const Member member{"n1", role, ~uint64_t{0}, "/run/\"quoted\"", "", LeaseId{5}, Version{9}};
    const auto read = decode_member("/strata/c/members/", entry(encode_member(member)));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->name, "n1");
    EXPECT_EQ(read->role, role);
    EXPECT_EQ(read->identity, ~uint64_t{0});
    EXPECT_EQ(read->address, member.address);
    EXPECT_EQ(read->lease, LeaseId{5});
    EXPECT_EQ(read->version, Version{9});
  }

  const DatabaseIdentity identity{1, "logdb-mv-sr", 4'000'000'000};
  EXPECT_EQ(*decode_identity(entry(encode_identity(identity))), identity);

  const Placement placement{3, {{1, {"a", "b", "c"}, 2}, {7, {"d"}, 1}}, Version{9}};
  const auto read = decode_placement(entry(encode_placement(placement)));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->generation, 3u);
  EXPECT_EQ(read->groups, placement.groups);
  EXPECT_EQ(read->version, Version{9});
}

// docs/data_formats.md shows them so.
TEST(RegistryRecords, ValuesAreTheDocumentedJson) {
  EXPECT_EQ(encode_epoch({Epoch{7}, "compute-1"}),
            R"({"epoch":7,"format":1,"holder":"compute-1"})");
  EXPECT_EQ(encode_member({"n", Role::kStorage, 0x2a, "127.0.0.1:7101", "127.0.0.1:7201", {}, {}}),
            R"({"address":"127.0.0.1:7101","format":1,"identity":"000000000000002a",)"
            R"("role":"storage","status_address":"127.0.0.1:7201"})");
  EXPECT_EQ(encode_identity({0x2a, "remote-disk", 1}),
            R"({"data_format":1,"database_id":"000000000000002a","format":1,)"
            R"("profile":"remote-disk"})");
  EXPECT_EQ(encode_placement({1, {{1, {"s1", "s2"}, 2}}, {}}),
            R"({"format":1,"generation":1,"groups":[{"id":1,"nodes":["s1","s2"],)"
            R"("write_quorum":2}]})");
}

TEST(RegistryRecords, WhatBreaksARuleIsRefusedAndTheKeyNamed) {
  const auto expect_bad = [](const Status& status) {
    EXPECT_TRUE(is_corruption(status)) << status;
    EXPECT_NE(status.message().find("/strata/c/members/n1"), absl::string_view::npos) << status;
  };
  for (const char* text : {"", "x", "7", "[]", "{}", R"({"format":0})", R"({"format":2})",
                           R"({"format":"one"})", R"({"format":1})"}) {
    expect_bad(decode_epoch(entry(text)).status());
    expect_bad(decode_member("/strata/c/members/", entry(text)).status());
    expect_bad(decode_identity(entry(text)).status());
    expect_bad(decode_placement(entry(text)).status());
  }
  for (const char* text :
       {R"({"format":1,"epoch":0,"holder":"a"})", R"({"format":1,"epoch":-1,"holder":"a"})",
        R"({"format":1,"epoch":9007199254740992,"holder":"a"})",
        R"({"format":1,"epoch":1.5,"holder":"a"})", R"({"format":1,"epoch":1,"holder":""})",
        R"({"format":1,"epoch":1,"holder":"a b"})", R"({"format":1,"epoch":[],"holder":"a"})"})
    expect_bad(decode_epoch(entry(text)).status());
  const std::string member = encode_member({"n1", Role::kStorage, 1, "a:1", "", {}, {}});
  for (const auto& [from, to] :
       {std::pair("storage", "king"), std::pair("0000000000000001", "0000000000000000"),
        std::pair("0000000000000001", "1"), std::pair("0000000000000001", "000000000000000x"),
        std::pair("0000000000000001", "0x00000000000001"), std::pair("a:1", ""),
        std::pair("a:1", "a 1"), std::pair("\"a:1\"", "7")}) {
    std::string broken = member;
    broken.replace(broken.find(from), std::string(from).size(), to);
    expect_bad(decode_member("/strata/c/members/", entry(broken)).status());
  }
  expect_bad(decode_member("/strata/c/members/n1", entry(member)).status());  // no name is left
  expect_bad(
      decode_placement(entry(R"({"format":1,"generation":1,"groups":[{"id":1,"nodes":["a",7],)"
                             R"("write_quorum":1}]})"))
          .status());
}

TEST(RegistryRecords, ChangedBytesNeverDoHarm) {
  Rng rng(2);
  const std::string whole = encode_placement({3, {{1, {"a", "b"}, 2}, {7, {"d"}, 1}}, {}});
  for (int trial = 0; trial < 5000; trial++) {
    std::string broken = whole;
    for (uint64_t changes = 1 + rng.below(3); changes > 0; changes--)
      broken[rng.below(broken.size())] = static_cast<char>(rng.below(256));
    const auto read = decode_placement(entry(broken));
    EXPECT_TRUE(!read.ok() || check_placement(*read).ok()) << broken;
  }
}

TEST(RegistryPlacement, RulesOfPlacements) {
  const auto check = [](std::vector<StorageGroup> groups) {
    return check_placement({1, std::move(groups), {}});
  };
  EXPECT_TRUE(check({{1, {"a"}, 1}}).ok());
  EXPECT_TRUE(check({{2, {"a", "b", "c"}, 3}, {1, {"a"}, 1}}).ok());
  EXPECT_FALSE(check_placement({0, {{1, {"a"}, 1}}, {}}).ok());
  EXPECT_FALSE(check({}).ok());
  EXPECT_FALSE(check({{0, {"a"}, 1}}).ok());
  EXPECT_FALSE(check({{1, {}, 0}}).ok());
  EXPECT_FALSE(check({{1, {"a"}, 0}}).ok());
  EXPECT_FALSE(check({{1, {"a"}, 2}}).ok());
  EXPECT_FALSE(check({{1, {"a", "a"}, 1}}).ok());
  EXPECT_FALSE(check({{1, {"a/b"}, 1}}).ok());
  EXPECT_FALSE(check({{1, {"a"}, 1}, {1, {"b"}, 1}}).ok());
}

TEST(RegistryRecords, WhoCameAndWentIsKept) {
  const Placement placement{3, {{1, {"a", "b"}, 2, {0, 3}, {"x"}}}, Version{9}};
  const auto read = decode_placement(entry(encode_placement(placement)));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->groups, placement.groups);
  for (const char* joined : {"[]", "[1]", "[0,0]", "[1,-1]", "[1,\"2\"]", "7", "[1,2,3]"}) {
    std::string broken = encode_placement(placement);
    broken.replace(broken.find("[0,3]"), 5, joined);
    EXPECT_TRUE(is_corruption(decode_placement(entry(broken)).status())) << joined;
  }
  for (const char* retired : {"[]", "[7]", "7", "[\"a b\"]", "[\"a\"]"}) {
    std::string broken = encode_placement(placement);
    broken.replace(broken.find("[\"x\"]"), 5, retired);
    EXPECT_TRUE(is_corruption(decode_placement(entry(broken)).status())) << retired;
  }
}

// TP4, TP5
TEST(RegistryPlacement, OneStepAtATime) {
  const Placement three{4, {{7, {"a", "b", "c"}, 2, {}, {"x"}}}, {}};
  const auto replaced = with_replaced(three, "b", "d");
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  EXPECT_EQ((*replaced)[0].nodes, (std::vector<std::string>{"a", "d", "c"}));
  EXPECT_TRUE(is_not_found(with_replaced(three, "y", "d").status()));
  EXPECT_TRUE(is_invalid_argument(with_replaced(three, "a", "x").status()));
  EXPECT_TRUE(is_invalid_argument(with_added(three, 7, "x", 0).status()));
  EXPECT_TRUE(is_invalid_argument(with_replaced(three, "a", "c").status()));
  const auto added = with_added(three, 7, "d", 0);
  ASSERT_TRUE(added.ok()) << added.status();
  EXPECT_EQ((*added)[0].nodes.size(), 4u);
  EXPECT_EQ((*added)[0].write_quorum, 3u);
  EXPECT_TRUE(is_not_found(with_added(three, 8, "d", 0).status()));
  for (const uint32_t write_quorum : {1u, 2u, 4u, 5u})
    EXPECT_TRUE(is_invalid_argument(with_added(three, 7, "d", write_quorum).status()));
  EXPECT_TRUE(is_invalid_argument(with_added(three, 7, "c", 0).status()));
  const Placement four{5, *added, {}};
  EXPECT_EQ((*with_added(four, 7, "e", 0))[0].write_quorum, 3u);
  EXPECT_EQ((*with_added(four, 7, "e", 4))[0].write_quorum, 4u);
}

// TP4
TEST(RegistryPlacement, OneNodeIsTakenOut) {
  const Placement five{9, {{7, {"a", "b", "c", "d", "e"}, 3, {0, 2, 0, 3, 4}, {"x"}}}, {}};
  const auto four = with_taken_out(five, "a");
  ASSERT_TRUE(four.ok()) << four.status();
  EXPECT_EQ((*four)[0].nodes, (std::vector<std::string>{"b", "c", "d", "e"}));
  EXPECT_EQ((*four)[0].joined, (std::vector<uint64_t>{2, 0, 3, 4}));
  EXPECT_EQ((*four)[0].write_quorum, 3u);
  const auto three = with_taken_out({10, *four, {}}, "d");
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_EQ((*three)[0].nodes, (std::vector<std::string>{"b", "c", "e"}));
  EXPECT_EQ((*three)[0].write_quorum, 2u);
  EXPECT_TRUE(is_invalid_argument(with_taken_out({11, *three, {}}, "b").status()));
  EXPECT_TRUE(is_not_found(with_taken_out(five, "x").status()));
}

TEST(RegistryRecords, WhoTookANodeOutIsKept) {
  Placement placement{3, {{1, {"a", "b", "c"}, 2, {}, {"x"}, Epoch{17}}}, Version{9}};
  const auto read = decode_placement(entry(encode_placement(placement)));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->groups, placement.groups);
  for (const char* epoch : {"0", "-1", "\"x\"", "9007199254740992", "[]", "null"}) {
    std::string broken = encode_placement(placement);
    broken.replace(broken.find("17"), 2, epoch);
    EXPECT_TRUE(is_corruption(decode_placement(entry(broken)).status())) << epoch;
  }
}

TEST(RegistryRecords, RequestsToTakeANodeOut) {
  RemovalRequest request{"s4", 7, ""};
  EXPECT_EQ(encode_removal(request), R"({"format":1,"generation":7,"node":"s4"})");
  EXPECT_EQ(*decode_removal(entry(encode_removal(request))), request);
  request.refused = as_reason("it's \"no\"\n" + std::string(5000, 'x'));
  EXPECT_EQ(request.refused.size(), 1000u);
  EXPECT_TRUE(request.refused.starts_with("it's \"no\"?xx"));
  EXPECT_EQ(*decode_removal(entry(encode_removal(request))), request);
  for (const char* text :
       {R"({"format":1,"generation":0,"node":"s4"})", R"({"format":1,"generation":7,"node":""})",
        R"({"format":1,"generation":7})", R"({"format":1,"generation":7,"node":"s4","refused":""})",
        R"({"format":1,"generation":7,"node":"s4","refused":7})",
        R"({"format":1,"generation":7,"node":"s4","refused":"a\u0001"})"})
    EXPECT_TRUE(is_corruption(decode_removal(entry(text)).status())) << text;
}

TEST(RegistryPlacement, ANewGroupTakesItsShareAndMovesNothingElse) {
  const Placement two{1, {{1, {"a"}, 1}, {2, {"b"}, 1}}, {}};
  Placement three = two;
  three.groups.insert(three.groups.begin(), {3, {"c"}, 1});
  constexpr uint32_t kSpaces = 30'000;
  uint32_t moved = 0;
  for (uint32_t space = 0; space < kSpaces; space++) {
    const uint32_t before = two.group_of(SpaceId{space}).id;
    const uint32_t after = three.group_of(SpaceId{space}).id;
    moved += after == 3;
    EXPECT_TRUE(after == before || after == 3);
  }
  EXPECT_NEAR(moved, kSpaces / 3, kSpaces / 60);
}

// The groups of spaces and of streams are found, not assumed to be the first.
TEST(RegistryPlacement, SaysWhichGroupHasWhat) {
  const Placement one{1, {{7, {"a", "b"}, 2}}, {}};
  ASSERT_TRUE(one.only_group().ok());
  EXPECT_EQ((*one.only_group())->id, 7u);
  EXPECT_EQ(one.group_of(StreamId{1}).id, 7u);
  EXPECT_EQ(one.group_with("b"), one.groups.data());
  EXPECT_EQ(one.group_with("c"), nullptr);
  const Placement two{1, {{1, {"a"}, 1}, {2, {"b", "c"}, 2}}, {}};
  EXPECT_EQ(two.group_with("c"), &two.groups[1]);
  const Status several = two.only_group().status();
  EXPECT_TRUE(is_unsupported(several)) << several;
  EXPECT_NE(several.message().find("2 groups of storage nodes (1: a; 2: b, c)"),
            std::string_view::npos)
      << several;
  uint32_t in_first = 0;
  for (uint32_t stream = 1; stream <= 1000; stream++)
    in_first += two.group_of(StreamId{stream}).id == 1;
  EXPECT_NEAR(in_first, 500, 100);
}

TEST(RegistryKeys, NamesAndKeys) {
  for (const char* name : {"a", "store-1", "A_b.c-9", "0"}) EXPECT_TRUE(is_name(name)) << name;
  for (const char* name : {"", "-a", ".a", "a/b", "a b", "\xc3\xa9", "a\n"})
    EXPECT_FALSE(is_name(name)) << name;
  EXPECT_FALSE(is_name(std::string(kNameBytesMax + 1, 'a')));
  EXPECT_FALSE(ClusterKeys::of("a/b").ok());
  const ClusterKeys keys = *ClusterKeys::of("main");
  EXPECT_EQ(keys.identity(), "/strata/main/identity");
  EXPECT_EQ(keys.placement(), "/strata/main/placement");
  EXPECT_EQ(keys.member("store-1"), "/strata/main/members/store-1");
  EXPECT_EQ(keys.epoch(StreamId{42}), "/strata/main/streams/0000002a/epoch");
  EXPECT_EQ(keys.writer(StreamId{42}), "/strata/main/streams/0000002a/writer");
}

}  // namespace
}  // namespace strata::cluster::internal
