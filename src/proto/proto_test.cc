// Goal: messages arrive as they were sent (LM2, PM2), their bytes are what methods.def says, and
// bytes that are no message are refused without harm (LM1, PM1). Method: random messages there and
// back; each cut short at every length, with a byte more, and with random bytes changed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "proto/copy_messages.h"
#include "proto/fusion_messages.h"
#include "proto/internal/layout_digest.h"
#include "proto/log_messages.h"
#include "proto/memory_messages.h"
#include "proto/methods.h"
#include "proto/name_messages.h"
#include "proto/page_messages.h"
#include "proto/resume_messages.h"
#include "proto/status_bytes.h"
#include "proto/written_messages.h"

namespace strata::proto {
namespace {

constexpr StreamId kStream{7};

// The bytes of a message as methods.def describes them.
class Layout {
 public:
  explicit Layout(std::string fields) : fields_(std::move(fields)) {}
  [[nodiscard]] bool is_of(const std::string& bytes) const {
    ByteReader in(bytes);
    return read(fields_, &in) && in.ok() && in.remaining() == 0;
  }

 private:
  static std::string trimmed(const std::string& text) {
    const size_t begin = text.find_first_not_of(' ');
    return begin == std::string::npos ? ""
                                      : text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
  }
  // Between the bars outside of braces.
  static std::vector<std::string> parts(const std::string& fields) {
    std::vector<std::string> out;
    int depth = 0;
    std::string part;
    for (const char c : fields) {
      depth += c == '{' ? 1 : c == '}' ? -1 : 0;
      if (c != '|' || depth > 0)
        part += c;
      else
        out.push_back(trimmed(std::exchange(part, "")));
    }
    if (!trimmed(part).empty()) out.push_back(trimmed(part));
    return out;
  }
  static bool read(const std::string& fields, ByteReader* in) {
    bool status_is_ok = true;
    for (const std::string& field : parts(fields))
      if ((field[0] != '?' || status_is_ok) && !read_field(field, in, &status_is_ok)) return false;
    return in->ok();
  }
  static bool read_field(const std::string& field, ByteReader* in, bool* status_is_ok) {
    if (const size_t brace = field.find('{'); brace != std::string::npos) {
      const std::string inner = field.substr(brace + 1, field.rfind('}') - brace - 1);
      for (uint32_t n = in->u32(); n > 0; --n)
        if (!read(inner, in)) return false;
      return true;
    }
    const std::string type = field.substr(field.rfind(' ') + 1);
    bool well_formed = true;
    if (type == "u8")
      in->u8();
    else if (type == "u32")
      in->u32();
    else if (type == "u64")
      in->u64();
    else if (type == "text" || type.starts_with("region:"))
      in->bytes32();
    else if (type == "page")
      in->bytes(kPageBytes);
    else if (type == "rest")
      in->bytes(in->remaining());
    else if (field == "status")
      *status_is_ok = read_status(in, &well_formed).ok();
    else if (fields_named(field.c_str()) == nullptr)
      return false;
    else
      return read(fields_named(field.c_str()), in);
    return well_formed && in->ok();
  }

  const std::string fields_;
};

const char* request_of(Method method) { return traits_of(method).request; }
const char* reply_of(Method method) { return traits_of(method).reply; }

class Messages : public ::testing::TestWithParam<uint64_t> {
 protected:
  std::string some_bytes(size_t max) {
    std::string out(1 + rng_.below(max), '\0');
    for (char& c : out) c = static_cast<char>(rng_.next());
    return out;
  }
  Lsn lsn() { return Lsn{rng_.next()}; }
  Epoch epoch() { return Epoch{rng_.next()}; }
  quorum::History history() {
    quorum::History out;
    uint64_t epoch = 0;
    uint64_t start = rng_.below(100);
    for (uint64_t n = rng_.below(5); n > 0; --n)
      out.push_back({Epoch{epoch += 1 + rng_.below(9)}, Lsn{start += 1 + rng_.below(1000)}});
    return out;
  }
  quorum::Tenure tenure() { return {{epoch(), rng_.next()}, lsn(), lsn(), history()}; }
  quorum::ReplicaState state() { return {epoch(), epoch(), lsn(), lsn(), lsn(), rng_.one_in(2)}; }
  Status status() { return rng_.one_in(2) ? ok_status() : error_fenced(some_bytes(20)); }

