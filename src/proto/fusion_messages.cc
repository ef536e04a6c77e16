#include "proto/fusion_messages.h"

#include <utility>

#include "proto/internal/message_fields.h"
#include "proto/status_bytes.h"

namespace strata::proto {

using internal::append_caller;
using internal::append_flag;
using internal::append_list;
using internal::decoded;
using internal::is_server;
using internal::read_caller;
using internal::read_flag;
using internal::read_list;
using internal::read_text;

namespace {

constexpr size_t kTableBytesMin = 4 + 4;
constexpr size_t kServerBytesMin = 1 + 8 + kTableBytesMin;
constexpr size_t kFenceBytes = 1 + 8;
constexpr size_t kAskBytes = 8 + 1 + 8 + 1;
constexpr size_t kGrantBytesMin = 8 + 8 + 8 + 1 + 1 + 8 + 4 + 8 + 4;
constexpr size_t kPositionBytes = 4 + 8;
constexpr size_t kGiveUpBytes = 8 + 8;
constexpr size_t kReportBytes = 8 + 8 + 1 + 1 + 8 + 4 + 4 + 8 + 8;
constexpr size_t kQuestionBytes = 8 + 8 + 1;
constexpr size_t kAnswerBytesMin = 8 + 1 + 4;
constexpr size_t kLockRequestBytesMin = 1 + 8 + 8 + 8 + 4 + 4 + 4 + 8 + 1 + 1 + 1;
constexpr size_t kLockEventBytesMin = 1 + 8 + 8 + 4 + 4 + 8 + 1 + 4;
constexpr uint8_t kTrxStatesMax = 5;  // the largest TrxState

void append_table(std::string* out, const FusionTable& table) {
  append_bytes32(out, table.region);
  append_u32(out, table.slots);
}

bool read_table(ByteReader* in, FusionTable* table) {
  const bool fits = read_text(in, kPoolTokenBytesMax, &table->region);
  table->slots = in->u32();
  return fits && !table->region.empty() && table->slots != 0 &&
         (table->slots & (table->slots - 1)) == 0;
}

void append_server(std::string* out, const FusionServer& server) {
  append_u8(out, server.server.value);
  append_u64(out, server.life);
  append_table(out, server.table);
}

bool read_server(ByteReader* in, FusionServer* server) {
  server->server = NodeId{in->u8()};
  server->life = in->u64();
  return read_table(in, &server->table) && is_server(server->server) && server->life != 0;
}

bool is_mode(uint8_t mode) {
  return mode == static_cast<uint8_t>(PageMode::kShared) ||
         mode == static_cast<uint8_t>(PageMode::kExclusive);
}

void append_ask(std::string* out, const PageAsk& ask) {
  append_u64(out, ask.page.packed());
  append_u8(out, static_cast<uint8_t>(ask.mode));
  append_u64(out, ask.ask);
  append_flag(out, ask.redo);
}

bool read_ask(ByteReader* in, PageAsk* ask) {
  ask->page = PageId::unpack(in->u64());
  const uint8_t mode = in->u8();
  ask->mode = static_cast<PageMode>(mode);
  ask->ask = in->u64();
  return read_flag(in, &ask->redo) && is_mode(mode) && ask->ask != 0;
}

void append_position(std::string* out, const StreamPosition& at) {
  append_u32(out, at.stream.value);
  append_u64(out, at.lsn.value);
}

bool read_position(ByteReader* in, StreamPosition* at) {
  at->stream = StreamId{in->u32()};
  at->lsn = Lsn{in->u64()};
  return true;
}

void append_grant(std::string* out, const PageGrant& grant) {
  append_u64(out, grant.page.packed());
  append_u64(out, grant.ask);
  append_u64(out, grant.number);
  append_u8(out, static_cast<uint8_t>(grant.mode));
  append_flag(out, grant.known);
  append_u64(out, grant.llsn.value);
  append_u32(out, grant.slot);
  append_u64(out, grant.floor.llsn.value);
  append_list(out, grant.floor.scanned_to, append_position);
}

bool read_grant(ByteReader* in, PageGrant* grant) {
  grant->page = PageId::unpack(in->u64());
  grant->ask = in->u64();
  grant->number = in->u64();
  const uint8_t mode = in->u8();
  grant->mode = static_cast<PageMode>(mode);
  const bool well_formed = read_flag(in, &grant->known);
  grant->llsn = Llsn{in->u64()};
  grant->slot = in->u32();
  grant->floor.llsn = Llsn{in->u64()};
  return well_formed && is_mode(mode) && grant->number != 0 &&
         read_list(in, kPositionsMax, kPositionBytes, &grant->floor.scanned_to, read_position);
}

void append_grants(std::string* out, const std::vector<PageGrant>& grants) {
  append_list(out, grants, append_grant);
}

bool read_grants(ByteReader* in, std::vector<PageGrant>* grants) {
  return read_list(in, kFusionPagesMax, kGrantBytesMin, grants, read_grant);
}

void append_report(std::string* out, const PageReport& report) {
  append_u64(out, report.page.packed());
  append_u64(out, report.number);
  append_flag(out, report.gives_up);
  append_flag(out, report.changed);
  append_u64(out, report.llsn.value);
  append_u32(out, report.slot);
  append_u32(out, report.stream.value);
  append_u64(out, report.first.value);
  append_u64(out, report.end.value);
}

bool read_report(ByteReader* in, PageReport* report) {
  report->page = PageId::unpack(in->u64());
  report->number = in->u64();
  const bool gives_up = read_flag(in, &report->gives_up);
  const bool changed = read_flag(in, &report->changed);
  report->llsn = Llsn{in->u64()};
  report->slot = in->u32();
  report->stream = StreamId{in->u32()};
  report->first = Lsn{in->u64()};
  report->end = Lsn{in->u64()};
  return gives_up && changed;
}

void append_question(std::string* out, const OwnerQuestion& question) {
  append_u64(out, question.number);
  append_u64(out, question.trx.value);
  append_flag(out, question.decided);
}

bool read_question(ByteReader* in, OwnerQuestion* question) {
  question->number = in->u64();
  question->trx = TrxId{in->u64()};
  return read_flag(in, &question->decided) && question->number != 0 && !question->trx.is_zero();
}

void append_outcome(std::string* out, const TrxOutcome& outcome) {
  append_u8(out, outcome.state);
  append_u64(out, outcome.cts.value);
  append_u64(out, outcome.commit.value);
}

bool read_outcome(ByteReader* in, TrxOutcome* outcome) {
  outcome->state = in->u8();
  outcome->cts = Cts{in->u64()};
  outcome->commit = Lsn{in->u64()};
  return outcome->state <= kTrxStatesMax && outcome->cts.value <= kCtsMax;
}

void append_answer(std::string* out, const OwnerAnswer& answer) {
  append_u64(out, answer.number);
  append_status(out, answer.status);
  if (answer.status.ok()) append_outcome(out, answer.outcome);
}

bool read_answer(ByteReader* in, OwnerAnswer* answer) {
  answer->number = in->u64();
  bool well_formed = true;
  answer->status = read_status(in, &well_formed);
  if (!well_formed || answer->number == 0) return false;
  return !answer->status.ok() || read_outcome(in, &answer->outcome);
}

void append_lock_request(std::string* out, const LockRequest& request) {
  append_u8(out, static_cast<uint8_t>(request.kind));
  append_u64(out, request.number);
  append_u64(out, request.trx.value);
  append_u64(out, request.holder.value);
  append_u32(out, request.index.value);
  append_bytes32(out, request.key);
  append_bytes32(out, request.high);
  append_u64(out, request.ticket);
  append_flag(out, request.infinite);
  append_flag(out, request.flag);
  append_flag(out, request.announced);
}

bool read_lock_request(ByteReader* in, LockRequest* request) {
  const uint8_t kind = in->u8();
  request->kind = static_cast<LockRequestKind>(kind);
  request->number = in->u64();
  request->trx = TrxId{in->u64()};
  request->holder = TrxId{in->u64()};
  request->index = IndexId{in->u32()};
  const bool fits = read_text(in, kLockKeyBytesMax, &request->key) &&
                    read_text(in, kLockKeyBytesMax, &request->high);
  request->ticket = in->u64();
  return fits && read_flag(in, &request->infinite) && read_flag(in, &request->flag) &&
         read_flag(in, &request->announced) && kind != 0 &&
         kind <= static_cast<uint8_t>(LockRequestKind::kReported);
}

void append_lock_event(std::string* out, const LockEvent& event) {
  append_u8(out, static_cast<uint8_t>(event.kind));
  append_u64(out, event.number);
  append_u64(out, event.trx.value);
  append_u32(out, event.index.value);
  append_bytes32(out, event.key);
  append_u64(out, event.ticket);
  append_flag(out, event.flag);
  append_list(out, event.waits, [](std::string* to, uint64_t wait) { append_u64(to, wait); });
}

bool read_lock_event(ByteReader* in, LockEvent* event) {
  const uint8_t kind = in->u8();
  event->kind = static_cast<LockEventKind>(kind);
  event->number = in->u64();
  event->trx = TrxId{in->u64()};
  event->index = IndexId{in->u32()};
  const bool is_text =
      event->kind == LockEventKind::kDescription || event->kind == LockEventKind::kDeadlock;
  const bool fits = read_text(in, is_text ? kLockTextBytesMax : kLockKeyBytesMax, &event->key);
  event->ticket = in->u64();
  return fits && read_flag(in, &event->flag) && kind != 0 &&
         kind <= static_cast<uint8_t>(LockEventKind::kDeadlock) &&
         read_list(in, kLockCycleMax, 8, &event->waits, [](ByteReader* from, uint64_t* wait) {
           *wait = from->u64();
           return true;
         });
}

}  // namespace

// --- who takes part ---

std::string encode(const FusionJoinRequest& request) {
  std::string out;
  append_u8(&out, request.server.value);
  append_u64(&out, request.life);
  append_flag(&out, request.alone);
  append_bytes32(&out, request.token);
  return out;
}

StatusOr<FusionJoinRequest> decode_fusion_join(Bytes bytes) {
  return decoded<FusionJoinRequest>(bytes, error_invalid_argument("not a server's request to join"),
                                    [](ByteReader* in, FusionJoinRequest* out) {
                                      out->server = NodeId{in->u8()};
                                      out->life = in->u64();
                                      return read_flag(in, &out->alone) &&
                                             read_text(in, kPoolTokenBytesMax, &out->token) &&
                                             is_server(out->server) && out->life != 0;
                                    });
}

std::string encode(const FusionJoinReply& reply) {
  std::string out;
  append_u64(&out, reply.epoch.value);
  append_bytes32(&out, reply.times);
  append_bytes32(&out, reply.pool);
  append_u32(&out, reply.slots);
  append_table(&out, reply.table);
  return out;
}

StatusOr<FusionJoinReply> decode_fusion_join_reply(Bytes bytes) {
  return decoded<FusionJoinReply>(
      bytes, error_corruption("not a reply to a request to join"),
      [](ByteReader* in, FusionJoinReply* out) {
        out->epoch = Epoch{in->u64()};
        const bool fits = read_text(in, kPoolTokenBytesMax, &out->times) &&
                          read_text(in, kPoolTokenBytesMax, &out->pool);
        out->slots = in->u32();
        return fits && read_table(in, &out->table) && !out->epoch.is_zero() &&
               !out->times.empty() && out->pool.empty() == (out->slots == 0);
      });
}

std::string encode(const FusionRenewRequest& request) {
  const Heartbeat& beat = request.beat;
  std::string out;
  append_caller(&out, {beat.server, beat.life, beat.epoch});
  append_u64(&out, beat.fences_heard);
  append_flag(&out, beat.has_views);
  append_u64(&out, beat.oldest_view.value);
  append_u64(&out, beat.bound);
  append_u64(&out, request.members);
  append_u64(&out, request.placement);
  return out;
}

StatusOr<FusionRenewRequest> decode_fusion_renew(Bytes bytes) {
  return decoded<FusionRenewRequest>(bytes, error_invalid_argument("not a request for a lease"),
                                     [](ByteReader* in, FusionRenewRequest* out) {
                                       PageCaller caller;
                                       if (!read_caller(in, &caller)) return false;
                                       Heartbeat& beat = out->beat;
                                       beat.server = caller.server;
                                       beat.life = caller.life;
                                       beat.epoch = caller.epoch;
                                       beat.fences_heard = in->u64();
                                       const bool well_formed = read_flag(in, &beat.has_views);
                                       beat.oldest_view = Cts{in->u64()};
                                       beat.bound = in->u64();
                                       out->members = in->u64();
                                       out->placement = in->u64();
                                       return well_formed && beat.oldest_view.value <= kCtsMax;
                                     });
}

std::string encode(const FusionRenewReply& reply) {
  std::string out;
  append_u64(&out, reply.reply.epoch.value);
  append_u64(&out, reply.reply.lease_us);
  append_list(&out, reply.reply.fences, [](std::string* to, const Fence& fence) {
    append_u8(to, fence.server.value);
    append_u64(to, fence.number);
  });
  append_u64(&out, reply.reply.horizon.value);
  append_list(&out, reply.reply.bounds, [](std::string* to, const HeartbeatReply::Bound& bound) {
    append_u8(to, bound.server.value);
    append_u64(to, bound.bound);
  });
  append_u64(&out, reply.members);
  append_list(&out, reply.servers, append_server);
  return out;
}

StatusOr<FusionRenewReply> decode_fusion_renew_reply(Bytes bytes) {
  return decoded<FusionRenewReply>(
      bytes, error_corruption("not a reply about a lease"),
      [](ByteReader* in, FusionRenewReply* out) {
        out->reply.epoch = Epoch{in->u64()};
        out->reply.lease_us = in->u64();
        bool well_formed = read_list(in, kFusionServersMax, kFenceBytes, &out->reply.fences,
                                     [](ByteReader* from, Fence* fence) {
                                       fence->server = NodeId{from->u8()};
                                       fence->number = from->u64();
                                       return is_server(fence->server) && fence->number != 0;
                                     });
        out->reply.horizon = Cts{in->u64()};
        well_formed =
            well_formed && read_list(in, kFusionServersMax, kFenceBytes, &out->reply.bounds,
                                     [](ByteReader* from, HeartbeatReply::Bound* bound) {
                                       bound->server = NodeId{from->u8()};
                                       bound->bound = from->u64();
                                       return is_server(bound->server);
                                     });
        out->members = in->u64();
        return well_formed &&
               read_list(in, kFusionServersMax, kServerBytesMin, &out->servers, read_server) &&
               !out->reply.epoch.is_zero() && out->reply.horizon.value <= kCtsMax;
      });
}

std::string encode(const FusionCallerRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  return out;
}

StatusOr<FusionCallerRequest> decode_fusion_caller(Bytes bytes) {
  return decoded<FusionCallerRequest>(
      bytes, error_invalid_argument("not a server's request"),
      [](ByteReader* in, FusionCallerRequest* out) { return read_caller(in, &out->caller); });
}

std::string encode(const FusionLeaveRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_position(&out, request.end);
  return out;
}

StatusOr<FusionLeaveRequest> decode_fusion_leave(Bytes bytes) {
  return decoded<FusionLeaveRequest>(bytes, error_invalid_argument("not a server that leaves"),
                                     [](ByteReader* in, FusionLeaveRequest* out) {
                                       return read_caller(in, &out->caller) &&
                                              read_position(in, &out->end);
                                     });
}

std::string encode(const FusionLineRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_bytes32(&out, request.own_end);
  return out;
}

StatusOr<FusionLineRequest> decode_fusion_line(Bytes bytes) {
  return decoded<FusionLineRequest>(bytes, error_invalid_argument("not a server's line"),
                                    [](ByteReader* in, FusionLineRequest* out) {
                                      return read_caller(in, &out->caller) &&
                                             read_text(in, kOwnEndBytesMax, &out->own_end);
                                    });
}

// --- pages ---

std::string encode(const AskPagesRequest& request) {
  std::string out;
  out.reserve(32 + request.asks.size() * kAskBytes);
  append_caller(&out, request.caller);
  append_list(&out, request.asks, append_ask);
  append_u32(&out, request.wait_us);
  return out;
}

StatusOr<AskPagesRequest> decode_ask_pages(Bytes bytes) {
  return decoded<AskPagesRequest>(
      bytes, error_invalid_argument("not a request for pages' locks"),
      [](ByteReader* in, AskPagesRequest* out) {
        if (!read_caller(in, &out->caller) ||
            !read_list(in, kFusionPagesMax, kAskBytes, &out->asks, read_ask))
          return false;
        out->wait_us = in->u32();
        return !out->asks.empty();
      });
}

std::string encode(const AskPagesReply& reply) {
  std::string out;
  append_grants(&out, reply.grants);
  return out;
}

StatusOr<AskPagesReply> decode_ask_pages_reply(Bytes bytes) {
  return decoded<AskPagesReply>(
      bytes, error_corruption("not a list of pages granted"),
      [](ByteReader* in, AskPagesReply* out) { return read_grants(in, &out->grants); });
}

std::string encode(const ReportPagesRequest& request) {
  std::string out;
  out.reserve(32 + request.reports.size() * kReportBytes);
  append_caller(&out, request.caller);
  append_list(&out, request.reports, append_report);
  return out;
}

StatusOr<ReportPagesRequest> decode_report_pages(Bytes bytes) {
  return decoded<ReportPagesRequest>(bytes, error_invalid_argument("not a report of pages"),
                                     [](ByteReader* in, ReportPagesRequest* out) {
                                       return read_caller(in, &out->caller) &&
                                              read_list(in, kFusionPagesMax, kReportBytes,
                                                        &out->reports, read_report) &&
                                              !out->reports.empty();
                                     });
}

std::string encode(const TakePageSlotsRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_u64(&out, request.request);
  append_u32(&out, request.wanted);
  append_u32(&out, request.wait_us);
  return out;
}

StatusOr<TakePageSlotsRequest> decode_take_page_slots(Bytes bytes) {
  return decoded<TakePageSlotsRequest>(bytes, error_invalid_argument("not a request for slots"),
                                       [](ByteReader* in, TakePageSlotsRequest* out) {
                                         if (!read_caller(in, &out->caller)) return false;
                                         out->request = in->u64();
                                         out->wanted = in->u32();
                                         out->wait_us = in->u32();
                                         return out->request != 0 && out->wanted != 0 &&
                                                out->wanted <= kFusionSlotsMax;
                                       });
}

std::string encode(const TakePageSlotsReply& reply) {
  std::string out;
  append_list(&out, reply.slots, [](std::string* to, uint32_t slot) { append_u32(to, slot); });
  return out;
}

StatusOr<TakePageSlotsReply> decode_take_page_slots_reply(Bytes bytes) {
  return decoded<TakePageSlotsReply>(
      bytes, error_corruption("not a list of slots"), [](ByteReader* in, TakePageSlotsReply* out) {
        return read_list(in, kFusionSlotsMax, 4, &out->slots, [](ByteReader* from, uint32_t* slot) {
          *slot = from->u32();
          return *slot != kNoPageSlot;
        });
      });
}

std::string encode(const AdoptPagesRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_u8(&out, request.place.value);
  append_u64(&out, request.from.packed());
  return out;
}

StatusOr<AdoptPagesRequest> decode_adopt_pages(Bytes bytes) {
  return decoded<AdoptPagesRequest>(bytes, error_invalid_argument("not a request to adopt a place"),
                                    [](ByteReader* in, AdoptPagesRequest* out) {
                                      if (!read_caller(in, &out->caller)) return false;
                                      out->place = NodeId{in->u8()};
                                      out->from = PageId::unpack(in->u64());
                                      return is_server(out->place);
                                    });
}

std::string encode(const AdoptPagesReply& reply) {
  std::string out;
  append_flag(&out, reply.more);
  append_list(&out, reply.pages,
              [](std::string* to, const PageId& page) { append_u64(to, page.packed()); });
  return out;
}

StatusOr<AdoptPagesReply> decode_adopt_pages_reply(Bytes bytes) {
  return decoded<AdoptPagesReply>(bytes, error_corruption("not a list of adopted pages"),
                                  [](ByteReader* in, AdoptPagesReply* out) {
                                    return read_flag(in, &out->more) &&
                                           read_list(in, kListedPagesMax, 8, &out->pages,
                                                     [](ByteReader* from, PageId* page) {
                                                       *page = PageId::unpack(from->u64());
                                                       return true;
                                                     }) &&
                                           (!out->more || !out->pages.empty());
                                  });
}

std::string encode(const AdoptionEndedRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_u8(&out, request.place.value);
  append_position(&out, request.end);
  return out;
}

StatusOr<AdoptionEndedRequest> decode_adoption_ended(Bytes bytes) {
  return decoded<AdoptionEndedRequest>(bytes, error_invalid_argument("not the end of an adoption"),
                                       [](ByteReader* in, AdoptionEndedRequest* out) {
                                         if (!read_caller(in, &out->caller)) return false;
                                         out->place = NodeId{in->u8()};
                                         return is_server(out->place) &&
                                                read_position(in, &out->end);
                                       });
}

std::string encode(const WriteBackPagesRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_u32(&out, request.stream.value);
  append_u64(&out, request.below.value);
  append_u32(&out, request.wait_us);
  return out;
}

StatusOr<WriteBackPagesRequest> decode_write_back_pages(Bytes bytes) {
  return decoded<WriteBackPagesRequest>(bytes,
                                        error_invalid_argument("not a request to write pages back"),
                                        [](ByteReader* in, WriteBackPagesRequest* out) {
                                          if (!read_caller(in, &out->caller)) return false;
                                          out->stream = StreamId{in->u32()};
                                          out->below = Lsn{in->u64()};
                                          out->wait_us = in->u32();
                                          return !out->stream.is_zero();
                                        });
}

std::string encode(const WriteBackPagesReply& reply) {
  std::string out;
  append_u64(&out, reply.oldest.value);
  return out;
}

StatusOr<WriteBackPagesReply> decode_write_back_pages_reply(Bytes bytes) {
  return decoded<WriteBackPagesReply>(bytes, error_corruption("not a reply about pages written"),
                                      [](ByteReader* in, WriteBackPagesReply* out) {
                                        out->oldest = Lsn{in->u64()};
                                        return true;
                                      });
}

std::string encode(const ForgetSpacePagesRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_u32(&out, request.space.value);
  return out;
}

StatusOr<ForgetSpacePagesRequest> decode_forget_space_pages(Bytes bytes) {
  return decoded<ForgetSpacePagesRequest>(bytes,
                                          error_invalid_argument("not a request about a space"),
                                          [](ByteReader* in, ForgetSpacePagesRequest* out) {
                                            if (!read_caller(in, &out->caller)) return false;
                                            out->space = SpaceId{in->u32()};
                                            return true;
                                          });
}

// --- what the memory node has to say ---

std::string encode(const FusionEventsRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_u32(&out, request.wait_us);
  return out;
}

StatusOr<FusionEventsRequest> decode_fusion_events(Bytes bytes) {
  return decoded<FusionEventsRequest>(bytes, error_invalid_argument("not a request for events"),
                                      [](ByteReader* in, FusionEventsRequest* out) {
                                        if (!read_caller(in, &out->caller)) return false;
                                        out->wait_us = in->u32();
                                        return true;
                                      });
}

std::string encode(const FusionEventsReply& reply) {
  std::string out;
  append_grants(&out, reply.grants);
  append_list(&out, reply.give_ups, [](std::string* to, const PageGiveUp& give_up) {
    append_u64(to, give_up.page.packed());
    append_u64(to, give_up.number);
  });
  append_list(&out, reply.questions, append_question);
  append_name_news(&out, reply.names);
  return out;
}

StatusOr<FusionEventsReply> decode_fusion_events_reply(Bytes bytes) {
  return decoded<FusionEventsReply>(
      bytes, error_corruption("not a list of events"), [](ByteReader* in, FusionEventsReply* out) {
        return read_grants(in, &out->grants) &&
               read_list(in, kFusionPagesMax, kGiveUpBytes, &out->give_ups,
                         [](ByteReader* from, PageGiveUp* give_up) {
                           give_up->page = PageId::unpack(from->u64());
                           give_up->number = from->u64();
                           return give_up->number != 0;
                         }) &&
               read_list(in, kFusionQuestionsMax, kQuestionBytes, &out->questions, read_question) &&
               read_name_news(in, &out->names);
      });
}

// --- transactions of other servers ---

std::string encode(const AskOwnerRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_u64(&out, request.trx.value);
  append_flag(&out, request.decided);
  append_u32(&out, request.wait_us);
  return out;
}

StatusOr<AskOwnerRequest> decode_ask_owner(Bytes bytes) {
  return decoded<AskOwnerRequest>(bytes,
                                  error_invalid_argument("not a question about a transaction"),
                                  [](ByteReader* in, AskOwnerRequest* out) {
                                    if (!read_caller(in, &out->caller)) return false;
                                    out->trx = TrxId{in->u64()};
                                    const bool well_formed = read_flag(in, &out->decided);
                                    out->wait_us = in->u32();
                                    return well_formed && is_server(node_of(out->trx));
                                  });
}

std::string encode(const TrxOutcome& outcome) {
  std::string out;
  append_outcome(&out, outcome);
  return out;
}

StatusOr<TrxOutcome> decode_ask_owner_reply(Bytes bytes) {
  return decoded<TrxOutcome>(bytes, error_corruption("not what became of a transaction"),
                             [](ByteReader* in, TrxOutcome* out) { return read_outcome(in, out); });
}

std::string encode(const AnswerAskersRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_list(&out, request.answers, append_answer);
  return out;
}

StatusOr<AnswerAskersRequest> decode_answer_askers(Bytes bytes) {
  return decoded<AnswerAskersRequest>(
      bytes, error_invalid_argument("not answers about transactions"),
      [](ByteReader* in, AnswerAskersRequest* out) {
        return read_caller(in, &out->caller) &&
               read_list(in, kFusionQuestionsMax, kAnswerBytesMin, &out->answers, read_answer) &&
               !out->answers.empty();
      });
}

// --- row locks ---

size_t encoded_bytes(const LockRequest& request) noexcept {
  return kLockRequestBytesMin + request.key.size() + request.high.size();
}

size_t encoded_bytes(const LockEvent& event) noexcept {
  return kLockEventBytesMin + event.key.size() + 8 * event.waits.size();
}

std::string encode(const LockBatch& batch) {
  std::string out;
  append_caller(&out, {batch.server, batch.life, batch.epoch});
  append_u64(&out, batch.number);
  append_u64(&out, batch.heard);
  append_list(&out, batch.requests, append_lock_request);
  return out;
}

StatusOr<LockBatch> decode_row_locks(Bytes bytes) {
  return decoded<LockBatch>(bytes, error_invalid_argument("not a message about row locks"),
                            [](ByteReader* in, LockBatch* out) {
                              PageCaller caller;
                              if (!read_caller(in, &caller)) return false;
                              out->server = caller.server;
                              out->life = caller.life;
                              out->epoch = caller.epoch;
                              out->number = in->u64();
                              out->heard = in->u64();
                              return read_list(in, kLockRequestsMax, kLockRequestBytesMin,
                                               &out->requests, read_lock_request) &&
                                     (out->number != 0 || out->requests.empty());
                            });
}

std::string encode(const LockReply& reply) {
  std::string out;
  append_u64(&out, reply.accepted);
  append_flag(&out, reply.active);
  append_u64(&out, reply.first_event);
  append_list(&out, reply.events, append_lock_event);
  return out;
}

StatusOr<LockReply> decode_row_locks_reply(Bytes bytes) {
  return decoded<LockReply>(
      bytes, error_corruption("not a reply about row locks"), [](ByteReader* in, LockReply* out) {
        out->accepted = in->u64();
        const bool well_formed = read_flag(in, &out->active);
        out->first_event = in->u64();
        return well_formed &&
               read_list(in, kLockEventsMax, kLockEventBytesMin, &out->events, read_lock_event);
      });
}

std::string encode(const std::vector<DeadlockWait>& waits) {
  std::string out;
  append_list(&out, waits, [](std::string* to, const DeadlockWait& wait) {
    append_u64(to, wait.trx.value);
    append_u32(to, wait.index.value);
    append_bytes32(to, wait.key);
  });
  return out;
}

StatusOr<std::vector<DeadlockWait>> decode_deadlock(Bytes bytes) {
  using Waits = std::vector<DeadlockWait>;
  return decoded<Waits>(
      bytes, error_corruption("not the waits of a deadlock"), [](ByteReader* in, Waits* out) {
        constexpr size_t kBytesMin = 8 + 4 + 4;
        return read_list(in, kDeadlockWaitsMax, kBytesMin, out,
                         [](ByteReader* from, DeadlockWait* wait) {
                           wait->trx = TrxId{from->u64()};
                           wait->index = IndexId{from->u32()};
                           return read_text(from, kDeadlockKeyBytesMax, &wait->key);
                         });
      });
}

std::string encode(const RowLockEventsRequest& request) {
  std::string out;
  append_caller(&out, request.caller);
  append_u64(&out, request.heard);
  append_u32(&out, request.wait_us);
  return out;
}

StatusOr<RowLockEventsRequest> decode_row_lock_events(Bytes bytes) {
  return decoded<RowLockEventsRequest>(
      bytes, error_invalid_argument("not a request for row locks' events"),
      [](ByteReader* in, RowLockEventsRequest* out) {
        if (!read_caller(in, &out->caller)) return false;
        out->heard = in->u64();
        out->wait_us = in->u32();
        return true;
      });
}

}  // namespace strata::proto
