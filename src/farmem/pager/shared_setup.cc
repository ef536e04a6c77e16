#include "farmem/pager/shared_setup.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

namespace strata::farmem {
namespace {

constexpr uint64_t kMagic = 0x6d656d7261662e31;

SharedSetup* map_setup(int fd) {
  void* const memory =
      ::mmap(nullptr, sizeof(SharedSetup), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<SharedSetup*>(memory);
}

}  // namespace

StatusOr<SharedMemory> SharedMemory::create() {
  const int fd = ::memfd_create("strata-farmem-setup", 0);
  if (fd < 0 || ::ftruncate(fd, sizeof(SharedSetup)) != 0)
    return error_no_space(std::string("memory for the set-up: ") + std::strerror(errno));
  SharedSetup* const setup = map_setup(fd);
  if (setup == nullptr) return error_no_space("memory for the set-up cannot be mapped");
  ::new (setup) SharedSetup();
  setup->magic = kMagic;
  setup->bytes = sizeof(SharedSetup);
  return SharedMemory(fd, setup);
}

StatusOr<SharedMemory> SharedMemory::from_environment() {
  const char* const text = std::getenv(kSetupVariable);
  if (text == nullptr) return error_not_found("STRATA_FARMEM_SETUP is not set");
  char* end = nullptr;
  const auto fd = static_cast<int>(std::strtol(text, &end, 10));
  struct stat info {};
  if (*end != '\0' || ::fstat(fd, &info) != 0 ||
      static_cast<uint64_t>(info.st_size) != sizeof(SharedSetup))
    return error_not_found("the set-up's descriptor was closed");
  SharedSetup* const setup = map_setup(fd);
  if (setup == nullptr || setup->magic != kMagic || setup->bytes != sizeof(SharedSetup))
    return error_not_found("the set-up's descriptor is something else now");
  return SharedMemory(fd, setup);
}

}  // namespace strata::farmem
