#include "mariadb/string_image.h"

namespace strata::glue {
namespace {

constexpr size_t kGroup = 8;
constexpr uchar kMore = kGroup + 1;
// What a weight of 2 or 3 bytes is written as (SI3), by its value:
//   below 0xe0: itself | 0xe0..0xef and a byte | 0xf0..0xfe and 2 bytes | 0xff and 3 bytes
// A greater weight is a greater string of bytes, and none is the start of another.
constexpr uint32_t kOneByte = 0xe0;
constexpr uint32_t kTwoBytes = kOneByte + (16u << 8);
constexpr uint32_t kThreeBytes = kTwoBytes + (15u << 16);
constexpr uchar kRestIsLess = 1;
constexpr uchar kRestIsSpaces = 2;
constexpr uchar kRestIsGreater = 3;

// Their strnxfrm does not order like their comparison.
constexpr std::string_view kWithoutImage[] = {
    "big5_chinese_ci",   "big5_chinese_nopad_ci", "cp1250_czech_cs",      "latin7_estonian_cs",
    "latin7_general_ci", "latin7_general_cs",     "tis620_thai_nopad_ci",
};

// In place of the weights: shorter as a rule, half as much longer at most.
template <size_t kStep>
size_t shorten(const uchar* weights, size_t bytes, uchar* out) {
  uchar* to = out;
  for (size_t i = 0; i + kStep <= bytes; i += kStep) {
    uint32_t w = 0;
    for (size_t k = 0; k < kStep; ++k) w = w << 8 | weights[i + k];
    if (w < kOneByte) {
      *to++ = static_cast<uchar>(w);
      continue;
    }
    if (w < kTwoBytes) {
      w -= kOneByte;
      *to++ = static_cast<uchar>(0xe0 + (w >> 8));
    } else if (w < kThreeBytes) {
      w -= kTwoBytes;
      *to++ = static_cast<uchar>(0xf0 + (w >> 16));
      *to++ = static_cast<uchar>(w >> 8);
    } else {
      *to++ = 0xff;
      *to++ = static_cast<uchar>(w >> 16);
      *to++ = static_cast<uchar>(w >> 8);
    }
    *to++ = static_cast<uchar>(w);
  }
  return static_cast<size_t>(to - out);
}

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
  if (collation->uca != nullptr) weights_most_ = weights_most(collation);
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
  learn_ascii();
}

// Some characters are written as long phrases: the server's own strnxfrmlen() counts on 8 weights
// for the widest character of the character set, which is less than U+FDFA has in UCS-2.
size_t StringImage::weights_most(CHARSET_INFO* collation) {
  size_t most = MY_UCA_MAX_WEIGHT_SIZE;  // what a contraction has at most
  const MY_UCA_INFO* const uca = collation->uca;
  for (const MY_UCA_WEIGHT_LEVEL& level : uca->level) {
    if (level.lengths == nullptr) continue;
    const size_t pages = (static_cast<size_t>(level.maxchar) >> 8) + 1;
    for (size_t page = 0; page < pages; ++page) most = std::max<size_t>(most, level.lengths[page]);
  }
  return most;
}

// Of one level, before they are written in groups.
size_t StringImage::most_weight_bytes(size_t text_bytes) const {
  // strnxfrmlen() expects room for characters of mbmaxlen bytes; short ones weigh as much.
  const size_t characters = text_bytes / collation_->mbminlen;
  const size_t asked = collation_->strnxfrmlen(characters * collation_->mbmaxlen) + 16;
  return std::max(asked, (characters + 1) * 2 * weights_most_);
}

void StringImage::learn_ascii() {
  const Level& level = levels_[0];
  if (level_count_ != 1 || level.form != Form::kSpacePadded || level.shortened_from == 0) return;
  if (collation_->uca != nullptr || collation_->mbminlen != 1) return;
  for (uint c = 0; c < ascii_.size(); ++c) {
    const auto text = static_cast<uchar>(c);
    uchar weights[8];
    uchar shorter[12];
    const size_t made =
        collation_->strnxfrm(weights, sizeof weights, sizeof weights, &text, 1, level.flags);
    if (made != level.shortened_from) return;
    const size_t bytes = level.shortened_from == 2 ? shorten<2>(weights, made, shorter)
                                                   : shorten<3>(weights, made, shorter);
    if (bytes != 1) return;
    ascii_[c] = shorter[0];
  }
  has_ascii_ = true;
}

// Into short_; false if there is more than ASCII in the text.
bool StringImage::look_up_ascii(const uchar* text, size_t bytes) {
  short_.clear();
  uchar* const to = short_.grow(bytes);
  uchar seen = 0;
  for (size_t i = 0; i < bytes; ++i) {
    seen |= text[i];
    to[i] = ascii_[text[i] & 0x7f];
  }
  return seen < 0x80;
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
  const bool leading_zeroes =
      std::all_of(space, space + level.space_bytes - 1, [](uchar byte) { return byte == 0; });
  if ((level.space_bytes == 2 || level.space_bytes == 3) && leading_zeroes &&
      space[level.space_bytes - 1] < kOneByte) {
    level.shortened_from = level.space_bytes;
    level.space[0] = space[level.space_bytes - 1];
    level.space_bytes = 1;
  }
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

template <size_t kStep, size_t kSegment>
void StringImage::append_padded(const Level& level, const uchar* weights, size_t bytes,
                                Buffer* out) {
  const uchar* const space = level.space.data();
  while (bytes >= kStep && std::memcmp(weights + bytes - kStep, space, kStep) == 0) bytes -= kStep;
  const size_t segments = std::max<size_t>((bytes + kSegment - 1) / kSegment, 1);
  uchar* to = out->grow(segments * (kSegment + 1));
  for (; bytes > kSegment; to += kSegment + 1) {
    std::memcpy(to, weights, kSegment);
    weights += kSegment;
    bytes -= kSegment;
    size_t i = 0;
    while (i < bytes && weights[i] == space[i % kStep]) ++i;
    const bool less = i < bytes && weights[i] < space[i % kStep];
    to[kSegment] = less ? kRestIsLess : kRestIsGreater;
  }
  std::memcpy(to, weights, bytes);
  for (size_t i = bytes; i < kSegment; ++i) to[i] = space[i % kStep];
  to[kSegment] = kRestIsSpaces;
}

void StringImage::append_space_padded(const Level& level, const uchar* weights, size_t bytes,
                                      Buffer* out) {
  switch (level.space_bytes) {
    case 1:
      return append_padded<1, 8>(level, weights, bytes, out);
    case 2:
      return append_padded<2, 8>(level, weights, bytes, out);
    case 3:
      return append_padded<3, 9>(level, weights, bytes, out);
    default:
      return append_padded<4, 8>(level, weights, bytes, out);
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
  if (has_ascii_ && look_up_ascii(text, bytes)) {
    append_space_padded(levels_[0], short_.data(), bytes, out);
    return;
  }
  const size_t room = most_weight_bytes(bytes);
  for (uint8_t i = 0; i < level_count_; ++i) {
    weights_.clear();
    uchar* const weights = weights_.grow(room);
    const Level& level = levels_[i];
    const size_t made = bytes == 0 ? 0
                                   : collation_->strnxfrm(weights, room, static_cast<uint>(room),
                                                          text, bytes, level.flags);
    if (level.form == Form::kTerminated) {
      append_terminated(weights, made, out);
    } else if (level.shortened_from == 0) {
      append_space_padded(level, weights, made, out);
    } else {
      short_.clear();
      uchar* const shorter = short_.grow(made * 3 / 2 + 1);
      const size_t bytes_left = level.shortened_from == 2 ? shorten<2>(weights, made, shorter)
                                                          : shorten<3>(weights, made, shorter);
      append_space_padded(level, shorter, bytes_left, out);
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

void StringImage::describe(uint32_t* fixed_bytes, std::string* levels) const {
  *fixed_bytes = fixed_ ? fixed_bytes_ : 0;
  levels->clear();
  if (fixed_) return;
  for (uint8_t i = 0; i < level_count_; ++i) {
    const bool terminated = levels_[i].form == Form::kTerminated;
    levels->push_back(static_cast<char>(terminated ? kGroup | engine::KeyPartSpec::kEndsAtMark
                                                   : levels_[i].segment_bytes));
  }
}

size_t StringImage::most_bytes(size_t text_bytes) const {
  if (fixed_) return fixed_bytes_;
  size_t weights = text_bytes;
  if (!weights_are_bytes_) {
    const size_t characters = text_bytes / collation_->mbmaxlen + 1;
    weights = std::max(collation_->strnxfrmlen(text_bytes) + 16, characters * 2 * weights_most_);
  }
  return level_count_ * (weights * 3 / 2 / 8 * 9 + 20);
}

}  // namespace strata::glue
