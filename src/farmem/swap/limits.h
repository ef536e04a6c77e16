// A control group of its own for a program, so that it has so much memory and no more, and so many
// reads and writes of a disk a second. Versions 1 and 2 of the kernel's control groups. Everything
// that is made is written down in HostChanges first (FM40).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/status.h"
#include "farmem/swap/host_changes.h"

namespace strata::farmem {

// Makes the group, with no process in it. All of a process's memory counts: what it allocates, its
// code, and the files that it reads. When it is full and nothing can be swapped, its processes wait
// (waits_for_memory()), where the kernel can be told so; else they are ended. Error:
// kInvalidArgument, which says what is missing.
Status make_memory_group(uint64_t bytes, HostChanges* changes);
// Besides: so many reads and as many writes a second of the disk that `file` is on. Error as above.
Status make_io_group(uint64_t operations_per_second, const std::string& file, HostChanges* changes);
// This process, and with it all it will start. For a child before exec: calls nothing but open(),
// write() and close().
[[nodiscard]] bool join_groups(const HostChanges& changes) noexcept;
// Memory is full, and a process of it waits for some. Never where the kernel ends processes
// instead.
bool waits_for_memory(const HostChanges& changes);
// Takes some pages from the group and wakes who waits for memory there, by a limit that is lower
// for a moment (FM49). Blocks for as long as pages are written. When there are none to take:
// nothing. Error: the limit may be some pages lower from now on, never higher.
Status take_pages(const HostChanges& changes);

struct GroupFigures {
  uint64_t major_faults = 0;  // touches of a page that had to be read, of swap or of a file
  uint64_t faults = 0;
  uint64_t bytes_max = 0;  // charged, at most so far
};
GroupFigures figures_of(const HostChanges& changes);

}  // namespace strata::farmem
