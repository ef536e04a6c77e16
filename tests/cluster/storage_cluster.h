// A cluster in one process, over sockets: three storage nodes on the real file system, a registry
// in memory, and kernels that keep nothing. For tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/profiles.h"
#include "clients/storage/quorum_log_sink.h"
#include "clients/storage/registry_control.h"
#include "clients/storage/storage_page_source.h"
#include "clients/storage/written_page_source.h"
#include "cluster/stream_epochs.h"
#include "cluster/testing/held_by.h"
#include "engine/kernel_seams.h"
#include "engine/testing/test_database.h"
#include "io/file_system.h"
#include "registry/sim/testing/sim_thread.h"
#include "storenode/node/storage_node.h"
#include "transport/calls/testing/connections.h"
#include "transport/calls/testing/io_node.h"

namespace strata::testing {

constexpr StreamId kStream = storenode::kFirstStream;
constexpr uint64_t kCallUs = 5'000'000;

inline transport::Secret cluster_secret() { return transport::test::secret_of('s'); }

// The registry, and where the storage nodes are.
struct Surroundings {
  registry::testing::SimThread sim;
  cluster::ClusterKeys keys = *cluster::ClusterKeys::of("test");
  std::vector<std::string> addresses;
};

// A storage node's process: stopped, it leaves its folder.
class StorageNode {
 public:
  // `joining`: it is none of the first ones.
  StorageNode(Surroundings* around, size_t number, std::string folder, std::string profile,
              std::optional<storenode::Joining> joining = std::nullopt)
      : around_(around), registry_(around->sim.store().connect()) {
    for (size_t i = 0; i < around->addresses.size(); ++i) group_.nodes.push_back(name_of(i));
    group_.write_quorum = static_cast<uint32_t>(group_.nodes.size() / 2 + 1);
    options_.name = name_of(number);
    options_.cluster = "test";
    options_.directory = std::move(folder);
    options_.listen = {around_->addresses[number]};
    options_.profile = std::move(profile);
    if (!joining.has_value()) options_.initial_group = group_;
    options_.joining = std::move(joining);
    options_.log.segment_bytes = 4u << 20;
    options_.pages.page_cache_bytes = 8u << 20;
    options_.pages.log_cache_bytes = 4u << 20;
    start();
  }

  void start() {
    auto node =
        storenode::StorageNode::open(registry_.get(), files_.get(), cluster_secret(), options_);
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = *std::move(node);
  }
  void stop() { node_.reset(); }
  [[nodiscard]] storenode::StorageNode* node() { return node_.get(); }
  // Its folder is gone; it is stopped.
  void wipe() { std::filesystem::remove_all(options_.directory); }
  // For the next start.
  [[nodiscard]] storenode::NodeOptions& options() { return options_; }
  [[nodiscard]] Status health() const { return node_->health(); }
  [[nodiscard]] uint64_t value(const std::string& name) const {
    for (const auto& value : node_->status().values)
      if (value.name == name) return value.value;
    ADD_FAILURE() << "no value " << name;
    return 0;
  }
  [[nodiscard]] LogStore* logs() { return node_->logs(); }
  // It votes and has all of the log below `lsn`.
  [[nodiscard]] bool has_log(Lsn lsn) {
    const auto state = logs()->state(kStream);
    return state.ok() && state->voting && state->quorum_durable >= lsn;
  }
  [[nodiscard]] storenode::PageStore* pages() { return node_->pages(); }
  [[nodiscard]] storenode::WrittenStore* written() { return node_->written(); }
  [[nodiscard]] storenode::NodeStatus status() const { return node_->status(); }

  static std::string name_of(size_t number) { return "node-" + std::to_string(number); }

