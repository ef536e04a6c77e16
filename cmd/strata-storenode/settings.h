// The daemon's command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "log.h"
#include "storenode/node/node_options.h"

namespace strata::daemon {

struct HttpAddress {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any
};

struct Settings {
  storenode::NodeOptions node;
  HttpAddress http;
  std::vector<std::string> registry;
  std::string secret_file;
  Level log_level = Level::kInfo;
};

// The settings, or the code to exit with: 0 after --help, 2 after one line on standard error that
// says what is wrong.
std::variant<Settings, int> read_settings(int argc, char** argv);

}  // namespace strata::daemon
