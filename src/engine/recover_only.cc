#include "engine/recover_only.h"

#include "base/assert.h"
#include "base/clock.h"
#include "engine/internal/kernel_impl.h"

namespace strata::engine {
namespace {

constexpr uint64_t kLookUs = 5'000;

// E31. Other servers' work is what it may have to wait for: pages that they use.
Status wait_for_rollbacks(Kernel* kernel, const AnswerGuard* answers, StopFlag* stop) {
  const KernelImpl* const k = kernel->impl();
  while (k->unfinished_rollbacks != 0 || k->unfinished_commits != 0) {
    if (stop->wait_for_us(kLookUs)) return error_interrupted();
    if (answers == nullptr || answers->may_answer()) continue;
    // Without a lease it may get another one; who is fenced undoes nothing any more.
    const Status why = answers->why_not();
    if (is_fenced(why)) return why;
  }
  return ok_status();
}

}  // namespace

StatusOr<RecoveredPlace> recover_only(const KernelOptions& options, const KernelSeams& seams,
                                      StopFlag* stop) {
  STRATA_ASSERT(options.background);
  const uint64_t began_us = monotonic_us();
  if (stop->raised()) return error_interrupted();
  KernelSeams of_place = seams;
  of_place.recovers_only = true;
  STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<Kernel> kernel, open_with_seams(options, of_place));
  RecoveredPlace what;
  what.open_us = monotonic_us() - began_us;
  STRATA_RETURN_IF_ERROR(wait_for_rollbacks(kernel.get(), seams.answers, stop));
  what.log_bytes = kernel->impl()->recovery.log_bytes;
  what.rolled_back = kernel->impl()->recovery.rolled_back;
  what.prepared = kernel->prepared_transactions().size();
  STRATA_RETURN_IF_ERROR(kernel->shutdown());
  what.total_us = monotonic_us() - began_us;
  return what;
}

std::string text_of(const RecoveredPlace& what) {
  std::string text = std::to_string(what.rolled_back) + " transactions rolled back, " +
                     std::to_string(what.log_bytes) + " bytes of log";
  if (what.prepared != 0)
    text += ", " + std::to_string(what.prepared) +
            " prepared transactions wait for a decision until that server is started again";
  return text;
}

}  // namespace strata::engine
