#include "program.h"

#include <dirent.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

#include "farmem/pager/shared_setup.h"

extern char** environ;

namespace strata::farmem {
namespace {

constexpr const char* kPreload = "LD_PRELOAD=";

struct Parent {
  pid_t pid = 0;  // 0: there is no such process (any more)
  bool ended = false;
};

Parent parent_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  // "12 (a name with anything in it) S 1 ..."
  const size_t end = line.rfind(')');
  if (end == std::string::npos || end + 4 >= line.size()) return {};
  return {.pid = static_cast<pid_t>(std::atoi(line.c_str() + end + 4)),
          .ended = line[end + 2] == 'Z' || line[end + 2] == 'X'};
}

std::map<pid_t, Parent> all_processes() {
  std::map<pid_t, Parent> out;
  DIR* const folder = ::opendir("/proc");
  if (folder == nullptr) return out;
  while (const dirent* const entry = ::readdir(folder))  // NOLINT(concurrency-mt-unsafe)
    if (const auto pid = static_cast<pid_t>(std::atoi(entry->d_name)); pid > 0)
      out[pid] = parent_of(pid);
  ::closedir(folder);
  return out;
}

}  // namespace

std::string library_path(const std::string& name) {
  std::array<char, PATH_MAX> self;
  const ssize_t bytes = ::readlink("/proc/self/exe", self.data(), self.size());
  const std::string program(self.data(), bytes > 0 ? static_cast<size_t>(bytes) : 0);
  return program.substr(0, program.rfind('/') + 1) + name;
}

std::vector<std::string> environment_of_program(const std::string& library, int setup_fd) {
  std::vector<std::string> out{std::string(kSetupVariable) + "=" + std::to_string(setup_fd)};
  std::string preload = kPreload + library;
  for (char** variable = environ; *variable != nullptr; variable++) {
    const std::string text = *variable;
    if (text.rfind(kPreload, 0) == 0)
      preload += ":" + text.substr(std::strlen(kPreload));
    else if (text.rfind(std::string(kSetupVariable) + "=", 0) != 0)
      out.push_back(text);
  }
  out.push_back(preload);
  return out;
}

StatusOr<pid_t> start_program(const std::vector<std::string>& command,
                              std::vector<std::string> environment) {
  std::vector<char*> variables, arguments;
  for (std::string& text : environment) variables.push_back(text.data());
  for (const std::string& text : command) arguments.push_back(const_cast<char*>(text.c_str()));
  variables.push_back(nullptr);
  arguments.push_back(nullptr);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t child = -1;
  const int error = ::posix_spawnp(&child, arguments[0], nullptr, &attributes, arguments.data(),
                                   variables.data());
  ::posix_spawnattr_destroy(&attributes);
  if (error == 0) return child;
  return error_invalid_argument("cannot start " + command[0] + ": " + std::strerror(error));
}

int exit_code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : kSignalled + WTERMSIG(status);
}

int not_started(const Status& why) {
  std::fprintf(stderr, "strata-farmem: %s\n", std::string(why.message()).c_str());
  return kNotStarted;
}

Resident resident_bytes(uint64_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  Resident out;
  for (std::string line; std::getline(status, line);) {
    const uint64_t bytes =
        std::strtoull(line.c_str() + std::min(line.size(), std::strlen("RssAnon:")), nullptr, 10) *
        1024;
    if (line.rfind("RssAnon:", 0) == 0) out.anonymous = bytes;
    if (line.rfind("RssFile:", 0) == 0) out.file = bytes;
  }
  return out;
}

std::vector<pid_t> descendants(pid_t without) {
  const std::map<pid_t, Parent> all = all_processes();
  const auto is_ours = [&all, without](pid_t pid) {
    // Parents may come and go while one looks: no more steps than there are processes.
    for (size_t steps = 0; steps <= all.size(); steps++) {
      const auto found = all.find(pid);
      if (found == all.end() || pid == without) return false;
      if (found->second.pid == ::getpid()) return true;
      pid = found->second.pid;
    }
    return false;
  };
  std::vector<pid_t> out;
  for (const auto& [pid, parent] : all)
    if (!parent.ended && is_ours(pid)) out.push_back(pid);
  return out;
}

}  // namespace strata::farmem
