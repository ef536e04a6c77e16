// strata-storenode: runs one storage node (storenode/node) until it is told to stop.
#include <cstdio>
#include <exception>
#include <memory>
#include <utility>

#include "settings.h"
#include "storage_daemon.h"

int main(int argc, char** argv) {
  using namespace strata;  // NOLINT(google-build-using-namespace)
  try {
    auto settings = storenode::read_settings(argc, argv);
    if (const int* const code = std::get_if<int>(&settings)) return *code;
    auto& given = std::get<storenode::Settings>(settings);
    const daemon::RunOptions options{
        .program = storenode::kProgram, .log = given.log_level, .http = given.http};
    return daemon::run_daemon(options,
                              std::make_unique<storenode::StorageDaemon>(std::move(given)));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", storenode::kProgram, error.what());
    return daemon::kFailed;
  }
}
