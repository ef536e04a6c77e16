// Buffers that a program registers with an io_uring are the kernel's until they are taken back:
// their pages never leave local memory. This stands in front of liburing's functions for it.
//   FM28  Registered pages of far memory are at most half of the local ones. A registration beyond
//         that fails with ENOMEM, as one beyond the limit of locked memory does, and nothing of it
//         is registered; programs go on without, or say so.
// A program that asks the kernel without liburing is not seen here: the pager ends it, with the
// reason, once no page can go any more (pager.h).
#include <dlfcn.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <vector>

#include "base/latch.h"
#include "farmem/policy/policy_options.h"
#include "farmem/preload/far_memory.h"

#define STRATA_PUBLIC extern "C" __attribute__((visibility("default")))

namespace strata::farmem {
namespace {

// liburing's own. A library that was loaded for itself alone (RTLD_LOCAL) is not among the next
// ones.
template <typename Function>
Function next(const char* name) {
  void* found = ::dlsym(RTLD_NEXT, name);
  if (found == nullptr) {
    void* const library = ::dlopen("liburing.so.2", RTLD_LAZY | RTLD_NOLOAD);
    if (library != nullptr) found = ::dlsym(library, name);
  }
  return reinterpret_cast<Function>(found);
}

// Of a buffer, or of none.
uint64_t far_pages_of(const iovec& buffer) {
  if (buffer.iov_len == 0 || !is_far_address(buffer.iov_base)) return 0;
  const uint64_t begin = reinterpret_cast<uint64_t>(buffer.iov_base) / kPageBytes;
  const uint64_t last =
      (reinterpret_cast<uint64_t>(buffer.iov_base) + buffer.iov_len - 1) / kPageBytes;
  return last - begin + 1;
}

// Of each ring, of each of its registered buffers how many pages of far memory it has. Thread-safe.
class RegisteredPages {
 public:
  // Each before the kernel is asked; false when that is too many.
  // All that the ring has. A ring that has some already is refused by the kernel.
  bool take_all(const void* ring, const iovec* buffers, unsigned slots, bool* is_new) {
    const MutexLock lock(latch_);
    *is_new = rings_.count(ring) == 0;
    if (!*is_new) return true;
    std::vector<uint64_t> pages(slots);
    uint64_t more = 0;
    for (unsigned i = 0; buffers != nullptr && i < slots; i++)
      more += pages[i] = far_pages_of(buffers[i]);
    if (more > far_pages_to_pin_max() - std::min(total_, far_pages_to_pin_max())) return false;
    total_ += more;
    rings_[ring] = std::move(pages);
    return true;
  }
  // Some of the ring's, in place of what is there, which is swapped into `pages`.
  bool take_some(const void* ring, unsigned first, std::vector<uint64_t>* pages) {
    const MutexLock lock(latch_);
    std::vector<uint64_t>& slots = rings_[ring];
    if (slots.size() < first + pages->size()) slots.resize(first + pages->size());
    uint64_t more = 0, less = 0;
    for (size_t i = 0; i < pages->size(); i++) {
      more += (*pages)[i];
      less += slots[first + i];
    }
    if (more > less && total_ + more - less > far_pages_to_pin_max()) return false;
    std::swap_ranges(pages->begin(), pages->end(), slots.begin() + first);
    total_ += more - less;
    return true;
  }
  void put_back(const void* ring, unsigned first, const std::vector<uint64_t>& pages) {
    const MutexLock lock(latch_);
    std::vector<uint64_t>& slots = rings_[ring];
    for (size_t i = 0; i < pages.size() && first + i < slots.size(); i++) {
      total_ += pages[i] - slots[first + i];
      slots[first + i] = pages[i];
    }
  }
  void give_back(const void* ring) {
    const MutexLock lock(latch_);
    const auto at = rings_.find(ring);
    if (at == rings_.end()) return;
    for (const uint64_t pages : at->second) total_ -= pages;
    rings_.erase(at);
  }

 private:
  Mutex latch_{LatchRank::kLeaf};
  std::map<const void*, std::vector<uint64_t>> rings_ STRATA_GUARDED_BY(latch_);
  uint64_t total_ STRATA_GUARDED_BY(latch_) = 0;
};

RegisteredPages& registered() {
  static auto* const pages = new RegisteredPages;  // used until the process is gone
  return *pages;
}

// Registers all buffers of a ring by `call`, if they may be.
template <typename Call>
int register_all(const void* ring, const iovec* buffers, unsigned count, const Call& call) {
  const InsideFarmem inside;
  bool is_new = false;
  if (!registered().take_all(ring, buffers, count, &is_new)) return -ENOMEM;
  const int done = call();
  if (done < 0 && is_new) registered().give_back(ring);
  return done;
}

}  // namespace
}  // namespace strata::farmem

using strata::farmem::far_pages_of;
using strata::farmem::InsideFarmem;
using strata::farmem::next;
using strata::farmem::register_all;
using strata::farmem::registered;

STRATA_PUBLIC int io_uring_register_buffers(void* ring, const iovec* buffers, unsigned count) {
  using Function = int (*)(void*, const iovec*, unsigned);
  static const auto real = next<Function>("io_uring_register_buffers");
  return register_all(ring, buffers, count, [&] { return real(ring, buffers, count); });
}

STRATA_PUBLIC int io_uring_register_buffers_tags(void* ring, const iovec* buffers,
                                                 const uint64_t* tags, unsigned count) {
  using Function = int (*)(void*, const iovec*, const uint64_t*, unsigned);
  static const auto real = next<Function>("io_uring_register_buffers_tags");
  return register_all(ring, buffers, count, [&] { return real(ring, buffers, tags, count); });
}

STRATA_PUBLIC int io_uring_register_buffers_sparse(void* ring, unsigned count) {
  using Function = int (*)(void*, unsigned);
  static const auto real = next<Function>("io_uring_register_buffers_sparse");
  return register_all(ring, nullptr, count, [&] { return real(ring, count); });
}

STRATA_PUBLIC int io_uring_register_buffers_update_tag(void* ring, unsigned first,
                                                       const iovec* buffers, const uint64_t* tags,
                                                       unsigned count) {
  using Function = int (*)(void*, unsigned, const iovec*, const uint64_t*, unsigned);
  static const auto real = next<Function>("io_uring_register_buffers_update_tag");
  const InsideFarmem inside;
  std::vector<uint64_t> pages(count);
  std::transform(buffers, buffers + count, pages.begin(), far_pages_of);
  if (!registered().take_some(ring, first, &pages)) return -ENOMEM;
  const int done = real(ring, first, buffers, tags, count);
  // What was there before is in `pages` now.
  if (done < 0) registered().put_back(ring, first, pages);
  return done;
}

STRATA_PUBLIC int io_uring_unregister_buffers(void* ring) {
  using Function = int (*)(void*);
  static const auto real = next<Function>("io_uring_unregister_buffers");
  const InsideFarmem inside;
  const int done = real(ring);
  if (done >= 0) registered().give_back(ring);
  return done;
}

STRATA_PUBLIC void io_uring_queue_exit(void* ring) {
  using Function = void (*)(void*);
  static const auto real = next<Function>("io_uring_queue_exit");
  const InsideFarmem inside;
  registered().give_back(ring);
  real(ring);
}
