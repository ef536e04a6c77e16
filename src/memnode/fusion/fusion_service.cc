#include "memnode/fusion/fusion_service.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <iterator>
#include <utility>
#include <variant>

#include "base/aligned.h"
#include "base/assert.h"
#include "base/diag.h"
#include "base/thread_name.h"
#include "memnode/fusion/internal/service_parts.h"
#include "memnode/service/random_name.h"
#include "page/page.h"
#include "proto/calls/calls.h"
#include "proto/methods.h"

namespace strata::memnode {

using internal::count;
using internal::has_ended;
using internal::not_yours;
using proto::PageCaller;
using transport::Region;
using transport::RegionAccess;

namespace {

uint64_t boot_time_us() noexcept {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

FusionServiceOptions completed(FusionServiceOptions options) {
  if (!options.now_us) options.now_us = boot_time_us;
  return options;
}

// FV11, FQ6
std::vector<NodeId> expected_of(const FusionService::Parts& parts) {
  std::vector<NodeId> expected;
  if (!parts.recovers || !parts.last.has_value()) return expected;
  for (const fusion::Member& member : parts.last->members)
    if (member.fence == 0) expected.push_back(member.server);
  return expected;
}

}  // namespace

// --- from the start to the end ---

FusionService::FusionService(const FusionServiceOptions& options, Parts parts)
    : options_(completed(options)),
      parts_(std::move(parts)),
      epoch_(parts_.epoch),
      pages_(options_.pages, epoch_),
      locks_(epoch_, expected_of(parts_), options_.locks),
      names_(options_.names, epoch_),
      tasks_(parts_.offload, {}) {
  STRATA_ASSERT(options_.table_slots >= 128 &&
                (options_.table_slots & (options_.table_slots - 1)) == 0);
  STRATA_ASSERT(parts_.stream != nullptr);
  STRATA_ASSERT(parts_.store != nullptr || options_.pages.storage_replays ||
                options_.pages.slots == 0);
}

StatusOr<std::shared_ptr<FusionService>> FusionService::start(const FusionServiceOptions& options,
                                                              Parts parts) {
  std::shared_ptr<FusionService> service(new FusionService(options, std::move(parts)));
  const Status made = service->make_regions();
  if (!made.ok()) {
    service->stopped_ = true;
    return made;
  }
  service->begin();
  return service;
}

FusionService::~FusionService() { stop(); }

Status FusionService::make_regions() {
  const uint64_t pool_bytes = uint64_t{options_.pages.slots} * kPageBytes;
  STRATA_ASSIGN_OR_RETURN(times_, Region::create_in_memory(proto::kTimesBytes, epoch_.value));
  times_name_ = random_name("times-");
  if (pool_bytes != 0) {
    if (parts_.tenants != nullptr)
      STRATA_RETURN_IF_ERROR(parts_.tenants->reserve(parts_.tenant, pool_bytes));
    auto pool = Region::create_in_memory(pool_bytes, epoch_.value);
    if (!pool.ok() && parts_.tenants != nullptr) parts_.tenants->release(parts_.tenant, pool_bytes);
    STRATA_RETURN_IF_ERROR(pool.status());
    pool_ = *std::move(pool);
    pool_name_ = random_name("fusion-");
  }
  return ok_status();
}

void FusionService::begin() {
  time_.emplace(options_.time, epoch_, parts_.last, parts_.sealed_us, times_->data());
  pages_.know_ends(parts_.ends);
  // Whom the predecessor served knows pages that this node does not. All of them are members.
  const std::vector<fusion::Member> before = authority().members();
  for (const fusion::Member& member : before) {
    if (parts_.recovers && member.fence == 0)
      expect(member);
    else
      time_->authority()->fence(member.server).IgnoreError();
  }
  for (const NodeId place : parts_.unsettled)
    if (recovers_ && find(place) == nullptr) names_.lost(place);
  parts_.expose(times_name_, times_, RegionAccess::kReadWrite);
  if (pool_ != nullptr) parts_.expose(pool_name_, pool_, RegionAccess::kReadWrite);
  post_always([this] { tick(); });
  ticker_ = std::thread([this] { keep_ticking(); });
}

void FusionService::stop() {
  if (std::exchange(stopped_, true)) return;
  stop_ticking_.raise();
  if (ticker_.joinable()) ticker_.join();
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    while (outside_ != 0) unused_.wait(lock);
  }
  tasks_.wait_idle();
  // Nothing else runs any more.
  for (const Join& join : joins_) join.to->fail(has_ended());
  joins_.clear();
  for (auto& [number, server] : servers_) {
    end_waits(&server, has_ended());
    end_questions(&server, has_ended());
    drop_table(&server);
  }
  for (const To& to : after_write_) to->fail(has_ended());
  after_write_.clear();
  parts_.withdraw(times_name_);
  times_.reset();
  if (pool_ == nullptr) return;
  parts_.withdraw(pool_name_);
  if (parts_.tenants != nullptr) parts_.tenants->release(parts_.tenant, pool_->bytes());
  pool_.reset();  // who still asks how this was needs none of it
}

// --- tasks ---

bool FusionService::enter() {
  const MutexLock lock(mutex_);
  if (stopping_) return false;
  ++outside_;
  return true;
}

void FusionService::exit() {
  const MutexLock lock(mutex_);
  if (--outside_ == 0) unused_.notify_all();
}

bool FusionService::post(Task task, uint64_t bytes) {
  if (!enter()) return false;
  const bool taken = tasks_.post(
      [this, task = std::move(task)]() mutable {
        now_us_ = options_.now_us();
        task();
      },
      bytes);
  exit();
  return taken;
}

bool FusionService::post_always(Task task) {
  if (!enter()) return false;
  tasks_.post_always([this, task = std::move(task)]() mutable {
    now_us_ = options_.now_us();
    task();
  });
  exit();
  return true;
}

bool FusionService::run_blocking(Task task) {
  if (!enter()) return false;
  const bool taken =
      parts_.offload_blocking([self = shared_from_this(), task = std::move(task)]() mutable {
        task();
        self->exit();
      });
  if (!taken) exit();
  return taken;
}

void FusionService::refuse(const Status& why, const To& to) {
  count(&counters_.bad_requests);
  to->fail(why);
}

void FusionService::keep_ticking() {
  name_this_thread("fusion-tick");
  while (!stop_ticking_.wait_for_us(options_.tick_us)) {
    if (tick_waits_.exchange(true)) continue;  // the queue is slow: one is enough
    post_always([this] {
      tick_waits_.store(false);
      tick();
    });
  }
}

void FusionService::tick() {
  advance();
  look_after_members();
  try_joins();
  pages_.tick(now_us_);
  names_.tick(now_us_);
  say_pages(NodeId{}, nullptr);
  locks_.tick(now_us_);
  tell_locks();
  expire_waits();
  free_slots_of_ended();
  start_writes();
  take_snapshot();
}

void FusionService::advance() {
  auto append = time_->tick(now_us_);
  if (!append.has_value()) return;
  count(&counters_.appends);
  parts_.stream->append(std::move(append->bytes),
                        [weak = weak_from_this(), number = append->number](const Status& status) {
                          const std::shared_ptr<FusionService> self = weak.lock();
                          if (self == nullptr) return;
                          self->post_always([service = self.get(), number, status] {
                            service->append_ended(number, status);
                          });
                        });
}

void FusionService::append_ended(uint64_t number, const Status& status) {
  if (!status.ok()) {
    count(&counters_.appends_failed);
    if (!is_fenced(status)) return time_->append_failed(number);  // and again with the next tick
    if (authority().phase(now_us_) != fusion::Authority::Phase::kDeposed)
      diag(Severity::kWarning, "fusion: another memory node has the authority now, epoch %llu ends",
           static_cast<unsigned long long>(epoch_.value));
    time_->refused();
    for (auto& [id, server] : servers_) {
      end_waits(&server, has_ended());
      end_questions(&server, has_ended());
    }
    return try_joins();
  }
  time_->append_durable(number);
  advance();
  look_after_members();
  try_joins();
  take_snapshot();
}

void FusionService::take_snapshot() {
  FusionStatus now;
  now.epoch = epoch_;
  now.phase = authority().phase(now_us_);
  now.serves = authority().serves(now_us_);
  for (const auto& [number, server] : servers_)
    if (server.member)
      now.servers.push_back({server.id, server.life, server.fenced, server.placement});
  const auto word = [this](uint64_t offset) {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(times_->data() + offset)).load();
  };
  now.clock = word(proto::kClockOffset);
  now.ceiling = word(proto::kCeilingOffset);
  now.horizon = word(proto::kHorizonOffset);
  now.page_entries = pages_.entries();
  now.dirty_pages = pages_.dirty_pages();
  now.free_slots = pages_.free_slots();
  now.pages = pages_.counters();
  now.locks = locks_.counters();
  now.names = names_.names().names();
  now.dropped_spaces = names_.spaces().spaces();
  now.reuse_rounds = names_.rounds().last_round();
  now.name_locks = names_.names().counters();
  now.name_news = names_.counters();
  now.recovery = recovery();
  const MutexLock lock(mutex_);
  snapshot_ = std::move(now);
}

