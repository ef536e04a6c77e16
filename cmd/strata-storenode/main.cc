// strata-storenode: runs one storage node (storenode/node) until it is told to stop.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "base/fault.h"
#include "descriptors.h"
#include "io/file_system.h"
#include "log.h"
#include "registry/etcd/etcd.h"
#include "settings.h"
#include "signals.h"
#include "status_server.h"
#include "storenode/node/storage_node.h"
#include "transport/secret.h"

namespace strata::daemon {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

int failed(const char* event, const Status& why) {
  log_event(Level::kError, event, {{"reason", cause_and_remedy(why)}});
  return is_invalid_argument(why) ? kUsage : kFailed;
}

// What was decided to be printed for scripts: the only line on standard output.
void say_ready(const std::string& address, const std::string& http) {
  const std::string shown = address.starts_with("tcp:") ? address.substr(4) : address;
  std::printf("ready address=%s http=%s\n", shown.c_str(), http.c_str());
  std::fflush(stdout);
  log_event(Level::kInfo, "ready", {{"address", shown}, {"http", http}});
}

// For crash tests: a disk that remembers what was not yet durable, is full or fails on demand.
std::unique_ptr<FileSystem> file_system(storenode::NodeOptions* node) {
  auto files = make_file_system_for_tests();
  node->pages.rocksdb_on_files = files != nullptr;
  return files != nullptr ? std::move(files) : make_posix_file_system();
}

int run(Settings settings) {
  const auto shares = reserve_descriptors();
  if (!shares.ok()) return failed("too_few_descriptors", shares.status());
  settings.node.connections_max = shares->rpc;
  settings.node.pages.open_files_max = shares->pages;
  StopFlag stop;
  const Signals signals(&stop);
  const auto secret = transport::load_secret(settings.secret_file);
  if (!secret.ok()) {
    failed("no_secret", secret.status());
    return kFailed;
  }
  const auto registry = registry::make_etcd_registry({.endpoints = settings.registry});
  if (!registry.ok()) return failed("no_registry", registry.status());
  const auto files = file_system(&settings.node);
  std::unique_ptr<storenode::StorageNode> node;  // outlives the status server

  const auto http = StatusServer::start(settings.http, shares->http);
  if (!http.ok()) return failed("no_http", http.status());
  log_event(Level::kInfo, "starting",
            {{"name", settings.node.name},
             {"data", settings.node.directory},
             {"cluster", settings.node.cluster},
             {"profile", settings.node.profile}});
  settings.node.status_address = (*http)->address();
  settings.node.stop = &stop;
  auto opened = storenode::StorageNode::open(registry->get(), files.get(), *secret, settings.node);
  if (!opened.ok()) {
    if (!stop.raised() || !is_interrupted(opened.status()))
      return failed("start_failed", opened.status());
    log_event(Level::kInfo, "stopped", {{"reason", "while starting"}});
    return EXIT_SUCCESS;
  }
  node = *std::move(opened);
  (*http)->serve(node.get());
  say_ready(node->address(), (*http)->address());
  stop.wait();
  node->stop();
  log_event(Level::kInfo, "stopped");
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace strata::daemon

int main(int argc, char** argv) {
  try {
    auto settings = strata::daemon::read_settings(argc, argv);
    if (const int* code = std::get_if<int>(&settings)) return *code;
    auto& given = std::get<strata::daemon::Settings>(settings);
    strata::daemon::start_log(given.log_level);
    strata::arm_fault_from_environment();
    return strata::daemon::run(std::move(given));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "strata-storenode: %s\n", error.what());
    return strata::daemon::kFailed;
  }
}
