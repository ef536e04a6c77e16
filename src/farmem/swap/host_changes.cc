#include "farmem/swap/host_changes.h"

#include <sys/swap.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <sstream>
#include <string>
#include <thread>

#include "farmem/swap/small_files.h"

namespace strata::farmem {
namespace {

// The kernel ends processes, and gives groups back, when it comes to it.
constexpr auto kEvery = std::chrono::milliseconds(10);
constexpr int kTriesMax = 1000;

template <typename Done>
bool eventually(const Done& done) {
  for (int i = 0; i < kTriesMax; i++) {
    if (done()) return true;
    std::this_thread::sleep_for(kEvery);
  }
  return false;
}

Status cannot(const std::string& what, std::string_view path) {
  return error_internal("cannot " + what + " " + std::string(path) + ": " + std::strerror(errno));
}

// True once the group has no process any more.
bool end_processes(const std::string& group) {
  std::istringstream pids(read_small(group + "/cgroup.procs"));
  bool none = true;
  for (pid_t pid = 0; pids >> pid;) {
    none = false;
    ::kill(pid, SIGKILL);
  }
  return none;
}

Status remove_group(HostPath* group) {
  if (path_of(*group).empty()) return ok_status();
  const std::string path(path_of(*group));
  const bool gone = eventually([&] { return ::rmdir(path.c_str()) == 0 || errno == ENOENT; });
  if (!gone) return cannot("remove", path);
  group->fill('\0');
  return ok_status();
}

Status end_swap(HostPath* swap) {
  if (path_of(*swap).empty()) return ok_status();
  const std::string path(path_of(*swap));
  // EINVAL: it is no place to swap to, or not any more; ENOENT, ENXIO: there is none any more.
  const bool off = eventually([&] {
    return ::swapoff(path.c_str()) == 0 || errno == EINVAL || errno == ENOENT || errno == ENXIO;
  });
  if (!off) return cannot("stop swapping to", path);
  swap->fill('\0');
  return ok_status();
}

Status remove_zram(int32_t* zram) {
  if (*zram < 0) return ok_status();
  const std::string number = std::to_string(*zram);
  Status removed = ok_status();
  const bool gone = eventually([&] {
    removed = write_small("/sys/class/zram-control/hot_remove", number);
    return removed.ok() || ::access(("/sys/block/zram" + number).c_str(), F_OK) != 0;
  });
  if (!gone) return removed;
  *zram = -1;
  return ok_status();
}

Status remove_file(HostPath* file) {
  if (path_of(*file).empty()) return ok_status();
  const std::string path(path_of(*file));
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return cannot("remove", path);
  file->fill('\0');
  return ok_status();
}

Status restore_page_cluster(int32_t* before) {
  if (*before < 0) return ok_status();
  STRATA_RETURN_IF_ERROR(write_small("/proc/sys/vm/page-cluster", std::to_string(*before)));
  *before = -1;
  return ok_status();
}

}  // namespace

bool put_path(HostPath* to, std::string_view path) noexcept {
  if (path.size() >= to->size()) return false;
  to->fill('\0');
  path.copy(to->data(), path.size());
  return true;
}

std::string_view path_of(const HostPath& path) noexcept {
  const std::string_view all(path.data(), path.size());
  return all.substr(0, all.find('\0'));
}

Status put_back(HostChanges* changes) {
  Status first = ok_status();
  const auto note = [&first](const Status& status) {
    if (first.ok()) first = status;
  };
  const std::string group(path_of(changes->memory_group));
  if (!group.empty() && !eventually([&] { return end_processes(group); }))
    note(error_internal("a process of " + group + " does not end"));
  note(end_swap(&changes->swap));
  note(restore_page_cluster(&changes->page_cluster));
  note(remove_zram(&changes->zram));
  note(remove_file(&changes->swap_file));
  note(remove_group(&changes->io_group));
  note(remove_group(&changes->memory_group));
  return first;
}

}  // namespace strata::farmem
