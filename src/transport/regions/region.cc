#include "transport/regions/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "base/assert.h"
#include "base/crc32c.h"
#include "base/diag.h"
#include "transport/secret.h"

namespace strata::transport {
namespace {

constexpr uint64_t kMagic = 0x4e4f494745525453;  // "STREGION"
constexpr uint32_t kVersion = 1;
constexpr uint64_t kPageBytes = 4096;

uint32_t checksum(const RegionHeader& header) noexcept {
  return crc32c(&header.epoch, sizeof header - offsetof(RegionHeader, epoch));
}

Status failed(const char* what, const std::string& path, int error) {
  const std::string text = std::string(what) + " region " + path + ": " + std::strerror(error);
  if (error == ENOENT) return error_not_found(text);
  if (error == ENOSPC || error == EDQUOT) return error_no_space(text);
  return error_internal(text);
}

RegionHeader new_header(uint64_t bytes, uint64_t epoch) {
  STRATA_ASSERT(bytes > 0 && bytes % kPageBytes == 0);
  RegionHeader header;
  header.magic = kMagic;
  header.version = kVersion;
  header.epoch = epoch;
  header.bytes = bytes;
  system_entropy()->fill(reinterpret_cast<char*>(&header.incarnation), sizeof header.incarnation);
  header.crc32c = checksum(header);
  return header;
}

Status sync_folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const FileDescriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) return failed("sync the folder of", path, errno);
  return ok_status();
}

Status write_new_file(int fd, const std::string& path, const RegionHeader& header) {
  const int error =
      ::posix_fallocate(fd, 0, static_cast<off_t>(kRegionHeaderBytes + header.bytes));  // RN2
  if (error != 0) return failed("make", path, error);
  if (::pwrite(fd, &header, sizeof header, 0) != ssize_t{sizeof header} || ::fsync(fd) != 0)
    return failed("write", path, errno);
  return ok_status();
}

}  // namespace

StatusOr<std::unique_ptr<Region>> Region::create(const std::string& path, uint64_t bytes,
                                                 uint64_t epoch) {
  const RegionHeader header = new_header(bytes, epoch);
  const std::string draft = path + ".new";
  if (::unlink(draft.c_str()) != 0 && errno != ENOENT) return failed("remove", draft, errno);
  FileDescriptor fd(::open(draft.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) return failed("make", draft, errno);
  Status made = write_new_file(fd.get(), draft, header);
  if (made.ok() && ::rename(draft.c_str(), path.c_str()) != 0) made = failed("make", path, errno);
  if (!made.ok()) {
    ::unlink(draft.c_str());
    return made;
  }
  STRATA_RETURN_IF_ERROR(sync_folder_of(path));
  return map(std::move(fd), path);
}

StatusOr<std::unique_ptr<Region>> Region::create_in_memory(uint64_t bytes, uint64_t epoch) {
  constexpr const char* kName = "in memory";
  FileDescriptor fd(::memfd_create("strata-region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return failed("make", kName, errno);
  STRATA_RETURN_IF_ERROR(write_new_file(fd.get(), kName, new_header(bytes, epoch)));
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return failed("seal", kName, errno);
  return map(std::move(fd), kName);
}

StatusOr<std::unique_ptr<Region>> Region::open(const std::string& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) return failed("open", path, errno);
  return map(std::move(fd), path);
}

StatusOr<std::unique_ptr<Region>> Region::map(FileDescriptor file, const std::string& name) {
  RegionHeader header;
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return failed("stat", name, errno);
  if (::pread(file.get(), &header, sizeof header, 0) != ssize_t{sizeof header} ||
      header.magic != kMagic || header.version != kVersion || header.crc32c != checksum(header))
    return error_corruption(name + " is no region");
  const uint64_t file_bytes = static_cast<uint64_t>(info.st_size);
  if (file_bytes < kRegionHeaderBytes || header.bytes != file_bytes - kRegionHeaderBytes)
    return error_corruption("region " + name + " has another size than it says");
  const int flags = ::fcntl(file.get(), F_GETFL);
  if (flags < 0) return failed("look at", name, errno);
  const bool writable = (flags & O_ACCMODE) == O_RDWR;
  void* const base = ::mmap(nullptr, file_bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                            MAP_SHARED, file.get(), 0);
  if (base == MAP_FAILED) return failed("map", name, errno);
  return std::unique_ptr<Region>(
      new Region(std::move(file), header, static_cast<char*>(base),
                 writable ? RegionAccess::kReadWrite : RegionAccess::kReadOnly));
}

Region::~Region() { ::munmap(base_, kRegionHeaderBytes + header_.bytes); }

Status Region::persist(uint64_t offset, uint64_t bytes) const {
  if (!holds(offset, bytes)) return error_out_of_range("persist outside the region");
  if (bytes == 0) return ok_status();
  const uint64_t begin = offset / kPageBytes * kPageBytes;
  // The page cache is one for all mappings of a file, so this covers what peers have put.
  if (::msync(data() + begin, offset + bytes - begin, MS_SYNC) != 0)
    return failed("persist", "", errno);
  return ok_status();
}

void Region::give_back() const noexcept {
  // Not the header: who opens it by the name still sees that it is a region.
  const auto bytes = static_cast<off_t>(header_.bytes);
  if (::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kRegionHeaderBytes,
                  bytes) != 0)
    diag(Severity::kInfo, "the memory of a region goes with its last mapping: %s",
         std::strerror(errno));
}

}  // namespace strata::transport
