#include "io/batch_io.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/diag.h"
#include "io/internal/ring.h"

namespace strata {
namespace {

using internal::kRingEntries;
using internal::RingEntry;

constexpr size_t kEntryBytesMax = 1u << 30;  // a call moves 2 GiB at most

RingEntry entry_of(const FileWrite& write, int descriptor) {
  return {.descriptor = descriptor,
          .is_write = true,
          .offset = write.offset,
          .data = const_cast<char*>(write.data),
          .bytes = static_cast<uint32_t>(write.bytes)};
}

RingEntry entry_of(const FileRead& read, int descriptor) {
  return {.descriptor = descriptor,
          .is_write = false,
          .offset = read.offset,
          .data = read.data,
          .bytes = static_cast<uint32_t>(read.bytes)};
}

void call(FileWrite* write) {
  write->status = write->file->write_at(write->offset, write->data, write->bytes);
}

void call(FileRead* read) {
  read->status = read->file->read_at(read->offset, read->data, read->bytes, &read->got);
}

void settle(FileWrite* write) { write->status = ok_status(); }

void settle(FileRead* read) {
  read->got = read->bytes;
  read->status = ok_status();
}

}  // namespace

BatchIo::BatchIo() : BatchIo(internal::make_ring) {}
BatchIo::BatchIo(MakeRing make_ring) : make_ring_(std::move(make_ring)) {}
BatchIo::~BatchIo() = default;

void BatchIo::write_all(FileWrite* writes, size_t count) { run(writes, count); }
void BatchIo::read_all(FileRead* reads, size_t count) { run(reads, count); }

template <typename Transfer>
void BatchIo::run(Transfer* transfers, size_t count) {
  if (count == 1) return call(transfers);
  std::array<RingEntry, kRingEntries> entries;
  std::array<Transfer*, kRingEntries> taken;
  for (size_t next = 0; next < count;) {
    size_t ringed = 0;
    for (; next < count && ringed < kRingEntries; ++next) {
      Transfer& transfer = transfers[next];
      const int descriptor = transfer.file->descriptor();
      if (descriptor < 0 || transfer.bytes > kEntryBytesMax) {  // BI3
        call(&transfer);
        continue;
      }
      entries[ringed] = entry_of(transfer, descriptor);
      taken[ringed++] = &transfer;
    }
    // A single one is a single call either way.
    if (std::unique_ptr<internal::Ring> ring = ringed > 1 ? take_ring() : nullptr; ring != nullptr)
      if (ring->run(entries.data(), ringed)) give_back(std::move(ring));
    for (size_t i = 0; i < ringed; ++i) {  // BI2
      if (entries[i].result == static_cast<int64_t>(entries[i].bytes))
        settle(taken[i]);
      else
        call(taken[i]);
    }
  }
}

std::unique_ptr<internal::Ring> BatchIo::take_ring() {
  {
    const MutexLock lock(mutex_);
    if (refused_) return nullptr;
    if (!idle_.empty()) {
      std::unique_ptr<internal::Ring> ring = std::move(idle_.back());
      idle_.pop_back();
      return ring;
    }
  }
  auto made = make_ring_();
  if (made.ok()) return std::move(*made);
  {
    const MutexLock lock(mutex_);
    if (std::exchange(refused_, true)) return nullptr;
  }
  diag(Severity::kInfo,
       "pages are read and written one by one, which takes more CPU time than several at once: %s",
       std::string(made.status().message()).c_str());
  return nullptr;
}

void BatchIo::give_back(std::unique_ptr<internal::Ring> ring) {
  const MutexLock lock(mutex_);
  idle_.push_back(std::move(ring));
}

}  // namespace strata
