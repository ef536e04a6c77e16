#include "daemon/command_line.h"

#include <iostream>
#include <map>

#include "daemon/exit_codes.h"

namespace strata::daemon {
namespace {

constexpr double kMebi = 1024.0 * 1024.0;

}  // namespace

int refuse_settings(const std::string& program, const std::string& why) {
  std::cerr << program << ": " << why << " (see --help)" << std::endl;
  return kUsage;
}

std::optional<int> parse(CLI::App* app, int argc, char** argv, const std::string& program) {
  try {
    app->parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app->exit(help);
  } catch (const CLI::ParseError& error) {
    return refuse_settings(program, error.what());
  }
  return std::nullopt;
}

CLI::Option* add_size(CLI::App* app, const char* flag, uint64_t* bytes, double least_mebi,
                      const char* what) {
  return app->add_option(flag, *bytes, what)
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(least_mebi * kMebi, kMebi * kMebi).description(""))
      ->type_name("SIZE")
      ->default_str(std::to_string(*bytes >> 20) + "M");
}

void add_listen(CLI::App* app, std::vector<std::string>* listen) {
  app->add_option("--listen", *listen, "address:port (port 0: any) or unix:/path; repeatable")
      ->check(CLI::Validator(check_listen, ""))
      ->default_str("127.0.0.1:0");
}

void add_http(CLI::App* app, std::string* http) {
  app->add_option("--http", *http, "address:port of /healthz, /metrics and /status (0: any)")
      ->check(CLI::Validator(check_http, ""))
      ->capture_default_str();
}

HostPort finish_http(const std::string& http) {
  return parse_host_port(http).value_or(HostPort{"127.0.0.1", 0});  // checked by then
}

void add_log_level(CLI::App* app, Level* level) {
  app->add_option("--log-level", *level, "debug, info, warning or error")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Level>{{"debug", Level::kDebug},
                                                                       {"info", Level::kInfo},
                                                                       {"warning", Level::kWarning},
                                                                       {"error", Level::kError}})
                      .description(""))
      ->default_str("info");
}

}  // namespace strata::daemon
