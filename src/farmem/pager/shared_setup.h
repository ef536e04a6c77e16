// What `strata-farmem run` tells the processes it starts, and they it: one file in memory that all
// of them map, whose descriptor number is in the environment. The secret is in it, not in the
// environment, which others can read.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/status.h"
#include "farmem/pager/counters.h"
#include "transport/secret.h"

namespace strata::farmem {

constexpr const char* kSetupVariable = "STRATA_FARMEM_SETUP";
constexpr size_t kAddressBytesMax = 128;
constexpr size_t kPathBytesMax = 1024;
constexpr size_t kProcessesMax = 64;

struct SharedSetup {
  uint64_t magic = 0;
  uint64_t bytes = 0;  // of this struct: both sides were built alike
  std::array<char, kAddressBytesMax> address{};
  std::array<char, transport::Secret::kBytes> secret{};
  int32_t userfault_device = -1;  // descriptor, inherited
  uint32_t replacement = 0;
  uint32_t frames = 0;
  uint32_t ways = 0;
  uint32_t prefetch = 0;
  // Shared memory: a file of far_pages pages, of which so many have been mapped by somebody.
  int32_t shared_file = -1;    // descriptor, inherited; -1: shared memory is local
  uint64_t shared_device = 0;  // of the file: what is open under a number may be something else
  Counter shared_pages_taken{0};
  uint64_t far_pages = 0;
  uint64_t far_bytes_min = 0;  // smaller allocations stay local
  uint64_t timeout_us = 0;
  uint64_t link_round_trip_ns = 0;  // modelled; 0 and 0: none
  uint64_t link_bytes_per_second = 0;
  std::array<char, kPathBytesMax> trace{};  // empty: none
  std::array<ProcessCounters, kProcessesMax> processes;
};
static_assert(std::is_standard_layout_v<SharedSetup>);

// Of the process that has place `index`: FILE, FILE.2, FILE.3 ...
inline std::string trace_path(const std::string& file, size_t index) {
  return index == 0 ? file : file + "." + std::to_string(index + 1);
}

class SharedMemory {
 public:
  // A new one, whose descriptor children inherit. Error: kResourceExhausted.
  static StatusOr<SharedMemory> create();
  // The one whose descriptor number is in the environment. kNotFound: there is none, or what is
  // open under that number is something else (a program closes what it does not know).
  static StatusOr<SharedMemory> from_environment();
  [[nodiscard]] SharedSetup* get() const noexcept { return setup_; }
  [[nodiscard]] int fd() const noexcept { return fd_; }

 private:
  SharedMemory(int fd, SharedSetup* setup) noexcept : fd_(fd), setup_(setup) {}
  int fd_;
  SharedSetup* setup_;  // mapped until the process ends
};

// Text into and out of arrays of fixed size; what does not fit is cut off.
template <size_t kBytes>
void put_text(std::array<char, kBytes>* array, std::string_view text) noexcept {
  array->fill('\0');
  text.copy(array->data(), kBytes - 1);
}
template <size_t kBytes>
std::string_view text_of(const std::array<char, kBytes>& array) noexcept {
  const std::string_view all(array.data(), kBytes);
  return all.substr(0, all.find('\0'));
}

}  // namespace strata::farmem
