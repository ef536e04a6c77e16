// The program that is run: how it is started, and what is known of its processes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace strata::farmem {

constexpr int kNotStarted = 2;   // exit codes
constexpr int kLostExit = 74;    // as in src/farmem/preload
constexpr int kSignalled = 128;  // and the signal

// A library that lies beside this program.
std::string library_path(const std::string& name);
// Ours, with the library in front of others in LD_PRELOAD and the set-up's descriptor.
std::vector<std::string> environment_of_program(const std::string& library, int setup_fd);
// Searched for as a shell does. It blocks no signal. Error: kInvalidArgument.
StatusOr<pid_t> start_program(const std::vector<std::string>& command,
                              std::vector<std::string> environment);
// Of what waitpid() says.
int exit_code_of(int status);
// Says why on standard error; the code to exit with.
int not_started(const Status& why);

struct Resident {
  uint64_t anonymous = 0;
  uint64_t file = 0;
};
// Zeros: there is no such process. Without shared memory: the memory node's may be mapped.
Resident resident_bytes(uint64_t pid);
// Children of this process, theirs, and so on, those that have ended but were not waited for left
// out, and what `without` has, too.
std::vector<pid_t> descendants(pid_t without);

}  // namespace strata::farmem
