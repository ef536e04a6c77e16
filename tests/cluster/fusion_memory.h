// A real memory node (memnode/node/memory_node.h) that several servers share, with its authority
// stream on the storage nodes. For tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "fusion_cluster.h"
#include "memnode/node/memory_node.h"

namespace strata::testing {

class RealMemoryNode {
 public:
  explicit RealMemoryNode(FusionCluster* cluster) : cluster_(cluster) {
    options.service.pages.slots = 2048;
    options.service.pages.entries_max = 512;
    options.service.table_slots = 1u << 14;
    options.service.time.authority.lease_us = kNoLeaseEndsUs;
    options.service.time.authority.takeover_wait_us = 100'000;  // nothing of the old one goes on
    options.service.resume_us_max = 60'000'000;  // nobody is too late because the machine is busy
    options.again_us = 20'000;
    options.take_over_timeout_us = 10'000'000;
  }
  void start() {
    node_ = std::make_unique<Node>();
    node_->registry = cluster_->around.sim.store().connect();
    memnode::NodeOptions node;
    node.name = "memory-1";
    node.cluster = "test";
    node.directory = cluster_->folder / "memory-1";
    node.listen = {"unix:" + (cluster_->folder / "memory-1.socket")};
    node.memory_bytes = 64u << 20;
    node.workers = 2;
    node.lease_s = 600;
    node.fusion = options;
    auto opened = memnode::MemoryNode::open(node_->registry.get(), node_->files.get(),
                                            cluster_secret(), node);
    ASSERT_TRUE(opened.ok()) << opened.status();
    node_->node = *std::move(opened);
  }
  // As if it was killed: nobody hears of it, and its lease goes on.
  void kill() {
    node_->registry->set_connected(false);
    node_.reset();
  }
  [[nodiscard]] memnode::FusionHostStatus status() { return node_->node->fusion()->status(); }
  [[nodiscard]] bool serves() { return status().phase == memnode::FusionPhase::kServes; }

  memnode::FusionHostOptions options;

 private:
  struct Node {
    std::unique_ptr<registry::SimRegistry> registry;
    std::unique_ptr<FileSystem> files = make_posix_file_system();
    std::unique_ptr<memnode::MemoryNode> node;
  };
  FusionCluster* const cluster_;
  std::unique_ptr<Node> node_;
};

}  // namespace strata::testing
