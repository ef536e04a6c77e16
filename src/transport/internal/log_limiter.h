// At most one message a second, and how many were left out. Used in one thread.
#pragma once

#include <cstdint>

namespace strata::transport {

class LogLimiter {
 public:
  // True: log now; *left_out is how many were not since the last one.
  bool admit(uint64_t now_ns, uint64_t* left_out) noexcept {
    if (last_ns_ != 0 && now_ns < last_ns_ + 1'000'000'000) {
      left_out_++;
      return false;
    }
    last_ns_ = now_ns;
    *left_out = left_out_;
    left_out_ = 0;
    return true;
  }

 private:
  uint64_t last_ns_ = 0;
  uint64_t left_out_ = 0;
};

}  // namespace strata::transport
