// Memory that peers read and write by themselves: the owner's side. A region is a file, mapped by
// its owner and, on the same host, by its peers: on tmpfs or hugetlbfs it is DRAM, on a DAX or
// ordinary file it is persistent.
//
//   RN1  The header states epoch, size and incarnation and is written before the file gets its
//        name; it never changes. A region's bytes follow it, all zero at first.
//   RN2  The file has all its blocks from the start and never changes its size: no access to a
//        mapping can fail for want of space or beyond its end.
//   RN3  A peer with a mapping cannot be shut out of it. To fence, the owner makes a new file
//        under the name (create()), with another incarnation: what the peer still writes goes
//        nowhere.
//   RN4  put is visible when it ends, persistent only after persist() of its bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "transport/internal/file_descriptor.h"

namespace strata::transport {

struct RegionHeader {
  uint64_t magic = 0;
  uint32_t version = 0;
  uint32_t crc32c = 0;       // of the 24 bytes behind it
  uint64_t epoch = 0;        // the owner's, when it made the region
  uint64_t bytes = 0;        // without the header
  uint64_t incarnation = 0;  // random; another one for each file
};
static_assert(sizeof(RegionHeader) == 40);
constexpr uint64_t kRegionHeaderBytes = 4096;

// What a region's peers may do.
enum class RegionAccess : uint8_t { kReadWrite = 0, kReadOnly = 1 };

class Region {
 public:
  // Makes a new region of `bytes` (a multiple of 4096) zeroes, replacing one of that name. Blocks;
  // it is durable when this returns. Errors: kResourceExhausted (no space), kInternal.
  static StatusOr<std::unique_ptr<Region>> create(const std::string& path, uint64_t bytes,
                                                  uint64_t epoch);
  // One without a name, which lasts as long as somebody has it, and whose size nobody who is handed
  // it can change. Blocks. Errors: as those of create().
  static StatusOr<std::unique_ptr<Region>> create_in_memory(uint64_t bytes, uint64_t epoch);
  // One that an earlier life of the owner made. Its peers may still be writing to it (RN3).
  // Errors: kNotFound, kDataLoss (no region), kInternal.
  static StatusOr<std::unique_ptr<Region>> open(const std::string& path);
  // What a peer was handed; of a descriptor for reading only, mapped so. Errors: kDataLoss.
  static StatusOr<std::unique_ptr<Region>> map(FileDescriptor file, const std::string& name);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  [[nodiscard]] char* data() const noexcept { return base_ + kRegionHeaderBytes; }
  // What may be done to data(): a store to one that is for reading only ends the process.
  [[nodiscard]] RegionAccess access() const noexcept { return access_; }
  [[nodiscard]] uint64_t bytes() const noexcept { return header_.bytes; }
  [[nodiscard]] uint64_t epoch() const noexcept { return header_.epoch; }
  [[nodiscard]] uint64_t incarnation() const noexcept { return header_.incarnation; }
  [[nodiscard]] int fd() const noexcept { return file_.get(); }

  // Blocks until what is visible of these bytes now, whoever put it, is persistent. Thread-safe.
  // Errors: kOutOfRange, kInternal.
  Status persist(uint64_t offset, uint64_t bytes) const;
  // Its memory goes back to the system; the bytes are zero from then on, for every mapping.
  // Best effort: a file system that cannot do it keeps the memory until the last mapping goes.
  void give_back() const noexcept;
  [[nodiscard]] bool holds(uint64_t offset, uint64_t bytes) const noexcept {
    return offset <= header_.bytes && bytes <= header_.bytes - offset;
  }

 private:
  Region(FileDescriptor file, const RegionHeader& header, char* base, RegionAccess access) noexcept
      : file_(std::move(file)), header_(header), base_(base), access_(access) {}
  const FileDescriptor file_;
  const RegionHeader header_;  // as verified when it was mapped: the mapped one can be scribbled on
  char* const base_;
  const RegionAccess access_;
};

}  // namespace strata::transport
