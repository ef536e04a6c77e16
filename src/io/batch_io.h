// Several reads or writes of files at a time, handed to the operating system with one call where it
// can take them (io_uring; docs/adr/2026-11-23-io-uring.md), else one after the other. Thread-safe.
//   BI1  When a function returns nothing of its batch is on its way any more: the memory is the
//        caller's, and no byte of these writes reaches a file later.
//   BI2  Each transfer ends as File::read_at or write_at would have, by itself: what the ring has
//        not done in full those two do again, whole, and their answer is the answer. In no order.
//   BI3  Only files that have a descriptor() go to a ring. A simulated or watched disk sees single
//        calls, in the order of the batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/latch.h"
#include "base/status.h"
#include "io/file_system.h"

namespace strata {

struct FileWrite {
  File* file = nullptr;
  uint64_t offset = 0;
  const char* data = nullptr;
  size_t bytes = 0;
  Status status{};  // how it ended
};

struct FileRead {
  File* file = nullptr;
  uint64_t offset = 0;
  char* data = nullptr;
  size_t bytes = 0;
  size_t got = 0;
  Status status{};
};

namespace internal {
class Ring;
}

class BatchIo {
 public:
  using MakeRing = std::function<StatusOr<std::unique_ptr<internal::Ring>>()>;

  BatchIo();
  explicit BatchIo(MakeRing make_ring);  // of tests
  ~BatchIo();
  BatchIo(const BatchIo&) = delete;
  BatchIo& operator=(const BatchIo&) = delete;

  // Block. With direct I/O memory, offsets and lengths are as File wants them.
  void write_all(FileWrite* writes, size_t count);
  void read_all(FileRead* reads, size_t count);

 private:
  template <typename Transfer>
  void run(Transfer* transfers, size_t count);
  std::unique_ptr<internal::Ring> take_ring();
  void give_back(std::unique_ptr<internal::Ring> ring);

  const MakeRing make_ring_;
  Mutex mutex_{LatchRank::kLeaf};
  std::vector<std::unique_ptr<internal::Ring>> idle_
      STRATA_GUARDED_BY(mutex_);                    // as many as batches were done at a time
  bool refused_ STRATA_GUARDED_BY(mutex_) = false;  // by the operating system; said once
};

}  // namespace strata
