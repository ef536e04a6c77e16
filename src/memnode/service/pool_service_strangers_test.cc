// Goal: tenants have their tokens and quotas (TN1, TN2), and whatever comes over the wire harms
// nobody (PV2). Method: real sockets, random bytes.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/fault.h"
#include "base/rng.h"
#include "io/token_file.h"
#include "memnode/service/testing/pool_service_fixture.h"

namespace strata::memnode {
namespace {

using testing::kElsewhere;
using testing::kOther;
using testing::kPage;
using PoolServiceTest = testing::PoolServiceFixture;

// --- tenants ---

class PoolTenants : public PoolServiceTest {
 protected:
  void SetUp() override {
    tenant_options_ = {{"one", "the token of one", 2u << 20},
                       {"two", "the token of two", 4u << 20}};
    memory_bytes_ = 5u << 20;
    start();
  }
  StatusOr<proto::PoolAttachReply> pool_of(uint32_t stream, const std::string& token,
                                           uint32_t slots = UINT32_MAX) {
    return attach({{StreamId{stream}, Epoch{1}, ++number_, 0}, false, slots, token});
  }
  uint64_t number_ = 0;
};

TEST_F(PoolTenants, HaveTheirTokensAndQuotas) {  // TN1, TN2
  for (const char* token : {"", "the token of", "the token of three", "the token of onf"})
    EXPECT_TRUE(is_invalid_argument(pool_of(1, token).status())) << token;
  const auto first = pool_of(1, "the token of one");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_GT(first->slots, 120u) << "as much as there is: 2 MiB";
  EXPECT_LE(first->slots, 127u);
  EXPECT_TRUE(is_no_space(pool_of(2, "the token of one").status()));
  const auto second = pool_of(2, "the token of two", 64);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->slots, 64u);
  const auto third = pool_of(3, "the token of two");
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_LT(third->slots, 128u) << "the node has less than the quota";
  const auto uses = service_->status().tenants;
  ASSERT_EQ(uses.size(), 2u);
  EXPECT_LE(uses[0].used_bytes, 2u << 20);
  EXPECT_LE(uses[0].used_bytes + uses[1].used_bytes, 5u << 20);
  EXPECT_EQ(::access((folder_ / "pool-one-1").c_str(), F_OK), 0);
  // The same stream of another one is another pool.
  EXPECT_TRUE(is_no_space(pool_of(1, "the token of two").status()));
  stop();
  start();
  EXPECT_EQ(service_->status().pools.size(), 3u);
  EXPECT_EQ(service_->status().tenants[0].used_bytes, uses[0].used_bytes);
  const auto again = pool_of(1, "the token of one");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->incarnation, first->incarnation);
}

TEST(Token, IsOneLineThatOnlyItsOwnerReads) {
  const transport::test::Folder folder;
  const std::string path = folder / "token";
  EXPECT_TRUE(is_not_found(read_token(path).status()));
  const auto write = [&](const std::string& text, mode_t mode) {
    ::unlink(path.c_str());
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return read_token(path);
  };
  EXPECT_EQ(*write("0123456789abcdef\n", 0600), "0123456789abcdef");
  EXPECT_EQ(*write("0123456789abcdef", 0400), "0123456789abcdef");
  EXPECT_EQ(write(std::string(256, 'x'), 0600)->size(), 256u);
  for (const std::string& text : {std::string(), std::string("\n"), std::string("short\n"),
                                  std::string(257, 'x'), std::string("0123456789abcdef\nmore\n")})
    EXPECT_TRUE(is_invalid_argument(write(text, 0600).status())) << text;
  EXPECT_TRUE(is_invalid_argument(write("0123456789abcdef\n", 0640).status()));
  EXPECT_TRUE(is_invalid_argument(read_token(folder / "").status()));
}

