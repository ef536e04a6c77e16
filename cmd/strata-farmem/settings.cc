#include "settings.h"

#include "daemon/command_line.h"

namespace strata::farmem {
namespace {

constexpr const char* kProgram = "strata-farmem";
constexpr uint64_t kUsPerMs = 1000;
constexpr uint32_t kProgramsMax = 4096;  // at once

struct Raw {
  uint64_t local_bytes = 64u << 20;
  std::string policy = "fifo";
  std::string link = "none";
  uint64_t link_us = 0;
  double link_gbps = 0;
  uint64_t timeout_ms = 5000;
  uint64_t lease_ms = 10'000;
};

// What the transport calls an address.
std::string address_of(const std::string& text) {
  return text.find(":/") != std::string::npos || text.rfind("tcp:", 0) == 0 ? text : "tcp:" + text;
}

CLI::Option* add_size(CLI::App* app, const char* flag, uint64_t* bytes, const char* what) {
  return app->add_option(flag, *bytes, what)
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE")
      ->capture_default_str();
}

void add_serve(CLI::App* app, ServeSettings* serve, Raw* raw) {
  app->add_option(
         "--listen", serve->listen,
         "address:port (port 0: any) or unix:/path, where programs of the same host get at "
         "the memory without this process; repeatable")
      ->required();
  app->add_option("--secret-file", serve->secret_file, "32 bytes, mode 0600; made when absent")
      ->required();
  add_size(app, "--capacity", &serve->service.capacity_bytes, "Memory for all programs together");
  app->add_option("--clients", serve->service.clients_max, "Programs at once")
      ->check(CLI::Range(1u, kProgramsMax))
      ->capture_default_str();
  app->add_option("--lease-ms", raw->lease_ms,
                  "A program that is silent for longer loses its memory")
      ->check(CLI::Range(100, 3'600'000))
      ->capture_default_str();
}

void add_run(CLI::App* app, RunSettings* run, Raw* raw) {
  add_size(app, "--local", &raw->local_bytes,
           "Local memory for what the program allocates: the cap");
  app->add_option("--memory-node", run->memory_node, "address:port or unix:/path")->required();
  app->add_option("--secret-file", run->secret_file, "The memory node's")->required();
  app->add_option("--policy", raw->policy, "fifo, second-chance or assoc:N (N ways)")
      ->capture_default_str();
  app->add_option("--prefetch", run->policy.prefetch, "Pages that come along with a missing one")
      ->check(CLI::Range(0u, kPrefetchMax))
      ->capture_default_str();
  add_size(app, "--far", &run->far_bytes, "Far memory the program may have");
  add_size(app, "--far-from", &run->far_from_bytes, "Smaller allocations stay local");
  app->add_option("--timeout-ms", raw->timeout_ms,
                  "The program ends when the memory node has not answered for so long")
      ->check(CLI::Range(100, 3'600'000))
      ->capture_default_str();
  app->add_option("--link", raw->link, "Model a slower link: none, 1g, 10g, 30g, rdma25g")
      ->capture_default_str();
  app->add_option("--link-us", raw->link_us, "Or: its round trip")->check(CLI::Range(0, 1'000'000));
  app->add_option("--link-gbps", raw->link_gbps, "and its bandwidth each way")
      ->check(CLI::Range(0.0, 10'000.0));
  app->add_option("--stats", run->stats_file,
                  "Write counters here, as JSON, each second and at the end");
  app->add_flag("--live", run->live, "Show the counters on standard error each second");
  app->add_flag("--quiet", run->quiet, "No table at the end");
  app->add_option("command", run->command, "The program and its arguments, behind --")->required();
}

Status finish(ServeSettings* serve, const Raw& raw) {
  for (std::string& address : serve->listen) address = address_of(address);
  serve->service.lease_us = raw.lease_ms * kUsPerMs;
  return ok_status();
}

Status finish(RunSettings* run, const Raw& raw) {
  constexpr double kBytesPerGigabit = 1e9 / 8;
  run->memory_node = address_of(run->memory_node);
  run->timeout_us = raw.timeout_ms * kUsPerMs;
  run->policy.frames = static_cast<uint32_t>(raw.local_bytes / kPageBytes);
  if (raw.local_bytes / kPageBytes > UINT32_MAX || run->far_bytes < kPageBytes ||
      run->far_bytes / kPageBytes > kRegionPagesMax)
    return error_invalid_argument("at most 1 TiB of far memory, and less local");
  STRATA_RETURN_IF_ERROR(parse_policy(raw.policy, &run->policy));
  STRATA_RETURN_IF_ERROR(check_policy(run->policy));
  STRATA_ASSIGN_OR_RETURN(run->link, transport::link_speed(raw.link));
  if (raw.link_us > 0) run->link.round_trip_ns = raw.link_us * 1000;
  if (raw.link_gbps > 0)
    run->link.bytes_per_second = static_cast<uint64_t>(raw.link_gbps * kBytesPerGigabit);
  // Below a page everything would share pages with what stays local.
  if (run->far_from_bytes < kPageBytes)
    return error_invalid_argument("--far-from: at least " + std::to_string(kPageBytes) + " bytes");
  return ok_status();
}

}  // namespace

std::variant<Settings, int> read_settings(int argc, char** argv) {
  ServeSettings serve;
  RunSettings run;
  Raw raw;
  CLI::App app("Runs programs that know nothing of it on memory of another machine.",
               "strata-farmem");
  app.require_subcommand(1);
  app.footer(
      "Example:\n"
      "  strata-farmem serve --listen 127.0.0.1:7301 --secret-file data/secret --capacity 4G\n"
      "  strata-farmem run --local 64M --memory-node 127.0.0.1:7301 --secret-file data/secret \\\n"
      "    --policy second-chance --prefetch 15 -- python3 query.py");
  CLI::App* const serving = app.add_subcommand("serve", "Be a memory node.");
  CLI::App* const running = app.add_subcommand("run", "Run a program on a memory node.");
  add_serve(serving, &serve, &raw);
  add_run(running, &run, &raw);
  running->positionals_at_end(true);
  if (const auto code = daemon::parse(&app, argc, argv, kProgram)) return *code;
  const bool serves = serving->parsed();
  const Status usable = serves ? finish(&serve, raw) : finish(&run, raw);
  if (!usable.ok()) return daemon::refuse_settings(kProgram, std::string(usable.message()));
  if (serves) return Settings(serve);
  return Settings(run);
}

}  // namespace strata::farmem
