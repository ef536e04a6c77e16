#include "farmem/node/page_digest.h"

#include "base/bytes.h"

namespace strata::farmem {

Digest PageDigest::of(const char* page) const noexcept {
  using Wide = unsigned __int128;
  Wide sum = 0;
  for (size_t i = 0; i < key_.size(); i += 2) {
    const uint64_t a = load_u64(page + i * sizeof(uint64_t)) + key_[i];
    const uint64_t b = load_u64(page + (i + 1) * sizeof(uint64_t)) + key_[i + 1];
    sum += static_cast<Wide>(a) * b;
  }
  return {static_cast<uint64_t>(sum), static_cast<uint64_t>(sum >> 64)};
}

}  // namespace strata::farmem