 private:
  Surroundings* const around_;
  storenode::InitialGroup group_;
  storenode::NodeOptions options_;
  std::unique_ptr<registry::Registry> registry_;
  std::unique_ptr<FileSystem> files_ = make_posix_file_system();
  std::unique_ptr<storenode::StorageNode> node_;
};

// Empty: each of these nodes has the same pages, byte for byte but for the checksum, as of the end
// of the log they all know. Otherwise what differs. Nobody may write meanwhile.
inline std::string different_pages(const std::vector<StorageNode*>& nodes, size_t* compared) {
  *compared = 0;
  Llsn at;
  for (StorageNode* node : nodes) {
    const auto offer = node->pages()->offer_copy();
    if (!offer.ok()) return std::string(offer.status().message());
    at = std::max(at, offer->newest);
  }
  PageId from{};
  for (;;) {
    const auto listing = nodes[0]->pages()->list_pages(from, 1000, {});
    if (!listing.ok()) return std::string(listing.status().message());
    const std::vector<PageId>* const pages = &listing->pages;
    for (const PageId page : *pages) {
      storenode::PageRef first;
      for (StorageNode* node : nodes) {
        storenode::GetPageRequest request;
        request.page = page;
        request.at_least = at;
        request.deadline_us = monotonic_us() + 10'000'000;
        request.from_peer = true;  // nobody mends what is compared
        const auto got = node->pages()->get_page(request);
        const std::string name = std::to_string(page.space) + ":" + std::to_string(page.number);
        if (is_not_found(got.status())) {
          if (first != nullptr) return "page " + name + " is not on all nodes";
          continue;
        }
        if (!got.ok()) return "page " + name + ": " + std::string(got.status().message());
        if (node == nodes[0]) first = got->page;
        if (first == nullptr) return "page " + name + " is not on all nodes";
        // The checksum comes first; it covers what replay may leave in unused bytes, too.
        if (std::memcmp(first->bytes + 4, got->page->bytes + 4, kPageBytes - 4) != 0)
          return "page " + name + " differs";
      }
      ++*compared;
    }
    if (pages->size() < 1000) return {};
    from = PageId::unpack(pages->back().packed() + 1);
  }
}

// A kernel and its ways to the storage nodes. Each has an empty folder of its own.
class ComputeNode {
 public:
  ComputeNode(Surroundings* around, std::string name, const std::string& profile)
      : around_(around),
        name_(std::move(name)),
        profile_(profile),
        registry_(around->sim.store().connect()),
        disk_(make_sim_file_system()) {}
  ~ComputeNode() { die(); }

  Status open() {
    const uint64_t deadline = registry_->now_us() + kCallUs;
    STRATA_ASSIGN_OR_RETURN(lease_, registry_->grant_lease(
                                        3600, [](registry::LeaseId) {}, deadline));
    cluster::StreamEpochs epochs(registry_.get(), around_->keys);
    const registry::Version before = cluster::testing::held_by(&epochs, kStream, deadline);
    STRATA_ASSIGN_OR_RETURN(const cluster::EpochGrant grant,
                            epochs.acquire({kStream, name_, Epoch{}, before}, *lease_, deadline));
    STRATA_ASSIGN_OR_RETURN(
        control_, clients::RegistryControl::open(registry_.get(), around_->keys, grant, kCallUs));
    clients::QuorumLogOptions log;
    log.client.stream = kStream;
    log.client.addresses.assign(around_->addresses.begin(), around_->addresses.end());
    log.holder = {grant.epoch, 1 + grant.epoch.value};
    log.founding = !control_->founded();
    log.first_lsn = kFirstLsn;
    log.give_up = give_up_log;
    log.client.quorum.retain_bytes = retain_bytes;
    log.late_after_us = log_late_after_us;
    log.client.news_delay_us = news_delay_us;
    STRATA_ASSIGN_OR_RETURN(sink_,
                            clients::QuorumLogSink::open(io_.world(), cluster_secret(), log));
    if (find_profile(profile_)->pages == PageOrigin::kWritten)
      STRATA_RETURN_IF_ERROR(open_written(grant));
    else
      open_replayed(grant);
    if (before_kernel) std::exchange(before_kernel, nullptr)();
    KernelOptions options = engine::testing::options_on(disk_.get());
    options.background = true;
    options.profile = profile_;
    engine::KernelSeams seams;
    seams.page_source = source();
    seams.log_sink = sink_.get();
    seams.control = control_.get();
    STRATA_ASSIGN_OR_RETURN(kernel_, engine::open_with_seams(options, seams));
    return ok_status();
  }
  // Without a word to anybody.
  void die() {
    kernel_.reset();
    sink_.reset();
    source_.reset();
    written_.reset();
    in_sync_.reset();
    control_.reset();
    lease_.reset();
  }
  std::function<bool()> give_up_log;  // before open(), as the next two
  uint64_t log_late_after_us = 30'000'000;
  uint64_t retain_bytes = quorum::QuorumOptions().retain_bytes;
  uint64_t news_delay_us = clients::QuorumClientOptions().news_delay_us;
  std::function<void()> before_kernel;  // once, when the log is chosen and nothing of it is read

