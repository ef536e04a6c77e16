// The daemon's command line.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "daemon/addresses.h"
#include "daemon/log.h"
#include "storenode/node/node_options.h"

namespace strata::storenode {

constexpr const char* kProgram = "strata-storenode";

struct Settings {
  NodeOptions node;
  daemon::HostPort http;
  std::vector<std::string> registry;
  std::string secret_file;
  daemon::Level log_level = daemon::Level::kInfo;
};

// The settings, or the code to exit with: 0 after --help, 2 after one line on standard error that
// says what is wrong.
std::variant<Settings, int> read_settings(int argc, char** argv);

}  // namespace strata::storenode
