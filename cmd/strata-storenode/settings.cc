#include "settings.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <utility>

#include "base/profiles.h"
#include "daemon/command_line.h"
#include "io/block_writer.h"

namespace strata::storenode {
namespace {

using daemon::add_size;

constexpr uint64_t kSecondUs = 1'000'000;

// What CLI11 fills in and needs more than a conversion.
struct Raw {
  std::vector<std::string> listen;
  std::string http = "127.0.0.1:0";
  std::vector<std::string> group;
  uint32_t write_quorum = 0;
  std::string replaces;
  bool joins = false;
  uint64_t start_timeout_s = 0;
  uint64_t checkpoint_interval_s = 10;
  uint64_t reader_lease_s = 10;
  const CLI::Option* replay_lag = nullptr;
};

std::string check_blocks(const std::string& bytes) {
  const bool whole = std::strtoull(bytes.c_str(), nullptr, 10) % BlockWriter::kBlock == 0;
  return whole ? ""
               : bytes + " bytes are not whole blocks; use a multiple of " +
                     std::to_string(BlockWriter::kBlock) + ", such as 16M";
}

void add_options(CLI::App* app, Settings* settings, Raw* raw) {
  NodeOptions& node = settings->node;
  app->add_option("--name", node.name, "This node's name in the cluster")->required();
  app->add_option("--data", node.directory, "Data folder; made when absent")->required();
  app->add_option("--registry", settings->registry, "etcd, http://127.0.0.1:2379; repeatable")
      ->required();
  app->add_option("--secret-file", settings->secret_file,
                  "The cluster's secret: 32 bytes, mode 0600")
      ->required();
  app->add_option("--cluster", node.cluster, "The cluster's name in the registry")
      ->capture_default_str();
  daemon::add_listen(app, &raw->listen);
  app->add_option("--advertise", node.advertise,
                  "Address others are told, if something between them and this node forwards to "
                  "it; default: the first of --listen")
      ->check(CLI::Validator(daemon::check_advertise, ""));
  daemon::add_http(app, &raw->http);
  app->add_option("--profile", node.profile, names_of_cluster_profiles())->capture_default_str();
  auto* group = app->add_option("--initial-group", raw->group,
                                "Storage nodes of a new cluster, by name: s1,s2,s3")
                    ->delimiter(',');
  app->add_option("--write-quorum", raw->write_quorum,
                  "Of the initial group, or with --join; default: a majority")
      ->check(CLI::Range(1, 1000));
  auto* replaces =
      app->add_option("--replaces", raw->replaces,
                      "If this node is in no group yet: take the place of that one, for good")
          ->excludes(group);
  app->add_flag("--join", raw->joins, "If this node is in no group yet: be one more in the first")
      ->excludes(group)
      ->excludes(replaces);
  add_size(app, "--page-cache", &node.pages.page_cache_bytes, 1, "Memory for pages");
  add_size(app, "--log-cache", &node.pages.log_cache_bytes, 1, "Memory for log to be replayed");
  raw->replay_lag = add_size(app, "--replay-lag", &node.pages.replay_lag_bytes, 0,
                             "Newest log whose pages are only made when asked for (logdb-mv-sr); "
                             "default: half of --log-cache or --version-map");
  add_size(app, "--version-map", &node.pages.map_bytes, 1, "Memory for the map of versions");
  add_size(app, "--memtable", &node.pages.memtable_bytes, 1, "Memory for versions not written yet");
  add_size(app, "--log-segment", &node.log.segment_bytes, 1, "Size of one file of the log")
      ->check(CLI::Validator(check_blocks, ""));
  app->add_option("--checkpoint-interval", raw->checkpoint_interval_s,
                  "Seconds between two checkpoints of the pages, which let the log be cut off")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  app->add_option("--reader-lease", raw->reader_lease_s,
                  "Seconds after which a reader of old pages is forgotten")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  app->add_flag("--buffered-pages", node.buffered_pages,
                "Pages that compute writes go through the system's cache (remote-disk)");
  app->add_option("--workers", node.workers, "Threads that answer requests")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app->add_option("--lease", node.lease_s, "Seconds after which others miss this node")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  app->add_option("--start-timeout", raw->start_timeout_s,
                  "Seconds for the registry to answer at the start; 0: until it does")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  daemon::add_log_level(app, &settings->log_level);
}

void finish(Settings* settings, const Raw& raw) {
  NodeOptions& node = settings->node;
  if (!raw.listen.empty()) node.listen = raw.listen;
  settings->http = daemon::finish_http(raw.http);
  if (raw.replay_lag->empty()) node.pages.replay_lag_bytes = replay_lag_for(node.pages);
  node.start_timeout_us = raw.start_timeout_s * kSecondUs;
  node.pages.checkpoint_interval_us = raw.checkpoint_interval_s * kSecondUs;
  node.pages.collect_interval_us = raw.checkpoint_interval_s * kSecondUs;
  node.pages.leases.lease_us = raw.reader_lease_s * kSecondUs;
  if (raw.joins || !raw.replaces.empty())
    node.joining = Joining{raw.replaces, raw.joins ? raw.write_quorum : 0, 0};
  if (raw.group.empty()) return;
  const auto majority = static_cast<uint32_t>(raw.group.size() / 2 + 1);
  node.initial_group = InitialGroup{raw.group, raw.write_quorum != 0 ? raw.write_quorum : majority};
}

int refuse(const std::string& why) { return daemon::refuse_settings(kProgram, why); }

}  // namespace

std::variant<Settings, int> read_settings(int argc, char** argv) {
  Settings settings;
  Raw raw;
  CLI::App app("A storage node of Strata: keeps log, makes pages of it, serves both.", kProgram);
  app.footer(
      "Example:\n"
      "  strata-storenode --name s1 --data data/s1 --listen 127.0.0.1:7101 --http 127.0.0.1:7201 "
      "\\\n"
      "    --registry http://127.0.0.1:23379 --secret-file data/secret --profile logdb-mv-sr \\\n"
      "    --initial-group s1,s2,s3 --write-quorum 2\n"
      "  In the place of one that is lost: the same with --name s4 --replaces s1, without the last "
      "line.");
  add_options(&app, &settings, &raw);
  if (const auto code = daemon::parse(&app, argc, argv, kProgram)) return *code;
  if (raw.write_quorum != 0 && raw.group.empty() && !raw.joins)
    return refuse("--write-quorum goes with --initial-group or --join");
  finish(&settings, raw);
  const Status usable = check_options(settings.node);
  if (!usable.ok()) return refuse(std::string(usable.message()));
  return settings;
}

}  // namespace strata::storenode
