// The daemon's command line.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "daemon/addresses.h"
#include "daemon/log.h"
#include "memnode/node/node_options.h"

namespace strata::memnode {

constexpr const char* kProgram = "strata-memnode";

struct TenantSetting {
  std::string name;
  std::string token_file;
  uint64_t quota_bytes = 0;
};

struct Settings {
  NodeOptions node;  // but for the tenants, whose tokens are in files
  std::vector<TenantSetting> tenants;
  daemon::HostPort http;
  std::vector<std::string> registry;
  std::string secret_file;
  daemon::Level log_level = daemon::Level::kInfo;
};

// The settings, or the code to exit with: 0 after --help, 2 after one line on standard error that
// says what is wrong.
std::variant<Settings, int> read_settings(int argc, char** argv);

}  // namespace strata::memnode
