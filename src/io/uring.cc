// internal/ring.h by Linux's io_uring.
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/assert.h"
#include "io/internal/ring.h"

namespace strata::internal {
namespace {

class Uring final : public Ring {
 public:
  Uring() = default;
  ~Uring() override {
    if (made_) io_uring_queue_exit(&ring_);
  }
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  // 0, or an error's number, negative.
  int init() {
    const int error = io_uring_queue_init(kRingEntries, &ring_, 0);
    if (error < 0) return error;
    made_ = true;
    // Kernels that cannot tell what they know do not know these operations either.
    io_uring_probe* const probe = io_uring_get_probe_ring(&ring_);
    const bool known = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                       io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
    io_uring_free_probe(probe);
    return known ? 0 : -EOPNOTSUPP;
  }

  bool run(RingEntry* entries, size_t count) override {
    STRATA_ASSERT(count <= kRingEntries);
    for (size_t i = 0; i < count; ++i) prepare(&entries[i]);
    size_t begun = 0;
    size_t ended = 0;
    while (ended < count) {
      const int begun_now = io_uring_submit_and_wait(&ring_, static_cast<unsigned>(count - ended));
      if (begun_now >= 0) {
        begun += static_cast<size_t>(begun_now);
      } else if (begun_now != -EINTR) {
        // What was not begun stays in the ring, which therefore ends here (BI1).
        while (ended < begun) ended += wait_for_some();
        return false;
      }
      ended += collect();
    }
    return true;
  }

 private:
  void prepare(RingEntry* entry) {
    io_uring_sqe* const slot = io_uring_get_sqe(&ring_);
    STRATA_ASSERT(slot != nullptr);  // the ring was empty
    if (entry->is_write)
      io_uring_prep_write(slot, entry->descriptor, entry->data, entry->bytes, entry->offset);
    else
      io_uring_prep_read(slot, entry->descriptor, entry->data, entry->bytes, entry->offset);
    io_uring_sqe_set_data(slot, entry);
  }

  size_t collect() {
    io_uring_cqe* done = nullptr;
    unsigned head = 0;
    unsigned found = 0;
    io_uring_for_each_cqe(&ring_, head, done) {
      static_cast<RingEntry*>(io_uring_cqe_get_data(done))->result = done->res;
      ++found;
    }
    io_uring_cq_advance(&ring_, found);
    return found;
  }

  // Without beginning any.
  size_t wait_for_some() {
    io_uring_cqe* done = nullptr;
    const int error = io_uring_wait_cqe(&ring_, &done);
    // Going on would let a write land on a newer one.
    STRATA_ASSERT(error == 0 || error == -EINTR || error == -EAGAIN);
    return collect();
  }

  io_uring ring_{};
  bool made_ = false;
};

}  // namespace

StatusOr<std::unique_ptr<Ring>> make_ring() {
  auto ring = std::make_unique<Uring>();
  if (const int error = ring->init(); error < 0) {
    char buffer[128];
    return error_unsupported(std::string("io_uring cannot be used (") +
                             ::strerror_r(-error, buffer, sizeof buffer) + ")");
  }
  return std::unique_ptr<Ring>(std::move(ring));
}

}  // namespace strata::internal
