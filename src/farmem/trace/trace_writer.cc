#include "farmem/trace/trace_writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/assert.h"
#include "base/clock.h"

namespace strata::farmem {
namespace {

constexpr uint64_t kChunkBytes = 4u << 20;
constexpr uint64_t kChunkRecords = kChunkBytes / sizeof(TraceRecord);

// With room for all of it on the disk: a mapping cannot tell of a full one.
void* map_part(int fd, uint64_t offset, uint64_t bytes, int* error) noexcept {
  *error = ::posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  if (*error != 0) return nullptr;
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (memory != MAP_FAILED) return memory;
  *error = errno;
  return nullptr;
}

Status cannot(const std::string& path, int error) {
  const std::string what = "the trace " + path + " cannot be written: " + std::strerror(error);
  return error == ENOSPC ? error_no_space(what) : error_io_error(what);
}

// 0: not known, which is nobody's.
uint64_t inode_of(int fd) noexcept {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? info.st_ino : 0;
}

uint64_t bytes_of(uint64_t records) { return kTraceHeaderBytes + records * sizeof(TraceRecord); }

}  // namespace

StatusOr<std::unique_ptr<TraceWriter>> TraceWriter::create(const std::string& path,
                                                           const TraceAbout& about) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return cannot(path, errno);
  int error = 0;
  const uint64_t inode = inode_of(fd);
  void* const memory = map_part(fd, 0, kTraceHeaderBytes, &error);
  ::close(fd);
  if (memory == nullptr) return cannot(path, error);
  auto* const header = static_cast<TraceHeader*>(memory);
  *header = {.magic = kTraceMagic,
             .version = kTraceVersion,
             .record_bytes = sizeof(TraceRecord),
             .pages = about.pages,
             .page_bytes = kPageBytes,
             .replacement = static_cast<uint32_t>(about.policy.replacement),
             .frames = about.policy.frames,
             .ways = about.policy.ways,
             .prefetch = about.policy.prefetch,
             .pid = about.pid};
  about.name.copy(header->name.data(), header->name.size() - 1);
  header->crc32c = trace_header_crc(*header);
  return std::unique_ptr<TraceWriter>(new TraceWriter(path, inode, header, monotonic_us()));
}

TraceWriter::~TraceWriter() {
  if (chunk_ != nullptr) ::munmap(chunk_, kChunkBytes);
  ::munmap(header_, kTraceHeaderBytes);
  trim_trace(path_);
}

bool TraceWriter::next_chunk() noexcept {
  if (chunk_ != nullptr) ::munmap(chunk_, kChunkBytes);
  chunk_ = nullptr;
  used_ = 0;
  const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  int error = errno;
  if (fd >= 0) {
    error = ESTALE;  // another file has this name now
    if (inode_of(fd) == inode_)
      chunk_ = static_cast<TraceRecord*>(
          map_part(fd, kTraceHeaderBytes + chunks_ * kChunkBytes, kChunkBytes, &error));
    ::close(fd);
  }
  if (chunk_ == nullptr) header_->error = static_cast<uint64_t>(error);
  chunks_++;
  return chunk_ != nullptr;
}

void TraceWriter::add(TraceKind kind, uint64_t page, uint64_t pages, uint8_t flags) noexcept {
  if (header_->error != 0) return;
  STRATA_ASSERT(page <= UINT32_MAX && pages <= UINT32_MAX);
  if ((chunk_ == nullptr || used_ == kChunkRecords) && !next_chunk()) return;
  TraceRecord record{.page = static_cast<uint32_t>(page),
                     .pages = static_cast<uint32_t>(pages),
                     .at_us = static_cast<uint32_t>(monotonic_us() - begin_us_),
                     .kind = kind,
                     .flags = flags};
  record.check = trace_check(record);
  chunk_[used_++] = record;
  // Whoever reads the file of a process that was killed sees the record before the count.
  __atomic_store_n(&header_->records, header_->records + 1, __ATOMIC_RELEASE);
}

void TraceWriter::mark_quiet() noexcept {
  if (chunk_ == nullptr || used_ == 0) return;
  TraceRecord record = chunk_[used_ - 1];
  if (record.kind > TraceKind::kFetched) return;
  record.flags |= kTraceQuiet;
  record.check = trace_check(record);
  chunk_[used_ - 1] = record;
}

void trim_trace(const std::string& path) noexcept {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  TraceHeader header;
  if (::pread(fd, &header, sizeof header, 0) == static_cast<ssize_t>(sizeof header) &&
      header.magic == kTraceMagic && header.version == kTraceVersion) {
    const auto bytes = static_cast<off_t>(bytes_of(header.records));
    // Never longer than it is. Longer than its records is as good a trace.
    if (::lseek(fd, 0, SEEK_END) > bytes) (void)!::ftruncate(fd, bytes);
  }
  ::close(fd);
}

}  // namespace strata::farmem
