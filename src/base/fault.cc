#include "base/fault.h"

#include <csignal>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

namespace strata {
namespace internal {
std::atomic<uint32_t> faults_armed{0};
}  // namespace internal

namespace {

constexpr std::string_view kNames[] = {
#define STRATA_FAULT_POINT(name, doc) #name,
#include "base/fault_points.def"
#undef STRATA_FAULT_POINT
};

enum class Action { kCrash, kError, kPause };
struct Armed {
  bool active = false;
  uint64_t countdown = 0;
  Action action = Action::kCrash;
  uint64_t pause_ms = 0;
  uint64_t times = 1;
};

std::mutex mutex;
Armed armed[static_cast<size_t>(FaultPoint::count)];
void (*crash_handler)(FaultPoint) = nullptr;

}  // namespace

std::string_view fault_point_name(FaultPoint point) noexcept {
  return kNames[static_cast<size_t>(point)];
}

bool arm_fault(std::string_view spec) noexcept {
  const size_t colon = spec.find(':');
  const std::string_view name = spec.substr(0, colon);
  Armed want;
  want.active = true;
  want.countdown = 1;
  if (colon != std::string_view::npos) {
    const std::string rest(spec.substr(colon + 1));
    char* end = nullptr;
    want.countdown = std::strtoull(rest.c_str(), &end, 10);
    if (want.countdown == 0) return false;
    const std::string_view action = *end == ':' ? std::string_view(end + 1) : std::string_view();
    if (action == "error") want.action = Action::kError;
    if (action.substr(0, 7) == "errors=") {
      want.action = Action::kError;
      want.times = std::strtoull(action.data() + 7, nullptr, 10);
      if (want.times == 0) return false;
    }
    if (action.substr(0, 9) == "pause_ms=") {
      want.action = Action::kPause;
      want.pause_ms = std::strtoull(action.data() + 9, nullptr, 10);
    }
  }
  const std::lock_guard lock(mutex);
  for (size_t i = 0; i < static_cast<size_t>(FaultPoint::count); ++i) {
    if (kNames[i] != name) continue;
    armed[i] = want;
    internal::faults_armed.store(1);
    return true;
  }
  return false;
}

void arm_fault_from_environment() noexcept {
  if (const char* spec = std::getenv("STRATA_FAULT"); spec != nullptr && *spec != 0)
    arm_fault(spec);
}

void disarm_faults() noexcept {
  const std::lock_guard lock(mutex);
  for (Armed& a : armed) a = Armed{};
  internal::faults_armed.store(0);
}

void set_fault_crash_handler(void (*handler)(FaultPoint)) noexcept {
  const std::lock_guard lock(mutex);
  crash_handler = handler;
}

bool internal::fault_hit(FaultPoint point) noexcept {
  uint64_t pause_ms = 0;
  {
    const std::lock_guard lock(mutex);
    Armed& a = armed[static_cast<size_t>(point)];
    if (!a.active || --a.countdown != 0) return false;
    a.active = --a.times != 0;
    a.countdown = 1;
    if (a.action == Action::kError) return true;
    if (a.action == Action::kCrash) {
      if (crash_handler == nullptr) {
        raise(SIGKILL);
        std::abort();  // not reached: SIGKILL cannot be handled
      }
      crash_handler(point);
      return false;
    }
    pause_ms = a.pause_ms;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  return false;
}

}  // namespace strata