TEST(TenantsTest, SettingsThatCannotBeAreRefused) {
  const auto check = [](const std::vector<TenantOptions>& tenants) {
    return Tenants::check(tenants, 1000);
  };
  EXPECT_TRUE(check({}).ok());
  EXPECT_TRUE(check({{"a", "x", 1000}, {"b", "y", 1000}}).ok());
  EXPECT_TRUE(is_invalid_argument(check({{"a", "x", 1001}})));
  EXPECT_TRUE(is_invalid_argument(check({{"a", "x", 0}})));
  EXPECT_TRUE(is_invalid_argument(check({{"a", "", 1}})));
  EXPECT_TRUE(is_invalid_argument(check({{"", "x", 1}})));
  EXPECT_TRUE(is_invalid_argument(check({{"a", "x", 1}, {"a", "y", 1}})));
  EXPECT_TRUE(is_invalid_argument(check({{"a", "x", 1}, {"b", "x", 1}})));
}

// --- garbage ---

// Goal: bytes that are no request, or one that was changed on its way, are refused and counted, and
// nothing in the pool is another one afterwards. Method: whole requests of every method, cut off,
// with bits flipped, or made of random bytes.
TEST_F(PoolServiceTest, GarbageChangesNothing) {  // PV2
  storage_nodes(1);
  attached(4, 1);
  ASSERT_TRUE(put({{kPage, 5, 100, 200}, {kOther, 6}}).ok());
  std::string pages;
  const std::vector<std::pair<uint16_t, std::string>> sound = {
      {proto::kPoolAttach, proto::encode(proto::PoolAttachRequest{user_, false, 64, "token"})},
      {proto::kPoolList, proto::encode(proto::PoolListRequest{user_, 0, 64})},
      {proto::kPoolPut, put_request(user_, {{kElsewhere, 5, 100, 200}}, 1'000, &pages)},
      {proto::kPoolPutStaged, proto::encode(proto::PoolPutStagedRequest{
                                  user_, Lsn{1'000}, {{{kPage, false, {}, {}}, Llsn{7}, 0}}})},
      {proto::kPoolLookup, proto::encode(proto::PoolPagesRequest{user_, {kPage}})},
      {proto::kPoolDrop, proto::encode(proto::PoolPagesRequest{user_, {kElsewhere}})},
      {proto::kPoolForget, proto::encode(proto::PoolForgetRequest{user_, SpaceId{900}})},
      {proto::kPoolWrite, proto::encode(proto::PoolWriteRequest{user_, Lsn{1}, 64, targets()})},
      {proto::kPoolWriteAgain,
       proto::encode(proto::PoolWriteAgainRequest{user_, 0, targets().front()})},
      {proto::kPoolSynced, proto::encode(proto::PoolSyncedRequest{user_, 0})},
      {proto::kPoolStored, proto::encode(proto::PoolStoredRequest{user_, {{kPage, Llsn{5}}}})},
      {proto::kPoolCheckpoint, proto::encode(proto::PoolCheckpointRequest{user_, Lsn{90}, 0})}};
  Rng rng(1);
  for (int round = 0; round < 2000; ++round) {
    const auto& [method, bytes] = sound[rng.below(sound.size())];
    std::string garbage = bytes;
    switch (rng.below(3)) {
      case 0:
        garbage.resize(rng.below(garbage.size()));
        break;
      case 1:  // of who calls: it is somebody else then
        garbage[rng.below(28)] ^= static_cast<char>(1 << rng.below(8));
        break;
      default:
        garbage.resize(rng.below(200));
        for (char& byte : garbage) byte = static_cast<char>(rng.below(256));
    }
    if (method == proto::kPoolAttach) {  // whose words would count
      const auto decoded = proto::decode_pool_attach(garbage);
      if (decoded.ok() && !(decoded->user.epoch <= Epoch{4} && decoded->user.number <= 1)) continue;
    }
    const auto answered = call(method, garbage);
    EXPECT_FALSE(answered.ok()) << method << " " << round;
  }
  EXPECT_GT(counters().bad_requests, 500u);
  EXPECT_GT(counters().stale_calls, 100u);
  EXPECT_EQ(service_->status().pools.size(), 1u);
  const PoolStatus status = pool_status();
  EXPECT_EQ(status.counts.dirty, 1u);
  EXPECT_EQ(status.counts.clean, 1u);
  EXPECT_EQ(status.counts.free, 62u);
  EXPECT_EQ(status.checkpoint, Lsn{});
  EXPECT_EQ(lookup(kPage)->at.llsn, Llsn{5});
  EXPECT_TRUE(storage_[0]->writers().empty());
}

}  // namespace
}  // namespace strata::memnode
