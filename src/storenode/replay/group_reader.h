// The groups of a stream, one after the other, as far as they are quorum-durable. One thread.
//   GR1  Never reads at or beyond LogView::durable_lsn() (S1).
//   GR2  Below it there is no torn tail: what is not a whole valid group, or not the successor of
//        the one before (its bias shrinks), is damage.
#pragma once

#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "base/status.h"
#include "redo/redo.h"
#include "storenode/replay/log_cache.h"

namespace strata::storenode {

class GroupReader {
 public:
  // `start` is a group boundary.
  GroupReader(StreamId stream, LogView* log, LogCache* cache, Lsn start);
  // False: no whole group is durable behind the last one. *group is valid until the next call.
  // Blocks. kDataLoss and kOutOfRange (the log begins later) name stream and lsn; after an error
  // the same group may be asked for again.
  StatusOr<bool> next(redo::GroupView* group);
  // End of the last group returned.
  [[nodiscard]] Lsn position() const noexcept { return Lsn{position_}; }

 private:
  Status fill(size_t bytes, uint64_t durable);
  Status forget(const Status& status);  // what is buffered; returns `status` with the place
  [[nodiscard]] Bytes buffered() const noexcept {
    return {buffer_.get() + offset_, filled_ - offset_};
  }
  const StreamId stream_;
  LogView* const log_;
  LogCache* const cache_;
  uint64_t position_;
  uint64_t bias_ = 0;
  std::unique_ptr<char[]> buffer_;
  size_t offset_ = 0;  // of position_ in buffer_
  size_t filled_ = 0;
};

// Where the section stands in its group.
inline uint32_t section_offset(const redo::GroupView& group,
                               const redo::SectionView& section) noexcept {
  return static_cast<uint32_t>(section.ops.data() - redo::kSectionHeaderBytes -
                               (group.body.data() - sizeof(redo::GroupHeader)));
}
inline Bytes section_bytes(const redo::SectionView& section) noexcept {
  return {section.ops.data() - redo::kSectionHeaderBytes,
          section.ops.size() + redo::kSectionHeaderBytes};
}

}  // namespace strata::storenode
