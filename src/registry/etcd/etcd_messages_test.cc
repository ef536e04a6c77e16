// Goal: requests are what etcd's gateway expects, replies are read whatever they leave out, and
// anything else is kDataLoss (EM1). Method: replies as etcd 3.4 sends them, then broken ones: every
// prefix, every byte changed, wrong types, deep nesting. tests/fuzz/fuzz_registry.cc goes on.
#include "registry/etcd/internal/etcd_messages.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace strata::registry::internal {
namespace {

const std::string kHeader =
    R"("header":{"cluster_id":"4057385920604194153","member_id":"122","revision":"7","raft_term":"2"})";
const std::string kRange =
    "{" + kHeader +
    R"(,"kvs":[{"key":"YQ==","create_revision":"2","mod_revision":"3","version":"1","value":"Yg==","lease":"9"},)"
    R"({"key":"Yw==","create_revision":"4","mod_revision":"4","version":"1"}],"more":true,"count":"3"})";
const std::string kRefusedChange =
    "{" + kHeader +
    R"(,"responses":[{"response_range":{"header":{"revision":"7"},"kvs":[{"key":"YQ==","mod_revision":"5"}]}},)"
    R"({"response_range":{"header":{"revision":"7"}}}]})";
const std::string kEvents =
    R"({"result":{)" + kHeader +
    R"(,"events":[{"kv":{"key":"YQ==","mod_revision":"6","value":"Yg=="}},)"
    R"({"type":"DELETE","kv":{"key":"Yw==","mod_revision":"7"}}],"fragment":true}})";

TEST(EtcdMessages, RequestsAreTheGatewaysJson) {
  EXPECT_EQ(encode_range({.from = "a", .end = {}}), R"({"key":"YQ=="})");
  EXPECT_EQ(
      encode_range({.from = "a", .end = "b", .limit = 5, .at_revision = 6, .serializable = true}),
      R"({"key":"YQ==","range_end":"Yg==","limit":"5","revision":"6","serializable":true})");
  const Change changes[] = {Change::create("a", "b", LeaseId{9}), Change::remove("c", Version{4}),
                            Change::require("d", Version{5})};
  EXPECT_EQ(encode_change(changes),
            R"({"compare":[{"key":"YQ==","target":"MOD","result":"EQUAL","mod_revision":"0"},)"
            R"({"key":"Yw==","target":"MOD","result":"EQUAL","mod_revision":"4"},)"
            R"({"key":"ZA==","target":"MOD","result":"EQUAL","mod_revision":"5"}],)"
            R"("success":[{"request_put":{"key":"YQ==","value":"Yg==","lease":"9"}},)"
            R"({"request_delete_range":{"key":"Yw=="}}],)"
            R"("failure":[{"request_range":{"key":"YQ=="}},{"request_range":{"key":"Yw=="}},)"
            R"({"request_range":{"key":"ZA=="}}]})");
  EXPECT_EQ(encode_grant(5), R"({"TTL":"5"})");
  EXPECT_EQ(encode_lease(LeaseId{9}), R"({"ID":"9"})");
  EXPECT_EQ(encode_watch("a", 8),
            R"({"create_request":{"key":"YQ==","range_end":"Yg==","start_revision":"8",)"
            R"("fragment":true}})");
}

TEST(EtcdMessages, ThePrefixesEndIsTheFirstKeyBehindIt) {
  EXPECT_EQ(prefix_end("a"), "b");
  EXPECT_EQ(prefix_end("a/"), "a0");
  EXPECT_EQ(prefix_end("a\xff\xff"), "b");
  EXPECT_EQ(prefix_end("\xff"), std::string(1, '\0'));
  EXPECT_EQ(prefix_end(std::string("a\0", 2)), "a\x01");
}

TEST(EtcdMessages, RepliesAreReadWithWhatTheyLeaveOut) {
  const auto range = decode_range(kRange);
  ASSERT_TRUE(range.ok()) << range.status();
  EXPECT_EQ(range->header.revision, 7u);
  EXPECT_TRUE(range->more);
  EXPECT_EQ(range->entries, (std::vector<KeyValue>{{"a", "b", Version{3}, LeaseId{9}},
                                                   {"c", "", Version{4}, LeaseId{}}}));
  EXPECT_TRUE(decode_range("{" + kHeader + "}")->entries.empty());

  const auto refused = decode_change(kRefusedChange);
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_FALSE(refused->changed);
  EXPECT_EQ(refused->found, (std::vector<KeyValue>{{"a", "", Version{5}, LeaseId{}}}));
  const auto changed = decode_change("{" + kHeader + R"(,"succeeded":true,"responses":[{}]})");
  EXPECT_TRUE(changed.ok() && changed->changed);

  const auto granted = decode_grant("{" + kHeader + R"(,"ID":"9","TTL":"2"})");
  ASSERT_TRUE(granted.ok()) << granted.status();
  EXPECT_EQ(granted->lease, LeaseId{9});
  EXPECT_EQ(granted->ttl_s, 2u);
  EXPECT_FALSE(decode_grant("{" + kHeader + R"(,"ID":"9"})").ok());
  const auto gone = decode_renewal(R"({"result":{)" + kHeader + R"(,"ID":"9"}})");
  ASSERT_TRUE(gone.ok()) << gone.status();
  EXPECT_EQ(gone->ttl_s, 0u);

  const auto events = decode_watch(kEvents);
  ASSERT_TRUE(events.ok()) << events.status();
  EXPECT_TRUE(events->fragment);
  EXPECT_EQ(events->events, (std::vector<WatchEvent>{{false, {"a", "b", Version{6}, {}}},
                                                     {true, {"c", "", Version{7}, {}}}}));
  const auto canceled =
      decode_watch(R"({"result":{)" + kHeader + R"(,"canceled":true,"compact_revision":"5"}})");
  EXPECT_TRUE(canceled.ok() && canceled->canceled && canceled->compact_revision == 5);
  EXPECT_TRUE(decode_watch(R"({"result":{)" + kHeader + R"(,"created":true}})")->created);
}

template <typename Decode>
void expect_refused(const Decode& decode, const std::string& bytes) {
  const auto decoded = decode(bytes);
  EXPECT_TRUE(is_corruption(decoded.status())) << bytes << ": " << decoded.status();
}

TEST(EtcdMessages, WrongTypesAndMissingPartsAreRefused) {
  for (const std::string kvs :
       {R"({})", R"("x")", R"([1])", R"([{}])", R"([{"key":"YQ=="}])",
        R"([{"key":"YQ==","mod_revision":"-1"}])", R"([{"key":"YQ==","mod_revision":-1}])",
        R"([{"key":"YQ==","mod_revision":"1e3"}])", R"([{"key":"YQ==","mod_revision":1.5}])",
        R"([{"key":"YQ==","mod_revision":"18446744073709551616"}])",
        R"([{"key":"!!","mod_revision":"1"}])", R"([{"key":7,"mod_revision":"1"}])",
        R"([{"key":"YQ==","mod_revision":"1","value":[]}])",
        R"([{"key":"YQ==","mod_revision":"1","lease":"x"}])"})
    expect_refused(decode_range, "{" + kHeader + ",\"kvs\":" + kvs + "}");
  for (const std::string header : {R"({})", R"([])", R"({"header":7})", R"({"header":{}})",
                                   R"({"header":{"cluster_id":"0"}})", "", "null", "7"}) {
    expect_refused(decode_range, header);
    expect_refused(decode_change, header);
    expect_refused(decode_header, header);
    expect_refused(decode_watch, R"({"result":)" + header + "}");
    expect_refused(decode_renewal, R"({"result":)" + header + "}");
  }
  expect_refused(decode_change, "{" + kHeader + R"(,"succeeded":"true"})");
  expect_refused(decode_change, "{" + kHeader + R"(,"responses":[{"response_put":{}}]})");
  expect_refused(decode_grant, "{" + kHeader + R"(,"ID":"9","TTL":"99999999999"})");
  expect_refused(decode_watch,
                 R"({"result":{)" + kHeader +
                     R"(,"events":[{"type":"MOVE","kv":{"key":"YQ==","mod_revision":"1"}}]}})");
}

// An inner array as deep as a whole reply: a parser that recurses would run out of stack.
TEST(EtcdMessages, DeepNestingIsRefused) {
  for (const char open : {'[', '{'}) {
    std::string bytes;
    for (int i = 0; i < 200'000; i++) bytes += open == '[' ? "[" : "{\"a\":";
    expect_refused(decode_range, bytes);
    expect_refused(decode_range, "{\"header\":" + bytes);
    std::string closed = bytes + "1";
    for (int i = 0; i < 200'000; i++) closed += open == '[' ? "]" : "}";
    expect_refused(decode_range, closed);
  }
}

TEST(EtcdMessages, BrokenRepliesNeverDoHarm) {
  Rng rng(1);
  for (const std::string& whole : {kRange, kRefusedChange, kEvents}) {
    for (size_t bytes = 0; bytes < whole.size(); bytes++) {
      expect_refused(decode_range, whole.substr(0, bytes));
      expect_refused(decode_watch, whole.substr(0, bytes));
    }
    for (int trial = 0; trial < 2000; trial++) {
      std::string broken = whole;
      for (uint64_t changes = 1 + rng.below(4); changes > 0; changes--)
        broken[rng.below(broken.size())] = static_cast<char>(rng.below(256));
      decode_range(broken).status().IgnoreError();
      decode_change(broken).status().IgnoreError();
      decode_watch(broken).status().IgnoreError();
      decode_renewal(broken).status().IgnoreError();
      explain_refusal(500, broken).status.IgnoreError();
    }
  }
}

// EC1: what etcd certainly did not do, and what it may have done.
TEST(EtcdMessages, ARefusalSaysWhetherSomethingMayHaveBeenDone) {
  const auto refusal = [](long http, const std::string& message, int code) {
    return explain_refusal(http, R"({"error":")" + message + R"(","message":")" + message +
                                     R"(","code":)" + std::to_string(code) + "}");
  };
  const Refusal lease = refusal(404, "etcdserver: requested lease not found", 5);
  EXPECT_TRUE(is_not_found(lease.status) && !lease.in_doubt && !lease.elsewhere);
  const Refusal invalid = refusal(400, "etcdserver: request is too large", 3);
  EXPECT_TRUE(is_invalid_argument(invalid.status) && !invalid.in_doubt && !invalid.elsewhere);
  const Refusal leader = refusal(503, "etcdserver: no leader", 14);
  EXPECT_TRUE(is_peer_down(leader.status) && !leader.in_doubt && leader.elsewhere);
  const Refusal many = refusal(429, "etcdserver: too many requests", 8);
  EXPECT_TRUE(is_no_space(many.status) && !many.in_doubt && many.elsewhere);
  EXPECT_TRUE(refusal(503, "etcdserver: request timed out", 14).in_doubt);
  EXPECT_TRUE(refusal(429, "etcdserver: mvcc: database space exceeded", 8).in_doubt);
  EXPECT_TRUE(refusal(500, "anything else", 13).in_doubt);
  const Refusal stream = explain_refusal(
      503, R"({"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}})");
  EXPECT_TRUE(is_peer_down(stream.status) && !stream.in_doubt);
  EXPECT_FALSE(explain_refusal(404, "404 page not found").in_doubt);
  EXPECT_TRUE(explain_refusal(502, "<html>").in_doubt);
  EXPECT_TRUE(explain_refusal(200, "").in_doubt);
}

}  // namespace
}  // namespace strata::registry::internal
