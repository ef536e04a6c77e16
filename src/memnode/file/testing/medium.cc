#include "memnode/file/testing/medium.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/assert.h"
#include "transport/regions/region.h"

namespace strata::memnode::test {
namespace {

constexpr size_t kWordLine = 64;      // written as one: a header, a record of the state
constexpr size_t kKernelPage = 4096;  // dirty or clean for the kernel
constexpr uint32_t kNever = UINT32_MAX;

std::atomic<Medium*> there{nullptr};

std::string contents(const std::string& path) {
  const transport::FileDescriptor file(::open(path.c_str(), O_RDONLY));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) return {};
  const auto all = static_cast<size_t>(info.st_size);
  if (all <= transport::kRegionHeaderBytes) return {};
  std::string bytes(all - transport::kRegionHeaderBytes, '\0');
  const ssize_t got =
      ::pread(file.get(), bytes.data(), bytes.size(), transport::kRegionHeaderBytes);
  STRATA_ASSERT(got == static_cast<ssize_t>(bytes.size()));
  return bytes;
}

}  // namespace

struct Medium::State {
  // By what the kernel takes for dirty: everything up to `bytes`.
  void write_back(const char* at, size_t bytes, bool well) {
    if (durable.size() < bytes) durable.resize(bytes, '\0');
    if (clean.size() < bytes) clean.resize(bytes, '\0');
    for (size_t page = 0; page < bytes; page += kKernelPage) {
      const size_t size = std::min(kKernelPage, bytes - page);
      if (std::memcmp(at + page, clean.data() + page, size) == 0) continue;
      std::memcpy(clean.data() + page, at + page, size);
      if (well) std::memcpy(durable.data() + page, at + page, size);
    }
  }

  std::string path;
  mutable std::mutex mutex;
  std::string durable, clean;
  std::string when_lost;
  bool lost = false;
  uint32_t syncs = 0, fail_after = 0, fails = 0, lose_after = kNever;
};

Medium::Medium(std::string path) : state_(std::make_unique<State>()) {
  state_->path = std::move(path);
  state_->durable = state_->clean = contents(state_->path);
  STRATA_ASSERT(there.exchange(this) == nullptr);
}

Medium::~Medium() { there.store(nullptr); }

void Medium::fail(uint32_t after, uint32_t syncs) {
  const std::lock_guard lock(state_->mutex);
  state_->fail_after = after;
  state_->fails = syncs;
}

void Medium::lose_power(uint32_t after) {
  const std::lock_guard lock(state_->mutex);
  state_->lose_after = after;
}

bool Medium::lost() const {
  const std::lock_guard lock(state_->mutex);
  return state_->lost;
}

uint32_t Medium::syncs() const {
  const std::lock_guard lock(state_->mutex);
  return state_->syncs;
}

int Medium::sync(const char* at, size_t bytes) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  ++state.syncs;
  if (state.lost) return 0;
  if (state.lose_after != kNever && state.lose_after-- == 0) {
    state.when_lost = contents(state.path);
    state.lost = true;
    return 0;
  }
  bool well = true;
  if (state.fail_after != 0) {
    --state.fail_after;
  } else if (state.fails != 0) {
    well = false;
    if (state.fails != kNever) --state.fails;
  }
  state.write_back(at, bytes, well);
  if (well) return 0;
  errno = EIO;
  return -1;
}

void Medium::restore(const std::function<bool(uint64_t at)>& keeps_new) {
  const std::lock_guard lock(state_->mutex);
  std::string left = state_->lost ? state_->when_lost : contents(state_->path);
  state_->durable.resize(left.size(), '\0');
  for (size_t at = 0; at < left.size(); at += kWordLine)
    if (!keeps_new(at)) std::memcpy(left.data() + at, state_->durable.data() + at, kWordLine);
  const transport::FileDescriptor file(::open(state_->path.c_str(), O_RDWR));
  const ssize_t put = ::pwrite(file.get(), left.data(), left.size(), transport::kRegionHeaderBytes);
  STRATA_ASSERT(put == static_cast<ssize_t>(left.size()));
  state_->durable = state_->clean = std::move(left);
  state_->lost = false;
  state_->fails = 0;
  state_->lose_after = kNever;
}

}  // namespace strata::memnode::test

// In place of the library's, of which no program linked with this needs anything.
extern "C" int msync(void* at, size_t bytes, int /*flags*/) {
  using strata::memnode::test::there;
  strata::memnode::test::Medium* const medium = there.load();
  return medium == nullptr ? 0 : medium->sync(static_cast<const char*>(at), bytes);
}
