#include "settings.h"

#include <CLI/CLI.hpp>
#include <optional>
#include <utility>

#include "daemon/command_line.h"

namespace strata::memnode {
namespace {

constexpr uint64_t kSecondUs = 1'000'000;

// What CLI11 fills in and needs more than a conversion.
struct Raw {
  std::vector<std::string> listen;
  std::string http = "127.0.0.1:0";
  std::vector<std::string> tenants;
  std::string medium = "memory";
  uint64_t start_timeout_s = 0;
  uint64_t storage_timeout_s = 3;
  uint64_t fusion_lease_s = 2;
  uint64_t unused_s = 60;
};

// "shop:/etc/strata/shop.token:4G". The file's name may have colons.
std::optional<TenantSetting> parse_tenant(const std::string& text) {
  const size_t first = text.find(':');
  const size_t last = text.rfind(':');
  if (first == std::string::npos || last <= first + 1) return std::nullopt;
  TenantSetting tenant{text.substr(0, first), text.substr(first + 1, last - first - 1), 0};
  try {
    std::string quota = text.substr(last + 1);
    if (!CLI::AsSizeValue(false)(quota).empty()) return std::nullopt;  // now a number of bytes
    if (!CLI::detail::lexical_cast(quota, tenant.quota_bytes)) return std::nullopt;
  } catch (const CLI::Error&) {
    return std::nullopt;
  }
  return tenant;
}

std::string check_tenant(const std::string& text) {
  return parse_tenant(text).has_value() ? ""
                                        : "'" + text +
                                              "' is not name:token-file:quota, such as "
                                              "shop:shop.token:4G";
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
  daemon::add_size(app, "--memory", &node.memory_bytes, 1, "Memory for all pools");
  app->add_option("--pools", node.pools,
                  "Folder of the pools' files, on tmpfs or a DAX or other file system; made when "
                  "absent; default: the data folder");
  app->add_option(
         "--pool-medium", raw->medium,
         "What that folder is on: memory; file (disk) or pmem (DAX), which keep pages over a "
         "power loss, at the price of two syncs for each call that brings pages")
      ->check(CLI::IsMember({"memory", "file", "pmem"}).description(""))
      ->capture_default_str();
  app->add_option("--tenant", raw->tenants,
                  "name:token-file:quota of who may have pools; repeatable; default: everybody who "
                  "knows the secret, all of the memory")
      ->check(CLI::Validator(check_tenant, ""));
  app->add_option("--fusion-slots", node.fusion.service.pages.slots,
                  "Pages of 16 KiB that servers share which write the same tables; 0: none do")
      ->check(CLI::Range(0, 1 << 26))
      ->capture_default_str();
  app->add_option("--fusion-lease", raw->fusion_lease_s,
                  "Seconds that such a server may answer without hearing from this node; the same "
                  "for all memory nodes of a cluster")
      ->check(CLI::Range(2, 3600))
      ->capture_default_str();
  app->add_option("--fusion-tenant", node.fusion_tenant,
                  "Whose they are, if there are tenants (--tenant)");
  app->add_option("--reserve-slots", node.reserve_slots,
                  "Slots of each pool for newer images of pages that are in it")
      ->check(CLI::Range(2, 65536))
      ->capture_default_str();
  daemon::add_listen(app, &raw->listen);
  app->add_option("--advertise", node.advertise,
                  "Address others are told, if something between them and this node forwards to "
                  "it; default: the first of --listen")
      ->check(CLI::Validator(daemon::check_advertise, ""));
  app->add_option("--fabric", node.fabric,
                  "provider:address:port for RDMA, such as verbs:10.0.0.1:0; default: none");
  daemon::add_http(app, &raw->http);
  app->add_option("--workers", node.workers, "Threads that answer requests")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app->add_option("--storage-timeout", raw->storage_timeout_s,
                  "Seconds for storage nodes to answer a write")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  app->add_option("--unused-pools", raw->unused_s,
                  "Seconds after which a pool that the registry does not name and nobody uses is "
                  "given back; 0: never")
      ->check(CLI::Range(0, 86400))
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
  node.start_timeout_us = raw.start_timeout_s * kSecondUs;
  node.persistent = raw.medium != "memory";
  node.unused_us = raw.unused_s * kSecondUs;
  node.storage_timeout_us = raw.storage_timeout_s * kSecondUs;
  fusion::AuthorityOptions& authority = node.fusion.service.time.authority;
  authority.lease_us = raw.fusion_lease_s * kSecondUs;
  authority.takeover_wait_us = authority.lease_us + authority.lease_us / 8;  // drift of clocks
  for (const std::string& text : raw.tenants)
    settings->tenants.push_back(*parse_tenant(text));  // checked by then
}

}  // namespace

std::variant<Settings, int> read_settings(int argc, char** argv) {
  Settings settings;
  Raw raw;
  CLI::App app("A memory node of Strata: keeps pages for compute nodes between them and storage.",
               kProgram);
  app.footer(
      "Example:\n"
      "  strata-memnode --name memory-1 --data data/memory-1 --pools /dev/shm/memory-1 --memory 4G "
      "\\\n"
      "    --listen unix:/run/memory-1.socket --listen 127.0.0.1:7301 --http 127.0.0.1:7302 \\\n"
      "    --registry http://127.0.0.1:23379 --secret-file data/secret");
  add_options(&app, &settings, &raw);
  if (const auto code = daemon::parse(&app, argc, argv, kProgram)) return *code;
  finish(&settings, raw);
  const Status usable = check_options(settings.node);
  if (!usable.ok()) return daemon::refuse_settings(kProgram, std::string(usable.message()));
  return settings;
}

}  // namespace strata::memnode
