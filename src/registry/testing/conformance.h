// The promises of registry.h and of the typed helpers as tests that every implementation passes
// (conformance.cc). A test program instantiates RegistryConformance with the worlds it has.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "base/latch.h"
#include "registry/registry.h"

namespace strata::registry::testing {

// A registry to test, with nothing below prefix().
class World {
 public:
  virtual ~World() = default;
  virtual std::unique_ptr<Registry> connect() = 0;
  // Lets time pass until the condition is true; false after a long while.
  virtual bool wait_until(absl::FunctionRef<bool()> condition) = 0;
  // The process dies without warning and starts again on its data.
  virtual void restart() = 0;
  [[nodiscard]] virtual std::string prefix() const = 0;  // also a cluster's name
};

using WorldFactory = std::unique_ptr<World> (*)();

class RegistryConformance : public ::testing::TestWithParam<WorldFactory> {
 protected:
  RegistryConformance() : world_(GetParam()()), registry_(world_->connect()) {}
  [[nodiscard]] std::string key(const std::string& name) const { return world_->prefix() + name; }
  [[nodiscard]] uint64_t deadline() const { return registry_->now_us() + 10'000'000; }
  Version put(const std::string& name, const std::string& value);  // whatever was there
  StatusOr<KeyValue> get(const std::string& name);                 // kNotFound: not there

  const std::unique_ptr<World> world_;
  const std::unique_ptr<Registry> registry_;
};

// Keeps what a watch told. Thread-safe.
class Seen {
 public:
  WatchHandler handler() {
    return [this](const WatchBatch& batch) {
      const MutexLock lock(mutex_);
      batches_.push_back(batch);
      keys_.apply(batch);
    };
  }
  [[nodiscard]] std::vector<WatchBatch> batches() {
    const MutexLock lock(mutex_);
    return batches_;
  }
  [[nodiscard]] std::vector<KeyValue> entries() {
    const MutexLock lock(mutex_);
    return keys_.entries();
  }
  [[nodiscard]] size_t snapshots() {
    const MutexLock lock(mutex_);
    size_t count = 0;
    for (const WatchBatch& batch : batches_) count += batch.snapshot;
    return count;
  }

 private:
  Mutex mutex_{LatchRank::kLeaf};
  std::vector<WatchBatch> batches_;
  WatchedKeys keys_;
};

}  // namespace strata::registry::testing
