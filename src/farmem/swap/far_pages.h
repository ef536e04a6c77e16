// A memory client's region as the content of a block device: any pages may be read and written,
// those that were never written read as zeros. For one thread at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "farmem/node/memory_client.h"

namespace strata::farmem {

class FarPages {
 public:
  explicit FarPages(std::unique_ptr<MemoryClient> client) : client_(std::move(client)) {}
  [[nodiscard]] uint64_t pages() const noexcept { return client_->pages(); }
  // Blocks. Errors as those of MemoryClient; kOutOfRange.
  Status read(uint64_t first, uint64_t count, char* to);
  Status write(uint64_t first, uint64_t count, const char* from);
  // Sign of life; for any thread.
  Status renew() { return client_->renew(); }
  Status close() { return client_->close(); }
  [[nodiscard]] const ClientCounts& counts() const noexcept { return client_->counts(); }

 private:
  const std::unique_ptr<MemoryClient> client_;
};

}  // namespace strata::farmem
