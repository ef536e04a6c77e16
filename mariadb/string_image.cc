#include "mariadb/string_image.h"

namespace strata::glue {
namespace {

constexpr size_t kGroup = 8;
constexpr uchar kMore = kGroup + 1;
constexpr uchar kRestIsLess = 1;
constexpr uchar kRestIsSpaces = 2;
constexpr uchar kRestIsGreater = 3;

// Their strnxfrm does not order like their comparison.
constexpr std::string_view kWithoutImage[] = {
    "big5_chinese_ci",   "big5_chinese_nopad_ci", "cp1250_czech_cs",      "latin7_estonian_cs",
    "latin7_general_ci", "latin7_general_cs",     "tis620_thai_nopad_ci",
};

}  // namespace

bool StringImage::supports(CHARSET_INFO* collation) {
  const std::string_view name(collation->coll_name.str, collation->coll_name.length);
  return std::find(std::begin(kWithoutImage), std::end(kWithoutImage), name) ==
         std::end(kWithoutImage);
}

StringImage::StringImage(CHARSET_INFO* collation, uint32_t characters)
    : collation_(collation), characters_(characters) {
  weights_are_bytes_ = collation == &my_charset_bin;
  if (weights_are_bytes_) return;
  const uint order = collation->levels_for_order;  // a bit per level
  const bool multi_level = order > 1;
  if (multi_level && collation->uca == nullptr) {
    fixed_ = true;
    fixed_bytes_ = static_cast<uint32_t>(
        collation->strnxfrmlen(static_cast<size_t>(characters) * collation->mbmaxlen));
    return;
  }
  level_count_ = 0;
  for (uint i = 0; i < kLevelsMax; ++i) {
    if (i > 0 && (order & (1u << i)) == 0) continue;
    levels_[level_count_++] = describe_level(multi_level ? MY_STRXFRM_LEVEL1 << i : 0);
  }
  if ((collation->state & MY_CS_NOPAD) != 0) levels_[0].form = Form::kTerminated;
}

StringImage::Level StringImage::describe_level(uint32_t flags) const {
  Level level;
  level.form = Form::kSpacePadded;
  level.flags = flags;
  uchar space[8];
  uchar text[4];
  const size_t text_bytes = collation_->mbminlen;
  collation_->fill(reinterpret_cast<char*>(text), text_bytes, ' ');
  const size_t bytes = collation_->strnxfrm(space, sizeof space, 1, text, text_bytes, flags);
  level.space_bytes = static_cast<uint8_t>(std::clamp<size_t>(bytes, 1, level.space.size()));
  std::memcpy(level.space.data(), space, level.space_bytes);
  level.segment_bytes = level.space_bytes == 3 ? 9 : 8;
  return level;
}

void StringImage::append_terminated(const uchar* weights, size_t bytes, Buffer* out) const {
  for (;;) {
    const size_t take = std::min(bytes, kGroup);
    uchar* const group = out->grow(kGroup + 1);
    std::memcpy(group, weights, take);
    std::memset(group + take, 0, kGroup - take);
    weights += take;
    bytes -= take;
    group[kGroup] = bytes > 0 ? kMore : static_cast<uchar>(take);
    if (bytes == 0) return;
  }
}

void StringImage::append_space_padded(const Level& level, const uchar* weights, size_t bytes,
                                      Buffer* out) const {
  const size_t step = level.space_bytes;
  while (bytes >= step && std::memcmp(weights + bytes - step, level.space.data(), step) == 0)
    bytes -= step;
  for (;;) {
    const size_t take = std::min<size_t>(bytes, level.segment_bytes);
    uchar* const segment = out->grow(level.segment_bytes + 1u);
    std::memcpy(segment, weights, take);
    for (size_t i = take; i < level.segment_bytes; ++i) segment[i] = level.space[i % step];
    weights += take;
    bytes -= take;
    uchar* const rest = segment + level.segment_bytes;
    if (bytes == 0) {
      *rest = kRestIsSpaces;
      return;
    }
    *rest = kRestIsGreater;
    for (size_t i = 0; i < bytes; ++i) {
      const uchar space = level.space[i % step];
      if (weights[i] == space) continue;
      if (weights[i] < space) *rest = kRestIsLess;
      break;
    }
  }
}

void StringImage::append(const uchar* text, size_t bytes, Buffer* out) {
  if (weights_are_bytes_) {
    append_terminated(text, bytes, out);
    return;
  }
  if (fixed_) {
    uchar* const image = out->grow(fixed_bytes_);
    const size_t made = collation_->strnxfrm(image, fixed_bytes_, characters_, text, bytes,
                                             MY_STRXFRM_PAD_WITH_SPACE | MY_STRXFRM_PAD_TO_MAXLEN);
    if (made < fixed_bytes_) std::memset(image + made, 0, fixed_bytes_ - made);
    return;
  }
  // Trailing spaces would only cost time below; in a NO PAD collation they count.
  if (levels_[0].form == Form::kSpacePadded)
    bytes = collation_->lengthsp(reinterpret_cast<const char*>(text), bytes);
  // strnxfrmlen() expects room for characters of mbmaxlen bytes; short ones weigh as much.
  const size_t room =
      collation_->strnxfrmlen(bytes / collation_->mbminlen * collation_->mbmaxlen) + 16;
  for (uint8_t i = 0; i < level_count_; ++i) {
    weights_.clear();
    uchar* const weights = weights_.grow(room);
    const size_t made = bytes == 0 ? 0
                                   : collation_->strnxfrm(weights, room, static_cast<uint>(room),
                                                          text, bytes, levels_[i].flags);
    if (levels_[i].form == Form::kTerminated) {
      append_terminated(weights, made, out);
    } else {
      append_space_padded(levels_[i], weights, made, out);
    }
  }
}

size_t StringImage::measure(Bytes image, bool inverted) const {
  if (fixed_) return image.size() < fixed_bytes_ ? 0 : fixed_bytes_;
  size_t at = 0;
  for (uint8_t i = 0; i < level_count_; ++i) {
    const bool terminated = levels_[i].form == Form::kTerminated;
    const size_t segment = terminated ? kGroup : levels_[i].segment_bytes;
    for (;;) {
      if (image.size() - at < segment + 1) return 0;
      uchar mark = static_cast<uchar>(image[at + segment]);
      if (inverted) mark = static_cast<uchar>(~mark);
      at += segment + 1;
      if (terminated ? mark != kMore : mark == kRestIsSpaces) break;
    }
  }
  return at;
}

size_t StringImage::most_bytes(size_t text_bytes) const {
  if (fixed_) return fixed_bytes_;
  const size_t weights = weights_are_bytes_ ? text_bytes : collation_->strnxfrmlen(text_bytes) + 16;
  return level_count_ * (weights / 8 * 9 + 20);
}

}  // namespace strata::glue
