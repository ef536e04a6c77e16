#include "sort/internal/run.h"

#include <algorithm>

#include "base/crc32c.h"

namespace strata {
namespace {

// Of everything in a block behind the checksum itself.
uint32_t block_crc(const char* header, Bytes payload) noexcept {
  return crc32c(payload.data(), payload.size(), crc32c(header + 4, kBlockHeaderBytes - 4));
}

}  // namespace

StatusOr<RunWriter> RunWriter::create(FileSystem* files, SortRun* run, char* buffer,
                                      size_t block_bytes) {
  STRATA_RETURN_IF_ERROR(files->remove(run->path));
  STRATA_ASSIGN_OR_RETURN(auto file, files->open(run->path, {.create = true}));
  return RunWriter(run, std::move(file), buffer, block_bytes);
}

Status RunWriter::add(const char* pair) {
  const Bytes bytes(pair, pair_bytes(pair));
  if (used_ + bytes.size() > block_bytes_) {
    STRATA_RETURN_IF_ERROR(write_buffered());
    if (used_ + bytes.size() > block_bytes_) return write_alone(bytes);
  }
  used_ += bytes.copy(buffer_ + used_, bytes.size());
  return ok_status();
}

Status RunWriter::finish() {
  STRATA_RETURN_IF_ERROR(write_buffered());
  file_.reset();
  return ok_status();
}

Status RunWriter::write_buffered() {
  if (used_ == kBlockHeaderBytes) return ok_status();
  fill_header(Bytes(buffer_ + kBlockHeaderBytes, used_ - kBlockHeaderBytes));
  const Bytes block(buffer_, used_);
  used_ = kBlockHeaderBytes;
  run_->largest_block = std::max(run_->largest_block, block.size());
  return write(block);
}

Status RunWriter::write_alone(Bytes pair) {
  fill_header(pair);
  run_->largest_block = std::max(run_->largest_block, kBlockHeaderBytes + pair.size());
  STRATA_RETURN_IF_ERROR(write(Bytes(buffer_, kBlockHeaderBytes)));
  return write(pair);
}

void RunWriter::fill_header(Bytes payload) noexcept {
  store_u32(buffer_ + 4, static_cast<uint32_t>(payload.size()));
  store_u32(buffer_ + 8, run_->number);
  store_u32(buffer_ + 12, block_++);
  store_u32(buffer_, block_crc(buffer_, payload));
}

Status RunWriter::write(Bytes bytes) {
  STRATA_RETURN_IF_ERROR(file_->write_at(run_->bytes, bytes.data(), bytes.size()));
  run_->bytes += bytes.size();
  return ok_status();
}

StatusOr<RunReader> RunReader::open(FileSystem* files, const SortRun* run, char* buffer,
                                    size_t capacity) {
  auto file = files->open(run->path, {});
  // Nobody but us removes it; to callers "not found" would mean a row or a table.
  if (is_not_found(file.status())) return error_corruption("run " + run->path + " is gone");
  STRATA_RETURN_IF_ERROR(file.status());
  return RunReader(run, *std::move(file), buffer, capacity);
}

Status RunReader::next() {
  if (at_ == block_end_) {
    pair_ = nullptr;
    if (offset() == run_->bytes) return ok_status();
    STRATA_RETURN_IF_ERROR(read_block());
  }
  ByteReader reader(Bytes(buffer_ + at_, block_end_ - at_));
  const size_t key_bytes = reader.u32();
  const size_t value_bytes = reader.u32();
  if (!reader.ok() || reader.remaining() < key_bytes ||
      reader.remaining() - key_bytes < value_bytes)
    return damaged("a pair reaches beyond its block");
  pair_ = buffer_ + at_;
  at_ += kPairHeaderBytes + key_bytes + value_bytes;
  return ok_status();
}

Status RunReader::read_block() {
  STRATA_RETURN_IF_ERROR(have(kBlockHeaderBytes));
  const size_t payload_bytes = load_u32(buffer_ + at_ + 4);
  STRATA_RETURN_IF_ERROR(have(kBlockHeaderBytes + payload_bytes));
  const char* const header = buffer_ + at_;
  const Bytes payload(header + kBlockHeaderBytes, payload_bytes);
  if (load_u32(header) != block_crc(header, payload)) return damaged("wrong checksum");
  if (load_u32(header + 8) != run_->number || load_u32(header + 12) != block_)
    return damaged("a block of another place");
  ++block_;
  at_ += kBlockHeaderBytes;
  block_end_ = at_ + payload_bytes;
  return ok_status();
}

// Makes `bytes` bytes from at_ available, moving them to the start of the buffer to read on behind
// them. Reads as much as fits: large sequential reads from every run in turn.
Status RunReader::have(size_t bytes) {
  if (bytes <= buffered()) return ok_status();
  if (bytes > run_->largest_block || bytes > run_->bytes - offset())
    return damaged("a block too long");
  std::memmove(buffer_, buffer_ + at_, buffered());
  filled_ -= at_;
  block_end_ = at_ = 0;
  const auto wanted =
      static_cast<size_t>(std::min<uint64_t>(capacity_ - filled_, run_->bytes - read_));
  size_t got = 0;
  STRATA_RETURN_IF_ERROR(file_->read_at(read_, buffer_ + filled_, wanted, &got));
  filled_ += got;
  read_ += got;
  return got == wanted ? ok_status() : damaged("the file is cut");
}

Status RunReader::damaged(const char* what) const {
  return error_corruption("run " + run_->path + ", offset " + std::to_string(offset()) + ": " +
                          what);
}

}  // namespace strata
