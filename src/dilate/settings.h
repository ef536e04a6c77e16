// What the environment says of how a program is to be dilated. Pure.
//   STRATA_DILATE_FACTOR  how many times slower, 1 to 1000, with up to three decimals; without it
//                         nothing is dilated
//   STRATA_DILATE_CORES   of the emulated node, 1 to 64
//   STRATA_DILATE_SHARED  the node's file, made by whichever of its processes is first; without it
//                         the program, with what it starts by fork(), is a node by itself
//   STRATA_DILATE_ORIGIN  nanoseconds of CLOCK_MONOTONIC and CLOCK_REALTIME of one moment, with a
//                         colon between them: where emulated time begins. The same for all nodes.
//                         Without it, where the node's file was made
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dilate/dilated_clock.h"

namespace strata::dilate {

struct Origin {
  int64_t monotonic_ns = 0;
  int64_t realtime_ns = 0;
};

struct Settings {
  Factor factor;
  uint32_t cores = 0;
  std::string shared;  // path; empty: none
  std::optional<Origin> origin;
};

// The variables' values; null: not set.
struct Environment {
  const char* factor = nullptr;
  const char* cores = nullptr;
  const char* shared = nullptr;
  const char* origin = nullptr;
};

struct Reading {
  std::optional<Settings> settings;  // nothing: not dilated, or wrong
  std::string problem;               // one line
};
Reading read_settings(const Environment& environment);

std::optional<Factor> parse_factor(std::string_view text);
std::optional<Origin> parse_origin(std::string_view text);

}  // namespace strata::dilate
