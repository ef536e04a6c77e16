// Goal: a page comes back as it was written or not at all, over calls and through mappings
// (FM10-FM17); a client that lies, guesses, comes late or floods reaches nothing that is not its
// own, and nobody else notices. Method: real sockets, a hostile client made of raw calls.
#include <gtest/gtest.h>

#include <thread>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/rng.h"
#include "base/testing/wait_until.h"
#include "farmem/node/memory_client.h"
#include "farmem/node/memory_service.h"
#include "transport/calls/testing/io_node.h"

namespace strata::farmem {
namespace {

using transport::BlockingChannel;
using transport::BlockingReply;
using transport::test::Folder;
using transport::test::IoNode;
using transport::test::secret_of;

constexpr uint64_t kPages = 64;
constexpr uint64_t kCallUs = 30'000'000;

class MemoryNode : public ::testing::TestWithParam<const char*> {
 protected:
  void start(const ServiceOptions& options) {
    server_ = std::make_unique<transport::RpcServer>(node_.world(), secret_of('s'),
                                                     transport::ServerOptions{});
    service_ = std::make_unique<MemoryService>(node_.world(), server_.get(), options);
    tcp_ = *server_->listen("tcp:127.0.0.1:0");
    unix_ = *server_->listen("unix:" + (folder_ / "socket"));
  }
  void SetUp() override { start({}); }
  void stop() {
    server_.reset();
    service_.reset();
  }
  ~MemoryNode() override { stop(); }

  StatusOr<std::unique_ptr<MemoryClient>> open(const std::string& address,
                                               uint64_t pages = kPages) {
    return MemoryClient::open(
        secret_of('s'),
        {.address = address, .name = "test", .pages = pages, .timeout_us = kCallUs});
  }
  std::unique_ptr<MemoryClient> client() {
    return *open(std::string(GetParam()) == "unix" ? unix_ : tcp_);
  }
  ServiceStatus status() {
    ServiceStatus status;
    run_and_wait(node_.world().executor, [&] { status = service_->status(); });
    return status;
  }

