// Who takes part (FV3, FV4, FV7): joining, leases, fences, the end of a member.
#include <algorithm>
#include <atomic>
#include <utility>

#include "base/diag.h"
#include "memnode/fusion/fusion_service.h"
#include "memnode/fusion/internal/service_parts.h"
#include "memnode/service/random_name.h"

namespace strata::memnode {

using internal::count;
using internal::has_ended;
using internal::not_yours;
using transport::Region;
using transport::RegionAccess;

namespace {
constexpr size_t kJoinsMax = 1024;
constexpr size_t kEndedLivesMax = 4096;
}  // namespace

// --- joining ---

// FV15
void FusionService::fusion_join(Bytes payload, const To& to) {
  to->when_peer_ends([weak = weak_from_this(), asked = std::weak_ptr(to)] {
    const std::shared_ptr<FusionService> self = weak.lock();
    const To waiting = asked.lock();  // null: it was answered
    if (self == nullptr || waiting == nullptr) return;
    self->post_always([service = self.get(), waiting] { service->give_up_join(waiting); });
  });
  serve(proto::decode_fusion_join(payload), &FusionService::join, to, payload.size());
}

Status FusionService::check_tenant(const std::string& token) const {
  if (parts_.tenants == nullptr) return ok_status();
  STRATA_ASSIGN_OR_RETURN(const Tenants::Number tenant, parts_.tenants->with_token(token));
  if (tenant == parts_.tenant) return ok_status();
  return error_invalid_argument("another tenant's database is served here");
}

proto::FusionJoinReply FusionService::join_reply(const Server& server) const {
  return {
      epoch_, times_name_, pool_name_, options_.pages.slots, {server.table, options_.table_slots}};
}

void FusionService::join(const proto::FusionJoinRequest& request, const To& to) {
  if (const Status may = check_tenant(request.token); !may.ok()) return refuse(may, to);
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
    return join.to->reply(proto::encode(join_reply(*find(request.server))), epoch_.value);
  }
  join.to->fail(join.last, epoch_.value);
  forget_join(join);
}

void FusionService::give_up_join(const To& to) {
  const auto at =
      std::find_if(joins_.begin(), joins_.end(), [&](const Join& join) { return join.to == to; });
  if (at == joins_.end()) return;
  const Join join = std::move(*at);
  joins_.erase(at);
  join.to->fail(error_peer_down("the server that wanted to join is gone"), epoch_.value);
  forget_join(join);
}

// Nobody waits for it, and nothing is known of it but here.
void FusionService::forget_join(const Join& join) {
  const proto::FusionJoinRequest& request = join.request;
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
  if (recovers_) {  // FV11. Whose earlier process has ended is not waited for
    const Server* const before = find(request.server);
    if (before != nullptr && before->life != request.life && request.alone)
      note_exited(request.server, before->life);
    return error_peer_down("the memory node has to hear first what servers have");
  }
  STRATA_RETURN_IF_ERROR(prepare_server(request));
  Server& server = *find(request.server);
  const Status joined = time_->join(request.server, request.life, now_us_);
  advance();
  const uint64_t lease_us = options_.time.authority.lease_us;
  server.lease_end_us = std::max(server.lease_end_us, now_us_ + lease_us + lease_us / 8);
  STRATA_RETURN_IF_ERROR(joined);
  if (server.member) return ok_status();
  STRATA_RETURN_IF_ERROR(pages_.joined(request.server, request.life));
  STRATA_RETURN_IF_ERROR(names_.joined(request.server, request.life));
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
    server = &made;
  }
  if (wants_table(server)) return ok_status();
  return error_peer_down("memory for this server is being made");
}

// True: it is there.
bool FusionService::wants_table(Server* server) {
  if (!std::exchange(server->table_asked, true)) {
    server->table = random_name("tit-");
    make_table(server->id, server->life);
  }
  return server->has_table;
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
    post_always(
        [this, id, life, name] { table_made(id, life, name, error_busy("too much waits there")); });
}

