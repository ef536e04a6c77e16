#include "farmem/files/far_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/types/span.h"
#include "farmem/policy/policy_options.h"

namespace strata::farmem {
namespace {

constexpr uint64_t kAtOnce = kBatchPagesMax;

Status failed(int* error) {
  *error = errno;
  return error_internal(std::string("a file cannot be read or written: ") + std::strerror(errno));
}

uint64_t pages_of(uint64_t at, uint64_t bytes) {
  return (at + bytes + kPageBytes - 1) / kPageBytes - at / kPageBytes;
}

}  // namespace

FarCache::FarCache(std::unique_ptr<MemoryClient> client, FileCounters* counters)
    : client_(std::move(client)),
      counters_(*counters),
      used_(client_->pages()),
      buffer_(new char[kAtOnce * kPageBytes]),
      lost_(ok_status()) {}

void FarCache::lose(const Status& why) {
  if (lost_.ok()) lost_ = why;
}

StatusOr<uint64_t> FarCache::read(uint64_t file, int fd, uint64_t at, uint64_t bytes, char* to,
                                  int* error) {
  *error = EIO;
  struct stat info {};
  if (!lost_.ok()) return lost_;
  if (::fstat(fd, &info) != 0) return failed(error);
  const auto end = static_cast<uint64_t>(info.st_size);
  if (at >= end) return uint64_t{0};
  bytes = std::min(bytes, end - at);
  for (uint64_t done = 0; done < bytes;) {
    const Key first{file, (at + done) / kPageBytes};
    const uint64_t skipped = (at + done) % kPageBytes;
    uint64_t pages = std::min(pages_of(at + done, bytes - done), kAtOnce);
    // What the node has, or else what the file has, which it then has.
    STRATA_ASSIGN_OR_RETURN(const bool kept, read_kept(first, pages, buffer_.get(), &pages));
    if (!kept) STRATA_RETURN_IF_ERROR(read_file(first, fd, pages, error));
    const uint64_t part = std::min(pages * kPageBytes - skipped, bytes - done);
    std::memcpy(to + done, buffer_.get() + skipped, part);
    done += part;
  }
  return bytes;
}

// As many of the pages as lie behind each other at the node: `got`. Or: how many of them it has
// not. A page that is not as it was stored is one that it has not.
StatusOr<bool> FarCache::read_kept(const Key& first, uint64_t pages, char* to, uint64_t* got) {
  const auto place_of = [this](const Key& page) {
    const auto found = places_.find(page);
    return found == places_.end() ? UINT64_MAX : found->second;
  };
  const uint64_t begin = place_of(first);
  uint64_t run = 1;
  const auto next = [&] { return place_of({first.first, first.second + run}); };
  if (begin == UINT64_MAX) {
    while (run < pages && next() == UINT64_MAX) run++;
    *got = run;
    return false;
  }
  // Zeros the node does not keep.
  const bool zeros = !client_->is_far(begin);
  while (run < pages && next() == begin + run && client_->is_far(begin + run) != zeros) run++;
  *got = run;
  if (zeros) {
    std::memset(to, 0, run * kPageBytes);
    return true;
  }
  const Status fetched = client_->fetch(begin, static_cast<uint32_t>(run), to);
  if (fetched.ok()) {
    counters_.fetched.fetch_add(run, std::memory_order_relaxed);
    return true;
  }
  if (!is_corruption(fetched)) {
    lose(fetched);
    return fetched;
  }
  for (uint64_t i = 0; i < run; i++) forget({first.first, first.second + i});
  return false;
}

// Into buffer_; then the node has it, too, and the kernel need not.
Status FarCache::read_file(const Key& first, int fd, uint64_t pages, int* error) {
  const auto at = static_cast<off_t>(first.second * kPageBytes);
  uint64_t done = 0;
  while (done < pages * kPageBytes) {
    const ssize_t got =
        ::pread(fd, buffer_.get() + done, pages * kPageBytes - done, at + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed(error);
    if (got == 0) break;
    done += static_cast<uint64_t>(got);
  }
  std::memset(buffer_.get() + done, 0, pages * kPageBytes - done);
  (void)::posix_fadvise(fd, at, static_cast<off_t>(pages * kPageBytes), POSIX_FADV_DONTNEED);
  counters_.from_disk.fetch_add(pages, std::memory_order_relaxed);
  return keep(first, pages, buffer_.get());
}

Status FarCache::write(uint64_t file, int fd, uint64_t at, uint64_t bytes, const char* from,
                       int* error) {
  *error = EIO;
  if (!lost_.ok()) return lost_;
  const uint64_t first = at / kPageBytes, pages = bytes == 0 ? 0 : pages_of(at, bytes);
  // Whatever comes, nobody reads what was there before.
  for (uint64_t i = 0; i < pages; i++) forget({file, first + i});
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t put = ::pwrite(fd, from + done, bytes - done, static_cast<off_t>(at + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return failed(error);
    done += static_cast<uint64_t>(put);
  }
  counters_.written.fetch_add(bytes, std::memory_order_relaxed);
  // Whole pages only: of others the rest would have to be read.
  if (at % kPageBytes != 0 || bytes % kPageBytes != 0) return ok_status();
  for (uint64_t i = 0; i < pages; i += kAtOnce)
    STRATA_RETURN_IF_ERROR(
        keep({file, first + i}, std::min(kAtOnce, pages - i), from + i * kPageBytes));
  return ok_status();
}

Status FarCache::keep(const Key& first, uint64_t pages, const char* from) {
  std::array<PageOut, kBatchPagesMax> out;
  std::array<Stored, kBatchPagesMax> outcome;
  for (uint64_t i = 0; i < pages; i++) {
    const Key page{first.first, first.second + i};
    forget(page);
    const uint64_t place = free_place();
    used_[place] = {page, true};
    places_[page] = place;
    out[i] = {place, from + i * kPageBytes};
  }
  const Status stored = client_->store({out.data(), pages}, absl::MakeSpan(outcome.data(), pages));
  if (!stored.ok()) {
    for (uint64_t i = 0; i < pages; i++) forget({first.first, first.second + i});
    lose(stored);
    return stored;
  }
  counters_.stored.fetch_add(
      static_cast<uint64_t>(std::count(outcome.begin(), outcome.begin() + pages, Stored::kWritten)),
      std::memory_order_relaxed);
  return ok_status();
}

uint64_t FarCache::free_place() {
  const uint64_t place = next_;
  next_ = (next_ + 1) % used_.size();
  if (used_[place].used) forget(used_[place].of);
  return place;
}

void FarCache::forget(const Key& page) {
  const auto found = places_.find(page);
  if (found == places_.end()) return;
  used_[found->second].used = false;
  places_.erase(found);
}

void FarCache::cut(uint64_t file, uint64_t bytes) {
  // The last page, too, when the file ends within it: it is read from the file again.
  for (auto at = places_.lower_bound({file, bytes / kPageBytes});
       at != places_.end() && at->first.first == file;) {
    used_[at->second].used = false;
    at = places_.erase(at);
  }
}

}  // namespace strata::farmem
