#include "memory_daemon.h"

#include <utility>

#include "io/token_file.h"
#include "registry/etcd/etcd.h"
#include "status_text.h"

namespace strata::memnode {

using daemon::Failure;

MemoryDaemon::MemoryDaemon(Settings settings) : settings_(std::move(settings)) {}

std::optional<Failure> MemoryDaemon::prepare() {
  auto secret = transport::load_secret(settings_.secret_file);
  if (!secret.ok()) return Failure{"no_secret", secret.status()};
  secret_ = *std::move(secret);
  for (const TenantSetting& tenant : settings_.tenants) {
    auto token = read_token(tenant.token_file);
    if (!token.ok()) return Failure{"no_token", token.status()};
    settings_.node.tenants.push_back({tenant.name, *std::move(token), tenant.quota_bytes});
  }
  const Status usable = check_options(settings_.node);
  if (!usable.ok()) return daemon::failure_of("bad_tenants", usable);
  auto registry = registry::make_etcd_registry({.endpoints = settings_.registry});
  if (!registry.ok()) return daemon::failure_of("no_registry", registry.status());
  registry_ = *std::move(registry);
  return std::nullopt;
}

std::vector<daemon::Field> MemoryDaemon::about() const {
  const NodeOptions& node = settings_.node;
  return {{"name", node.name},
          {"data", node.directory},
          {"cluster", node.cluster},
          {"memory_bytes", std::to_string(node.memory_bytes)}};
}

StatusOr<std::string> MemoryDaemon::open(const daemon::Surroundings& around) {
  NodeOptions& node = settings_.node;
  node.connections_max = around.descriptors.rpc;
  node.status_address = around.status_address;
  node.stop = around.stop;
  STRATA_ASSIGN_OR_RETURN(node_, MemoryNode::open(registry_.get(), around.files, *secret_, node));
  return node_->address();
}

std::string MemoryDaemon::metrics() const { return metrics_text(node_->status(), node_->health()); }

std::string MemoryDaemon::status_json() const {
  return memnode::status_json(node_->status(), node_->health());
}

}  // namespace strata::memnode
