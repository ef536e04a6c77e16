// One file whose content this process has: the kernel asks for pages of it through /dev/fuse. What
// a loop device, and so a place to swap to, can be made of without a module of the kernel's; and
// what several processes can map as memory that they share.
//
//   FM42  Once the process has locked its memory (lock_memory()), serve() touches none that can be
//         swapped and waits for none that it would have to make room for itself: what it is asked
//         to keep may be what the kernel needs to have memory at all.
//   FM45  A file of make_unseen() has no name in any folder of the host, so nothing has to be taken
//         away again: it is gone with the last who has it open or mapped, however they end.
//   FM46  When the thread that called make_unseen() is gone, killed or not, or the object, whoever
//         waits for a page of it is told that there is none. The kernel alone would not do so: a
//         thread that has it forget a page waits for an answer in a way that cannot be killed, and
//         keeps the process and its descriptors. So a second process, the guard, is there to end
//         it; it has the file system in a mount namespace of its own. It is told when the thread is
//         gone, and looks besides, each second, whether it has been killed: it may be stuck on its
//         way out, in the file itself. (Both killed at the same moment: it may wait until somebody
//         aborts the connection by hand.)
//   FM47  When the thread is gone, though the object was not taken away in order, the guard ends
//         all other processes that have the file mapped: what they share is lost, and one that
//         waits for a lock of another that touched it would wait for ever.
//   FM48  The guard ends nobody else: it has the file system open until it ends, so that the number
//         by which it knows who has the file mapped is no other file system's meanwhile.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"

namespace strata::farmem {

// Whole pages. Not ok: the kernel is told of an error of the device.
struct FuseContent {
  uint64_t pages = 0;
  std::function<Status(uint64_t first, uint64_t count, char* to)> read = nullptr;
  std::function<Status(uint64_t first, uint64_t count, const char* from)> write = nullptr;
  // Instead of `read`: the kernel asks for one page at a time and reads nothing ahead, and is
  // answered by answer_page() or refuse_page(), at any time and in any order.
  std::function<void(uint64_t request, uint64_t page)> read_later = nullptr;
  // What ask_for_copy() wanted. Not called for a page the kernel has not.
  std::function<void(uint64_t page, const char* bytes)> copied = nullptr;
};

class FuseFile {
 public:
  // Mounts on the folder: seen in the mount namespace of the caller only. Error: kInvalidArgument,
  // which says what is missing.
  static StatusOr<std::unique_ptr<FuseFile>> make(const std::string& folder, FuseContent content);
  // FM45, FM46. Linux 5.2 or newer, and /proc. Forks. Error as above.
  static StatusOr<std::unique_ptr<FuseFile>> make_unseen(FuseContent content);
  // Who waits for a page is told that there is none. Of make_unseen(): see end().
  ~FuseFile();
  FuseFile(const FuseFile&) = delete;
  FuseFile& operator=(const FuseFile&) = delete;

  // Answers the kernel until nothing uses the file system any more. In a thread of its own: who
  // opens the file waits for it.
  void serve() noexcept;
  // Or, of a file of make_unseen(): one request, if there is one. Does not block. `fd()` is
  // readable when there is.
  enum class Heard : uint8_t { kRequest, kNothing, kEnd };
  Heard handle_one() noexcept;
  [[nodiscard]] int fd() const noexcept { return fd_; }

  // For any thread; what is not wanted any more is not minded.
  void answer_page(uint64_t request, const char* bytes) const noexcept;
  void refuse_page(uint64_t request) const noexcept;
  // The kernel forgets these pages; those that were changed it writes first. Blocks until it has:
  // never in the thread that answers. A page that is being read is waited for.
  void forget(uint64_t first, uint64_t count) const noexcept;
  // The kernel sends what it has of the page, sometime.
  void ask_for_copy(uint64_t page) const noexcept;

  // Of make() only.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  // Takes the file's name away; the file is there until nothing uses it.
  Status unmount() const;
  // Of make_unseen(): all who wait are told that there is nothing, now and for ever; handle_one()
  // says kEnd. Blocks for a moment. Once is enough.
  void end() noexcept;
  [[nodiscard]] pid_t guard() const noexcept { return guard_; }  // a child of this process
  // Of make_unseen(), while another thread answers. The descriptor is the caller's; closed by exec.
  StatusOr<int> open() const;

 private:
  FuseFile(int fd, int mount_fd, pid_t guard, std::string folder, FuseContent content);
  void answer(uint64_t request, int error, const void* out, size_t bytes) const noexcept;
  void handle(size_t bytes) noexcept;
  void begin(uint64_t request, const char* argument) const noexcept;
  void look_up(uint64_t request, uint64_t folder, size_t bytes) noexcept;
  void read(uint64_t request, const char* argument) noexcept;
  void write(uint64_t request, const char* argument, size_t bytes) noexcept;
  void take_copy(const char* argument, size_t bytes) noexcept;

  const int fd_;
  const int mount_fd_;  // -1: of make()
  pid_t guard_;         // -1: none
  const std::string folder_;
  const std::string path_;
  const FuseContent content_;
  const std::unique_ptr<char[]> in_;
  const std::unique_ptr<char[]> out_;
};

// This process and all it will ask for stays in memory, and what it does for the kernel does not
// wait for memory that it itself provides. Error: kInvalidArgument.
Status lock_memory();

}  // namespace strata::farmem
