#include "fusion/timestamps/time_service.h"

#include <atomic>

namespace strata::fusion {
namespace {

std::atomic_ref<uint64_t> word(char* times, uint64_t offset) noexcept {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(times + offset));
}

}  // namespace

TimeService::TimeService(const TimeServiceOptions& options, Epoch epoch,
                         std::optional<AuthorityRecord> last, uint64_t sealed_us, char* times)
    : authority_(options.authority, epoch, last, sealed_us),
      oracle_(options.oracle, last.has_value() ? last->ceiling : 0),
      horizon_(last.has_value() ? last->horizon : 0),
      times_(times) {
  for (const Member& member : authority_.members()) horizon_.joined(member.server);
  word(times_, proto::kClockOffset).store(oracle_.start());
  // Nothing counts before a record of this epoch says how far it may go.
  word(times_, proto::kCeilingOffset).store(oracle_.start());
  word(times_, proto::kHorizonOffset).store(horizon_.wanted());
}

std::optional<Authority::Append> TimeService::tick(uint64_t now_us) {
  for (const Member& member : authority_.members())
    if (member.fence != 0 && authority_.has_ended(member.server, now_us))
      horizon_.ended(member.server);
  authority_.raise_ceiling(oracle_.wanted_ceiling(word(times_, proto::kClockOffset).load()));
  authority_.raise_horizon(horizon_.wanted());
  return authority_.next_append(now_us);
}

void TimeService::append_durable(uint64_t number) {
  authority_.append_durable(number);
  const AuthorityRecord& durable = authority_.durable();
  if (durable.epoch != authority_.epoch()) return;
  word(times_, proto::kCeilingOffset).store(durable.ceiling);  // FT1
  word(times_, proto::kHorizonOffset).store(durable.horizon);  // FT5
}

Status TimeService::join(NodeId server, uint64_t life, uint64_t now_us) {
  const Status joined = authority_.join(server, life, now_us);
  for (const Member& member : authority_.members())  // FU12: before it gets a lease
    if (member.server == server && member.life == life) horizon_.joined(server);
  return joined;
}

StatusOr<proto::HeartbeatReply> TimeService::heartbeat(const proto::Heartbeat& beat,
                                                       uint64_t now_us) {
  STRATA_ASSIGN_OR_RETURN(const uint64_t lease_us, authority_.renew(beat, now_us));
  if (beat.has_views) horizon_.said(beat.server, beat.oldest_view, beat.bound);
  proto::HeartbeatReply reply;
  reply.epoch = authority_.epoch();
  reply.lease_us = lease_us;
  reply.fences = authority_.fences_above(beat.fences_heard);
  reply.horizon = Cts{authority_.durable().horizon};
  reply.bounds = horizon_.bounds();
  return reply;
}

void TimeService::leave(NodeId server, uint64_t life) {
  for (const Member& member : authority_.members())
    if (member.server == server && member.life == life && member.fence == 0) horizon_.ended(server);
  authority_.leave(server, life);
}

}  // namespace strata::fusion
