// What the parts of one etcd client share: endpoints, the check on who answers, blocking calls, the
// background thread.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/latch.h"
#include "registry/etcd/etcd.h"
#include "registry/etcd/internal/background.h"
#include "registry/etcd/internal/etcd_messages.h"

namespace strata::registry::internal {

// EC2. Thread-safe, no latch.
class ClusterGuard {
 public:
  // Newest revision seen; asked before a request is sent.
  [[nodiscard]] uint64_t seen() const noexcept { return revision_.load(); }
  // Of any reply: the cluster is the right one.
  Status check(const EtcdHeader& header);
  // Of a linearizable reply, to a request sent when seen() was `seen_before`.
  Status check(const EtcdHeader& header, uint64_t seen_before);

 private:
  std::atomic<uint64_t> cluster_id_{0};
  std::atomic<uint64_t> revision_{0};
};

// Collects the pages of all keys with one prefix, as they were at one revision.
class ListingPages {
 public:
  explicit ListingPages(std::string prefix) : prefix_(std::move(prefix)) {}
  [[nodiscard]] std::string next_request() const;
  // True: that was the last page. kDataLoss: not what was asked for.
  StatusOr<bool> add(RangeReply reply);
  Listing take() { return std::move(listing_); }

 private:
  const std::string prefix_;
  Listing listing_;
};

struct EtcdCall {
  std::string_view path;
  std::string body;
  bool once = false;  // not to be sent twice (EC1)
  uint64_t deadline_us = 0;
};

// Thread-safe.
class EtcdClient {
 public:
  explicit EtcdClient(const EtcdOptions& options) : options_(options) {}

  // Blocks. OK when `decode` took a reply of status 200; it is called for each such reply and
  // returns kDataLoss for one that is not to be believed. Errors as RG3.
  Status call(const EtcdCall& call, absl::FunctionRef<Status(Bytes)> decode);

  // For the background's exchanges; `index` may be beyond the number of endpoints.
  [[nodiscard]] const std::string& endpoint(size_t index) const noexcept {
    return options_.endpoints[index % options_.endpoints.size()];
  }
  [[nodiscard]] HttpRequest request(size_t index, std::string_view path, std::string body) const;
  // The endpoint that answered a call last.
  [[nodiscard]] size_t preferred() const noexcept { return preferred_.load(); }

  [[nodiscard]] const EtcdOptions& options() const noexcept { return options_; }
  [[nodiscard]] ClusterGuard& guard() noexcept { return guard_; }
  [[nodiscard]] Background& background() noexcept { return background_; }

 private:
  struct Attempt;
  static Attempt judge(const HttpOutcome& outcome, bool once,
                       absl::FunctionRef<Status(Bytes)> decode);
  std::unique_ptr<HttpExchange> take_exchange();
  void put_back(std::unique_ptr<HttpExchange> exchange);

  const EtcdOptions options_;
  std::atomic<size_t> preferred_{0};
  ClusterGuard guard_;
  Mutex mutex_{LatchRank::kLeaf};
  std::vector<std::unique_ptr<HttpExchange>> idle_ STRATA_GUARDED_BY(mutex_);
  Background background_;
};

// The body of a whole reply with status 200; else why it is none. For exchanges that may be made
// twice.
StatusOr<std::string> body_of(HttpOutcome outcome);

}  // namespace strata::registry::internal