void FusionService::table_made(NodeId id, uint64_t life, const std::string& name,
                               const Status& status) {
  Server* const server = find(id);
  if (!status.ok()) {
    if (server != nullptr && server->table == name) server->table_asked = false;  // and again
    return end_join(id, life, status);
  }
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
  if (server == nullptr || server->life != life || server->member || server->expected) return;
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
  server->placement = std::max(server->placement, request.placement);
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
  serve(proto::decode_fusion_leave(payload), &FusionService::leave, to, payload.size());
}

// FV4. As a fenced one whose lease is over, so that its next life comes once nobody reads its
// table.
void FusionService::leave(const proto::FusionLeaveRequest& request, const To& to) {
  Server* const server = check(request.caller, to);
  if (server == nullptr) return;
  server->left = true;
  server->sealed = true;
  pages_.left(server->id, server->life, request.end);
  names_.left(server->id, server->life);
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

// FV14
void FusionService::fusion_line(Bytes payload, const To& to) {
  auto request = proto::decode_fusion_line(payload);
  if (request.ok()) {
    const std::string other_end = to->other_end();
    if (other_end.empty() || other_end != request->own_end)
      return to->fail(error_unsupported("this server calls the other end of the connection " +
                                        (other_end.empty() ? "nothing" : other_end)),
                      epoch_.value);
    // Of another epoch it is no line: its server closes it when it goes on here.
    if (request->caller.epoch == epoch_)
      to->when_peer_ends([weak = weak_from_this(), caller = request->caller] {
        if (const std::shared_ptr<FusionService> self = weak.lock(); self != nullptr)
          self->line_ended(caller.server, caller.life);
      });
  }
  serve(std::move(request), &FusionService::note_line, to, payload.size());
}

void FusionService::note_line(const proto::FusionLineRequest& request, const To& to) {
  if (check_life(request.caller, to) == nullptr) return;
  count(&counters_.lines);
  to->reply({}, epoch_.value);
}

void FusionService::line_ended(NodeId id, uint64_t life) {
  post_always([this, id, life] {
    count(&counters_.lines_ended);
    const Server* const server = find(id);
    if (server != nullptr && server->life == life && !server->fenced)
      diag(Severity::kWarning, "fusion: the process of server %u has ended; it is fenced",
           unsigned{id.value});
    take_away(id, life);
  });
}

void FusionService::fence(NodeId server) {
  post_always([this, server] {
    fence_member(server);
    advance();
  });
}

void FusionService::exited(NodeId server, uint64_t life) {
  post_always([this, server, life] { take_away(server, life); });
}

void FusionService::take_away(NodeId server, uint64_t life) {
  note_exited(server, life);
  advance();
  look_after_members();
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
  if (!server->left) {
    pages_.fence(server->id);
    names_.fence(server->id);
  }
  end_waits(server, not_yours());
  end_questions(server, error_peer_down("the transaction's server was fenced just now"));
  list_changed();
  say_pages(NodeId{}, nullptr);
}

// FV4
void FusionService::look_after_members() {
  const bool serves = authority().serves(now_us_);
  const uint64_t lease_us = options_.time.authority.lease_us;
  if (serves && !served_) {  // nobody could renew while it did not, nor say what it has
    for (auto& [number, server] : servers_)
      server.lease_end_us = std::max(server.lease_end_us, now_us_ + lease_us + lease_us / 8);
    resume_until_us_ = now_us_ + options_.resume_us_max;
  }
  served_ = serves;
  if (!serves) return;
  look_after_expected();
  const std::vector<fusion::Member> members = authority().members();
  for (const fusion::Member& member : members) {
    Server* server = find(member.server);
    if (server != nullptr && server->life != member.life) server = nullptr;  // a predecessor's
    if (member.fence == 0) {
      if (server == nullptr || now_us_ < server->lease_end_us) continue;
      if (server->expected && !server->member) continue;  // look_after_expected()
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
  names_.release_fenced(id);
  locks_.gone(id);
  Server* const server = find(id);
  if (server != nullptr && server->expected && !server->member) names_.lost(id);
  // Of a life that a predecessor served there may be no entry, or one of the next life.
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

}  // namespace strata::memnode
