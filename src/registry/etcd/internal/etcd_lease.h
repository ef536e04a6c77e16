// A lease in etcd, renewed by the background thread.
//
//   granted --- renewed every third of its time ---> granted
//      |---- its time is over, or etcd does not know it ---> lost: handler; for good
//      `---- revoke(), destructor -------------------------> ended: no handler
#pragma once

#include "registry/etcd/internal/etcd_client.h"
#include "registry/lease_term.h"

namespace strata::registry::internal {

// Time for leases. It goes on while the machine is suspended, since etcd's may, too.
uint64_t lease_clock_us() noexcept;

class EtcdLease final : public Lease {
 public:
  // `sent_us`, on lease_clock_us(): when it was asked for.
  EtcdLease(EtcdClient* client, LeaseId id, uint64_t ttl_s, uint64_t sent_us,
            LeaseLostHandler on_lost);
  ~EtcdLease() override;
  [[nodiscard]] LeaseId id() const noexcept override { return id_; }
  [[nodiscard]] bool valid() const noexcept override { return term_.valid(lease_clock_us()); }
  [[nodiscard]] uint64_t remaining_us() const noexcept override {
    return term_.remaining_us(lease_clock_us());
  }
  Status revoke(uint64_t deadline_us) override;

 private:
  // All in the background thread.
  void renew();
  void on_answer(uint64_t sent_us, HttpOutcome outcome);
  void renew_at(uint64_t when_us);
  void wake_at_end_of_term();
  void check_term();
  void lose(const char* why);
  void stop();

  EtcdClient* const client_;
  Background* const background_;
  const LeaseId id_;
  const uint64_t ttl_us_;
  LeaseTerm term_;
  LeaseLostHandler on_lost_;
  size_t endpoint_;
  bool stopped_ = false;
  Background::Id renewal_timer_ = 0;
  Background::Id term_timer_ = 0;
  Background::Id exchange_ = 0;
};

}  // namespace strata::registry::internal
