// strata-farmem: a memory node, a program run on one, or what a policy does with a recorded run.
#include <cstdio>
#include <exception>

#include "replay_trace.h"
#include "run.h"
#include "run_shared.h"
#include "run_swapped.h"
#include "serve.h"
#include "settings.h"

int main(int argc, char** argv) {
  using namespace strata::farmem;  // NOLINT(google-build-using-namespace)
  try {
    const auto settings = read_settings(argc, argv);
    if (const int* const code = std::get_if<int>(&settings)) return *code;
    const auto& given = std::get<Settings>(settings);
    if (const auto* const serving = std::get_if<ServeSettings>(&given)) return serve(*serving);
    if (const auto* const replaying = std::get_if<ReplaySettings>(&given))
      return replay_trace(*replaying);
    if (const auto* const swapping = std::get_if<SwapSettings>(&given))
      return run_swapped(*swapping);
    const auto& running = std::get<RunSettings>(given);
    return running.shared ? run_shared(running) : run(running);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "strata-farmem: %s\n", error.what());
    return 1;
  }
}
