// Goal: what move() says is what has happened to the page, while its entry in the kernel's tables
// changes under it. Method: one page goes to and fro while one thread writes to it and another has
// the kernel forget that it was used.
#include "farmem/pager/userfault.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "farmem/policy/policy_options.h"

namespace strata::farmem {
namespace {

class UserfaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = Userfault::open(-1);
    if (!opened.ok()) GTEST_SKIP() << opened.status();
    userfault_ = *std::move(opened);
    memory_ = static_cast<char*>(::mmap(nullptr, 2 * kPageBytes, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(static_cast<void*>(memory_), MAP_FAILED);
    ASSERT_TRUE(userfault_->watch(memory_, 2 * kPageBytes).ok());
  }
  ~UserfaultTest() override {
    if (memory_ != nullptr) ::munmap(memory_, 2 * kPageBytes);
  }
  [[nodiscard]] char* here() const { return memory_; }
  [[nodiscard]] char* there() const { return memory_ + kPageBytes; }
  void put(char* to, char with) const {
    char page[kPageBytes];
    std::memset(page, with, sizeof page);
    ASSERT_EQ(userfault_->copy(to, page, kPageBytes), 0);
  }

  std::unique_ptr<Userfault> userfault_;
  char* memory_ = nullptr;
};

TEST_F(UserfaultTest, APageThatIsMovedIsMissingWhereItWas) {
  put(here(), 1);
  EXPECT_EQ(userfault_->move(there(), here()), 0);
  EXPECT_EQ(*there(), 1);
  EXPECT_EQ(userfault_->move(there(), here()), 0);  // it is there already
  EXPECT_EQ(*there(), 1);
  EXPECT_EQ(userfault_->move(here(), there()), 0);
  EXPECT_EQ(*here(), 1);
}

TEST_F(UserfaultTest, WhatIsInTheWayStaysAndSoDoesThePage) {
  put(here(), 1);
  put(there(), 2);
  EXPECT_EQ(userfault_->move(there(), here()), EEXIST);
  EXPECT_EQ(*here(), 1);
  EXPECT_EQ(*there(), 2);
}

TEST_F(UserfaultTest, NothingCannotBeMoved) {
  EXPECT_EQ(userfault_->move(there(), here()), ENOENT);
}

TEST_F(UserfaultTest, AMoveThatBeginsAgainWithinTheKernelIsOneMove) {
  constexpr int kMoves = 300'000;
  put(here(), 0);
  std::atomic<bool> done{false};
  uint64_t written = 0;
  std::thread writer([&] {
    auto* const word = reinterpret_cast<volatile uint64_t*>(here());
    for (; !done; written++) *word = *word + 1;
  });
  std::thread ager([&] {
    while (!done) ::madvise(here(), kPageBytes, MADV_COLD);
  });
  int error = 0;
  for (int i = 0; i < kMoves && error == 0; i++) {
    error = userfault_->move(there(), here());
    if (error == EBUSY || error == EAGAIN) {  // it has stayed
      error = 0;
      continue;
    }
    if (error == 0) error = userfault_->move(here(), there());
  }
  EXPECT_EQ(error, 0) << std::strerror(error);
  done = true;
  ager.join();
  // After an error it may wait for the page.
  if (error != 0) put(here(), 0);
  writer.join();
  if (error == 0) {
    EXPECT_EQ(*reinterpret_cast<uint64_t*>(here()), written);
  }
}

}  // namespace
}  // namespace strata::farmem
