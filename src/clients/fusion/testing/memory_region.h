// A region of this process's, or of a file that it has mapped, for tests: operations are done at
// once, by the code that does them everywhere. What happens before and after a batch is the test's.
#pragma once

#include <functional>

#include "transport/regions/region_memory.h"
#include "transport/regions/remote_region.h"

namespace strata::clients::testing {

class MemoryRegion final : public transport::RemoteRegion {
 public:
  MemoryRegion(char* memory, uint64_t bytes) : memory_(memory), bytes_(bytes) {}
  // Fails the batch before (nothing is done) or after (nobody knows) it.
  std::function<Status()> before = [] { return ok_status(); };
  std::function<Status()> after = [] { return ok_status(); };

  Status run(absl::Span<transport::RegionOperation> batch, uint64_t) override {
    STRATA_RETURN_IF_ERROR(
        transport::check_batch(batch, bytes_, transport::RegionAccess::kReadWrite));
    STRATA_RETURN_IF_ERROR(before());
    for (transport::RegionOperation& operation : batch)
      transport::apply_operation(&operation, memory_);
    return after();
  }
  Status persist(uint64_t, uint64_t, uint64_t) override { return ok_status(); }
  [[nodiscard]] bool truly_one_sided() const noexcept override { return true; }
  [[nodiscard]] uint64_t bytes() const noexcept override { return bytes_; }
  [[nodiscard]] uint64_t epoch() const noexcept override { return 0; }

 private:
  char* const memory_;
  const uint64_t bytes_;
};

}  // namespace strata::clients::testing
