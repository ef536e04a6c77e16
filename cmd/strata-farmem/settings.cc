#include "settings.h"

#include "daemon/command_line.h"

namespace strata::farmem {
namespace {

constexpr const char* kProgram = "strata-farmem";
constexpr uint64_t kUsPerMs = 1000;
constexpr uint32_t kProgramsMax = 4096;  // at once

constexpr uint64_t kFarBytes = 16ull << 30;      // only as much is used as is written
constexpr uint64_t kSwapFileBytes = 2ull << 30;  // all of it is taken

struct Raw {
  std::string mode = "uffd";
  std::string disk_folder = ".";
  uint64_t disk_iops = 0;
  uint64_t local_bytes = 64u << 20;
  uint64_t far_bytes = 0;  // 0: not given
  std::string policy = "fifo";
  std::string link = "none";
  uint64_t link_us = 0;
  double link_gbps = 0;
  uint64_t timeout_ms = 5000;
  uint64_t lease_ms = 10'000;
};

struct RawReplay {
  std::vector<std::string> policies{"fifo", "second-chance"};
  std::vector<uint64_t> local_bytes{64u << 20};
  std::vector<uint32_t> prefetch{0};
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
           "Local memory for what the program allocates: the cap. Modes that swap: for all of it");
  app->add_option("--mode", raw->mode,
                  "uffd (what each process allocates), fuse (what several share; as root), or, to "
                  "compare with, as root: swap (the kernel swaps to the memory node), disk (to a "
                  "file), zram (to compressed memory here)")
      ->check(CLI::IsMember({"uffd", "fuse", "swap", "disk", "zram"}))
      ->capture_default_str();
  app->add_option("--memory-node", run->memory_node, "address:port or unix:/path");
  app->add_option("--secret-file", run->secret_file, "The memory node's");
  app->add_option("--disk-folder", raw->disk_folder, "Mode disk: where the file is")
      ->capture_default_str();
  app->add_option("--disk-iops", raw->disk_iops,
                  "Mode disk: reads, and writes, that the disk does in a second for the program; "
                  "0: as many as it can")
      ->check(CLI::Range(0, 10'000'000))
      ->capture_default_str();
  app->add_option("--policy", raw->policy, "fifo, second-chance or assoc:N (N ways)")
      ->capture_default_str();
  app->add_option("--prefetch", run->policy.prefetch, "Pages that come along with a missing one")
      ->check(CLI::Range(0u, kPrefetchMax))
      ->capture_default_str();
  add_size(app, "--far", &raw->far_bytes,
           "Far memory the program may have; 0: 16G, or 2G where it is taken at once");
  add_size(app, "--far-from", &run->far_from_bytes, "Smaller allocations stay local");
  app->add_option("--far-files", run->far_files,
                  "Mode fuse: a folder; what the program reads of its files is kept in the memory "
                  "node, not in this machine's cache of files");
  add_size(app, "--far-files-bytes", &run->far_files_bytes, "How much of them is kept, at most");
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
  app->add_option(
      "--trace", run->trace_file,
      "Record every fault here, for replay; 32 bytes each. Of a second process: FILE.2");
  app->add_flag("--live", run->live, "Show the counters on standard error each second");
  app->add_flag("--quiet", run->quiet, "No table at the end");
  app->add_option("command", run->command, "The program and its arguments, behind --")->required();
}

void add_replay(CLI::App* app, ReplaySettings* replay, RawReplay* raw) {
  app->add_option("trace", replay->trace_file, "What run --trace has written")->required();
  app->add_option("--policy", raw->policies, "fifo, second-chance or assoc:N; repeatable")
      ->delimiter(',');
  app->add_option("--local", raw->local_bytes, "Local memory; repeatable")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE")
      ->delimiter(',');
  app->add_option("--prefetch", raw->prefetch, "Pages that come along; repeatable")
      ->check(CLI::Range(0u, kPrefetchMax))
      ->delimiter(',');
  app->add_flag("--json", replay->json, "JSON instead of a table");
}

StatusOr<uint32_t> frames_of(uint64_t bytes) {
  if (bytes / kPageBytes > UINT32_MAX)
    return error_invalid_argument("at most 16 TiB of local memory");
  return static_cast<uint32_t>(bytes / kPageBytes);
}

Status finish(ReplaySettings* replay, const RawReplay& raw) {
  for (const std::string& policy : raw.policies) {
    for (const uint64_t bytes : raw.local_bytes) {
      for (const uint32_t prefetch : raw.prefetch) {
        PolicyOptions options{.prefetch = prefetch};
        STRATA_ASSIGN_OR_RETURN(options.frames, frames_of(bytes));
        STRATA_RETURN_IF_ERROR(parse_policy(policy, &options));
        STRATA_RETURN_IF_ERROR(check_policy(options));
        replay->policies.push_back(options);
      }
    }
  }
  return ok_status();
}

Status finish(ServeSettings* serve, const Raw& raw) {
  for (std::string& address : serve->listen) address = address_of(address);
  serve->service.lease_us = raw.lease_ms * kUsPerMs;
  return ok_status();
}

transport::LinkSpeed link_with(transport::LinkSpeed link, const Raw& raw) {
  constexpr double kBytesPerGigabit = 1e9 / 8;
  if (raw.link_us > 0) link.round_trip_ns = raw.link_us * 1000;
  if (raw.link_gbps > 0)
    link.bytes_per_second = static_cast<uint64_t>(raw.link_gbps * kBytesPerGigabit);
  return link;
}

Status check_place(const RunSettings& run) {
  if (!run.memory_node.empty() && !run.secret_file.empty()) return ok_status();
  return error_invalid_argument("--memory-node and --secret-file are needed in this mode");
}

// Of the other modes' settings those that mean something here; the others are refused, so that
// nobody believes that they were heeded.
Status finish(SwapSettings* swap, const RunSettings& run, const Raw& raw) {
  const bool to_node = raw.mode == "swap", to_disk = raw.mode == "disk";
  if (raw.policy != "fifo")
    return error_invalid_argument("--policy: the kernel decides when it swaps");
  if (!run.trace_file.empty())
    return error_invalid_argument("--trace: the kernel does not tell of its faults when it swaps");
  if (!run.far_files.empty()) return error_invalid_argument("--far-files goes with --mode fuse");
  if (!to_disk && raw.disk_iops > 0)
    return error_invalid_argument("--disk-iops goes with --mode disk");
  if (to_node) STRATA_RETURN_IF_ERROR(check_place(run));
  if (!to_node &&
      (!run.memory_node.empty() || raw.link != "none" || raw.link_us > 0 || raw.link_gbps > 0))
    return error_invalid_argument("there is no memory node and no link in mode " + raw.mode);
  swap->mode = raw.mode;
  swap->secret_file = run.secret_file;
  swap->stats_file = run.stats_file;
  swap->live = run.live;
  swap->quiet = run.quiet;
  swap->command = run.command;
  SwapOptions& options = swap->swap;
  options.to = to_node ? SwapTo::kMemoryNode : to_disk ? SwapTo::kDisk : SwapTo::kZram;
  options.local_bytes = raw.local_bytes;
  options.swap_bytes = raw.far_bytes > 0 ? raw.far_bytes : to_node ? kFarBytes : kSwapFileBytes;
  options.prefetch = run.policy.prefetch;
  if (to_node) options.memory_node = address_of(run.memory_node);
  options.timeout_us = raw.timeout_ms * kUsPerMs;
  STRATA_ASSIGN_OR_RETURN(const transport::LinkSpeed link, transport::link_speed(raw.link));
  options.link = link_with(link, raw);
  options.folder = raw.disk_folder;
  options.operations_per_second = raw.disk_iops;
  return SwapKeeper::check(options);
}

Status finish(RunSettings* run, const Raw& raw) {
  STRATA_RETURN_IF_ERROR(check_place(*run));
  if (raw.disk_iops > 0) return error_invalid_argument("--disk-iops goes with --mode disk");
  run->shared = raw.mode == "fuse";
  if (!run->shared && !run->far_files.empty())
    return error_invalid_argument("--far-files goes with --mode fuse");
  if (run->far_files_bytes < kPageBytes || run->far_files_bytes / kPageBytes > kRegionPagesMax)
    return error_invalid_argument("--far-files-bytes: 4 KiB to 1 TiB");
  if (run->shared && !run->trace_file.empty())
    return error_invalid_argument("--trace records what mode uffd does");
  run->far_bytes = raw.far_bytes > 0 ? raw.far_bytes : kFarBytes;
  run->memory_node = address_of(run->memory_node);
  run->timeout_us = raw.timeout_ms * kUsPerMs;
  run->policy.frames = static_cast<uint32_t>(raw.local_bytes / kPageBytes);
  if (raw.local_bytes / kPageBytes > UINT32_MAX || run->far_bytes < kPageBytes ||
      run->far_bytes / kPageBytes > kRegionPagesMax)
    return error_invalid_argument("at most 1 TiB of far memory, and less local");
  STRATA_RETURN_IF_ERROR(parse_policy(raw.policy, &run->policy));
  STRATA_RETURN_IF_ERROR(check_policy(run->policy));
  STRATA_ASSIGN_OR_RETURN(const transport::LinkSpeed link, transport::link_speed(raw.link));
  run->link = link_with(link, raw);
  // Below a page everything would share pages with what stays local.
  if (run->far_from_bytes < kPageBytes)
    return error_invalid_argument("--far-from: at least " + std::to_string(kPageBytes) + " bytes");
  return ok_status();
}

}  // namespace

std::variant<Settings, int> read_settings(int argc, char** argv) {
  ServeSettings serve;
  RunSettings run;
  SwapSettings swap;
  ReplaySettings replay;
  Raw raw;
  RawReplay raw_replay;
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
  CLI::App* const replaying =
      app.add_subcommand("replay", "What policies would have done with a recorded trace.");
  add_replay(replaying, &replay, &raw_replay);
  running->positionals_at_end(true);
  if (const auto code = daemon::parse(&app, argc, argv, kProgram)) return *code;
  const bool serves = serving->parsed(), replays = replaying->parsed();
  const bool swaps = running->parsed() && raw.mode != "uffd" && raw.mode != "fuse";
  const Status usable = serves    ? finish(&serve, raw)
                        : replays ? finish(&replay, raw_replay)
                        : swaps   ? finish(&swap, run, raw)
                                  : finish(&run, raw);
  if (!usable.ok()) return daemon::refuse_settings(kProgram, std::string(usable.message()));
  if (serves) return Settings(serve);
  if (replays) return Settings(replay);
  if (swaps) return Settings(swap);
  return Settings(run);
}

}  // namespace strata::farmem
