// The part of the logs read last, in memory, so that replay reads what quick scan has just read
// without asking the log store again. Thread-safe.
//   LCH1  Blocks hold bytes below the durable Lsn only: they never change, but the last one grows.
//   LCH2  Takes at most `bytes`; the block used longest ago goes first.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>

#include "base/ids.h"
#include "base/latch.h"
#include "base/status.h"
#include "storenode/replay/log_view.h"

namespace strata::storenode {

class LogCache {
 public:
  static constexpr uint64_t kBlockBytes = 128u << 10;

  explicit LogCache(uint64_t bytes);
  LogCache(const LogCache&) = delete;
  LogCache& operator=(const LogCache&) = delete;

  // As LogView::read(). Blocks for what is not in memory.
  Status read(StreamId stream, LogView* log, Lsn from, char* out, size_t bytes);
  // These will be read soon: asks for them ahead of that, from main memory. The sections of a page
  // lie all over the log, and without it most of the time they take goes to waiting for them.
  struct Piece {
    StreamId stream;
    Lsn from;
    uint64_t bytes = 0;
  };
  void warm(std::span<const Piece> pieces);
  void clear();

  [[nodiscard]] uint64_t hits() const noexcept { return hits_.load(std::memory_order_relaxed); }
  [[nodiscard]] uint64_t misses() const noexcept { return misses_.load(std::memory_order_relaxed); }

 private:
  struct Block {
    uint64_t begin = 0;             // Lsn of the first byte: the log may begin inside the block
    std::unique_ptr<char[]> bytes;  // kBlockBytes
    uint64_t filled = 0;            // of who holds the cache's mutex; what is below never changes
  };
  using BlockRef = std::shared_ptr<Block>;
  struct Key {
    StreamId stream;
    uint64_t number;
    bool operator==(const Key&) const noexcept = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const noexcept {
      return static_cast<size_t>(mix64((uint64_t{key.stream.value} << 40) ^ key.number));
    }
  };
  struct Entry {
    Key key;
    BlockRef block;
  };
  StatusOr<BlockRef> block_with(const Key& key, LogView* log, uint64_t from, uint64_t end);
  BlockRef find(const Key& key, uint64_t from, uint64_t* filled_to);
  BlockRef append(const Key& key, uint64_t from, const char* bytes, uint64_t count);

  const size_t blocks_max_;
  Mutex mutex_{LatchRank::kLeaf};
  std::list<Entry> entries_ STRATA_GUARDED_BY(mutex_);  // used last in front
  std::unordered_map<Key, std::list<Entry>::iterator, Hash> index_ STRATA_GUARDED_BY(mutex_);
  std::atomic<uint64_t> hits_{0};
  std::atomic<uint64_t> misses_{0};
};

}  // namespace strata::storenode
