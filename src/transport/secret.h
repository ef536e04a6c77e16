// The cluster's shared secret: 32 random bytes in a file that only its owner may read. Whoever
// knows it is a member of the cluster; there are no further rights.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/status.h"

namespace strata::transport {

// Where random bytes come from. The operating system's in production, a seeded one in simulation.
class Entropy {
 public:
  virtual ~Entropy() = default;
  virtual void fill(char* out, size_t bytes) = 0;  // unpredictable; thread-safe
};
Entropy* system_entropy() noexcept;  // the process ends if the system has none to give

class Secret {
 public:
  static constexpr size_t kBytes = 32;
  explicit Secret(const std::array<char, kBytes>& bytes) noexcept : bytes_(bytes) {}
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();  // wiped
  [[nodiscard]] Bytes bytes() const noexcept { return {bytes_.data(), kBytes}; }

 private:
  std::array<char, kBytes> bytes_;
};

// Makes a new secret in `path`, mode 0600, durable when this returns. Blocks. Errors:
// kAlreadyExists (the file stays as it is), kInternal.
Status create_secret_file(const std::string& path);

// Blocks. Errors name the path: kNotFound; kInvalidArgument when it is no regular file, belongs to
// another user, may be read by others (mode other than 0600 or 0400) or has another length.
StatusOr<Secret> load_secret(const std::string& path);

constexpr size_t kMacBytes = 32;
using Mac = std::array<char, kMacBytes>;
// HMAC-SHA256 of `message`.
Mac hmac_sha256(const Secret& secret, Bytes message) noexcept;
// In a time that does not depend on where they differ.
bool same_bytes(Bytes a, Bytes b) noexcept;

}  // namespace strata::transport
