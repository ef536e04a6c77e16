// What the command lines of daemons have in common. For programs only: CLI11 throws, and parse()
// catches it.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/addresses.h"
#include "daemon/log.h"

namespace strata::daemon {

// Nothing: the command line was read; else the code to exit with: EXIT_SUCCESS after --help, kUsage
// after one line on standard error.
std::optional<int> parse(CLI::App* app, int argc, char** argv, const std::string& program);
// One line on standard error that says what cannot be; returns kUsage.
int refuse_settings(const std::string& program, const std::string& why);

// Bytes, as 512M or 16G; from `least_mebi` to 1 TiB. By default what they are now.
CLI::Option* add_size(CLI::App* app, const char* flag, uint64_t* bytes, double least_mebi,
                      const char* what);
void add_listen(CLI::App* app, std::vector<std::string>* listen);
void add_http(CLI::App* app, std::string* http);  // finish_http() of it, when it was parsed
[[nodiscard]] HostPort finish_http(const std::string& http);
void add_log_level(CLI::App* app, Level* level);

}  // namespace strata::daemon
