#include "transport/ofi/library.h"

#include <dlfcn.h>
#include <signal.h>

#include <array>
#include <string>

#include "base/assert.h"

namespace strata::transport::ofi {
namespace {

constexpr const char* kName = "libfabric.so.1";

// One of the drivers (libinfinipath) takes SIGINT, SIGTERM, SIGSEGV and others when it is loaded,
// to print a backtrace of its own and exit. They are given back.
class SignalKeeper {
 public:
  SignalKeeper() noexcept {
    for (size_t i = 1; i < actions_.size(); i++)
      (void)::sigaction(static_cast<int>(i), nullptr, &actions_[i]);
  }
  ~SignalKeeper() {
    for (size_t i = 1; i < actions_.size(); i++) {
      const int number = static_cast<int>(i);
      struct sigaction now {};
      if (::sigaction(number, nullptr, &now) == 0 && now.sa_handler != actions_[i].sa_handler)
        (void)::sigaction(number, &actions_[i], nullptr);
    }
  }
  SignalKeeper(const SignalKeeper&) = delete;
  SignalKeeper& operator=(const SignalKeeper&) = delete;

 private:
  std::array<struct sigaction, 32> actions_ = {};
};

template <class Function>
void look_up(void* handle, const char* name, Function* function, bool* all) {
  *function = reinterpret_cast<Function>(::dlsym(handle, name));
  *all = *all && *function != nullptr;
}

struct Loaded {
  Library functions;
  Status status;
};

Loaded load() {
  Loaded out;
  void* handle = nullptr;
  {
    const SignalKeeper keeper;
    handle = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  }
  if (handle == nullptr) {
    out.status = error_invalid_argument(std::string("no libfabric here: ") + ::dlerror());
    return out;
  }
  // Its structures are laid out as the headers say only in the version that these belong to.
  decltype(&::fi_version) version = nullptr;
  bool all = true;
  look_up(handle, "fi_version", &version, &all);
  look_up(handle, "fi_getinfo", &out.functions.getinfo, &all);
  look_up(handle, "fi_freeinfo", &out.functions.freeinfo, &all);
  look_up(handle, "fi_dupinfo", &out.functions.dupinfo, &all);
  look_up(handle, "fi_fabric", &out.functions.fabric, &all);
  look_up(handle, "fi_strerror", &out.functions.strerror, &all);
  if (!all || version() != FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION))
    out.status = error_invalid_argument("another version of libfabric than this was built for");
  return out;  // it is never unloaded
}

const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

}  // namespace

StatusOr<const Library*> load_library() {
  const Loaded& it = loaded();
  STRATA_RETURN_IF_ERROR(it.status);
  return &it.functions;
}

const Library& library() noexcept {
  const Loaded& it = loaded();
  STRATA_ASSERT(it.status.ok());
  return it.functions;
}

}  // namespace strata::transport::ofi
