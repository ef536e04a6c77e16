// What a peer asks of a region by call: any bytes, and batches that only their last operation
// spoils.
#include <unistd.h>

#include "fuzz.h"
#include "transport/regions/region_memory.h"

namespace strata::fuzz {
namespace {

using namespace transport;  // NOLINT

constexpr uint64_t kBytes = 4096;
constexpr uint64_t kReplyBytesMax = 2000;

const Region& region() {
  static const std::unique_ptr<Region> made = [] {
    const std::string path = "/tmp/fuzz-region-" + std::to_string(::getpid());
    auto created = Region::create(path, kBytes, 1);
    ::unlink(path.c_str());
    FUZZ_CHECK(created.ok());
    return *std::move(created);
  }();
  return *made;
}

}  // namespace
}  // namespace strata::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;             // NOLINT
  using namespace strata::transport;  // NOLINT
  fuzz::Input input(data, size);
  const Region& region = fuzz::region();
  std::memset(region.data(), 0, fuzz::kBytes);
  const std::string request = input.take_some(size);
  const auto reply = run_encoded(request, region, fuzz::kReplyBytesMax);
  if (reply.ok()) {
    FUZZ_CHECK(reply->size() <= fuzz::kReplyBytesMax);
    return 0;
  }
  for (uint64_t i = 0; i < fuzz::kBytes; i++) FUZZ_CHECK(region.data()[i] == 0);  // RX1
  return 0;
}