  Folder folder_;
  IoNode node_;
  std::unique_ptr<transport::RpcServer> server_;
  std::unique_ptr<MemoryService> service_;
  std::string tcp_, unix_;
};

std::string random_page(Rng* rng) {
  std::string page(kPageBytes, '\0');
  for (size_t i = 0; i < page.size(); i += 8) store_u64(page.data() + i, rng->next());
  return page;
}
Stored store_one(MemoryClient* client, uint64_t page, const std::string& bytes) {
  Stored stored{};
  const PageOut out{page, bytes.data()};
  EXPECT_TRUE(client->store({&out, 1}, {&stored, 1}).ok());
  return stored;
}
std::string fetch_one(MemoryClient* client, uint64_t page) {
  std::string bytes(kPageBytes, '\0');
  EXPECT_TRUE(client->fetch(page, 1, bytes.data()).ok());
  return bytes;
}

TEST_P(MemoryNode, APageComesBackAsItWasWritten) {
  const auto far = client();
  EXPECT_EQ(far->mapped(), std::string(GetParam()) == "unix");
  Rng rng(1);
  std::vector<std::string> model(kPages);
  for (int step = 0; step < 2000; step++) {
    const uint64_t page = rng.below(kPages);
    if (rng.one_in(20)) {
      ASSERT_TRUE(far->discard(page, 1).ok());
      model[page].clear();
    } else if (rng.one_in(2)) {
      model[page] = random_page(&rng);
      ASSERT_EQ(store_one(far.get(), page, model[page]), Stored::kWritten);
    } else if (!model[page].empty()) {
      ASSERT_EQ(fetch_one(far.get(), page), model[page]);
    }
    ASSERT_EQ(far->is_far(page), !model[page].empty());
  }
}

TEST_P(MemoryNode, ARunOfPagesComesAtOnce) {
  const auto far = client();
  Rng rng(2);
  std::string all;
  for (uint64_t page = 0; page < kPages; page++) {
    const std::string bytes = random_page(&rng);
    store_one(far.get(), page, bytes);
    all += bytes;
  }
  std::string back(all.size(), '\0');
  ASSERT_TRUE(far->fetch(0, kPages, back.data()).ok());
  EXPECT_EQ(back, all);
}

TEST_P(MemoryNode, WhatIsThereAlreadyAndZerosAreNotSent) {
  const auto far = client();
  Rng rng(3);
  const std::string bytes = random_page(&rng);
  EXPECT_EQ(store_one(far.get(), 5, bytes), Stored::kWritten);
  EXPECT_EQ(store_one(far.get(), 5, bytes), Stored::kClean);
  std::string other = bytes;
  other[4095] ^= 1;
  EXPECT_EQ(store_one(far.get(), 5, other), Stored::kWritten);
  EXPECT_EQ(store_one(far.get(), 6, std::string(kPageBytes, '\0')), Stored::kZero);
  EXPECT_EQ(store_one(far.get(), 5, std::string(kPageBytes, '\0')), Stored::kZero);
  EXPECT_FALSE(far->is_far(5));
  EXPECT_EQ(far->counts().pages_written, 2u);
}

TEST_P(MemoryNode, TwoClientsNeverSeeEachOther) {
  const auto one = client();
  const auto two = client();
  Rng rng(4);
  const std::string first = random_page(&rng), second = random_page(&rng);
  store_one(one.get(), 7, first);
  store_one(two.get(), 7, second);
  EXPECT_EQ(fetch_one(one.get(), 7), first);
  EXPECT_EQ(fetch_one(two.get(), 7), second);
  EXPECT_TRUE(one->close().ok());
  EXPECT_EQ(fetch_one(two.get(), 7), second);
}

TEST_P(MemoryNode, ANodeThatIsGoneIsAnErrorInTime) {
  const auto far = client();
  Rng rng(5);
  store_one(far.get(), 1, random_page(&rng));
  ASSERT_TRUE(far->renew().ok());
  stop();
  EXPECT_TRUE(is_peer_down(far->renew()));
  start({});
}

INSTANTIATE_TEST_SUITE_P(Ways, MemoryNode, ::testing::Values("tcp", "unix"));

// Raw calls, as an authenticated peer with bad intentions makes them.
class HostileClient : public MemoryNode {
 protected:
  Status call(uint16_t method, Bytes request, std::string* answer = nullptr) {
    BlockingChannel channel(secret_of('s'), tcp_, {});
    BlockingReply reply;
    const Status status = channel.call(
        {.method = method, .deadline_us = monotonic_us() + kCallUs, .idempotent = true}, request,
        &reply);
    EXPECT_TRUE(reply.answered);
    if (answer != nullptr) *answer = reply.payload;
    return status;
  }
  Credentials open_raw() {
    std::string request, answer;
    append_u64(&request, kPages);
    append_bytes32(&request, "hostile");
    EXPECT_TRUE(call(kOpenMethod, request, &answer).ok());
    ByteReader reader(answer);
    return read_credentials(&reader);
  }
  static std::string begin(const Credentials& credentials, uint16_t count) {
    std::string out;
    append_credentials(&out, credentials);
    append_u16(&out, count);
    return out;
  }
  static void append_page(std::string* out, uint64_t page, uint64_t generation,
                          const std::string& bytes) {
    append_u64(out, page);
    append_u64(out, generation);
    append_u32(out, crc32c(bytes.data(), bytes.size()));
    out->append(bytes);
  }
  Rng rng_{6};
};

TEST_F(HostileClient, GarbageIsRefusedAndChangesNothing) {
  const auto honest = *open(tcp_);
  const std::string kept = random_page(&rng_);
  store_one(honest.get(), 3, kept);
  const Credentials own = open_raw();
  for (int i = 0; i < 600; i++) {
    std::string request;
    if (rng_.one_in(2)) append_credentials(&request, own);
    const size_t more = rng_.below(rng_.one_in(4) ? 9000 : 40);
    for (size_t b = 0; b < more; b++) request.push_back(static_cast<char>(rng_.next()));
    const auto method = static_cast<uint16_t>(kOpenMethod + rng_.below(kRenewMethod));
    if (method == kOpenMethod || method == kRenewMethod) request.resize(request.size() % 8 + 1);
    EXPECT_FALSE(call(method, request).ok());
  }
  EXPECT_EQ(fetch_one(honest.get(), 3), kept);
  EXPECT_GE(status().counts.refused, 600u);
  EXPECT_EQ(status().clients.size(), 2u);
}

TEST_F(HostileClient, AnotherOnesRegionNeedsItsToken) {
  const Credentials own = open_raw();
  const Credentials victim = open_raw();
  Credentials guessed = victim;
  guessed.token = own.token;
  std::string write = begin(guessed, 1);
  append_page(&write, 0, 1, random_page(&rng_));
  EXPECT_TRUE(is_not_found(call(kWriteMethod, write)));
  std::string close;
  append_credentials(&close, guessed);
  EXPECT_TRUE(is_not_found(call(kCloseMethod, close)));
  guessed = victim;
  guessed.client = 999;
  EXPECT_TRUE(is_not_found(call(kReadMethod, begin(guessed, 1))));
}

TEST_F(HostileClient, AWriteIsDoneAsAWholeOrNotAtAll) {
  const Credentials own = open_raw();
  const std::string good = random_page(&rng_);
  std::string beyond = begin(own, 2);
  append_page(&beyond, 1, 1, good);
  append_page(&beyond, kPages, 1, good);
  EXPECT_TRUE(is_out_of_range(call(kWriteMethod, beyond)));
  std::string damaged = begin(own, 2);
  append_page(&damaged, 1, 1, good);
  append_page(&damaged, 2, 1, good);
  damaged.back() ^= 1;
  EXPECT_TRUE(is_corruption(call(kWriteMethod, damaged)));
  std::string read = begin(own, 1);
  append_u64(&read, 1);
  EXPECT_TRUE(is_not_found(call(kReadMethod, read)));
  std::string too_many = begin(own, kBatchPagesMax + 1);
  for (uint32_t i = 0; i <= kBatchPagesMax; i++) append_page(&too_many, 1, 1, good);
  EXPECT_TRUE(is_corruption(call(kWriteMethod, too_many)));
}

TEST_F(HostileClient, AnOldWriteThatComesLateIsRefused) {
  const Credentials own = open_raw();
  std::string newer = begin(own, 1), older = begin(own, 1), forged = begin(own, 1);
  append_page(&newer, 1, 9, random_page(&rng_));
  append_page(&older, 1, 8, random_page(&rng_));
  append_page(&forged, 1, 9, random_page(&rng_));
  EXPECT_TRUE(call(kWriteMethod, newer).ok());
  EXPECT_TRUE(call(kWriteMethod, newer).ok());  // the same again
  EXPECT_TRUE(is_conflict(call(kWriteMethod, older)));
  EXPECT_TRUE(is_conflict(call(kWriteMethod, forged)));
}

TEST_F(HostileClient, DiscardsAreBounded) {
  const Credentials own = open_raw();
  const auto run = [&](uint64_t first, uint64_t pages) {
    std::string request = begin(own, 1);
    append_u64(&request, first);
    append_u64(&request, pages);
    return call(kDiscardMethod, request);
  };
  EXPECT_TRUE(run(0, kPages).ok());
  EXPECT_TRUE(is_out_of_range(run(1, kPages)));
  EXPECT_TRUE(is_out_of_range(run(UINT64_MAX, 2)));
  EXPECT_TRUE(is_out_of_range(run(2, UINT64_MAX)));
}

class BoundedNode : public HostileClient {
 protected:
  void SetUp() override {
    start({.capacity_bytes = 8 * kPageBytes, .clients_max = 3, .lease_us = 400'000});
  }
};

TEST_F(BoundedNode, AFullNodeSaysSoAndKeepsWhatItHas) {
  const auto far = *open(tcp_);
  std::vector<std::string> pages;
  for (uint64_t page = 0; page < 8; page++) {
    pages.push_back(random_page(&rng_));
    ASSERT_TRUE(far->renew().ok());
    store_one(far.get(), page, pages.back());
  }
  const std::string more = random_page(&rng_);
  Stored stored{};
  const PageOut out{8, more.data()};
  EXPECT_TRUE(is_no_space(far->store({&out, 1}, {&stored, 1})));
  EXPECT_TRUE(is_no_space(open(tcp_).status()));
  EXPECT_EQ(store_one(far.get(), 7, more), Stored::kWritten);  // in the place of what was there
  for (uint64_t page = 0; page < 7; page++) EXPECT_EQ(fetch_one(far.get(), page), pages[page]);
  EXPECT_EQ(status().bytes_used, 8 * kPageBytes);
}

TEST_F(BoundedNode, AMappedClientThatFillsTheNodeIsTold) {
  const auto far = *open(unix_);
  for (uint64_t page = 0; page < 16; page++) store_one(far.get(), page, random_page(&rng_));
  EXPECT_TRUE(is_no_space(far->renew()));
  ASSERT_TRUE(far->discard(0, 16).ok());
  EXPECT_TRUE(far->renew().ok());
}

TEST_F(BoundedNode, OnlySoManyClients) {
  const Credentials first = open_raw();
  for (int i = 0; i < 2; i++) open_raw();
  EXPECT_TRUE(is_no_space(open(tcp_).status()));
  std::string close;
  append_credentials(&close, first);
  EXPECT_TRUE(call(kCloseMethod, close).ok());
  EXPECT_TRUE(open(tcp_).ok());
}

TEST_F(BoundedNode, ASilentClientLosesItsRegion) {
  const auto far = *open(tcp_);
  store_one(far.get(), 1, random_page(&rng_));
  ASSERT_TRUE(testing::wait_until([this] { return status().leases_expired == 1; }));
  EXPECT_TRUE(is_not_found(far->renew()));
  EXPECT_EQ(status().bytes_used, 0u);
}

}  // namespace
}  // namespace strata::farmem
