#include "farmem/swap/limits.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "farmem/policy/policy_options.h"
#include "farmem/swap/small_files.h"

namespace strata::farmem {
namespace {

struct Controller {
  std::string parent;    // folder in which a group can be made
  bool unified = false;  // version 2
};

bool has_word(const std::string& text, const std::string& word, char separator) {
  std::istringstream words(text);
  for (std::string one; std::getline(words, one, separator);)
    if (one == word || one == word + "\n") return true;
  return false;
}

// Of this process, in version 1's hierarchy of the controller.
std::string own_group(const std::string& controller) {
  std::istringstream lines(read_small("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {  // "4:memory:/path"
    const size_t names = line.find(':') + 1, path = line.find(':', names) + 1;
    if (has_word(line.substr(names, path - 1 - names), controller, ',')) return line.substr(path);
  }
  return "/";
}

StatusOr<Controller> find(const std::string& controller) {
  std::istringstream mounts(read_small("/proc/mounts"));
  std::string device, place, type, options, rest, unified;
  while (mounts >> device >> place >> type >> options && std::getline(mounts, rest)) {
    if (type == "cgroup2") unified = place;
    if (type != "cgroup" || !has_word(options, controller, ',')) continue;
    const std::string own = place + own_group(controller);
    return Controller{::access(own.c_str(), W_OK) == 0 ? own : place, false};
  }
  // Groups with processes cannot have groups with limits below them: not below our own, but below
  // the root.
  if (!unified.empty() &&
      has_word(read_small(unified + "/cgroup.subtree_control"), controller, ' '))
    return Controller{unified, true};
  return error_invalid_argument("this system has no control group for " + controller);
}

StatusOr<std::string> make_group(const Controller& controller, HostPath* written_down) {
  const std::string path = controller.parent + "/strata-farmem-" + std::to_string(::getpid());
  if (!put_path(written_down, path))
    return error_invalid_argument("the path of the control group is too long");
  if (::mkdir(path.c_str(), 0755) == 0) return path;
  const int error = errno;
  written_down->fill('\0');
  return error_invalid_argument("cannot make the control group " + path + ": " +
                                std::strerror(error));
}

bool is_unified(const std::string& group) {
  return ::access((group + "/cgroup.controllers").c_str(), F_OK) == 0;
}

std::string memory_group_of(const HostChanges& changes) {
  return std::string(path_of(changes.memory_group));
}

// Of the whole disk: limits are not of parts of it.
StatusOr<std::string> disk_of(const std::string& file) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0)
    return error_invalid_argument(file + ": " + std::strerror(errno));
  const std::string number =
      std::to_string(major(info.st_dev)) + ":" + std::to_string(minor(info.st_dev));
  const std::string folder = "/sys/dev/block/" + number;
  if (::access(folder.c_str(), F_OK) != 0)
    return error_invalid_argument(file +
                                  " is on no disk of its own, whose operations can be limited");
  if (::access((folder + "/partition").c_str(), F_OK) != 0) return number;
  const std::string whole = read_small(folder + "/../dev");
  return whole.substr(0, whole.find('\n'));
}

// Async-signal-safe.
bool join(const HostPath& group) noexcept {
  constexpr const char* kFile = "/cgroup.procs";
  const std::string_view path = path_of(group);
  if (path.empty()) return true;
  std::array<char, kHostPathBytesMax + 16> name{};
  path.copy(name.data(), path.size());
  std::memcpy(name.data() + path.size(), kFile, std::strlen(kFile));
  const int fd = ::open(name.data(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done = ::write(fd, "0", 1) == 1;
  ::close(fd);
  return done;
}

}  // namespace

Status make_memory_group(uint64_t bytes, HostChanges* changes) {
  STRATA_ASSIGN_OR_RETURN(const Controller controller, find("memory"));
  STRATA_ASSIGN_OR_RETURN(const std::string group, make_group(controller, &changes->memory_group));
  const std::string limit = std::to_string(bytes / kPageBytes * kPageBytes);
  if (controller.unified) {
    STRATA_RETURN_IF_ERROR(write_small(group + "/memory.max", limit));
    return write_small(group + "/memory.swap.max", "max");
  }
  STRATA_RETURN_IF_ERROR(write_small(group + "/memory.limit_in_bytes", limit));
  // What the program allocates goes as readily as the files it reads.
  STRATA_RETURN_IF_ERROR(write_small(group + "/memory.swappiness", "100"));
  // All pages on their way out is no reason to end a program: it waits.
  return write_small(group + "/memory.oom_control", "1");
}

Status make_io_group(uint64_t operations_per_second, const std::string& file,
                     HostChanges* changes) {
  STRATA_ASSIGN_OR_RETURN(const std::string disk, disk_of(file));
  const std::string rate = std::to_string(operations_per_second);
  const std::string memory_group = memory_group_of(*changes);
  if (is_unified(memory_group))
    return write_small(memory_group + "/io.max", disk + " riops=" + rate + " wiops=" + rate);
  STRATA_ASSIGN_OR_RETURN(const Controller controller, find("blkio"));
  STRATA_ASSIGN_OR_RETURN(const std::string group, make_group(controller, &changes->io_group));
  STRATA_RETURN_IF_ERROR(
      write_small(group + "/blkio.throttle.read_iops_device", disk + " " + rate));
  return write_small(group + "/blkio.throttle.write_iops_device", disk + " " + rate);
}

bool join_groups(const HostChanges& changes) noexcept {
  return join(changes.memory_group) && join(changes.io_group);
}

bool waits_for_memory(const HostChanges& changes) {
  const std::string group = memory_group_of(changes);
  return figure_of(read_small(group + "/memory.oom_control"), "under_oom") != 0;
}

Status take_pages(const HostChanges& changes) {
  constexpr uint64_t kPages = 16;  // a fault takes fewer, with what is read along and page tables
  const std::string file = memory_group_of(changes) + "/memory.limit_in_bytes";
  const std::string limit = read_small(file);
  const uint64_t bytes = std::strtoull(limit.c_str(), nullptr, 10);
  if (bytes == 0) return error_internal("cannot read " + file);
  const uint64_t lower = bytes - std::min(kPages * kPageBytes, bytes / 2);
  // The kernel refuses what it cannot get below: it has tried hard then, and the limit stays.
  write_small(file, std::to_string(lower)).IgnoreError();
  // A limit that grows wakes who waits.
  return write_small(file, std::to_string(bytes));
}

GroupFigures figures_of(const HostChanges& changes) {
  const std::string group = memory_group_of(changes);
  const std::string figures = read_small(group + "/memory.stat");
  const bool unified = is_unified(group);
  const std::string most =
      read_small(group + (unified ? "/memory.peak" : "/memory.max_usage_in_bytes"));
  return {.major_faults = figure_of(figures, "pgmajfault"),
          .faults = figure_of(figures, "pgfault"),
          .bytes_max = std::strtoull(most.c_str(), nullptr, 10)};
}

}  // namespace strata::farmem
