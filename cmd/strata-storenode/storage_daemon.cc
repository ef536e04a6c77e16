#include "storage_daemon.h"

#include <utility>

#include "registry/etcd/etcd.h"
#include "status_text.h"

namespace strata::storenode {

using daemon::Failure;

StorageDaemon::StorageDaemon(Settings settings) : settings_(std::move(settings)) {}

std::optional<Failure> StorageDaemon::prepare() {
  auto secret = transport::load_secret(settings_.secret_file);
  if (!secret.ok()) return Failure{"no_secret", secret.status()};
  secret_ = *std::move(secret);
  auto registry = registry::make_etcd_registry({.endpoints = settings_.registry});
  if (!registry.ok()) return daemon::failure_of("no_registry", registry.status());
  registry_ = *std::move(registry);
  return std::nullopt;
}

std::vector<daemon::Field> StorageDaemon::about() const {
  const NodeOptions& node = settings_.node;
  return {{"name", node.name},
          {"data", node.directory},
          {"cluster", node.cluster},
          {"profile", node.profile}};
}

StatusOr<std::string> StorageDaemon::open(const daemon::Surroundings& around) {
  NodeOptions& node = settings_.node;
  node.connections_max = around.descriptors.rpc;
  node.pages.open_files_max = around.descriptors.pages;
  node.pages.rocksdb_on_files = around.disk_for_tests;
  node.status_address = around.status_address;
  node.stop = around.stop;
  STRATA_ASSIGN_OR_RETURN(node_, StorageNode::open(registry_.get(), around.files, *secret_, node));
  return node_->address();
}

std::string StorageDaemon::metrics() const {
  return metrics_text(node_->status(), node_->health());
}

std::string StorageDaemon::status_json() const {
  return storenode::status_json(node_->status(), node_->health());
}

}  // namespace strata::storenode
