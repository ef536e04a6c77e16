#include "base/fault.h"

#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/latch.h"

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
constexpr uint64_t kAlways = ~uint64_t{0};
struct Armed {
  bool active = false;
  bool by_file = false;  // armed by the watched file
  bool noted = false;    // its first failure is in the file of struck points
  uint64_t countdown = 0;
  Action action = Action::kCrash;
  uint64_t times = 1;  // of errors
  uint64_t pause_ms = 0;
};

Mutex mutex{LatchRank::kFault};
Armed armed[static_cast<size_t>(FaultPoint::count)] STRATA_GUARDED_BY(mutex);
void (*crash_handler)(FaultPoint) STRATA_GUARDED_BY(mutex) = nullptr;
// Path of the watched file; empty: none.
std::string watched STRATA_GUARDED_BY(mutex);
struct stat watched_state
    STRATA_GUARDED_BY(mutex);  // as it was when it was read last; st_ino 0: it was not there

constexpr size_t kFileBytesMax = 4096;

bool parse(std::string_view spec, size_t* point, Armed* want) {
  const size_t colon = spec.find(':');
  const std::string_view name = spec.substr(0, colon);
  want->active = true;
  want->countdown = 1;
  if (colon != std::string_view::npos) {
    const std::string rest(spec.substr(colon + 1));
    char* end = nullptr;
    want->countdown = std::strtoull(rest.c_str(), &end, 10);
    if (want->countdown == 0) return false;
    const std::string_view action = *end == ':' ? std::string_view(end + 1) : std::string_view();
    if (action == "error" || action == "fail" || action.substr(0, 7) == "errors=")
      want->action = Action::kError;
    if (action == "fail") want->times = kAlways;
    if (action.substr(0, 7) == "errors=")
      want->times = std::strtoull(action.data() + 7, nullptr, 10);
    if (want->times == 0) return false;
    if (action.substr(0, 9) == "pause_ms=") {
      want->action = Action::kPause;
      want->pause_ms = std::strtoull(action.data() + 9, nullptr, 10);
    }
  }
  for (*point = 0; *point < static_cast<size_t>(FaultPoint::count); ++*point)
    if (kNames[*point] == name) return true;
  return false;
}

// Only tests watch a file, so that I/O under the mutex harms nobody.
void look_at_watched_file() STRATA_REQUIRES(mutex) {
  struct stat now = {};
  if (::stat(watched.c_str(), &now) != 0) now = {};
  if (now.st_ino == watched_state.st_ino && now.st_mtim.tv_sec == watched_state.st_mtim.tv_sec &&
      now.st_mtim.tv_nsec == watched_state.st_mtim.tv_nsec && now.st_size == watched_state.st_size)
    return;
  watched_state = now;
  for (Armed& a : armed)
    if (a.by_file) a = Armed{};
  FILE* const file = now.st_ino == 0 ? nullptr : std::fopen(watched.c_str(), "re");
  if (file == nullptr) return;
  std::string text(kFileBytesMax, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    Armed want;
    size_t point = 0;
    if (parse(std::string_view(text).substr(at, end - at), &point, &want)) {
      want.by_file = true;
      armed[point] = want;
    }
    at = end + 1;
  }
}

void note_strike(size_t point) STRATA_REQUIRES(mutex) {
  FILE* const file = std::fopen((watched + ".struck").c_str(), "ae");
  if (file == nullptr) return;
  std::fprintf(file, "%s\n", kNames[point].data());
  std::fclose(file);
}

}  // namespace

std::string_view fault_point_name(FaultPoint point) noexcept {
  return kNames[static_cast<size_t>(point)];
}

bool arm_fault(std::string_view spec) noexcept {
  Armed want;
  size_t point = 0;
  if (!parse(spec, &point, &want)) return false;
  const MutexLock lock(mutex);
  armed[point] = want;
  internal::faults_armed.store(1);
  return true;
}

void watch_fault_file(std::string_view path) noexcept {
  const MutexLock lock(mutex);
  watched = path;
  watched_state = {};
  internal::faults_armed.store(1);
}

void arm_fault_from_environment() noexcept {
  if (const char* spec = std::getenv("STRATA_FAULT"); spec != nullptr && *spec != 0)
    arm_fault(spec);
  if (const char* path = std::getenv("STRATA_FAULT_FILE"); path != nullptr && *path != 0)
    watch_fault_file(path);
}

void disarm_faults() noexcept {
  const MutexLock lock(mutex);
  for (Armed& a : armed) a = Armed{};
  watched.clear();
  internal::faults_armed.store(0);
}

void set_fault_crash_handler(void (*handler)(FaultPoint)) noexcept {
  const MutexLock lock(mutex);
  crash_handler = handler;
}

bool internal::fault_hit(FaultPoint point) noexcept {
  uint64_t pause_ms = 0;
  void (*crash)(FaultPoint) = nullptr;
  {
    const MutexLock lock(mutex);
    if (!watched.empty()) look_at_watched_file();
    Armed& a = armed[static_cast<size_t>(point)];
    if (!a.active || (a.countdown != 0 && --a.countdown != 0)) return false;
    a.active = a.action == Action::kError && --a.times != 0;
    if (a.action == Action::kError) {
      if (a.by_file && !a.noted) note_strike(static_cast<size_t>(point));
      a.noted = true;
      return true;
    }
    if (a.action == Action::kCrash) {
      if (crash_handler == nullptr) {
        raise(SIGKILL);
        std::abort();  // not reached: SIGKILL cannot be handled
      }
      crash = crash_handler;
    }
    pause_ms = a.pause_ms;
  }
  if (crash != nullptr) {  // without the mutex: it takes those of disks
    crash(point);
    return false;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  return false;
}

}  // namespace strata
