#include "farmem/preload/far_memory.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

#include "base/assert.h"
#include "base/diag.h"
#include "base/latch.h"
#include "base/mapped_memory.h"
#include "farmem/pager/far_heap.h"
#include "farmem/pager/pager.h"
#include "farmem/pager/shared_setup.h"

namespace strata::farmem {

thread_local int InsideFarmem::depth = 0;

namespace {

constexpr int kLostExit = 74;  // EX_IOERR of sysexits.h

// kOff -> kReady by the constructor below; kReady -> kOn by the first allocation; kOff by a fork,
// in the child.
enum class State { kOff, kReady, kOn };
std::atomic<State> state{State::kOff};
std::atomic<uint64_t> far_from{UINT64_MAX};
std::atomic<char*> region_begin{nullptr};
std::atomic<char*> region_end{nullptr};

// Never destroyed: threads of the program may use far memory until the process is gone.
struct FarProcess {
  SharedSetup* setup = nullptr;
  ProcessCounters* counters = nullptr;
  std::unique_ptr<Pager> pager;
  std::unique_ptr<FarHeap> heap;  // under heap_latch
  MappedMemory lengths;           // bytes of the allocation that begins at a page; under heap_latch
};
FarProcess* process = nullptr;   // set before state becomes kReady
ProcessCounters spare_counters;  // when there are more processes than places

Mutex& start_latch() {
  static Mutex* const latch = new Mutex(LatchRank::kEngine);
  return *latch;
}
Mutex& heap_latch() {
  static Mutex* const latch = new Mutex(LatchRank::kFreeList);
  return *latch;
}

uint64_t pages_for(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes; }
uint64_t* length_of(uint64_t page) {
  return reinterpret_cast<uint64_t*>(process->lengths.get()) + page;
}
uint64_t page_of(const void* address) { return process->pager->page_of(address); }

void say(const std::string& line) {
  // A closed standard error takes nothing away from the reason in the counters.
  (void)!::write(STDERR_FILENO, line.data(), line.size());
}

[[noreturn]] void end_process(const Status& why) {
  ProcessCounters& counters = *process->counters;
  put_text(&counters.message, {why.message().data(), why.message().size()});
  counters.lost.store(1);
  say("strata-farmem: far memory of process " + std::to_string(::getpid()) +
      " is lost: " + std::string(why.message()) + "; the process ends\n");
  ::_exit(kLostExit);
}

ProcessCounters* take_place(SharedSetup* setup) {
  for (ProcessCounters& place : setup->processes) {
    uint64_t free = 0;
    if (place.pid.compare_exchange_strong(free, static_cast<uint64_t>(::getpid()))) return &place;
  }
  return &spare_counters;
}

std::string name_of_program() {
  std::string name(kClientNameBytesMax, '\0');
  const ssize_t bytes = ::readlink("/proc/self/exe", name.data(), name.size());
  name.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  return name.substr(name.rfind('/') + 1);
}

void release(uint64_t first, uint64_t count) {
  const InsideFarmem inside;
  const MutexLock lock(heap_latch());
  process->heap->give_back(first, count);
}

PolicyOptions policy_of(const SharedSetup& setup) {
  return {.replacement = static_cast<Replacement>(setup.replacement),
          .frames = setup.frames,
          .ways = setup.ways,
          .prefetch = setup.prefetch};
}

// Null: none is wanted, or it cannot be written, which costs the program nothing.
std::shared_ptr<TraceWriter> make_trace() {
  const SharedSetup& setup = *process->setup;
  const std::string file(text_of(setup.trace));
  if (file.empty() || process->counters == &spare_counters) return nullptr;
  const auto index = static_cast<size_t>(process->counters - setup.processes.data());
  auto writer =
      TraceWriter::create(trace_path(file, index), {.policy = policy_of(setup),
                                                    .pages = setup.far_pages,
                                                    .pid = static_cast<uint64_t>(::getpid()),
                                                    .name = name_of_program()});
  if (writer.ok()) return *std::move(writer);
  say("strata-farmem: " + std::string(writer.status().message()) + "\n");
  return nullptr;
}

StatusOr<std::unique_ptr<Pager>> make_pager() {
  const SharedSetup& setup = *process->setup;
  ClientOptions client_options{.address = std::string(text_of(setup.address)),
                               .name = name_of_program(),
                               .pages = setup.far_pages,
                               .timeout_us = setup.timeout_us};
  if (setup.link_round_trip_ns + setup.link_bytes_per_second > 0)
    client_options.link_model = std::make_shared<transport::LinkModel>(
        transport::LinkSpeed{setup.link_round_trip_ns, setup.link_bytes_per_second});
  STRATA_ASSIGN_OR_RETURN(auto client,
                          MemoryClient::open(transport::Secret(setup.secret), client_options));
  process->counters->credentials = client->credentials();
  PagerOptions options{.policy = policy_of(setup),
                       .userfault_device = setup.userfault_device,
                       .counters = &process->counters->pager,
                       .trace = make_trace(),
                       .on_lost = end_process,
                       .on_thread = InsideFarmem::for_good,
                       .on_discarded = release};
  return Pager::start(std::move(client), options);
}

// The first far allocation. The program has done nothing with far memory yet, and ends if it
// cannot.
void start_far() {
  const MutexLock lock(start_latch());
  if (state.load() != State::kReady) return;
  process->counters = take_place(process->setup);
  auto lengths = MappedMemory::map(process->setup->far_pages * sizeof(uint64_t));
  if (!lengths.ok()) end_process(lengths.status());
  process->lengths = *std::move(lengths);
  process->heap = std::make_unique<FarHeap>(process->setup->far_pages);
  auto pager = make_pager();
  if (!pager.ok()) end_process(pager.status());
  process->pager = *std::move(pager);
  region_begin.store(process->pager->base());
  region_end.store(process->pager->base() + process->pager->pages() * kPageBytes);
  state.store(State::kOn);
}

// These two hold latches from one call to the next, of the pager only if there is one: not for the
// analysis.
void before_fork() STRATA_NO_THREAD_SAFETY_ANALYSIS {
  start_latch().lock();
  heap_latch().lock();
  if (state.load() == State::kOn) process->pager->before_fork();
}
void after_fork_in_parent() STRATA_NO_THREAD_SAFETY_ANALYSIS {
  if (state.load() == State::kOn) process->pager->after_fork();
  heap_latch().unlock();
  start_latch().unlock();
}
void after_fork_in_child() {
  after_fork_in_parent();
  // A child of a process that has no far memory yet may make its own; one of a process that has
  // stays local, since what it inherits is not there (FM24).
  if (state.load() == State::kOn) state.store(State::kOff);
}

__attribute__((constructor)) void set_up() {
  const InsideFarmem inside;
  const auto setup = SharedMemory::from_environment();
  if (!setup.ok()) return;
  set_diag_sink([](Severity, std::string_view) {});
  process = new FarProcess;
  process->setup = setup->get();
  start_latch();
  heap_latch();
  if (::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) != 0) return;
  far_from.store(setup->get()->far_bytes_min);
  state.store(State::kReady);
}

}  // namespace