  [[nodiscard]] engine::Kernel* kernel() { return kernel_.get(); }
  [[nodiscard]] PageSource* source() {
    return written_ != nullptr ? static_cast<PageSource*>(written_.get()) : source_.get();
  }
  [[nodiscard]] clients::WrittenPageSource* written() { return written_.get(); }
  [[nodiscard]] uint64_t pages_read() const {
    return written_ != nullptr ? written_->counters().pages : source_->counters().pages;
  }
  [[nodiscard]] uint64_t bad_pages() const {
    return written_ != nullptr ? written_->counters().bad_pages : source_->counters().bad_pages;
  }
  [[nodiscard]] clients::QuorumLogSink* sink() { return sink_.get(); }

 private:
  void open_replayed(const cluster::EpochGrant& grant) {
    clients::StoragePagesOptions pages;
    pages.stream = kStream;
    pages.epoch = grant.epoch;
    pages.addresses.assign(around_->addresses.begin(), around_->addresses.end());
    pages.spread_news = [sink = sink_.get()] { sink->spread_news(); };
    source_ = std::make_unique<clients::StoragePageSource>(cluster_secret(), pages);
  }
  Status open_written(const cluster::EpochGrant& grant) {
    STRATA_ASSIGN_OR_RETURN(
        in_sync_, clients::InSyncSet::open(registry_.get(), around_->keys, grant, kCallUs));
    clients::WrittenPagesOptions pages;
    pages.nodes.stream = kStream;
    pages.nodes.epoch = grant.epoch;
    for (size_t i = 0; i < around_->addresses.size(); ++i)
      pages.nodes.nodes.push_back({StorageNode::name_of(i), around_->addresses[i]});
    pages.nodes.write_quorum = static_cast<uint32_t>(around_->addresses.size() / 2 + 1);
    pages.nodes.founding = !control_->founded();
    STRATA_ASSIGN_OR_RETURN(written_, clients::WrittenPageSource::open(
                                          io_.world(), cluster_secret(), pages, in_sync_.get()));
    return ok_status();
  }

  using KernelOptions = engine::KernelOptions;
  Surroundings* const around_;
  const std::string name_;
  const std::string profile_;
  transport::test::IoNode io_;
  std::unique_ptr<registry::Registry> registry_;
  std::unique_ptr<SimFileSystem> disk_;
  std::unique_ptr<registry::Lease> lease_;
  std::unique_ptr<clients::RegistryControl> control_;
  std::unique_ptr<clients::QuorumLogSink> sink_;
  std::unique_ptr<clients::StoragePageSource> source_;  // one of the two
  std::unique_ptr<clients::InSyncSet> in_sync_;
  std::unique_ptr<clients::WrittenPageSource> written_;
  std::unique_ptr<engine::Kernel> kernel_;
};

}  // namespace strata::testing
