// A watch in etcd: a state machine in the background thread.
//
//   listing --(all pages)--> streaming --(connection lost, silent, refused, garbage)--> waiting
//      ^                        |                                                          |
//      |                        `--(compacted)--> listing       listing or streaming <-----'
//      `-- at the start, and whenever etcd no longer has what comes next (EC3)
#pragma once

#include <string>

#include "registry/etcd/internal/etcd_client.h"

namespace strata::registry::internal {

class EtcdWatch final : public Watch {
 public:
  EtcdWatch(EtcdClient* client, std::string prefix, WatchHandler handler);
  ~EtcdWatch() override;

 private:
  // All in the background thread.
  void start();  // from `waiting`, or at the very start
  void list();
  void on_page(uint64_t seen_before, HttpOutcome outcome);
  void stream();
  void on_lines(const std::vector<std::string>& lines);
  Status on_message(WatchMessage message);
  Status keep_events(std::vector<WatchEvent> events);
  void deliver();
  void start_over(uint64_t compact_revision);
  void check_later();
  void check();
  void fail(const Status& why);
  void stop();

  EtcdClient* const client_;
  Background* const background_;
  const std::string prefix_;
  WatchHandler handler_;
  Version delivered_;  // 0: a snapshot comes next
  std::unique_ptr<ListingPages> pages_;
  WatchBatch batch_;  // of a message whose last fragment has not come
  bool open_ = false;
  size_t endpoint_;
  uint64_t pause_us_;
  bool complained_ = false;
  Background::Id exchange_ = 0;  // list or stream
  Background::Id check_ = 0;
  Background::Id timer_ = 0;
};

}  // namespace strata::registry::internal
