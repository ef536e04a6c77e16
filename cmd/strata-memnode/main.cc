// strata-memnode: runs one memory node (memnode/node) until it is told to stop.
#include <cstdio>
#include <exception>
#include <memory>
#include <utility>

#include "memory_daemon.h"
#include "settings.h"

int main(int argc, char** argv) {
  using namespace strata;  // NOLINT(google-build-using-namespace)
  try {
    auto settings = memnode::read_settings(argc, argv);
    if (const int* const code = std::get_if<int>(&settings)) return *code;
    auto& given = std::get<memnode::Settings>(settings);
    const daemon::RunOptions options{
        .program = memnode::kProgram, .log = given.log_level, .http = given.http};
    return daemon::run_daemon(options, std::make_unique<memnode::MemoryDaemon>(std::move(given)));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", memnode::kProgram, error.what());
    return daemon::kFailed;
  }
}
