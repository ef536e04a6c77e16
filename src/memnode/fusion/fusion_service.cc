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
#include "memnode/service/random_name.h"
#include "page/page.h"
#include "proto/methods.h"

namespace strata::memnode {

using proto::PageCaller;
using transport::Region;
using transport::RegionAccess;

namespace {

constexpr size_t kJoinsMax = 1024;
constexpr size_t kWriteBacksMax = 4096;
constexpr size_t kEndedLivesMax = 4096;
constexpr uint64_t kDescribedMax = 4096;  // lines of a description of waits

void count(std::atomic<uint64_t>* counter, uint64_t n = 1) {
  counter->fetch_add(n, std::memory_order_relaxed);
}

uint64_t boot_time_us() noexcept {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

FusionServiceOptions completed(FusionServiceOptions options) {
  if (!options.now_us) options.now_us = boot_time_us;
  return options;
}

uint64_t wait_of(uint64_t wait_us) { return std::min<uint64_t>(wait_us, proto::kFusionWaitUsMax); }

Status not_yours() {
  return error_fenced(
      "this server is fenced, has left, or has never joined; to do: start it again");
}
Status has_ended() { return error_withdrawn("this memory node serves under this epoch no more"); }

}  // namespace

// --- from the start to the end ---

FusionService::FusionService(const FusionServiceOptions& options, Parts parts)
    : options_(completed(options)),
      parts_(std::move(parts)),
      epoch_(parts_.epoch),
      pages_(options_.pages, epoch_),
      locks_(epoch_, {}, options_.locks),
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
  // Whom the predecessor served knows pages that this node does not. All of them are members.
  const std::vector<fusion::Member> before = authority().members();
  for (const fusion::Member& member : before)
    time_->authority()->fence(member.server).IgnoreError();
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
  if (pool_ == nullptr) return;
  parts_.withdraw(pool_name_);
  if (parts_.tenants != nullptr) parts_.tenants->release(parts_.tenant, pool_->bytes());
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

template <class Message>
void FusionService::serve(StatusOr<Message> request,
                          void (FusionService::*run)(const Message&, const To&), const To& to,
                          uint64_t bytes) {
  if (!request.ok()) return refuse(request.status(), to);
  if (post([this, run, to, asked = *std::move(request)] { (this->*run)(asked, to); }, bytes))
    return;
  count(&counters_.too_many_requests);
  to->fail(error_busy("too many requests wait at the memory node"));
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
    if (server.member) now.servers.push_back({server.id, server.life, server.fenced});
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
  const MutexLock lock(mutex_);
  snapshot_ = std::move(now);
}

FusionStatus FusionService::status() const {
  const MutexLock lock(mutex_);
  return snapshot_;
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
    why = error_fenced("the memory node that this server knew has been replaced");
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
  if (server == nullptr || authority().serves(now_us_)) return server;
  count(&counters_.calls_unready);
  to->fail(error_peer_down("the memory node cannot tell whether it still serves"), epoch_.value);
  return nullptr;
}

// A state machine's word.
bool FusionService::refused(const Status& status, const To& to) {
  if (status.ok()) return false;
  if (is_invalid_argument(status)) count(&counters_.bad_requests);
  to->fail(status, epoch_.value);
  return true;
}

// --- joining ---

void FusionService::fusion_join(Bytes payload, const To& to) {
  serve(proto::decode_fusion_join(payload), &FusionService::join, to, payload.size());
}

void FusionService::join(const proto::FusionJoinRequest& request, const To& to) {
  if (parts_.tenants != nullptr) {
    const auto tenant = parts_.tenants->with_token(request.token);
    if (!tenant.ok()) return refuse(tenant.status(), to);
    if (*tenant != parts_.tenant)
      return refuse(error_invalid_argument("another tenant's database is served here"), to);
  }
  if (joins_.size() >= kJoinsMax) {
    count(&counters_.too_many_requests);
    return to->fail(error_busy("too many servers want to join"));
  }
  joins_.push_back({request, to, now_us_ + options_.join_us_max, {}});
  try_joins();
}

// What waits for something else stays, for its time.
void FusionService::try_joins() {
  for (auto at = joins_.begin(); at != joins_.end();) {
    at->last = try_join(*at);
    const bool waits = is_peer_down(at->last) || is_in_use(at->last);
    if (waits && now_us_ < at->until_us) {
      ++at;
      continue;
    }
    const Join join = std::move(*at);
    at = joins_.erase(at);
    answer_join(join);
  }
}

void FusionService::answer_join(const Join& join) {
  const proto::FusionJoinRequest& request = join.request;
  if (join.last.ok()) {
    Server* const server = find(request.server);
    return join.to->reply(
        proto::encode(proto::FusionJoinReply{epoch_,
                                             times_name_,
                                             pool_name_,
                                             options_.pages.slots,
                                             {server->table, options_.table_slots}}),
        epoch_.value);
  }
  join.to->fail(join.last, epoch_.value);
  // Nobody waits for it, and nothing is known of it but here.
  const bool others = std::any_of(joins_.begin(), joins_.end(), [&](const Join& other) {
    return other.request.server == request.server && other.request.life == request.life;
  });
  Server* const server = find(request.server);
  if (others || server == nullptr || server->life != request.life || server->member) return;
  if (is_member(*server)) return;  // or will be: it ends as one
  drop_table(server);
  servers_.erase(request.server.value);
}

// peer_down, in_use: not yet.
Status FusionService::try_join(const Join& join) {
  const proto::FusionJoinRequest& request = join.request;
  if (authority().phase(now_us_) == fusion::Authority::Phase::kDeposed) return has_ended();
  STRATA_RETURN_IF_ERROR(prepare_server(request));
  Server& server = *find(request.server);
  const Status joined = time_->join(request.server, request.life, now_us_);
  advance();
  const uint64_t lease_us = options_.time.authority.lease_us;
  server.lease_end_us = std::max(server.lease_end_us, now_us_ + lease_us + lease_us / 8);
  STRATA_RETURN_IF_ERROR(joined);
  if (server.member) return ok_status();
  STRATA_RETURN_IF_ERROR(pages_.joined(request.server, request.life));
  server.member = true;
  count(&counters_.joined);
  list_changed();
  take_snapshot();
  return ok_status();
}

// An entry for this life, with a table, and nobody else's.
Status FusionService::prepare_server(const proto::FusionJoinRequest& request) {
  Server* server = find(request.server);
  if (server != nullptr && server->life != request.life) {
    if (request.alone) note_exited(request.server, server->life);
    return error_in_use("an earlier process of this server has not been taken over yet");
  }
  for (EndedLife& ended : ended_lives_) {
    if (ended.server != request.server) continue;
    if (ended.life == request.life) return not_yours();
    if (request.alone && ended.free_us == 0)  // FV7
      ended.free_us = now_us_ + options_.slot_wait_us;
  }
  if (server != nullptr && server->fenced) return not_yours();
  if (server == nullptr) {
    Server& made = servers_[request.server.value];
    made.id = request.server;
    made.life = request.life;
    made.table = random_name("tit-");
    make_table(made.id, made.life);
    server = &made;
  }
  if (server->has_table) return ok_status();
  return error_peer_down("memory for this server is being made");
}

// FV2: allocating, and a fabric, may block.
void FusionService::make_table(NodeId id, uint64_t life) {
  const uint64_t bytes = uint64_t{options_.table_slots} * sizeof(proto::TitSlot);
  const std::string name = find(id)->table;
  const bool runs = run_blocking([this, id, life, name, bytes] {
    Status made =
        parts_.tenants == nullptr ? ok_status() : parts_.tenants->reserve(parts_.tenant, bytes);
    if (made.ok()) {
      auto region = Region::create_in_memory(bytes, epoch_.value);
      made = region.status();
      if (made.ok())
        parts_.expose(name, *std::move(region), RegionAccess::kReadWrite);
      else if (parts_.tenants != nullptr)
        parts_.tenants->release(parts_.tenant, bytes);
    }
    const auto tell = [this, id, life, name, made] { table_made(id, life, name, made); };
    if (post_always(tell) || !made.ok()) return;
    parts_.withdraw(name);  // the service stops
    if (parts_.tenants != nullptr) parts_.tenants->release(parts_.tenant, bytes);
  });
  if (!runs)
    post_always([this, id, life] { end_join(id, life, error_busy("too much waits there")); });
}

void FusionService::table_made(NodeId id, uint64_t life, const std::string& name,
                               const Status& status) {
  Server* const server = find(id);
  if (!status.ok()) return end_join(id, life, status);
  if (server != nullptr && server->table == name) {
    server->has_table = true;
    return try_joins();
  }
  Server gone;  // its join was given up meanwhile
  gone.table = name;
  gone.has_table = true;
  drop_table(&gone);
}

void FusionService::drop_table(Server* server) {
  if (!std::exchange(server->has_table, false)) return;
  const auto drop = [this, name = server->table] {
    parts_.withdraw(name);
    if (parts_.tenants != nullptr)
      parts_.tenants->release(parts_.tenant,
                              uint64_t{options_.table_slots} * sizeof(proto::TitSlot));
  };
  if (!run_blocking(drop)) drop();  // the service stops
}

// Whoever waits for that to become a member.
void FusionService::end_join(NodeId id, uint64_t life, const Status& why) {
  for (auto at = joins_.begin(); at != joins_.end();) {
    if (at->request.server != id || at->request.life != life) {
      ++at;
      continue;
    }
    at->to->fail(why, epoch_.value);
    at = joins_.erase(at);
  }
  Server* const server = find(id);
  if (server == nullptr || server->life != life || server->member) return;
  drop_table(server);
  servers_.erase(id.value);
}

// --- leases ---

void FusionService::fusion_renew(Bytes payload, const To& to) {
  serve(proto::decode_fusion_renew(payload), &FusionService::renew, to, payload.size());
}

void FusionService::renew(const proto::FusionRenewRequest& request, const To& to) {
  const proto::Heartbeat& beat = request.beat;
  Server* const server = check_life({beat.server, beat.life, beat.epoch}, to);
  if (server == nullptr) return;
  // FW2. A view is as old as the clock at most.
  const uint64_t clock =
      std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(times_->data() + proto::kClockOffset))
          .load();
  if (beat.has_views && beat.oldest_view.value > clock)
    return refuse(error_invalid_argument("a view that is younger than the clock"), to);
  const auto reply = time_->heartbeat(beat, now_us_);
  if (!reply.ok()) {
    count(&counters_.calls_unready);
    return to->fail(reply.status(), epoch_.value);
  }
  advance();  // the horizon may go on
  count(&counters_.renewals);
  server->lease_end_us =
      std::max(server->lease_end_us, now_us_ + reply->lease_us + reply->lease_us / 8);
  proto::FusionRenewReply out{*reply, list_version_, {}};
  if (request.members != list_version_) out.servers = list();
  to->reply(proto::encode(out), epoch_.value);
}

std::vector<proto::FusionServer> FusionService::list() const {
  std::vector<proto::FusionServer> servers;
  for (const auto& [number, server] : servers_)
    if (server.member && !server.fenced)
      servers.push_back({server.id, server.life, {server.table, options_.table_slots}});
  return servers;
}

void FusionService::fusion_leave(Bytes payload, const To& to) {
  serve(proto::decode_fusion_caller(payload), &FusionService::leave, to, payload.size());
}

// FV4. As a fenced one whose lease is over, so that its next life comes once nobody reads its
// table.
void FusionService::leave(const proto::FusionCallerRequest& request, const To& to) {
  Server* const server = check(request.caller, to);
  if (server == nullptr) return;
  server->left = true;
  server->sealed = true;
  pages_.left(server->id, server->life);
  locks_.gone(server->id);
  // It is a member, and was not fenced.
  time_->authority()->fence(server->id).IgnoreError();
  time_->authority()->exited(server->id, server->life);
  begin_fenced(server);
  count(&counters_.left);
  to->reply({}, epoch_.value);
  say_pages(NodeId{}, nullptr);
  tell_locks();
  advance();
}

void FusionService::fence(NodeId server) {
  post_always([this, server] {
    fence_member(server);
    advance();
  });
}

void FusionService::exited(NodeId server, uint64_t life) {
  post_always([this, server, life] {
    note_exited(server, life);
    advance();
    look_after_members();
  });
}

// FU4, FV7. Its process is not there any more.
void FusionService::note_exited(NodeId id, uint64_t life) {
  for (EndedLife& ended : ended_lives_)
    if (ended.server == id && ended.life == life && ended.free_us == 0)
      ended.free_us = now_us_ + options_.slot_wait_us;
  Server* const server = find(id);
  if (server == nullptr || server->life != life) return;
  server->exited = true;
  if (!is_member(*server)) {
    post_always([this, id, life] { end_join(id, life, not_yours()); });
    return;
  }
  fence_member(id);
  time_->authority()->exited(id, life);
}

void FusionService::fence_member(NodeId id) {
  if (!time_->authority()->fence(id).ok()) return;  // nobody's
  Server* const server = find(id);
  if (server == nullptr || server->fenced || !is_member(*server)) return;
  count(&counters_.fenced);
  begin_fenced(server);
}

// From here on nothing that it says counts.
void FusionService::begin_fenced(Server* server) {
  if (std::exchange(server->fenced, true)) return;
  if (!server->left) pages_.fence(server->id);
  end_waits(server, not_yours());
  end_questions(server, error_peer_down("the transaction's server was fenced just now"));
  list_changed();
  say_pages(NodeId{}, nullptr);
}

// FV4
void FusionService::look_after_members() {
  const bool serves = authority().serves(now_us_);
  const uint64_t lease_us = options_.time.authority.lease_us;
  if (serves && !served_)  // nobody could renew while it did not
    for (auto& [number, server] : servers_)
      server.lease_end_us = std::max(server.lease_end_us, now_us_ + lease_us + lease_us / 8);
  served_ = serves;
  if (!serves) return;
  const std::vector<fusion::Member> members = authority().members();
  for (const fusion::Member& member : members) {
    Server* server = find(member.server);
    if (server != nullptr && server->life != member.life) server = nullptr;  // a predecessor's
    if (member.fence == 0) {
      if (server == nullptr || now_us_ < server->lease_end_us) continue;
      count(&counters_.expired);
      diag(Severity::kWarning, "fusion: server %u has not renewed its lease and is fenced",
           unsigned{member.server.value});
      fence_member(member.server);
      continue;
    }
    if (server != nullptr) {
      begin_fenced(server);
      seal(server);
      if (!server->sealed) continue;
    }
    if (authority().may_release(member.server, now_us_)) release(member.server);
  }
  advance();
}

void FusionService::seal(Server* server) {
  if (server->sealed || server->seal_asked) return;
  if (parts_.seal == nullptr) {
    server->sealed = true;
    return;
  }
  server->seal_asked = true;
  parts_.seal(
      server->id, server->life,
      [weak = weak_from_this(), id = server->id, life = server->life](const Status& status) {
        const std::shared_ptr<FusionService> self = weak.lock();
        if (self == nullptr) return;
        self->post_always([service = self.get(), id, life, status] {
          Server* const sealed = service->find(id);
          if (sealed == nullptr || sealed->life != life) return;
          sealed->seal_asked = false;  // and again with the next tick
          sealed->sealed |= status.ok();
        });
      });
}

void FusionService::release(NodeId id) {
  pages_.release_fenced(id);
  locks_.gone(id);
  Server* const server = find(id);
  // Of a life that a predecessor served there is no entry, or one of the next life.
  if (server != nullptr && is_member(*server)) {
    if (ended_lives_.size() >= kEndedLivesMax) ended_lives_.erase(ended_lives_.begin());
    ended_lives_.push_back(
        {id, server->life, server->exited ? now_us_ + options_.slot_wait_us : 0});
    drop_table(server);
    servers_.erase(id.value);
  }
  time_->authority()->forget(id);
  count(&counters_.released);
  list_changed();
  take_snapshot();
  say_pages(NodeId{}, nullptr);
  tell_locks();
}

// FV7
void FusionService::free_slots_of_ended() {
  std::erase_if(ended_lives_, [this](const EndedLife& ended) {
    if (ended.free_us == 0 || now_us_ < ended.free_us) return false;
    pages_.mapping_gone(ended.server, ended.life);
    return true;
  });
}

// --- pages ---

void FusionService::ask_pages(Bytes payload, const To& to) {
  serve(proto::decode_ask_pages(payload), &FusionService::ask, to, payload.size());
}

void FusionService::ask(const proto::AskPagesRequest& request, const To& to) {
  Server* const server = check(request.caller, to);
  if (server == nullptr || refused(pages_.ask(request.caller, request.asks, now_us_), to)) return;
  proto::AskPagesReply reply;
  say_pages(server->id, &reply.grants);
  to->reply(proto::encode(reply), epoch_.value);
}

void FusionService::report_pages(Bytes payload, const To& to) {
  serve(proto::decode_report_pages(payload), &FusionService::report, to, payload.size());
}

void FusionService::report(const proto::ReportPagesRequest& request, const To& to) {
  Server* const server = check(request.caller, to);
  if (server == nullptr || refused(pages_.report(request.caller, request.reports, now_us_), to))
    return;
  to->reply({}, epoch_.value);
  say_pages(NodeId{}, nullptr);
  start_writes();
}

void FusionService::take_page_slots(Bytes payload, const To& to) {
  serve(proto::decode_take_page_slots(payload), &FusionService::take_slots, to, payload.size());
}

void FusionService::take_slots(const proto::TakePageSlotsRequest& request, const To& to) {
  if (check(request.caller, to) == nullptr) return;
  auto slots = pages_.take_slots(request.caller, request.request, request.wanted);
  if (refused(slots.status(), to)) return;
  to->reply(proto::encode(proto::TakePageSlotsReply{*std::move(slots)}), epoch_.value);
  start_writes();
}

void FusionService::adopt_pages(Bytes payload, const To& to) {
  serve(proto::decode_adopt_pages(payload), &FusionService::adopt, to, payload.size());
}

void FusionService::adopt(const proto::AdoptPagesRequest& request, const To& to) {
  if (check(request.caller, to) == nullptr ||
      refused(pages_.adopt(request.caller, request.place), to))
    return;
  // All of them were the place's when it was released; what is granted to be redone meanwhile goes
  // out of the list of the dead, but is the adopter's all the same.
  AdoptedList& list = adopted_[request.place.value];
  if (list.life != request.caller.life) {
    list = {request.caller.life, {}};
    for (const fusion::Pages::DeadPage& page : pages_.dead_pages(request.place))
      list.pages.push_back(page.page);
    std::sort(list.pages.begin(), list.pages.end());
  }
  proto::AdoptPagesReply reply;
  auto at = std::lower_bound(list.pages.begin(), list.pages.end(), request.from);
  for (; at != list.pages.end() && reply.pages.size() < proto::kListedPagesMax; ++at)
    reply.pages.push_back(*at);
  reply.more = at != list.pages.end();
  to->reply(proto::encode(reply), epoch_.value);
}

void FusionService::adoption_ended(Bytes payload, const To& to) {
  serve(proto::decode_adoption_ended(payload), &FusionService::end_adoption, to, payload.size());
}

void FusionService::end_adoption(const proto::AdoptionEndedRequest& request, const To& to) {
  Server* const server = check(request.caller, to);
  if (server == nullptr || refused(pages_.adoption_ended(request.caller, request.place), to))
    return;
  const auto list = adopted_.find(request.place.value);
  if (list != adopted_.end() && list->second.life == server->life) {
    adopted_.erase(list);
    // Who has its own place again says so by its report of row locks.
    if (request.place != server->id) locks_.adopted(request.place, server->id);
  }
  to->reply({}, epoch_.value);
  say_pages(NodeId{}, nullptr);
  tell_locks();
}

void FusionService::write_back_pages(Bytes payload, const To& to) {
  serve(proto::decode_write_back_pages(payload), &FusionService::write_back, to, payload.size());
}

void FusionService::write_back(const proto::WriteBackPagesRequest& request, const To& to) {
  Server* const server = check(request.caller, to);
  if (server == nullptr) return;
  const Lsn oldest = pages_.oldest(request.stream);
  if (oldest >= request.below || request.wait_us == 0)
    return to->reply(proto::encode(proto::WriteBackPagesReply{oldest}), epoch_.value);
  if (write_backs_.size() >= kWriteBacksMax) {
    count(&counters_.too_many_requests);
    return to->fail(error_busy("too many wait for pages to be written"), epoch_.value);
  }
  write_backs_.push_back(
      {server->id, to, request.stream, request.below, now_us_ + wait_of(request.wait_us)});
  start_writes();
}

void FusionService::answer_write_backs() {
  for (auto at = write_backs_.begin(); at != write_backs_.end();) {
    const Lsn oldest = pages_.oldest(at->stream);
    if (oldest < at->below && now_us_ < at->until_us) {
      ++at;
      continue;
    }
    at->to->reply(proto::encode(proto::WriteBackPagesReply{oldest}), epoch_.value);
    at = write_backs_.erase(at);
  }
}

void FusionService::forget_space_pages(Bytes payload, const To& to) {
  serve(proto::decode_forget_space_pages(payload), &FusionService::forget_space, to,
        payload.size());
}

// Whoever drops it is answered once nothing of it is on its way to storage.
void FusionService::forget_space(const proto::ForgetSpacePagesRequest& request, const To& to) {
  if (check(request.caller, to) == nullptr) return;
  pages_.forget_space(request.space);
  say_pages(NodeId{}, nullptr);
  answer_write_backs();
  if (writing_) return after_write_.push_back(to);
  to->reply({}, epoch_.value);
}

// --- what there is to be said about pages ---

// FV6. What `self` is granted goes to *granted, which it is answered with.
void FusionService::say_pages(NodeId self, std::vector<proto::PageGrant>* granted) {
  for (fusion::Pages::Outgoing& out : pages_.take_outgoing()) {
    auto* const grant = std::get_if<proto::PageGrant>(&out.message);
    if (grant != nullptr && granted != nullptr && out.server == self &&
        granted->size() < proto::kFusionPagesMax) {
      granted->push_back(std::move(*grant));
      continue;
    }
    Server* const server = find(out.server);
    if (server == nullptr || server->life != out.life || server->fenced) continue;
    if (server->grants.size() + server->give_ups.size() >= options_.said_max) {
      count(&counters_.pages_untold);
      continue;
    }
    if (grant != nullptr)
      server->grants.push_back(std::move(*grant));
    else
      server->give_ups.push_back(std::get<proto::PageGiveUp>(out.message));
  }
  for (auto& [number, server] : servers_) tell(&server);
}

void FusionService::tell(Server* server) {
  const bool silent =
      server->grants.empty() && server->give_ups.empty() && server->questions.empty();
  if (server->events.has_value() && !silent) answer_events(server);
}

namespace {

template <class T>
void take_some(std::deque<T>* from, size_t max, std::vector<T>* to) {
  const auto end = from->begin() + static_cast<ptrdiff_t>(std::min(from->size(), max));
  to->assign(std::make_move_iterator(from->begin()), std::make_move_iterator(end));
  from->erase(from->begin(), end);
}

}  // namespace

void FusionService::answer_events(Server* server) {
  const To to = *std::exchange(server->events, std::nullopt);
  proto::FusionEventsReply reply;
  take_some(&server->grants, proto::kFusionPagesMax, &reply.grants);
  take_some(&server->give_ups, proto::kFusionPagesMax, &reply.give_ups);
  take_some(&server->questions, proto::kFusionQuestionsMax, &reply.questions);
  count(&counters_.pages_told, reply.grants.size() + reply.give_ups.size());
  to->reply(proto::encode(reply), epoch_.value);
}

void FusionService::fusion_events(Bytes payload, const To& to) {
  serve(proto::decode_fusion_events(payload), &FusionService::events, to, payload.size());
}

// FV5
void FusionService::events(const proto::FusionEventsRequest& request, const To& to) {
  Server* const server = check(request.caller, to);
  if (server == nullptr) return;
  // Whoever sent the other one does not listen to it any more: it gets nothing.
  if (server->events.has_value())
    (*std::exchange(server->events, std::nullopt))
        ->reply(proto::encode(proto::FusionEventsReply{}), epoch_.value);
  server->events = to;
  server->events_until_us = now_us_ + wait_of(request.wait_us);
  if (request.wait_us == 0) return answer_events(server);
  tell(server);
}

// --- to storage ---

void FusionService::start_writes() {
  if (parts_.store == nullptr || writing_ || pages_.dirty_pages() == 0) return;
  const bool wanted = !write_backs_.empty() || pages_.free_slots() < options_.pages.slots / 8;
  if (now_us_ < write_at_us_ && (write_failed_ || !wanted)) return;
  constexpr uint32_t kWriteBatch = 64;
  std::vector<fusion::Pages::Write> writes = pages_.begin_writes(kWriteBatch);
  if (writes.empty()) return;
  writing_ = true;
  const bool runs = run_blocking([this, writes] {
    std::vector<bool> synced;
    write_slots(writes, &synced);
    post_always([this, writes, synced] { writes_ended(writes, synced); });
  });
  if (!runs) writes_ended(writes, std::vector<bool>(writes.size(), false));
}

// FV8. A slot that is being written is nobody's to put into.
void FusionService::write_slots(const std::vector<fusion::Pages::Write>& writes,
                                std::vector<bool>* synced) {
  synced->assign(writes.size(), false);
  const AlignedBytes copies(writes.size() * size_t{kPageBytes});
  std::vector<PageStore::Image> images;
  std::vector<size_t> which;
  for (size_t i = 0; i < writes.size(); ++i) {
    char* const copy = copies.get() + i * size_t{kPageBytes};
    std::memcpy(copy, pool_->data() + uint64_t{writes[i].slot} * kPageBytes, kPageBytes);
    if (header_of(copy)->llsn == writes[i].llsn.value && verify_page(copy, writes[i].page).ok()) {
      images.push_back({writes[i].page, writes[i].llsn, copy});
      which.push_back(i);
      continue;
    }
    count(&counters_.slots_damaged);
  }
  std::vector<Status> results(images.size(), error_peer_down("not written"));
  if (!images.empty()) parts_.store->write(images, absl::MakeSpan(results));
  for (size_t i = 0; i < results.size(); ++i) {
    (*synced)[which[i]] = results[i].ok();
    count(results[i].ok() ? &counters_.pages_written : &counters_.writes_failed);
  }
}

void FusionService::writes_ended(const std::vector<fusion::Pages::Write>& writes,
                                 const std::vector<bool>& synced) {
  for (size_t i = 0; i < writes.size(); ++i) pages_.write_ended(writes[i], synced[i]);
  writing_ = false;
  write_failed_ = std::find(synced.begin(), synced.end(), false) != synced.end();
  write_at_us_ = now_us_ + (write_failed_ ? options_.write_again_us : options_.write_pause_us);
  for (const To& to : std::exchange(after_write_, {})) to->reply({}, epoch_.value);
  answer_write_backs();
  start_writes();
}

// --- transactions of others ---

void FusionService::ask_owner(Bytes payload, const To& to) {
  serve(proto::decode_ask_owner(payload), &FusionService::ask_about, to, payload.size());
}

// FV9
void FusionService::ask_about(const proto::AskOwnerRequest& request, const To& to) {
  Server* const asker = check(request.caller, to);
  if (asker == nullptr) return;
  Server* const owner = find(node_of(request.trx));
  // What the dead one had for writing nobody gets before its log is redone: its pages tell then.
  if (owner == nullptr || owner->fenced || !owner->member)
    return to->fail(error_not_found(), epoch_.value);
  if (std::max(owner->asked.size(), owner->questions.size()) >= options_.questions_max) {
    count(&counters_.too_many_requests);
    return to->fail(error_busy("too many ask that server about its transactions"), epoch_.value);
  }
  count(&counters_.questions);
  const uint64_t number = ++last_question_;
  owner->asked.emplace(number, Question{to, asker->id, now_us_ + wait_of(request.wait_us)});
  owner->questions.push_back({number, request.trx, request.decided});
  tell(owner);
}

void FusionService::answer_askers(Bytes payload, const To& to) {
  serve(proto::decode_answer_askers(payload), &FusionService::answer, to, payload.size());
}

void FusionService::answer(const proto::AnswerAskersRequest& request, const To& to) {
  Server* const owner = check(request.caller, to);
  if (owner == nullptr) return;
  for (const proto::OwnerAnswer& one : request.answers) {
    const auto question = owner->asked.find(one.number);
    if (question == owner->asked.end()) {
      count(&counters_.answers_late);
      continue;
    }
    count(&counters_.answers);
    const To asker = question->second.to;
    owner->asked.erase(question);
    if (one.status.ok())
      asker->reply(proto::encode(one.outcome), epoch_.value);
    else if (is_not_found(one.status))
      asker->fail(error_not_found(), epoch_.value);
    else  // whatever keeps it from knowing is its own: it is no reason for the asker to end
      asker->fail(error_peer_down("the transaction's server does not know: " +
                                  std::string(one.status.message())),
                  epoch_.value);
  }
  to->reply({}, epoch_.value);
}

void FusionService::end_questions(Server* server, const Status& why) {
  for (const auto& [number, question] : std::exchange(server->asked, {}))
    question.to->fail(why, epoch_.value);
  server->questions.clear();
}

// --- row locks ---

StatusOr<proto::LockReply> FusionService::exchanged(const proto::LockBatch& batch) {
  STRATA_ASSIGN_OR_RETURN(proto::LockReply reply, locks_.exchange(batch));
  size_t bytes = 0;
  for (size_t i = 0; i < reply.events.size(); ++i) {
    bytes += proto::encoded_bytes(reply.events[i]);
    if (i == 0 || bytes <= proto::kLockMessageBytesMax) continue;
    reply.events.resize(i);
    reply.active = false;  // these are not all there are
  }
  return reply;
}

void FusionService::row_locks(Bytes payload, const To& to) {
  serve(proto::decode_row_locks(payload), &FusionService::exchange, to, payload.size());
}

void FusionService::exchange(const proto::LockBatch& batch, const To& to) {
  if (check({batch.server, batch.life, batch.epoch}, to) == nullptr) return;
  proto::LockBatch bounded = batch;
  for (proto::LockRequest& request : bounded.requests)
    if (request.kind == proto::LockRequestKind::kDescribe)
      request.ticket = std::min(request.ticket, kDescribedMax);
  const auto reply = exchanged(bounded);
  if (refused(reply.status(), to)) return;
  to->reply(proto::encode(*reply), epoch_.value);
  tell_locks();
}

void FusionService::row_lock_events(Bytes payload, const To& to) {
  serve(proto::decode_row_lock_events(payload), &FusionService::lock_events, to, payload.size());
}

// FV5
void FusionService::lock_events(const proto::RowLockEventsRequest& request, const To& to) {
  Server* const server = check(request.caller, to);
  if (server == nullptr) return;
  proto::LockBatch poll;
  poll.server = request.caller.server;
  poll.life = request.caller.life;
  poll.epoch = request.caller.epoch;
  poll.heard = request.heard;
  const auto reply = exchanged(poll);
  if (refused(reply.status(), to)) return;
  if (server->lock_events.has_value()) answer_lock_events(server);
  if (!reply->events.empty() || request.wait_us == 0)
    return to->reply(proto::encode(*reply), epoch_.value);
  server->lock_events = to;
  server->lock_poll = poll;
  server->lock_events_until_us = now_us_ + wait_of(request.wait_us);
}

void FusionService::tell_locks() {
  for (auto& [number, server] : servers_)
    if (server.lock_events.has_value() && locks_.has_events(server.id)) answer_lock_events(&server);
}

void FusionService::answer_lock_events(Server* server) {
  const To to = *std::exchange(server->lock_events, std::nullopt);
  const auto reply = exchanged(server->lock_poll);
  if (!refused(reply.status(), to)) to->reply(proto::encode(*reply), epoch_.value);
}

// --- waiting ---

void FusionService::end_waits(Server* server, const Status& why) {
  if (server->events.has_value())
    (*std::exchange(server->events, std::nullopt))->fail(why, epoch_.value);
  if (server->lock_events.has_value())
    (*std::exchange(server->lock_events, std::nullopt))->fail(why, epoch_.value);
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
}

void FusionService::expire_waits() {
  for (auto& [number, server] : servers_) {
    if (server.events.has_value() && now_us_ >= server.events_until_us) answer_events(&server);
    if (server.lock_events.has_value() && now_us_ >= server.lock_events_until_us)
      answer_lock_events(&server);
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
}

// --- the door ---

void FusionDoor::register_on(transport::RpcServer* server) {
  const auto handle = [&](uint16_t method,
                          void (FusionService::*run)(Bytes, const FusionService::To&)) {
    server->handle(method,
                   [this, run](const transport::Request& call, transport::Responder responder) {
                     const auto to = std::make_shared<transport::Responder>(std::move(responder));
                     const std::shared_ptr<FusionService> there = service();
                     if (there == nullptr)
                       return to->fail(
                           error_peer_down("this memory node does not serve servers "
                                           "that share tables at the moment"));
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
