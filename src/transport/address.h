// Where a peer is: a fixed address, or one that is asked for at each attempt to connect, because
// nodes may come back elsewhere. Copies are independent; now() is as thread-safe as its source.
#pragma once

#include <functional>
#include <string>
#include <utility>

namespace strata::transport {

class Address {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): most callers have a string
  Address(std::string fixed) : fixed_(std::move(fixed)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Address(const char* fixed) : fixed_(fixed) {}
  // `source` is called in the threads that connect, and does not block.
  explicit Address(std::function<std::string()> source) : source_(std::move(source)) {}

  // Empty: not known yet; an attempt to connect fails then, and is made again like any other.
  [[nodiscard]] std::string now() const { return source_ ? source_() : fixed_; }

 private:
  std::string fixed_;
  std::function<std::string()> source_;
};

}  // namespace strata::transport
