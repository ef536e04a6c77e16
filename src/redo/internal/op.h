// One redo op taken apart: encoders and the parser agree here. Pure.
#pragma once

#include "base/bytes.h"
#include "redo/redo.h"

namespace strata::redo {

// Which fields are set depends on the kind; see encode.cc for the grammar of each.
struct Op {
  Kind kind;
  PageId page_id;
  PageType type;
  IndexId index_id;
  uint8_t level;
  uint16_t flags;
  uint16_t slot;  // kTruncateRight: slots to keep
  uint16_t offset;
  uint16_t run_count;  // kImage
  uint32_t number;     // right sibling or space id
  uint64_t extra;
  Bytes key;    // low fence, suffix
  Bytes key2;   // high key
  Bytes bytes;  // value, patch, raw bytes, or the runs of an image
};

// Parses the op at the start of `ops`; *consumed = its length. False: does not parse. Checks
// lengths and that an image's runs lie in the page in ascending order, nothing else.
[[nodiscard]] bool parse_op(Bytes ops, Op* op, size_t* consumed) noexcept;
// Builds the page an image stands for; crc32c is zero.
void expand_image(const Op& op, char* page) noexcept;

}  // namespace strata::redo
