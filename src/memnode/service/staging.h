// Memory where a pool's user puts pages for the node to pull (LegoBase, §5.2): both have it mapped.
// Thread-safe.
//   STG1  It is of one attachment. Who was taken over writes into memory that nobody looks at.
//   STG2  Its size cannot be changed: no access to it fails, whatever the other one does.
//   STG3  Anything may be in it at any time. What was copied from it is looked at, never itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "page/page.h"
#include "transport/regions/region.h"

namespace strata::memnode {

class Staging {
 public:
  using Withdraw = std::function<void(const std::string& name)>;
  // Errors: kResourceExhausted, kInternal.
  static StatusOr<std::shared_ptr<transport::Region>> make_region(uint32_t places) {
    STRATA_ASSIGN_OR_RETURN(
        std::unique_ptr<transport::Region> region,
        transport::Region::create_in_memory(uint64_t{places} * kPageBytes, /*epoch=*/1));
    return std::shared_ptr<transport::Region>(std::move(region));
  }
  // The region is exposed under the name, until this goes. No latch may be held then.
  Staging(std::string name, std::shared_ptr<transport::Region> region, Withdraw withdraw)
      : name_(std::move(name)), region_(std::move(region)), withdraw_(std::move(withdraw)) {}
  ~Staging() { withdraw_(name_); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] uint32_t places() const noexcept {
    return static_cast<uint32_t>(region_->bytes() / kPageBytes);
  }
  // kPageBytes that may change while they are read (STG3). place < places(). Another order or size
  // of places raises kStagingLayout (proto/methods.def).
  [[nodiscard]] const char* page(uint32_t place) const noexcept {
    return region_->data() + uint64_t{place} * kPageBytes;
  }

 private:
  const std::string name_;
  const std::shared_ptr<transport::Region> region_;
  const Withdraw withdraw_;
};

}  // namespace strata::memnode
