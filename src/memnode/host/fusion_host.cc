#include "memnode/host/fusion_host.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/diag.h"
#include "base/thread_name.h"
#include "cluster/registry_calls.h"

namespace strata::memnode {

namespace {

constexpr size_t kBlockingThreads = 2;
constexpr size_t kBlockingWaitingMax = 1024;
constexpr uint64_t kLookUs = 200'000;  // at a term that serves
constexpr uint64_t kHearUs = 20'000;   // at one whose servers say what they have

}  // namespace

const char* name_of(FusionPhase phase) noexcept {
  switch (phase) {
    case FusionPhase::kWaits:
      return "waits";
    case FusionPhase::kStandsBy:
      return "stands by";
    case FusionPhase::kPrepares:
      return "prepares";
    case FusionPhase::kServes:
      return "serves";
    case FusionPhase::kStopped:
      break;
  }
  return "stopped";
}

FusionHost::FusionHost(FusionHostOptions options, FusionHostParts parts)
    : options_(std::move(options)),
      parts_(std::move(parts)),
      wait_({.name = options_.name, .look_us = std::min(options_.again_us, kLookUs)},
            parts_.registry, parts_.keys, parts_.secret),
      blocking_(kBlockingThreads, kBlockingWaitingMax) {
  status_.why = error_peer_down("it has not been started yet");
}

FusionHost::~FusionHost() { stop(); }

void FusionHost::start() {
  STRATA_ASSERT(!thread_.joinable());
  thread_ = std::thread([this] { run(); });
}

void FusionHost::stop() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  wait_.stop();
  interrupt_.interrupt();
  if (thread_.joinable()) thread_.join();
  blocking_.stop();
}

void FusionHost::wake() {
  {
    const MutexLock lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

bool FusionHost::pause(uint64_t us) {
  MutexLock lock(mutex_);
  changed_.wait_for_us(lock, us, [this]() STRATA_REQUIRES(mutex_) { return stopped_ || woken_; });
  woken_ = false;
  return !stopped_;
}

// --- one term after the other ---

// FHO3
void FusionHost::run() {
  name_this_thread("fusion-host");
  cluster::GrowingPause growing;
  const auto idle = [this](const Status& why) {
    note(is_in_use(why) ? FusionPhase::kStandsBy : FusionPhase::kWaits, why);
  };
  Status ended;
  do {
    const StatusOr<registry::Version> turn = wait_.wait(idle);
    if (!turn.ok()) break;
    const uint64_t before = status().terms;
    ended = run_term(*turn);
    if (status().terms != before) growing.reset();
    idle(ended);
  } while (is_in_use(ended) || pause(growing.next_us()));
  note(FusionPhase::kStopped, error_interrupted("the memory node stops"));
}

// From a try to become the authority to the end of that.
Status FusionHost::run_term(registry::Version in_place_of) {
  auto begun = FusionTerm::begin(
      options_, parts_,
      [this](daemon::WorkerPool::Task task) { return blocking_.run(std::move(task)); },
      [this] { wake(); }, in_place_of);
  if (!begun.ok()) return begun.status();
  const std::unique_ptr<FusionTerm> term = *std::move(begun);
  {
    const MutexLock lock(mutex_);
    ++status_.terms;
    status_.epoch = term->epoch();
  }
  Status ended = wait_ready(term.get());
  if (ended.ok()) serve_until_it_ends(term.get(), &ended);
  if (!ended.ok())
    diag(Severity::kWarning, "fusion: epoch %llu of this memory node has ended: %s",
         static_cast<unsigned long long>(term->epoch().value), cause_of(ended).c_str());
  return ended;
}

Status FusionHost::wait_ready(FusionTerm* term) {
  const InterruptScope scope(&interrupt_);  // redo takes as long as it takes
  for (;;) {
    const Status ready = term->ready();
    note(FusionPhase::kPrepares, ready);
    if (ready.ok()) return ready;
    if (!pause(options_.again_us)) return error_interrupted("the memory node stops");
    STRATA_RETURN_IF_ERROR(term->look());
  }
}

// FHO5
Status FusionHost::wait_recovered(FusionTerm* term) {
  const InterruptScope scope(&interrupt_);
  for (;;) {
    const Status recovered = term->recover();
    if (recovered.ok()) return recovered;
    note(FusionPhase::kPrepares, recovered);
    const bool hears = is_peer_down(recovered);
    if (!pause(hears ? kHearUs : options_.again_us))
      return error_interrupted("the memory node stops");
    STRATA_RETURN_IF_ERROR(term->look());
  }
}

void FusionHost::serve_until_it_ends(FusionTerm* term, Status* ended) {
  const auto service = term->serve();
  if (!service.ok()) {
    *ended = service.status();
    return;
  }
  {
    const MutexLock lock(term_mutex_);
    term_ = term;
  }
  {
    const MutexLock lock(mutex_);
    status_.service = *service;
  }
  door_.open(*service);
  diag(Severity::kInfo, "fusion: this memory node serves servers that share tables, epoch %llu",
       static_cast<unsigned long long>(term->epoch().value));
  *ended = wait_recovered(term);
  if (ended->ok()) {
    do {
      note(FusionPhase::kServes, term->trouble());
      *ended = term->look();
    } while (ended->ok() && pause(kLookUs));
  } else if (is_interrupted(*ended)) {
    *ended = ok_status();
  }
  door_.open(nullptr);  // FHO2
  const MutexLock lock(term_mutex_);
  term_ = nullptr;
}

// --- what is so ---

void FusionHost::note(FusionPhase phase, const Status& why) {
  std::string say;
  {
    const MutexLock lock(mutex_);
    if (!why.ok() && (status_.phase != phase || status_.why != why))
      say = phase == FusionPhase::kStandsBy ? cause_of(why) : cause_and_remedy(why);
    status_.phase = phase;
    status_.why = why;
  }
  if (!say.empty())
    diag(phase == FusionPhase::kStandsBy ? Severity::kInfo : Severity::kWarning,
         "fusion: this memory node %s: %s", name_of(phase), say.c_str());
}

FusionHostStatus FusionHost::status() const {
  const bool has_line = wait_.has_line();
  const MutexLock lock(mutex_);
  FusionHostStatus now = status_;
  now.has_line = has_line;
  return now;
}

Status FusionHost::health() const {
  const MutexLock lock(mutex_);
  return status_.phase == FusionPhase::kStandsBy ? ok_status() : status_.why;
}

void FusionHost::with_term(const std::function<void(FusionTerm*)>& look) {
  const MutexLock lock(term_mutex_);
  if (term_ != nullptr) look(term_);
}

}  // namespace strata::memnode