bool wants_far(size_t bytes) noexcept {
  return bytes >= far_from.load(std::memory_order_relaxed) && !InsideFarmem::now() &&
         state.load(std::memory_order_acquire) != State::kOff;
}

bool far_memory_is_used() noexcept { return state.load(std::memory_order_acquire) != State::kOff; }

uint64_t far_pages_to_pin_max() noexcept {
  return far_memory_is_used() ? process->setup->frames / 2 : UINT64_MAX;
}

void* far_allocate(size_t bytes, size_t alignment) noexcept {
  const InsideFarmem inside;
  if (state.load(std::memory_order_acquire) == State::kReady) start_far();
  const uint64_t align_pages = std::max<uint64_t>(1, alignment / kPageBytes);
  uint64_t first = FarHeap::kNone;
  {
    const MutexLock lock(heap_latch());
    if (bytes <= process->pager->pages() * kPageBytes)
      first = process->heap->allocate(pages_for(bytes), align_pages);
    if (first != FarHeap::kNone) *length_of(first) = bytes;
  }
  ProcessCounters& counters = *process->counters;
  if (first == FarHeap::kNone) {
    counters.far_bytes_refused.fetch_add(bytes, std::memory_order_relaxed);
    return nullptr;
  }
  counters.far_bytes_allocated.fetch_add(pages_for(bytes) * kPageBytes, std::memory_order_relaxed);
  return process->pager->base() + first * kPageBytes;
}

bool is_far_address(const void* address) noexcept {
  const char* const begin = region_begin.load(std::memory_order_relaxed);
  return begin != nullptr && address >= begin &&
         address < region_end.load(std::memory_order_relaxed);
}

size_t far_bytes_of(const void* address) noexcept {
  if (reinterpret_cast<uint64_t>(address) % kPageBytes != 0) return 0;
  const MutexLock lock(heap_latch());
  return pages_for(*length_of(page_of(address))) * kPageBytes;
}

void far_free(void* address) noexcept {
  const size_t bytes = far_bytes_of(address);
  STRATA_ASSERT(bytes > 0);  // free() of what is not the beginning of an allocation
  far_unmap(address, bytes);
}

void far_unmap(void* address, size_t bytes) noexcept {
  // A forked child does not have it, and its bookkeeping is a copy that nobody uses any more.
  if (bytes == 0 || state.load(std::memory_order_acquire) != State::kOn) return;
  const InsideFarmem inside;
  const uint64_t first = page_of(address);
  const uint64_t count = pages_for(bytes);
  {
    const MutexLock lock(heap_latch());
    *length_of(first) = 0;
  }
  process->counters->far_bytes_allocated.fetch_sub(count * kPageBytes, std::memory_order_relaxed);
  process->pager->discard_later(first, count);
}

void far_clear(void* address, size_t bytes) noexcept {
  if (bytes == 0 || state.load(std::memory_order_acquire) != State::kOn) return;
  const InsideFarmem inside;
  process->pager->discard(page_of(address), pages_for(bytes));
}

}  // namespace strata::farmem
