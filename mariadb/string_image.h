// Bytes that order like a collation: sign(memcmp(image(a), image(b))) == sign(compare(a, b)).
//
// Three forms (`collations.test` tries them over every collation of the server):
//   kTerminated   NO PAD collations and binary strings. Groups of 8 weight bytes, each followed by
//                 a count: 0..8 = the string ends in this group, 9 = more follows.
//   kSpacePadded  PAD SPACE: a string compares as if spaces without end followed it. Segments of
//                 weight bytes, the last one filled up with the weight of a space, each followed by
//                 how the rest compares with spaces: 1 less, 2 nothing but spaces, 3 greater.
//   kFixed        old multi-level collations whose levels cannot be asked for one by one: the
//                 server's own image, padded to the column's length.
// Multi-level Unicode collations are level images one after the other, each in one of the first
// forms.
//
//   SI1  Images are prefix-free, so images of several columns may follow each other.
//   SI2  `inverted` complements every byte: the order is reversed, SI1 still holds.
//   SI3  Collations with PAD SPACE whose weights have 2 or 3 bytes and are small for Latin text
//        (utf8mb4_general_ci, utf8mb4_bin) have them written with fewer bytes, in the same order.
//   SI4  Of these, ASCII text is looked up in a table that was asked from the collation: every
//        character weighs by itself there, whatever stands beside it.
#pragma once

#include "mariadb/buffer.h"
#include "mariadb/server.h"

namespace strata::glue {

class StringImage {
 public:
  // characters: of the column or key prefix; only kFixed needs them.
  StringImage() = default;
  StringImage(CHARSET_INFO* collation, uint32_t characters);

  // The most 2-byte weights that one character has on one level of a Unicode collation.
  [[nodiscard]] static size_t weights_most(CHARSET_INFO* collation);

  // Whether the collation has images at all; 7 of the server's have none.
  static bool supports(CHARSET_INFO* collation);

  void append(const uchar* text, size_t bytes, Buffer* out);
  // Length of the image at the start of `image`; 0: not an image.
  [[nodiscard]] size_t measure(Bytes image, bool inverted) const;
  // KeyPartSpec: how the kernel measures it.
  void describe(uint32_t* fixed_bytes, std::string* levels) const;
  // The most bytes an image of a string of this many bytes can take.
  [[nodiscard]] size_t most_bytes(size_t text_bytes) const;

 private:
  enum class Form : uint8_t { kTerminated, kSpacePadded };
  struct Level {
    Form form = Form::kTerminated;
    uint32_t flags = 0;  // MY_STRXFRM_LEVELn, 0 = all there are
    uint8_t space_bytes = 1;
    uint8_t segment_bytes = 8;
    uint8_t shortened_from = 0;  // bytes of a weight; 0: weights are kept as they are (SI3)
    std::array<uchar, 4> space{};
  };
  static constexpr size_t kLevelsMax = 6;

  [[nodiscard]] Level describe_level(uint32_t flags) const;
  void learn_ascii();
  bool look_up_ascii(const uchar* text, size_t bytes);
  [[nodiscard]] size_t most_weight_bytes(size_t text_bytes) const;
  void append_terminated(const uchar* weights, size_t bytes, Buffer* out) const;
  static void append_space_padded(const Level& level, const uchar* weights, size_t bytes,
                                  Buffer* out);
  template <size_t kStep, size_t kSegment>
  static void append_padded(const Level& level, const uchar* weights, size_t bytes, Buffer* out);

  CHARSET_INFO* collation_ = &my_charset_bin;
  bool fixed_ = false;
  bool weights_are_bytes_ = true;  // binary: no transformation
  uint8_t level_count_ = 1;
  std::array<Level, kLevelsMax> levels_{};
  uint32_t characters_ = 0;
  size_t weights_most_ = 0;  // of a Unicode collation: see weights_most()
  uint32_t fixed_bytes_ = 0;
  bool has_ascii_ = false;
  std::array<uchar, 128> ascii_{};  // the only level's weights (SI4)
  Buffer weights_, short_;          // scratch
};

}  // namespace strata::glue
