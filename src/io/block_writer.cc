#include "io/block_writer.h"

#include <algorithm>
#include <cstring>

namespace strata {

Status BlockWriter::write(File* direct, File* buffered, uint64_t at, Bytes bytes) {
  if (direct != file_ || at != block_ + kept_) {
    file_ = nullptr;
    block_ = at / kBlock * kBlock;
    kept_ = at % kBlock;
    if (kept_ != 0) STRATA_RETURN_IF_ERROR(load(buffered, block_));
    file_ = direct;
  }
  while (!bytes.empty()) {
    const size_t piece = std::min(bytes.size(), kStaged - kept_);
    std::memcpy(staged_.get() + kept_, bytes.data(), piece);
    STRATA_RETURN_IF_ERROR(write_staged(kept_ + piece));
    bytes.remove_prefix(piece);
  }
  return ok_status();
}

Status BlockWriter::write_staged(size_t filled) {
  const size_t whole = filled / kBlock * kBlock;
  kept_ = filled - whole;
  const size_t end = kept_ == 0 ? whole : whole + kBlock;
  std::memset(staged_.get() + filled, 0, end - filled);
  STRATA_RETURN_IF_ERROR(file_->write_at(block_, staged_.get(), end));
  if (whole != 0) std::memcpy(staged_.get(), staged_.get() + whole, kept_);
  block_ += whole;
  return ok_status();
}

Status BlockWriter::load(File* buffered, uint64_t block) {
  size_t got = 0;
  STRATA_RETURN_IF_ERROR(buffered->read_at(block, staged_.get(), kBlock, &got));
  if (got == kBlock) return ok_status();
  return error_corruption(buffered->path() + " is cut off: " + std::to_string(block + got) +
                          " bytes");
}

}  // namespace strata