  // decode(encode(x)) encodes to the same bytes; anything shorter or longer is refused. `open_end`:
  // the message ends with bytes of any number, so that only its head can be too short.
  template <class Decode, class Encode>
  void there_and_back(const char* fields, const std::string& bytes, Decode decode,
                      Encode encode_again, size_t open_end = 0) {
    EXPECT_TRUE(Layout(fields).is_of(bytes)) << fields;
    const auto decoded = decode(Bytes(bytes));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(encode_again(*decoded), bytes);
    for (size_t cut = 0; cut < bytes.size() - open_end; ++cut)
      EXPECT_FALSE(decode(Bytes(bytes).substr(0, cut)).ok()) << cut << " of " << bytes.size();
    if (open_end == 0) {
      EXPECT_FALSE(decode(Bytes(bytes + "x")).ok());
    }
    for (int i = 0; i < 50; ++i) {
      std::string changed = bytes;
      for (uint64_t n = 1 + rng_.below(4); n > 0 && !changed.empty(); --n)
        changed[rng_.below(changed.size())] = static_cast<char>(rng_.next());
      const auto other = decode(Bytes(changed));
      if (other.ok()) {
        EXPECT_TRUE(decode(Bytes(encode_again(*other))).ok());
      }
    }
  }
  template <class Request, class Decode>
  void request(const char* fields, const Request& sent, Decode decode, size_t open_end = 0) {
    there_and_back(
        fields, encode(kStream, sent), decode,
        [](const OfStream<Request>& got) { return encode(got.stream, got.request); }, open_end);
  }
  template <class Message, class Decode>
  void message(const char* fields, const Message& sent, Decode decode, size_t open_end = 0) {
    there_and_back(
        fields, encode(sent), decode, [](const Message& got) { return encode(got); }, open_end);
  }
  Rng rng_{GetParam()};
};

TEST_P(Messages, RequestsOfTheLogService) {
  request(request_of(kLogSeal), quorum::SealRequest{{epoch(), rng_.next()}}, decode_log_seal);
  request(request_of(kLogBegin), quorum::BeginRequest{tenure(), lsn()}, decode_log_begin);
  const std::string bytes = some_bytes(300);
  request(request_of(kLogCatchUp), quorum::CatchUpRequest{tenure(), lsn(), bytes, lsn()},
          decode_log_catch_up, bytes.size());
  request(request_of(kLogAppend), quorum::AppendRequest{epoch(), lsn(), bytes, lsn()},
          decode_log_append, bytes.size());
  request(request_of(kLogOrder), quorum::CatchUpOrder{tenure(), lsn(), lsn(), {1, 2, 5}},
          decode_log_order);
  request(request_of(kLogRead),
          quorum::ReadRequest{lsn(), static_cast<uint32_t>(rng_.next()), rng_.one_in(2), epoch()},
          decode_log_read);
  request(request_of(kLogTruncate), TruncateRequest{epoch(), lsn()}, decode_log_truncate);
}

TEST_P(Messages, RepliesOfTheLogService) {
  message(reply_of(kLogSeal), quorum::SealReply{status(), state(), history()}, decode_seal_reply);
  message(reply_of(kLogAppend), quorum::ChangeReply{status(), state(), lsn()}, decode_change_reply);
  const std::string bytes = some_bytes(300);
  message(reply_of(kLogRead),
          quorum::ReadReply{status(), lsn(), bytes, lsn(), lsn(), rng_.one_in(2)},
          decode_read_reply, bytes.size());
}

TEST_P(Messages, OfThePageService) {
  GetPagesRequest wanted{kStream, epoch(), 17, {}, {}};
  for (uint64_t n = 1 + rng_.below(4); n > 0; --n) {
    const uint64_t at_least = rng_.next() / 2;
    wanted.pages.push_back({PageId::unpack(rng_.next()), Llsn{at_least}, Llsn{at_least + n}});
  }
  for (uint64_t n = rng_.below(4); n > 0; --n) wanted.scanned_to.push_back({StreamId{3}, lsn()});
  wanted.session = rng_.next();
  message(request_of(kGetPages), wanted, decode_get_pages);

  GetPagesReply got;
  got.progress = {rng_.next(), rng_.next(), rng_.next()};
  got.pages.push_back({error_not_found("never written"), {}, {}});
  got.pages.push_back({ok_status(), Llsn{rng_.next()}, std::string(kPageBytes, 'p')});
  const std::string bytes = encode(got);
  const auto decoded = decode_get_pages_reply(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(encode(*decoded), bytes);
  EXPECT_TRUE(Layout(reply_of(kGetPages)).is_of(bytes));
  const auto view = view_get_pages_reply(bytes);
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(encode(*view), bytes);
  EXPECT_GE(view->pages[1].bytes.data(), bytes.data());
  EXPECT_FALSE(decode_get_pages_reply(Bytes(bytes).substr(0, bytes.size() - 1)).ok());

  message(request_of(kListSpaces), ListSpacesRequest{wanted.scanned_to}, decode_list_spaces);
  message(reply_of(kListSpaces),
          ListSpacesReply{{SpaceId{1}, SpaceId{300}}, Llsn{rng_.next()}, rng_.next(), {}},
          decode_list_spaces_reply);
  message(reply_of(kListSpaces),
          ListSpacesReply{{}, {}, rng_.next(), {{StreamId{3}, lsn()}, {StreamId{4}, lsn()}}},
          decode_list_spaces_reply);
  message(request_of(kReaderLease), ReaderLeaseRequest{rng_.next() | 1, Llsn{rng_.next()}, 5000},
          decode_reader_lease);
}

TEST_P(Messages, OfNodesWhosePagesAreWritten) {
  const Writer writer{kStream, epoch(), 1 + rng_.next() / 2};
  message(request_of(kBeginWrites), BeginWritesRequest{writer, rng_.next()}, decode_begin_writes);
  message(reply_of(kBeginWrites), BeginWritesReply{rng_.next() | 1, rng_.one_in(2)},
          decode_begin_writes_reply);
  message(request_of(kSyncPages), SyncPagesRequest{writer}, decode_sync_pages);
  message(request_of(kGrowSpace),
          SpaceRequest{writer, SpaceId{300}, static_cast<uint32_t>(rng_.next())}, decode_space);
  message(reply_of(kListSpaceSizes),
          ListSpaceSizesReply{{{SpaceId{1}, 64}, {SpaceId{300}, 1u << 31}}},
          decode_list_space_sizes_reply);
  message(request_of(kCopyPages), CopyPagesRequest{writer, "unix:" + some_bytes(40), rng_.next()},
          decode_copy_pages);
  message(reply_of(kCopyPages),
          CopyPagesReply{CopyPagesReply::State::kFailed, rng_.next(), rng_.next(), status()},
          decode_copy_pages_reply);
  const std::string pages(2 * size_t{kPageBytes}, 'p');
  const WritePagesRequest sent{writer, {{300, 1}, {300, 2}}, pages};
  const std::string bytes = encode(sent);
  const auto decoded = decode_write_pages(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(Layout(request_of(kWritePages)).is_of(bytes));
  EXPECT_EQ(decoded->writer, writer);
  EXPECT_EQ(decoded->ids, sent.ids);
  EXPECT_EQ(decoded->pages, pages);
  EXPECT_FALSE(decode_write_pages(Bytes(bytes).substr(0, bytes.size() - 1)).ok());
  EXPECT_FALSE(decode_write_pages(bytes + "x").ok());
}

TEST_P(Messages, OfACopy) {
  CopyOfferReply offer;
  for (uint64_t n = rng_.below(3); n > 0; --n)
    offer.marks.push_back({StreamId{static_cast<uint32_t>(n)}, lsn(), Llsn{rng_.next()}});
  for (uint64_t n = rng_.below(4); n > 0; --n)
    offer.dropped.push_back({SpaceId{300}, Llsn{rng_.next()}, rng_.one_in(2)});
  offer.newest = Llsn{rng_.next()};
  offer.horizon = Llsn{rng_.next()};
  offer.pages = rng_.next();
  message(reply_of(kCopyOffer), offer, decode_copy_offer_reply);
  message(request_of(kListPages),
          ListPagesRequest{PageId::unpack(rng_.next()), 1 + static_cast<uint32_t>(rng_.below(99)),
                           offer.marks},
          decode_list_pages);
  ListPagesReply listed;
  for (uint32_t n = 0; n < rng_.below(5); ++n) listed.pages.push_back({300, n * 3});
  listed.gone = offer.dropped;
  message(reply_of(kListPages), listed, decode_list_pages_reply);
}

TEST_P(Messages, OfAttachingToAPool) {
  const PoolUser user{kStream, Epoch{rng_.next() | 1}, rng_.next() | 1, rng_.next() | 1};
  message(request_of(kPoolAttach),
          PoolAttachRequest{{kStream, Epoch{3}, 1, 0}, rng_.one_in(2), 9, some_bytes(40), 12},
          decode_pool_attach);
  message(reply_of(kPoolAttach),
          PoolAttachReply{user.incarnation,
                          rng_.one_in(2),
                          some_bytes(40),
                          9,
                          rng_.next(),
                          rng_.next(),
                          rng_.next(),
                          epoch(),
                          lsn(),
                          rng_.next(),
                          {},
                          0},
          decode_pool_attach_reply);
  message(reply_of(kPoolAttach),
          PoolAttachReply{user.incarnation, false, "pool", 9, 4096, 8192, 0, epoch(), lsn(), 0,
                          "staging-" + some_bytes(40), kPoolStagedMax},
          decode_pool_attach_reply);
  message(request_of(kPoolList), PoolListRequest{user, 17, kPoolListMax}, decode_pool_list);
  PoolListReply listed{static_cast<uint32_t>(rng_.next()), {}};
  PoolLookupReply looked_up;
  PoolPagesRequest pages{user, {}};
  PoolDropReply dropped;
  for (uint64_t n = 1 + rng_.below(4); n > 0; --n) {
    const PoolSlot at{3, rng_.next(), Llsn{rng_.next()}, rng_.one_in(2)};
    listed.pages.push_back({PageId::unpack(rng_.next()), at});
    looked_up.found.push_back({rng_.one_in(2), at});
    pages.pages.push_back(PageId::unpack(rng_.next()));
    dropped.dropped.push_back(status());
  }
  message(reply_of(kPoolList), listed, decode_pool_list_reply);
  message(request_of(kPoolLookup), pages, decode_pool_pages);
  message(reply_of(kPoolLookup), looked_up, decode_pool_lookup_reply);
  message(request_of(kPoolDrop), pages, decode_pool_pages);
  message(reply_of(kPoolDrop), dropped, decode_pool_drop_reply);
  message(request_of(kPoolForget), PoolForgetRequest{user, SpaceId{300}}, decode_pool_forget);
  message(request_of(kPoolCheckpoint), PoolCheckpointRequest{user, Lsn{rng_.next() | 1}, 5},
          decode_pool_checkpoint);
}

TEST_P(Messages, OfPagesInAPool) {
  const PoolUser user{kStream, Epoch{rng_.next() | 1}, rng_.next() | 1, rng_.next() | 1};
  PoolPutRequest put{user, lsn(), {{{300, 1}, rng_.one_in(2), lsn(), lsn()}}, {}};
  const std::string page(kPageBytes, 'p');
  put.pages = page;
  const std::string bytes = encode(put);
  const auto decoded = decode_pool_put(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(Layout(request_of(kPoolPut)).is_of(bytes));
  EXPECT_EQ(encode(*decoded), bytes);
  EXPECT_EQ(decoded->images, put.images);
  EXPECT_FALSE(decode_pool_put(Bytes(bytes).substr(0, bytes.size() - 1)).ok());
  EXPECT_FALSE(decode_pool_put(bytes + "x").ok());
  message(request_of(kPoolPutStaged),
          PoolPutStagedRequest{user, lsn(), {{put.images[0], Llsn{rng_.next()}, 7}}},
          decode_pool_put_staged);
  message(reply_of(kPoolPutStaged), PoolPutReply{{{status(), 3, rng_.next()}}},
          decode_pool_put_reply);
  message(reply_of(kPoolPut), PoolPutReply{{{status(), 3, rng_.next()}, {status(), 0, 0}}},
          decode_pool_put_reply);
  const PoolTarget target{"unix:" + some_bytes(40), rng_.next() | 1};
  message(request_of(kPoolWrite), PoolWriteRequest{user, lsn(), kPoolImagesMax, {target, target}},
          decode_pool_write);
  message(reply_of(kPoolWrite),
          PoolWriteReply{rng_.next(),
                         lsn(),
                         rng_.next(),
                         {{{300, 1}, Llsn{rng_.next()}}},
                         {{rng_.one_in(2), status()}, {true, status()}}},
          decode_pool_write_reply);
  message(request_of(kPoolWriteAgain), PoolWriteAgainRequest{user, 17, target},
          decode_pool_write_again);
  message(reply_of(kPoolWriteAgain), PoolWriteAgainReply{9, {rng_.one_in(2), status()}},
          decode_pool_write_again_reply);
  message(request_of(kPoolSynced), PoolSyncedRequest{user, rng_.next()}, decode_pool_synced);
  PoolStoredRequest stored{user, {}};
  for (uint64_t i = 0; i <= rng_.below(4); ++i)
    stored.pages.push_back({PageId::unpack(rng_.next()), Llsn{rng_.next()}});
  message(request_of(kPoolStored), stored, decode_pool_stored);
  message(reply_of(kPoolSynced), PoolSyncedReply{lsn(), rng_.next()}, decode_pool_synced_reply);
}

// --- of servers that write the same tables ---

class FusionMessages : public Messages {
 protected:
  PageCaller caller() {
    return {NodeId{static_cast<uint8_t>(1 + rng_.below(kFusionServersMax))}, rng_.next() | 1,
            Epoch{rng_.next() | 1}};
  }
  FusionTable table() { return {"tit-" + some_bytes(20), 1u << rng_.below(20)}; }
  PageMode mode() { return rng_.one_in(2) ? PageMode::kShared : PageMode::kExclusive; }
  PageGrant grant() {
    PageGrant out{PageId::unpack(rng_.next()),
                  rng_.next(),
                  rng_.next() | 1,
                  mode(),
                  rng_.one_in(2),
                  Llsn{rng_.next()},
                  static_cast<uint32_t>(rng_.next()),
                  {Llsn{rng_.next()}, {}}};
    for (uint64_t n = rng_.below(3); n > 0; --n)
      out.floor.scanned_to.push_back({StreamId{static_cast<uint32_t>(n)}, lsn()});
    return out;
  }
  NameMode name_mode() {
    if (rng_.one_in(3)) return NameMode::kShared;
    return rng_.one_in(2) ? NameMode::kUse : NameMode::kExclusive;
  }
  NameNews name_news() {
    NameNews news;
    for (uint64_t n = rng_.below(3); n > 0; --n) {
      news.grants.push_back({some_bytes(40), name_mode(), rng_.next(), rng_.next() | 1});
      news.give_ups.push_back({some_bytes(40), name_mode(), rng_.next() | 1});
      news.leave.push_back({SpaceId{static_cast<uint32_t>(rng_.next())}});
      news.left.push_back({SpaceId{static_cast<uint32_t>(rng_.next())}});
    }
    news.reuse_round = rng_.one_in(2) ? rng_.next() : 0;
    return news;
  }
  Cts cts() { return Cts{rng_.next() & kCtsMax}; }
  TrxId trx() { return make_trx_id(NodeId{3}, rng_.next()); }
};

TEST_P(FusionMessages, OfWhoTakesPart) {
  const PageCaller who = caller();
  message(request_of(kFusionJoin),
          FusionJoinRequest{who.server, who.life, rng_.one_in(2), some_bytes(40)},
          decode_fusion_join);
  message(reply_of(kFusionJoin), FusionJoinReply{who.epoch, "times-1", "pool-1", 9, table()},
          decode_fusion_join_reply);
  message(reply_of(kFusionJoin), FusionJoinReply{who.epoch, "times-1", "", 0, table()},
          decode_fusion_join_reply);
  FusionRenewRequest renew;
  renew.beat = {who.server, who.life, who.epoch, rng_.next(), rng_.one_in(2), cts(), rng_.next()};
  renew.members = rng_.next();
  renew.placement = rng_.next();
  message(request_of(kFusionRenew), renew, decode_fusion_renew);
  FusionRenewReply renewed;
  renewed.reply.epoch = who.epoch;
  renewed.reply.lease_us = rng_.next();
  renewed.reply.horizon = cts();
  renewed.members = rng_.next();
  for (uint64_t n = rng_.below(4); n > 0; --n) {
    renewed.reply.fences.push_back({caller().server, n});
    renewed.reply.bounds.push_back({caller().server, rng_.next()});
    renewed.servers.push_back({caller().server, rng_.next() | 1, table()});
  }
  message(reply_of(kFusionRenew), renewed, decode_fusion_renew_reply);
  message(request_of(kFusionLeave), FusionLeaveRequest{who, {kStream, lsn()}}, decode_fusion_leave);
  message(request_of(kFusionLine), FusionLineRequest{who, some_bytes(40)}, decode_fusion_line);
}

TEST_P(FusionMessages, OfWhoGoesOnAtANewMemoryNode) {
  const PageCaller who = caller();
  message(request_of(kFusionResume), FusionResumeRequest{who, some_bytes(40)},
          decode_fusion_resume);
  message(reply_of(kFusionResume), FusionJoinReply{who.epoch, "times-1", "pool-1", 9, table()},
          decode_fusion_join_reply);
  ReportHeldPagesRequest pages{who, {}};
  ReportHeldNamesRequest names{who, {}};
  for (uint64_t n = 1 + rng_.below(3); n > 0; --n) {
    pages.pages.push_back({PageId::unpack(rng_.next()), rng_.next() | 1, mode()});
    names.names.push_back({some_bytes(40), rng_.next() | 1, rng_.next() | 1, rng_.next() % 2 == 0});
  }
  message(request_of(kReportHeldPages), pages, decode_report_held_pages);
  message(request_of(kReportHeldNames), names, decode_report_held_names);
  message(request_of(kResumeEnded),
          ResumeEndedRequest{who, lsn(), rng_.next(), rng_.next(), rng_.next()},
          decode_resume_ended);
}

TEST_P(FusionMessages, OfPages) {
  const PageCaller who = caller();
  AskPagesRequest asks{who, {}, static_cast<uint32_t>(rng_.next())};
  AskPagesReply granted;
  ReportPagesRequest reports{who, {}};
  TakePageSlotsReply slots;
  AdoptPagesReply adopted{rng_.one_in(2), {}};
  FusionEventsReply events;
  for (uint64_t n = 1 + rng_.below(3); n > 0; --n) {
    const PageId page = PageId::unpack(rng_.next());
    asks.asks.push_back({page, mode(), rng_.next() | 1, rng_.one_in(2)});
    granted.grants.push_back(grant());
    reports.reports.push_back({page, rng_.next(), rng_.one_in(2), rng_.one_in(2), Llsn{rng_.next()},
                               static_cast<uint32_t>(rng_.next()), kStream, lsn(), lsn()});
    slots.slots.push_back(static_cast<uint32_t>(rng_.below(kNoPageSlot)));
    adopted.pages.push_back(page);
    events.grants.push_back(grant());
    events.give_ups.push_back({page, rng_.next() | 1});
    events.questions.push_back({rng_.next() | 1, trx(), rng_.one_in(2)});
  }
  events.names = name_news();
  message(request_of(kAskPages), asks, decode_ask_pages);
  message(reply_of(kAskPages), granted, decode_ask_pages_reply);
  message(request_of(kReportPages), reports, decode_report_pages);
  message(request_of(kTakePageSlots),
          TakePageSlotsRequest{who, rng_.next() | 1, 64, static_cast<uint32_t>(rng_.next())},
          decode_take_page_slots);
  message(reply_of(kTakePageSlots), slots, decode_take_page_slots_reply);
  message(request_of(kAdoptPages), AdoptPagesRequest{who, NodeId{7}, {3, 4}}, decode_adopt_pages);
  message(reply_of(kAdoptPages), adopted, decode_adopt_pages_reply);
  message(request_of(kAdoptionEnded), AdoptionEndedRequest{who, NodeId{7}, {kStream, lsn()}},
          decode_adoption_ended);
  message(request_of(kWriteBackPages), WriteBackPagesRequest{who, kStream, lsn(), 17},
          decode_write_back_pages);
  message(reply_of(kWriteBackPages), WriteBackPagesReply{lsn()}, decode_write_back_pages_reply);
  message(request_of(kForgetSpacePages), ForgetSpacePagesRequest{who, SpaceId{300}},
          decode_forget_space_pages);
  message(request_of(kFusionEvents), FusionEventsRequest{who, 17}, decode_fusion_events);
  message(reply_of(kFusionEvents), events, decode_fusion_events_reply);
  message(reply_of(kFusionEvents), FusionEventsReply{}, decode_fusion_events_reply);
}

TEST_P(FusionMessages, OfNamesSpacesAndReuse) {
  const PageCaller who = caller();
  AskNamesRequest asks{who, {}};
  ReportNamesRequest reports{who, {}};
  LeftSpacesRequest left{who, {}};
  for (uint64_t n = 1 + rng_.below(3); n > 0; --n) {
    asks.asks.push_back(
        {some_bytes(40), rng_.one_in(3) ? NameMode::kNone : name_mode(), rng_.next() | 1});
    reports.reports.push_back(
        {some_bytes(40), rng_.next() | 1, rng_.one_in(2) ? NameMode::kNone : NameMode::kUse});
    left.spaces.push_back(SpaceId{static_cast<uint32_t>(rng_.next())});
  }
  message(request_of(kAskNames), asks, decode_ask_names);
  message(request_of(kReportNames), reports, decode_report_names);
  message(request_of(kNamesAdopted), AdoptionEndedRequest{who, NodeId{7}, {}},
          decode_adoption_ended);
  message(request_of(kSpaceDropped), SpaceDroppedRequest{who, SpaceId{300}}, decode_space_dropped);
  message(reply_of(kSpaceDropped), SpaceDroppedReply{rng_.one_in(2)}, decode_space_dropped_reply);
  message(request_of(kLeftSpaces), left, decode_left_spaces);
  message(request_of(kBeginReuseRound), FusionCallerRequest{who}, decode_fusion_caller);
  message(reply_of(kBeginReuseRound), BeginReuseRoundReply{rng_.next() | 1},
          decode_begin_reuse_round_reply);
  message(request_of(kReuseRoundEnded), ReuseRoundRequest{who, rng_.next() | 1},
          decode_reuse_round);
  message(reply_of(kReuseRoundEnded), ReuseRoundEndedReply{rng_.one_in(2)},
          decode_reuse_round_ended_reply);
  message(request_of(kReportReuseRound), ReuseRoundRequest{who, rng_.next() | 1},
          decode_reuse_round);
}

TEST_P(FusionMessages, OfTransactionsOfOthers) {
  const PageCaller who = caller();
  message(request_of(kAskOwner), AskOwnerRequest{who, trx(), rng_.one_in(2), 17}, decode_ask_owner);
  const TrxOutcome outcome{static_cast<uint8_t>(rng_.below(6)), cts(), lsn()};
  message(reply_of(kAskOwner), outcome, decode_ask_owner_reply);
  AnswerAskersRequest answers{who, {}};
  for (uint64_t n = 1 + rng_.below(3); n > 0; --n) {
    answers.answers.push_back({rng_.next() | 1, status(), {}});
    if (answers.answers.back().status.ok()) answers.answers.back().outcome = outcome;
  }
  message(request_of(kAnswerAskers), answers, decode_answer_askers);
}

TEST_P(FusionMessages, OfRowLocks) {
  const PageCaller who = caller();
  LockBatch batch{who.server, who.life, who.epoch, rng_.next() | 1, rng_.next(), {}};
  LockReply reply{rng_.next(), rng_.one_in(2), rng_.next(), {}};
  for (uint64_t n = rng_.below(4); n > 0; --n) {
    LockRequest request;
    request.kind = static_cast<LockRequestKind>(1 + rng_.below(20));
    request.number = rng_.next();
    request.trx = trx();
    request.holder = trx();
    request.index = IndexId{static_cast<uint32_t>(rng_.next())};
    request.key = some_bytes(40);
    request.high = rng_.one_in(2) ? some_bytes(40) : "";
    request.ticket = rng_.next();
    request.infinite = rng_.one_in(2);
    request.flag = rng_.one_in(2);
    request.announced = rng_.one_in(2);
    EXPECT_LE(encoded_bytes(request), encode(LockBatch{.requests = {request}}).size());
    batch.requests.push_back(request);
    LockEvent event;
    event.kind = static_cast<LockEventKind>(1 + rng_.below(11));
    event.number = rng_.next();
    event.trx = trx();
    event.index = request.index;
    event.key = some_bytes(40);
    event.ticket = rng_.next();
    event.flag = rng_.one_in(2);
    for (uint64_t w = rng_.below(3); w > 0; --w) event.waits.push_back(rng_.next());
    reply.events.push_back(event);
  }
  message(request_of(kRowLocks), batch, decode_row_locks);
  message(reply_of(kRowLocks), reply, decode_row_locks_reply);
  message(request_of(kRowLockEvents), RowLockEventsRequest{who, rng_.next(), 17},
          decode_row_lock_events);
  message(reply_of(kRowLockEvents), reply, decode_row_locks_reply);
}

INSTANTIATE_TEST_SUITE_P(Seeds, FusionMessages, ::testing::Range<uint64_t>(1, 21));

void expect_names_refused(const PageCaller& who) {
  const NameAsk ask{std::string(kNameBytesMax, 'n'), NameMode::kUse, 1};
  const auto asked = [&](const NameAsk& one, size_t count = 1) {
    return decode_ask_names(encode(AskNamesRequest{who, std::vector<NameAsk>(count, one)})).ok();
  };
  EXPECT_TRUE(asked(ask, kFusionNamesMax));
  EXPECT_FALSE(asked(ask, kFusionNamesMax + 1));
  EXPECT_FALSE(asked(ask, 0)) << "no name";
  EXPECT_FALSE(asked({ask.name + "n", NameMode::kUse, 1}));
  EXPECT_FALSE(asked({"n", NameMode::kUse, 0}));
  EXPECT_FALSE(asked({"n", static_cast<NameMode>(3), 1})) << "nobody asks for that yet";
  const auto reported = [&](const NameReport& one, size_t count = 1) {
    return decode_report_names(encode(ReportNamesRequest{who, std::vector<NameReport>(count, one)}))
        .ok();
  };
  EXPECT_TRUE(reported({"n", 1, NameMode::kUse}, kFusionNamesMax));
  EXPECT_FALSE(reported({"n", 1, NameMode::kUse}, kFusionNamesMax + 1));
  EXPECT_FALSE(reported({"n", 0, NameMode::kUse}));
  EXPECT_FALSE(reported({"n", 1, NameMode::kExclusive})) << "that is no report of an end";
  EXPECT_FALSE(reported({"n", 1, NameMode::kShared}));
  EXPECT_FALSE(decode_left_spaces(encode(LeftSpacesRequest{who, {}})).ok());
  EXPECT_FALSE(
      decode_left_spaces(encode(LeftSpacesRequest{who, std::vector<SpaceId>(kFusionSpacesMax + 1)}))
          .ok());
  EXPECT_FALSE(decode_reuse_round(encode(ReuseRoundRequest{who, 0})).ok());
  EXPECT_FALSE(decode_begin_reuse_round_reply(encode(BeginReuseRoundReply{0})).ok());
  FusionEventsReply events;
  events.names.grants = {{"n", NameMode::kNone, 1, 1}};
  EXPECT_FALSE(decode_fusion_events_reply(encode(events)).ok()) << "a grant of nothing";
  events.names.grants = {{"n", NameMode::kUse, 1, 0}};
  EXPECT_FALSE(decode_fusion_events_reply(encode(events)).ok());
  events.names.grants.clear();
  events.names.give_ups = {{"n", NameMode::kUse, 0}};
  EXPECT_FALSE(decode_fusion_events_reply(encode(events)).ok());
}

// FN1, the limits.
TEST(FusionMessagesRefused, WhatIsTooMuchOrNobodys) {
  const PageCaller who{NodeId{1}, 5, Epoch{2}};
  for (const PageCaller& nobody :
       {PageCaller{NodeId{0}, 5, Epoch{2}}, PageCaller{NodeId{255}, 5, Epoch{2}},
        PageCaller{NodeId{1}, 0, Epoch{2}}, PageCaller{NodeId{1}, 5, Epoch{0}}}) {
    EXPECT_FALSE(decode_fusion_caller(encode(FusionCallerRequest{nobody})).ok());
    EXPECT_FALSE(
        decode_ask_pages(encode(AskPagesRequest{nobody, {{{1, 1}, PageMode::kShared, 1, false}}}))
            .ok());
  }
  EXPECT_FALSE(decode_fusion_join(encode(FusionJoinRequest{NodeId{1}, 0, false, ""})).ok());
  EXPECT_FALSE(
      decode_fusion_join(encode(FusionJoinRequest{NodeId{1}, 5, false, std::string(257, 't')}))
          .ok());
  EXPECT_FALSE(
      decode_fusion_join_reply(encode(FusionJoinReply{Epoch{1}, "t", "p", 1, {"x", 3}})).ok())
      << "a table has a power of two of slots";
  EXPECT_FALSE(
      decode_fusion_join_reply(encode(FusionJoinReply{Epoch{1}, "t", "", 1, {"x", 4}})).ok());
  EXPECT_FALSE(decode_ask_pages(encode(AskPagesRequest{who, {}})).ok()) << "no page";
  AskPagesRequest asks{
      who, std::vector<PageAsk>(kFusionPagesMax, {{1, 1}, PageMode::kShared, 1, false})};
  EXPECT_TRUE(decode_ask_pages(encode(asks)).ok());
  asks.asks.push_back(asks.asks.back());
  EXPECT_FALSE(decode_ask_pages(encode(asks)).ok());
  EXPECT_FALSE(
      decode_ask_pages(encode(AskPagesRequest{who, {{{1, 1}, PageMode::kShared, 0, false}}})).ok());
  EXPECT_FALSE(decode_report_pages(
                   encode(ReportPagesRequest{who, std::vector<PageReport>(kFusionPagesMax + 1)}))
                   .ok());
  EXPECT_FALSE(
      decode_take_page_slots(encode(TakePageSlotsRequest{who, 1, kFusionSlotsMax + 1, 0})).ok());
  EXPECT_FALSE(decode_take_page_slots(encode(TakePageSlotsRequest{who, 0, 1, 0})).ok());
  EXPECT_FALSE(decode_adopt_pages_reply(encode(AdoptPagesReply{true, {}})).ok()) << "no end of it";
  EXPECT_FALSE(decode_ask_owner(encode(AskOwnerRequest{who, TrxId{}, false, 1})).ok());
  EXPECT_FALSE(decode_ask_owner_reply(encode(TrxOutcome{6, {}, {}})).ok());
  EXPECT_FALSE(decode_ask_owner_reply(encode(TrxOutcome{4, Cts{kCtsMax + 1}, {}})).ok());
  expect_names_refused(who);
  LockBatch batch{who.server, who.life, who.epoch, 1, 0, {}};
  batch.requests.resize(1);
  batch.requests[0].key = std::string(kLockKeyBytesMax, 'k');
  EXPECT_TRUE(decode_row_locks(encode(batch)).ok());
  batch.requests[0].key += "k";
  EXPECT_FALSE(decode_row_locks(encode(batch)).ok());
  batch.requests[0].key = "";
  batch.requests[0].kind = static_cast<LockRequestKind>(21);
  EXPECT_FALSE(decode_row_locks(encode(batch)).ok());
  batch.requests[0].kind = LockRequestKind::kWait;
  batch.number = 0;
  EXPECT_FALSE(decode_row_locks(encode(batch)).ok()) << "who only asks for events says nothing";
  LockReply reply;
  reply.events.resize(1);
  reply.events[0].key = std::string(kLockKeyBytesMax + 1, 't');
  EXPECT_FALSE(decode_row_locks_reply(encode(reply)).ok());
  reply.events[0].kind = LockEventKind::kDescription;
  EXPECT_TRUE(decode_row_locks_reply(encode(reply)).ok()) << "a text may be longer than a key";
  std::vector<DeadlockWait> waits(kDeadlockWaitsMax, {TrxId{1}, IndexId{2}, "key"});
  EXPECT_EQ(decode_deadlock(encode(waits))->back().key, "key");
  waits.push_back(waits.back());
  EXPECT_FALSE(decode_deadlock(encode(waits)).ok());
  waits.assign(1, {TrxId{1}, IndexId{2}, std::string(kDeadlockKeyBytesMax + 1, 'k')});
  EXPECT_FALSE(decode_deadlock(encode(waits)).ok());
  EXPECT_FALSE(decode_deadlock("x").ok());
}

INSTANTIATE_TEST_SUITE_P(Seeds, Messages, ::testing::Range<uint64_t>(1, 21));

TEST(Methods, WhatIsDeclaredCanBeRead) {
  for (const MethodTraits& method : all_methods()) {
    for (const char* fields : {method.request, method.reply}) {
      std::string rest = fields;  // of 64 KiB of zeros: lists are empty, every field is known
      if (rest.find("rest") == std::string::npos)
        rest += rest.empty() ? "bytes rest" : " | bytes rest";
      EXPECT_TRUE(Layout(rest).is_of(std::string(65536, '\0'))) << method.name << ": " << fields;
    }
    EXPECT_EQ(may_repeat(method.method), method.again == Again::kRepeat);
  }
  EXPECT_STREQ(traits_of(kLogAppend).name, "log_append");
  EXPECT_FALSE(may_repeat(kWritePages)) << "an old page over a newer one";
}

// What tools/check_declared.py, and every compiler, has of the same.
TEST(Layouts, TheSameFieldsHaveTheSameDigestEverywhere) {  // MD2
  using internal::LayoutDigest;
  using internal::NamedFields;
  using internal::NamedValue;
  static constexpr NamedFields kSome[] = {{"g", "x u8 | y u32"}, {"h", "g | z u64"}};
  static constexpr NamedValue kValues[] = {{"kMax", 7}, {"kTimes", 2}};
  const auto digest = [](std::string_view request, std::string_view reply) {
    return LayoutDigest(kSome, kValues).of(request, reply);
  };
  static_assert(LayoutDigest(kSome, kValues).of("a u8 | b text", "") == 0x0f68);
  EXPECT_EQ(digest("", ""), 0x892a);
  EXPECT_EQ(digest("a u8 | b text", ""), 0x0f68);
  EXPECT_EQ(digest("", "a u8 | b text"), 0x5fbf);
  EXPECT_EQ(digest("h", "items[kMax] { g | t text }"), 0xc542);
  EXPECT_EQ(digest("r region:kTimes | s[] { g u8 }", "status | ?llsn u64"), 0xc554);
  EXPECT_EQ(digest("h", ""), digest("x u8 | y u32 | z u64", ""))
      << "what a group is called is not on the wire";
  EXPECT_EQ(digest(" a   u8 |  b text ", ""), digest("a u8 | b text", ""));
  EXPECT_NE(digest("h", ""), digest("h u8", "")) << "a field with a group's name is none";
}

TEST(Layouts, EveryChangeHasAnotherDigest) {  // MD2
  using internal::NamedFields;
  using internal::NamedValue;
  struct Declared {
    std::string group = "x u8 | y u32", request = "g | n[kMax] { v u64 }",
                reply = "r region:kTimes";
    uint32_t limit = 7, region = 1;
    [[nodiscard]] uint16_t digest() const {
      const NamedFields groups[] = {{"g", group}};
      const NamedValue values[] = {{"kMax", limit}, {"kTimes", region}};
      return internal::LayoutDigest(groups, values).of(request, reply);
    }
  };
  const Declared now;
  EXPECT_EQ(now.digest(), Declared{}.digest());
  const Declared changed[] = {
      {.group = "x u8 | y u64"},
      {.group = "y u32 | x u8"},
      {.group = "x u8 | y u32 | z u8"},
      {.request = "g | n[kMax] { v u32 }"},
      {.request = "g | n[] { v u64 }"},
      {.request = "g | m[kMax] { v u64 }"},
      {.request = "n[kMax] { v u64 } | g"},
      {.request = "g", .reply = "n[kMax] { v u64 } | r region:kTimes"},
      {.reply = "r text"},
      {.reply = ""},
      {.limit = 8},
      {.limit = 70},
      {.region = 2},
  };
  std::set<uint16_t> digests = {now.digest()};
  for (const Declared& other : changed)
    EXPECT_TRUE(digests.insert(other.digest()).second) << &other - changed;
}

// docs/messages.md, which tools/check_declared.py makes, has the digest of every method: who
// changes a layout sees there, and in review, which calls older builds will refuse.
TEST(Layouts, EachMethodHasTheDigestThatTheDocsSay) {  // MD2
  std::ifstream page(STRATA_MESSAGES_PAGE);
  std::map<std::string, std::string> told;
  for (std::string line; std::getline(page, line);) {
    std::vector<std::string> cells;
    for (size_t begin = 0, end; (end = line.find(" | ", begin)) != std::string::npos;
         begin = end + 3)
      cells.push_back(line.substr(begin, end - begin));
    if (cells.size() == 7 && cells[1].starts_with('`')) told[cells[1]] = cells[6];
  }
  EXPECT_EQ(told.size(), all_methods().size());
  for (const MethodTraits& method : all_methods()) {
    char digest[8];
    std::snprintf(digest, sizeof digest, "`%04x`", method.layout);
    EXPECT_NE(method.layout, 0) << method.name;
    EXPECT_EQ(told["`" + std::string(method.name) + "`"], digest) << method.name;
    EXPECT_EQ(&traits_of(method.method), &method);
  }
}

TEST(MessagesRefused, WhatIsAskedInVain) {
  EXPECT_FALSE(decode_log_seal(encode(StreamId{0}, quorum::SealRequest{})).ok()) << "no stream";
  EXPECT_FALSE(decode_get_pages(encode(GetPagesRequest{kStream, {}, 0, {}, {}})).ok()) << "no page";
  GetPagesRequest reversed{kStream, {}, 0, {{{1, 1}, Llsn{5}, Llsn{4}}}, {}};
  EXPECT_FALSE(decode_get_pages(encode(reversed)).ok());
  GetPagesRequest many{kStream, {}, 0, std::vector<PageWanted>(kPagesMax + 1), {}};
  EXPECT_FALSE(decode_get_pages(encode(many)).ok());
  quorum::BeginRequest unordered;
  unordered.tenure.history = {{Epoch{2}, Lsn{10}}, {Epoch{1}, Lsn{20}}};
  EXPECT_FALSE(decode_log_begin(encode(kStream, unordered)).ok()) << "LM1";
  EXPECT_FALSE(decode_reader_lease(encode(ReaderLeaseRequest{})).ok());
  const Writer writer{kStream, Epoch{3}, 1};
  EXPECT_FALSE(decode_sync_pages(encode(SyncPagesRequest{{kStream, Epoch{3}, 0}})).ok());
  EXPECT_FALSE(decode_sync_pages(encode(SyncPagesRequest{{StreamId{}, Epoch{3}, 1}})).ok());
  EXPECT_FALSE(decode_write_pages(encode(WritePagesRequest{writer, {}, {}})).ok()) << "no page";
  EXPECT_FALSE(decode_write_pages(
                   encode(WritePagesRequest{writer, std::vector<PageId>(kWritePagesMax + 1), {}}))
                   .ok());
  EXPECT_FALSE(decode_copy_pages(encode(CopyPagesRequest{writer, "", 1})).ok()) << "from nobody";
  EXPECT_FALSE(decode_list_pages(encode(ListPagesRequest{{1, 1}, 0, {}})).ok());
  EXPECT_FALSE(decode_list_pages_reply(encode(ListPagesReply{{{1, 2}, {1, 2}}, {}})).ok()) << "CY1";
}

TEST(MessagesRefused, LongMessagesOfErrorsAreCutOff) {
  quorum::ChangeReply reply;
  reply.status = error_corruption(std::string(100'000, 'm'));
  const auto decoded = decode_change_reply(encode(reply));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->status.code(), StatusCode::kDataLoss);
  EXPECT_LT(decoded->status.message().size(), 5000u);
}

}  // namespace
}  // namespace strata::proto
