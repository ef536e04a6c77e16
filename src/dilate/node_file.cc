#include "dilate/node_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace strata::dilate {
namespace {

MappedNode refused(const std::string& path, const std::string& why) {
  return {nullptr, "STRATA_DILATE_SHARED=" + path + ": " + why};
}

MappedNode failed(const std::string& path, const char* what) {
  return refused(path, std::string(what) + ": " + std::strerror(errno));
}

// Fresh memory is all zeros.
void fill(NodeState* state, const Settings& settings, Origin now) {
  const Origin origin = settings.origin.value_or(now);
  state->magic = kNodeStateMagic;
  state->version = kNodeStateVersion;
  state->cores = settings.cores;
  state->factor_milli = settings.factor.milli;
  state->origin_monotonic_ns = origin.monotonic_ns;
  state->origin_realtime_ns = origin.realtime_ns;
}

std::string difference(const NodeState& state, const Settings& settings) {
  if (state.magic != kNodeStateMagic || state.version != kNodeStateVersion)
    return "is no file of an emulated node";
  if (state.cores != settings.cores || state.factor_milli != settings.factor.milli)
    return "its node has another factor or another number of cores; take another file";
  if (settings.origin && (settings.origin->monotonic_ns != state.origin_monotonic_ns ||
                          settings.origin->realtime_ns != state.origin_realtime_ns))
    return "its node has another STRATA_DILATE_ORIGIN; take another file";
  return "";
}

// With the file locked.
MappedNode map_locked(int fd, const Settings& settings, Origin now) {
  struct stat facts {};
  if (::fstat(fd, &facts) != 0) return failed(settings.shared, "fstat");
  const bool fresh = facts.st_size == 0;
  if (fresh && ::ftruncate(fd, sizeof(NodeState)) != 0)
    return failed(settings.shared, "cannot be made");
  if (!fresh && facts.st_size != sizeof(NodeState))
    return refused(settings.shared, "is no file of an emulated node");
  void* const memory =
      ::mmap(nullptr, sizeof(NodeState), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return failed(settings.shared, "mmap");
  auto* const state = static_cast<NodeState*>(memory);
  if (fresh) fill(state, settings, now);
  const std::string other = difference(*state, settings);
  if (other.empty()) return {state, ""};
  ::munmap(memory, sizeof(NodeState));
  return refused(settings.shared, other);
}

MappedNode map_alone(const Settings& settings, Origin now) {
  void* const memory =
      ::mmap(nullptr, sizeof(NodeState), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return failed("", "mmap");
  auto* const state = static_cast<NodeState*>(memory);
  fill(state, settings, now);
  return {state, ""};
}

}  // namespace

MappedNode map_node(const Settings& settings, Origin now) {
  if (settings.shared.empty()) return map_alone(settings, now);
  const int fd = ::open(settings.shared.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return failed(settings.shared, "cannot be opened");
  // A process that dies while it fills the file gives up the lock with it: the next one finds the
  // file without its first bytes, and says so.
  const MappedNode mapped =
      ::flock(fd, LOCK_EX) == 0 ? map_locked(fd, settings, now) : failed(settings.shared, "flock");
  ::flock(fd, LOCK_UN);  // the mapping would keep it
  ::close(fd);
  return mapped;
}

}  // namespace strata::dilate
