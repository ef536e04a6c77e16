// strata-farmem: a memory node, or a program run on one.
#include <cstdio>
#include <exception>

#include "run.h"
#include "serve.h"
#include "settings.h"

int main(int argc, char** argv) {
  using namespace strata::farmem;  // NOLINT(google-build-using-namespace)
  try {
    const auto settings = read_settings(argc, argv);
    if (const int* const code = std::get_if<int>(&settings)) return *code;
    const auto& given = std::get<Settings>(settings);
    if (const auto* const serving = std::get_if<ServeSettings>(&given)) return serve(*serving);
    return run(std::get<RunSettings>(given));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "strata-farmem: %s\n", error.what());
    return 1;
  }
}
