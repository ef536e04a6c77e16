// The command line of both subcommands.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "farmem/node/memory_service.h"
#include "farmem/policy/policy_options.h"
#include "farmem/swap/swap_keeper.h"
#include "transport/link_model.h"

namespace strata::farmem {

struct ServeSettings {
  std::vector<std::string> listen;  // tcp:... or unix:...
  std::string secret_file;
  ServiceOptions service;
};

struct RunSettings {
  bool shared = false;  // memory that several processes share, instead of what each allocates
  PolicyOptions policy;
  std::string memory_node;  // tcp:... or unix:...
  std::string secret_file;
  uint64_t far_bytes = 16ull << 30;
  uint64_t far_from_bytes = 16u << 10;
  uint64_t timeout_us = 5'000'000;
  transport::LinkSpeed link;
  std::string stats_file;  // empty: none
  std::string trace_file;  // empty: none
  std::string far_files;   // a folder whose files' content is not cached here; empty: none
  uint64_t far_files_bytes = 2ull << 30;
  bool live = false;
  bool quiet = false;
  std::vector<std::string> command;
};

// A program that swaps: the kernel decides what is local.
struct SwapSettings {
  SwapOptions swap;
  std::string mode;  // as given
  std::string secret_file;
  std::string stats_file;  // empty: none
  bool live = false;
  bool quiet = false;
  std::vector<std::string> command;
};

struct ReplaySettings {
  std::string trace_file;
  std::vector<PolicyOptions> policies;  // all combinations of what was given
  bool json = false;
};

using Settings = std::variant<ServeSettings, RunSettings, SwapSettings, ReplaySettings>;

// The settings, or the code to exit with: 0 after --help, 2 after one line on standard error.
std::variant<Settings, int> read_settings(int argc, char** argv);

}  // namespace strata::farmem