FusionStatus FusionService::status() const {
  const MutexLock lock(mutex_);
  return snapshot_;
}

uint64_t FusionService::placement_followed() const {
  const MutexLock lock(mutex_);
  uint64_t oldest = UINT64_MAX;
  for (const FusionStatus::Server& server : snapshot_.servers)
    oldest = std::min(oldest, server.placement);
  return oldest;
}

// --- who calls ---

FusionService::Server* FusionService::find(NodeId server) {
  const auto found = servers_.find(server.value);
  return found == servers_.end() ? nullptr : &found->second;
}

// Also one of a predecessor's.
const fusion::Member* FusionService::member(NodeId server) const {
  for (const fusion::Member& member : authority().members())
    if (member.server == server) return &member;
  return nullptr;
}

// It is a member, or will be once a record is durable.
bool FusionService::is_member(const Server& server) const {
  const fusion::Member* const found = member(server.id);
  return found != nullptr && found->life == server.life;
}

// FV1, but for whether this node serves at the moment.
FusionService::Server* FusionService::check_life(const PageCaller& caller, const To& to) {
  Server* const server = find(caller.server);
  Status why;
  if (caller.epoch > epoch_)
    why = error_peer_down("a later memory node serves this server");
  else if (authority().phase(now_us_) == fusion::Authority::Phase::kDeposed)
    why = has_ended();
  else if (caller.epoch < epoch_)
    why = error_withdrawn("the memory node that this server knew has been replaced");
  else if (server == nullptr || server->life != caller.life || server->fenced)
    why = not_yours();
  if (!why.ok()) {
    count(&counters_.stale_calls);
    to->fail(why, epoch_.value);
    return nullptr;
  }
  if (server->member) return server;
  count(&counters_.calls_unready);
  to->fail(error_peer_down("this server is not a member yet"), epoch_.value);
  return nullptr;
}

