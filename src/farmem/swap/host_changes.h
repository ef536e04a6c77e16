// What was changed on this host for a program that swaps, and how it is put back. Lies in memory
// that two processes share, of which either may be killed: the one that is left puts back.
//
//   FM40  What is done is written down here before it is done, and struck out after it was undone:
//         put_back() undoes all of it, in whatever moment the one who did it was stopped. (But for
//         a zram device, whose number is known only once it is there.)
//   FM41  Only what was written down is undone: nothing that was there before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "base/status.h"

namespace strata::farmem {

constexpr size_t kHostPathBytesMax = 512;
using HostPath = std::array<char, kHostPathBytesMax>;

struct HostChanges {
  HostPath memory_group{};    // a folder that was made: of the memory controller
  HostPath io_group{};        // and of the one for input and output; empty: none, or the same
  HostPath swap{};            // given to swapon()
  HostPath swap_file{};       // a file that was made
  int32_t zram = -1;          // number of a device that was made
  int32_t page_cluster = -1;  // what vm.page-cluster was before
};
static_assert(std::is_standard_layout_v<HostChanges>);

// False: the path is too long.
bool put_path(HostPath* to, std::string_view path) noexcept;
std::string_view path_of(const HostPath& path) noexcept;

// Ends every process in the memory group, then undoes all. Blocks, for some seconds when processes
// take long to end. Goes on after an error, and returns the first; what could not be undone stays
// written down. Not to be called by a thread or process that serves the swap's pages.
Status put_back(HostChanges* changes);

}  // namespace strata::farmem
