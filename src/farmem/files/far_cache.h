// Pages of files in a memory node, instead of in the kernel's cache here: who reads a file gets
// what the node has of it, and what it has not is read from the disk once and put there. Knows no
// FUSE. For one thread at a time.
//
//   FM60  A read gives what was written last, or what the file has: a page at the node is the
//         file's content at every moment between two calls. What is written goes to the file first;
//         when that or the node fails, the page is forgotten.
//   FM61  At most as many pages are kept as the client's region has; who came first goes first.
//   FM62  Nothing of the content stays in this process, nor, once it is written back, in the
//         kernel's cache.
//   FM63  After an error of the node (but for a page that is not as it was stored, which is read
//         from the file again) every call fails with it: the node is to be taken for lost.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "farmem/node/memory_client.h"

namespace strata::farmem {

// Each number by itself; read by any thread.
struct FileCounters {
  std::atomic<uint64_t> fetched{0};    // pages from the memory node
  std::atomic<uint64_t> from_disk{0};  // pages that were read from the file
  std::atomic<uint64_t> stored{0};     // pages sent to the memory node
  std::atomic<uint64_t> written{0};    // bytes written to files
};

class FarCache {
 public:
  // `counters` outlive it.
  FarCache(std::unique_ptr<MemoryClient> client, FileCounters* counters);
  FarCache(const FarCache&) = delete;
  FarCache& operator=(const FarCache&) = delete;

  // `file`: any number that is this file's as long as anything is kept of it. `fd`: open for
  // reading. Bytes that there are, at most `bytes`, into `to`. Blocks. Errors: kInternal with the
  // file's errno in `*error`; the node's, with EIO.
  StatusOr<uint64_t> read(uint64_t file, int fd, uint64_t at, uint64_t bytes, char* to, int* error);
  // All of it. Errors as of read(). `fd`: open for writing.
  Status write(uint64_t file, int fd, uint64_t at, uint64_t bytes, const char* from, int* error);
  // The file ends there now, or is no more (0).
  void cut(uint64_t file, uint64_t bytes);

  [[nodiscard]] const Status& lost() const noexcept { return lost_; }
  void lose(const Status& why);
  [[nodiscard]] uint64_t kept() const noexcept { return places_.size(); }
  // For any thread: signs of life.
  [[nodiscard]] MemoryClient& client() const noexcept { return *client_; }

 private:
  using Key = std::pair<uint64_t, uint64_t>;  // the file, and the number of its page
  struct Place {
    Key of;
    bool used = false;
  };

  StatusOr<bool> read_kept(const Key& first, uint64_t pages, char* to, uint64_t* got);
  Status read_file(const Key& first, int fd, uint64_t pages, int* error);
  Status keep(const Key& first, uint64_t pages, const char* from);
  void forget(const Key& page);
  uint64_t free_place();

  const std::unique_ptr<MemoryClient> client_;
  FileCounters& counters_;
  std::map<Key, uint64_t> places_;  // where at the node each page is
  std::vector<Place> used_;         // of each page of the region, whose it is
  uint64_t next_ = 0;               // the place that is used next
  const std::unique_ptr<char[]> buffer_;
  Status lost_;
};

}  // namespace strata::farmem
