#include "storenode/replay/log_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"

namespace strata::storenode {
namespace {
constexpr uint64_t kLineBytes = 64;      // of the processor's caches
constexpr uint64_t kWarmBytesMax = 512;  // of one piece; the processor goes on by itself
}  // namespace

LogCache::LogCache(uint64_t bytes) : blocks_max_(std::max<uint64_t>(1, bytes / kBlockBytes)) {}

// Null: there is no block that holds `from`, or could be made to by appending.
LogCache::BlockRef LogCache::find(const Key& key, uint64_t from, uint64_t* filled_to) {
  const MutexLock lock(mutex_);
  const auto it = index_.find(key);
  if (it == index_.end() || from < it->second->block->begin) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  *filled_to = it->second->block->begin + it->second->block->filled;
  return it->second->block;
}

// Puts bytes that begin at `from` where they belong, as far as they are not there yet.
LogCache::BlockRef LogCache::append(const Key& key, uint64_t from, const char* bytes,
                                    uint64_t count) {
  BlockRef old;  // freed after the mutex
  const MutexLock lock(mutex_);
  auto it = index_.find(key);
  if (it == index_.end()) {
    entries_.push_front(Entry{key, std::make_shared<Block>()});
    it = index_.emplace(key, entries_.begin()).first;
    it->second->block->begin = from;
    it->second->block->bytes = std::make_unique_for_overwrite<char[]>(kBlockBytes);
  } else if (from < it->second->block->begin ||
             from > it->second->block->begin + it->second->block->filled) {
    old = std::exchange(it->second->block, std::make_shared<Block>());
    it->second->block->begin = from;
    it->second->block->bytes = std::make_unique_for_overwrite<char[]>(kBlockBytes);
  }
  BlockRef block = it->second->block;
  STRATA_ASSERT(block->begin <= from && from <= block->begin + block->filled);
  const uint64_t there = block->begin + block->filled - from;
  if (there < count) {
    STRATA_ASSERT(block->filled + (count - there) <= kBlockBytes);
    std::memcpy(block->bytes.get() + block->filled, bytes + there, count - there);
    block->filled += count - there;
  }
  if (entries_.size() > blocks_max_) {
    old = std::move(entries_.back().block);
    index_.erase(entries_.back().key);
    entries_.pop_back();
  }
  STRATA_ASSERT(entries_.size() == index_.size() && entries_.size() <= blocks_max_);
  return block;
}

// Reads all of the block that is not in memory yet, so that the next reader finds it.
StatusOr<LogCache::BlockRef> LogCache::block_with(const Key& key, LogView* log, uint64_t from,
                                                  uint64_t end) {
  uint64_t filled_to = 0;
  BlockRef block = find(key, from, &filled_to);
  if (block != nullptr && end <= filled_to) {
    hits_.fetch_add(1, std::memory_order_relaxed);
    return block;
  }
  misses_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t begin = std::max(key.number * kBlockBytes, log->begin_lsn().value);
  if (block == nullptr) filled_to = begin;
  if (from < begin)
    return error_out_of_range("the log kept here begins at " + std::to_string(begin) + "; " +
                              std::to_string(from) + " was asked for");
  const uint64_t block_end = std::min((key.number + 1) * kBlockBytes, log->durable_lsn().value);
  STRATA_ASSERT(end <= block_end);  // S1; what is in memory was (LCH1)
  const auto read = std::make_unique_for_overwrite<char[]>(block_end - filled_to);
  Status status = log->read(Lsn{filled_to}, read.get(), block_end - filled_to);
  if (status.ok()) return append(key, filled_to, read.get(), block_end - filled_to);
  if (!is_corruption(status)) return status;
  // What is damaged may be before or behind what is asked for.
  STRATA_RETURN_IF_ERROR(log->read(Lsn{from}, read.get(), end - from));
  return append(key, from, read.get(), end - from);
}

Status LogCache::read(StreamId stream, LogView* log, Lsn from, char* out, size_t bytes) {
  while (bytes > 0) {
    const uint64_t at = from.value;
    const Key key{stream, at / kBlockBytes};
    const size_t n = std::min<uint64_t>(bytes, (key.number + 1) * kBlockBytes - at);
    STRATA_ASSIGN_OR_RETURN(const BlockRef block, block_with(key, log, at, at + n));
    // What had been read of the block before was thrown away while its rest was read.
    if (block->begin > at) continue;
    std::memcpy(out, block->bytes.get() + (at - block->begin), n);
    from.value += n;
    out += n;
    bytes -= n;
  }
  return ok_status();
}

void LogCache::warm(std::span<const Piece> pieces) {
  const MutexLock lock(mutex_);
  for (const Piece& piece : pieces) {
    const uint64_t from = piece.from.value;
    const auto it = index_.find(Key{piece.stream, from / kBlockBytes});
    if (it == index_.end() || from < it->second->block->begin) continue;
    const Block& block = *it->second->block;
    const uint64_t end =
        std::min(from + std::min(piece.bytes, kWarmBytesMax), block.begin + block.filled);
    for (uint64_t at = from; at < end; at += kLineBytes)
      __builtin_prefetch(block.bytes.get() + (at - block.begin));
  }
}

void LogCache::clear() {
  const MutexLock lock(mutex_);
  index_.clear();
  entries_.clear();
}

}  // namespace strata::storenode
