// What a power loss does to the unsynced changes of one file. Shared by the simulated disk and by
// the tool that reverts a killed server's writes. Not thread-safe.
//
// A disk writes sectors of 512 bytes whole, each when it likes: after a power loss a sector holds
// what it held after one of the changes since the last sync, or at the sync. So changes are undone
// newest first, sector by sector:
//   UN1  Once a change of a sector survives, every older change of that sector survives too.
//   UN2  The size behaves like one more sector: a lost extension cuts what was written beyond it.
//   UN3  A shrink is undone only when every newer change of the file has been undone entirely. One
//        that survives settles every sector it cut.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "base/bytes.h"
#include "base/rng.h"

namespace strata {

constexpr uint64_t kSectorBytes = 512;

// One change of a file: bytes [offset, offset + bytes) were overwritten and the size became
// new_size. A shrink cuts the bytes [new_size, old_size).
struct FileChange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t old_size = 0;
  uint64_t new_size = 0;
  std::string before;  // what the range held, as far as the file reached
  [[nodiscard]] bool shrinks() const noexcept { return new_size < old_size; }
};

// Where changes are undone.
class ChangedFile {
 public:
  virtual ~ChangedFile() = default;
  virtual uint64_t size() = 0;
  virtual void write(uint64_t offset, Bytes bytes) = 0;  // inside the size
  virtual void resize(uint64_t bytes) = 0;               // new bytes read as zero
};

class PowerLoss {
 public:
  // Picks how much of this file survives: all, most, half, little or nothing.
  PowerLoss(Rng* rng, ChangedFile* file);
  void undo(const FileChange& change);  // call newest first
  [[nodiscard]] uint64_t reverted_sectors() const noexcept { return reverted_sectors_; }

 private:
  bool survives() { return rng_->below(8) < survivors_of_8_; }
  void undo_size(const FileChange& change);
  void undo_shrink(const FileChange& change);
  void undo_sector(const FileChange& change, uint64_t sector);
  Rng* rng_;
  ChangedFile* file_;
  uint64_t survivors_of_8_;
  std::set<uint64_t> settled_;            // UN1
  uint64_t settled_from_ = ~uint64_t{0};  // this sector and all behind it are settled, too
  bool size_settled_ = false;             // UN2
  bool any_survived_ = false;             // UN3
  uint64_t reverted_sectors_ = 0;
};

std::string folder_of(const std::string& path);  // "." when the path names none

}  // namespace strata
