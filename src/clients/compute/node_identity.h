// What tells a node's data folder from every other: a random number in a file, made once; and what
// tells it from a copy of it.
//   ID1  Of all processes on one folder at most one has a HeldIdentity. It ends with the process,
//        however that ends.
//   ID2  Two HeldIdentity with the same place() are of the same folder under the same start of the
//        operating system, so the earlier one's process has ended (ID1). A copy of the folder has
//        another place, on this machine or on another one. So has the folder itself once its
//        machine has been started anew, or it was moved to another disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace strata {

class FileSystem;

namespace clients {

// Reads `directory`/node-identity, or makes it (and the folder), durable when this returns. Blocks.
// Errors: kDataLoss (names the file), those of the file system.
StatusOr<uint64_t> node_identity(FileSystem* files, const std::string& directory);

class HeldIdentity {
 public:
  // Blocks; waits up to `patience_us` for a process that is just ending. Errors: those of
  // node_identity(); in_use: another process uses the folder.
  static StatusOr<std::unique_ptr<HeldIdentity>> of(const std::string& directory,
                                                    uint64_t patience_us);
  // That of another node's folder on this machine, which tells that its process has ended. Makes
  // nothing, does not wait. Errors: not_found: there is none (yet); in_use: its process lives;
  // those of node_identity().
  static StatusOr<std::unique_ptr<HeldIdentity>> left_behind(const std::string& directory);
  ~HeldIdentity();
  HeldIdentity(const HeldIdentity&) = delete;
  HeldIdentity& operator=(const HeldIdentity&) = delete;

  [[nodiscard]] uint64_t identity() const noexcept { return identity_; }
  [[nodiscard]] uint64_t place() const noexcept { return place_; }  // ID2
  // What the name of a node ends with that holds a log stream from this folder, so that ID2 can be
  // seen by it.
  [[nodiscard]] std::string suffix() const;

 private:
  HeldIdentity(int descriptor, uint64_t identity, uint64_t place)
      : descriptor_(descriptor), identity_(identity), place_(place) {}
  const int descriptor_;  // with the lock
  uint64_t identity_, place_;
};

}  // namespace clients
}  // namespace strata
