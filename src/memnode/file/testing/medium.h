// For tests: what a persistent medium keeps of one region's file. It takes the place of msync() in
// the program that is linked with medium.cc, so that the code under test is as it is. As with a
// kernel, what a sync that fails has given up counts as written from then on: a later sync that
// goes well does not write it. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace strata::memnode::test {

class Medium {
 public:
  // Of the file with that path, whether or not it is there yet; what is there is durable. One at a
  // time. Without one msync() does nothing.
  explicit Medium(std::string path);
  ~Medium();
  Medium(const Medium&) = delete;
  Medium& operator=(const Medium&) = delete;

  // Of the syncs to come, `after` go well, so many fail, and the others go well again.
  void fail(uint32_t after, uint32_t syncs = UINT32_MAX);
  void heal() { fail(0, 0); }
  // The power goes when so many of the syncs to come have been: what comes later changes nothing.
  void lose_power(uint32_t after);
  [[nodiscard]] bool lost() const;
  [[nodiscard]] uint32_t syncs() const;  // begun

  // The file becomes what the loss has left, the process that used it having ended: what was
  // synced, and of what was stored since then the parts that keeps_new() says; they are told where
  // they begin, behind the region's header. The power is there again. Without lose_power() before
  // it goes now.
  void restore(const std::function<bool(uint64_t at)>& keeps_new);

  // msync() of so many bytes from there, which is where the region's begin.
  int sync(const char* at, size_t bytes);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace strata::memnode::test
