// A memory node as a daemon runs it (daemon/run.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/run.h"
#include "memnode/node/memory_node.h"
#include "registry/registry.h"
#include "settings.h"
#include "transport/secret.h"

namespace strata::memnode {

class MemoryDaemon final : public daemon::Daemon, public daemon::StatusSource {
 public:
  explicit MemoryDaemon(Settings settings);
  std::optional<daemon::Failure> prepare() override;
  [[nodiscard]] std::vector<daemon::Field> about() const override;
  StatusOr<std::string> open(const daemon::Surroundings& around) override;
  [[nodiscard]] const daemon::StatusSource* status() const override { return this; }
  void stop() override { node_->stop(); }

  [[nodiscard]] Status health() const override { return node_->health(); }
  [[nodiscard]] std::string metrics() const override;
  [[nodiscard]] std::string status_json() const override;

 private:
  Settings settings_;
  std::optional<transport::Secret> secret_;
  std::unique_ptr<registry::Registry> registry_;
  std::unique_ptr<MemoryNode> node_;
};

}  // namespace strata::memnode
