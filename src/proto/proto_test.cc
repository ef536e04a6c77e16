// Goal: messages arrive as they were sent (LM2, PM2), and bytes that are none are refused without
// harm (LM1, PM1). Method: random messages there and back; each cut short at every length, with a
// byte more, and with random bytes changed.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/rng.h"
#include "proto/copy_messages.h"
#include "proto/log_messages.h"
#include "proto/page_messages.h"
#include "proto/written_messages.h"

namespace strata::proto {
namespace {

constexpr StreamId kStream{7};

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
  void there_and_back(const std::string& bytes, Decode decode, Encode encode_again,
                      size_t open_end = 0) {
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
  void request(const Request& sent, Decode decode, size_t open_end = 0) {
    there_and_back(
        encode(kStream, sent), decode,
        [](const OfStream<Request>& got) { return encode(got.stream, got.request); }, open_end);
  }
  template <class Message, class Decode>
  void message(const Message& sent, Decode decode, size_t open_end = 0) {
    there_and_back(
        encode(sent), decode, [](const Message& got) { return encode(got); }, open_end);
  }
  Rng rng_{GetParam()};
};

TEST_P(Messages, RequestsOfTheLogService) {
  request(quorum::SealRequest{{epoch(), rng_.next()}}, decode_seal);
  request(quorum::BeginRequest{tenure(), lsn()}, decode_begin);
  const std::string bytes = some_bytes(300);
  request(quorum::CatchUpRequest{tenure(), lsn(), bytes, lsn()}, decode_catch_up, bytes.size());
  request(quorum::AppendRequest{epoch(), lsn(), bytes, lsn()}, decode_append, bytes.size());
  request(quorum::CatchUpOrder{tenure(), lsn(), lsn(), {1, 2, 5}}, decode_order);
  request(quorum::ReadRequest{lsn(), static_cast<uint32_t>(rng_.next()), rng_.one_in(2), epoch()},
          decode_read);
  request(TruncateRequest{epoch(), lsn()}, decode_truncate);
}

TEST_P(Messages, RepliesOfTheLogService) {
  message(quorum::SealReply{status(), state(), history()}, decode_seal_reply);
  message(quorum::ChangeReply{status(), state(), lsn()}, decode_change_reply);
  const std::string bytes = some_bytes(300);
  message(quorum::ReadReply{status(), lsn(), bytes, lsn(), lsn()}, decode_read_reply, bytes.size());
}

TEST_P(Messages, OfThePageService) {
  GetPagesRequest wanted{kStream, epoch(), 17, {}, {}};
  for (uint64_t n = 1 + rng_.below(4); n > 0; --n) {
    const uint64_t at_least = rng_.next() / 2;
    wanted.pages.push_back({PageId::unpack(rng_.next()), Llsn{at_least}, Llsn{at_least + n}});
  }
  for (uint64_t n = rng_.below(4); n > 0; --n) wanted.scanned_to.push_back({StreamId{3}, lsn()});
  wanted.session = rng_.next();
  message(wanted, decode_get_pages);

  GetPagesReply got;
  got.backlog_bytes = rng_.next();
  got.pages.push_back({error_not_found("never written"), {}, {}});
  got.pages.push_back({ok_status(), Llsn{rng_.next()}, std::string(kPageBytes, 'p')});
  const std::string bytes = encode(got);
  const auto decoded = decode_get_pages_reply(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(encode(*decoded), bytes);
  const auto view = view_get_pages_reply(bytes);
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(encode(*view), bytes);
  EXPECT_GE(view->pages[1].bytes.data(), bytes.data());
  EXPECT_FALSE(decode_get_pages_reply(Bytes(bytes).substr(0, bytes.size() - 1)).ok());

  message(ListSpacesReply{{SpaceId{1}, SpaceId{300}}, Llsn{rng_.next()}}, decode_list_spaces_reply);
  message(ReaderLeaseRequest{rng_.next() | 1, Llsn{rng_.next()}, 5000}, decode_reader_lease);
}

TEST_P(Messages, OfNodesWhosePagesAreWritten) {
  const Writer writer{kStream, epoch(), 1 + rng_.next() / 2};
  message(BeginWritesRequest{writer, rng_.next()}, decode_begin_writes);
  message(BeginWritesReply{rng_.next() | 1, rng_.one_in(2)}, decode_begin_writes_reply);
  message(SyncPagesRequest{writer}, decode_sync_pages);
  message(SpaceRequest{writer, SpaceId{300}, static_cast<uint32_t>(rng_.next())}, decode_space);
  message(ListSpaceSizesReply{{{SpaceId{1}, 64}, {SpaceId{300}, 1u << 31}}},
          decode_list_space_sizes_reply);
  message(CopyPagesRequest{writer, "unix:" + some_bytes(40), rng_.next()}, decode_copy_pages);
  message(CopyPagesReply{CopyPagesReply::State::kFailed, rng_.next(), rng_.next(), status()},
          decode_copy_pages_reply);
  const std::string pages(2 * size_t{kPageBytes}, 'p');
  const WritePagesRequest sent{writer, {{300, 1}, {300, 2}}, pages};
  const std::string bytes = encode(sent);
  const auto decoded = decode_write_pages(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
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
  message(offer, decode_copy_offer_reply);
  message(ListPagesRequest{PageId::unpack(rng_.next()), 1 + static_cast<uint32_t>(rng_.below(99)),
                           offer.marks},
          decode_list_pages);
  ListPagesReply listed;
  for (uint32_t n = 0; n < rng_.below(5); ++n) listed.pages.push_back({300, n * 3});
  listed.gone = offer.dropped;
  message(listed, decode_list_pages_reply);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Messages, ::testing::Range<uint64_t>(1, 21));

TEST(MessagesRefused, WhatIsAskedInVain) {
  EXPECT_FALSE(decode_seal(encode(StreamId{0}, quorum::SealRequest{})).ok()) << "no stream";
  EXPECT_FALSE(decode_get_pages(encode(GetPagesRequest{kStream, {}, 0, {}, {}})).ok()) << "no page";
  GetPagesRequest reversed{kStream, {}, 0, {{{1, 1}, Llsn{5}, Llsn{4}}}, {}};
  EXPECT_FALSE(decode_get_pages(encode(reversed)).ok());
  GetPagesRequest many{kStream, {}, 0, std::vector<PageWanted>(kPagesMax + 1), {}};
  EXPECT_FALSE(decode_get_pages(encode(many)).ok());
  quorum::BeginRequest unordered;
  unordered.tenure.history = {{Epoch{2}, Lsn{10}}, {Epoch{1}, Lsn{20}}};
  EXPECT_FALSE(decode_begin(encode(kStream, unordered)).ok()) << "LM1";
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
