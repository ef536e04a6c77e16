// One file whose content this process has: the kernel asks for pages of it through /dev/fuse. What
// a loop device, and so a place to swap to, can be made of without a module of the kernel's.
//
//   FM42  Once the process has locked its memory (lock_memory()), serve() touches none that can be
//         swapped and waits for none that it would have to make room for itself: what it is asked
//         to keep may be what the kernel needs to have memory at all.
// The file is seen in the mount namespace of the caller of make() only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"

namespace strata::farmem {

// Whole pages. Not ok: the kernel is told of an error of the device.
struct FuseContent {
  uint64_t pages = 0;
  std::function<Status(uint64_t first, uint64_t count, char* to)> read;
  std::function<Status(uint64_t first, uint64_t count, const char* from)> write;
};

class FuseFile {
 public:
  // Mounts on the folder. Error: kInvalidArgument, which says what is missing.
  static StatusOr<std::unique_ptr<FuseFile>> make(const std::string& folder, FuseContent content);
  ~FuseFile();
  FuseFile(const FuseFile&) = delete;
  FuseFile& operator=(const FuseFile&) = delete;

  // Answers the kernel until nothing uses the file system any more. In a thread of its own: who
  // opens the file waits for it.
  void serve() noexcept;
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  // Takes the file's name away; the file is there until nothing uses it.
  Status unmount() const;

 private:
  FuseFile(int fd, std::string folder, FuseContent content);
  void answer(uint64_t request, int error, const void* out, size_t bytes) const noexcept;
  void handle(size_t bytes) noexcept;
  void read(uint64_t request, const char* argument) noexcept;
  void write(uint64_t request, const char* argument, size_t bytes) noexcept;

  const int fd_;
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