// FV1
FusionService::Server* FusionService::check(const PageCaller& caller, const To& to) {
  Server* const server = check_life(caller, to);
  if (server == nullptr || (authority().serves(now_us_) && !recovers_)) return server;
  count(&counters_.calls_unready);
  to->fail(error_peer_down(recovers_ ? "the memory node has to hear first what servers have"
                                     : "the memory node cannot tell whether it still serves"),
           epoch_.value);
  return nullptr;
}

// A state machine's word.
bool FusionService::refused(const Status& status, const To& to) {
  if (status.ok()) return false;
  if (is_invalid_argument(status)) count(&counters_.bad_requests);
  to->fail(status, epoch_.value);
  return true;
}

// --- waiting ---

void FusionService::end_waits(Server* server, const Status& why) {
  if (server->events.has_value())
    (*std::exchange(server->events, std::nullopt))->fail(why, epoch_.value);
  if (server->lock_events.has_value())
    (*std::exchange(server->lock_events, std::nullopt))->fail(why, epoch_.value);
  for (const AskWait& wait : std::exchange(server->ask_waits, {})) wait.to->fail(why, epoch_.value);
  server->grants.clear();
  server->give_ups.clear();
  for (auto at = write_backs_.begin(); at != write_backs_.end();) {
    if (at->server != server->id) {
      ++at;
      continue;
    }
    at->to->fail(why, epoch_.value);
    at = write_backs_.erase(at);
  }
  for (auto at = slot_waits_.begin(); at != slot_waits_.end();) {
    if (at->request.caller.server != server->id) {
      ++at;
      continue;
    }
    at->to->fail(why, epoch_.value);
    at = slot_waits_.erase(at);
  }
}

void FusionService::expire_waits() {
  for (auto& [number, server] : servers_) {
    if (server.events.has_value() && now_us_ >= server.events_until_us) answer_events(&server);
    if (server.lock_events.has_value() && now_us_ >= server.lock_events_until_us)
      answer_lock_events(&server);
    expire_asks(&server);
    for (auto at = server.asked.begin(); at != server.asked.end();) {
      if (now_us_ < at->second.until_us) {
        ++at;
        continue;
      }
      at->second.to->fail(error_timed_out("the transaction's server has not answered"),
                          epoch_.value);
      at = server.asked.erase(at);
    }
  }
  answer_write_backs();
  answer_slot_waits();
}

// --- the door ---

void FusionDoor::register_on(transport::RpcServer* server) {
  give_handlers([server](uint16_t method, transport::Handler handler) {
    proto::serve(server, method, std::move(handler));
  });
}

void FusionDoor::give_handlers(absl::FunctionRef<void(uint16_t, transport::Handler)> take) {
  const auto handle = [&](uint16_t method,
                          void (FusionService::*run)(Bytes, const FusionService::To&)) {
    take(method, [this, run](const transport::Request& call, transport::Responder responder) {
      const auto to = std::make_shared<transport::Responder>(std::move(responder));
      const std::shared_ptr<FusionService> there = service();
      if (there == nullptr)
        return to->fail(
            error_peer_down("this memory node does not serve servers that share tables at the "
                            "moment"));
      ((*there).*run)(call.payload, to);
    });
  };
#define STRATA_FUSION_METHOD(number, constant, counter, ...) \
  handle(proto::constant, &FusionService::counter);
#include "proto/methods.def"
}

void FusionDoor::open(std::shared_ptr<FusionService> service) {
  const MutexLock lock(mutex_);
  service_.swap(service);
}

std::shared_ptr<FusionService> FusionDoor::service() const {
  const MutexLock lock(mutex_);
  return service_;
}

}  // namespace strata::memnode
