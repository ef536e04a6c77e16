// The control file: any bytes in both slots, with checksums made right on request.
#include "base/crc32c.h"
#include "fuzz.h"
#include "wal/control_file.h"

namespace strata::fuzz {
namespace {

constexpr size_t kSlotBytes = 4096;

// magic u64 | format u32 | crc32c u32 | the rest: see control_file.cc.
void make_right(char* slot) {
  const uint32_t seed = crc32c(slot + 8, 4);
  store_u32(slot + 12, crc32c(slot + 16, kSlotBytes - 16, seed));
}

}  // namespace
}  // namespace strata::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;  // NOLINT
  fuzz::Input input(data, size);
  const uint8_t mode = input.u8();
  std::string bytes;
  for (int i = 0; i < 2; ++i) {
    std::string slot = input.take_some(136);
    slot.resize(fuzz::kSlotBytes, '\0');
    if ((mode & 1 << i) != 0) fuzz::make_right(slot.data());
    bytes += slot;
  }
  if ((mode & 4) != 0) bytes.resize(bytes.size() - input.u16() % bytes.size());
  const auto fs = make_sim_file_system();
  {
    const auto file = fs->open("/control-1", {.create = true});
    FUZZ_CHECK(file.ok() && (*file)->write_at(0, bytes.data(), bytes.size()).ok());
  }
  const auto control = ControlFile::open(fs.get(), "/control-1");
  if (!control.ok()) {
    FUZZ_CHECK(control.status().message().find("/control-1") != std::string::npos);  // C2
    return 0;
  }
  ControlData next = (*control)->data();
  ++next.checkpoint_count;
  FUZZ_CHECK((*control)->publish(next).ok());
  const auto again = ControlFile::open(fs.get(), "/control-1");
  FUZZ_CHECK(again.ok() && (*again)->data().checkpoint_count == next.checkpoint_count);
  return 0;
}
