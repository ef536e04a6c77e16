// Goal: whatever arrives, in whatever pieces, only whole and verified frames come out (FR1-FR5).
// Method: frames cut at every place, every bit of a frame flipped, headers that lie but verify.
#include "transport/calls/frame.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/crc32c.h"
#include "base/rng.h"

namespace strata::transport {
namespace {

std::string frame_of(FrameHeader header, Bytes payload) {
  std::string out(kFrameHeaderBytes, '\0');
  encode_header(header, payload, out.data());
  return out.append(payload);
}

FrameHeader request(uint64_t id) {
  FrameHeader header;
  header.method = 7;
  header.request_id = id;
  header.epoch = 3;
  return header;
}

// The same bytes with fields changed and the header's checksum right again.
std::string forged(std::string frame, size_t offset, Bytes field) {
  frame.replace(offset, field.size(), field);
  store_u32(frame.data() + 44, crc32c(frame.data(), 44));
  return frame;
}

StatusOr<bool> decode(std::string bytes, uint32_t limit = 1000) {
  FrameDecoder decoder(limit);
  Bytes in = bytes;
  Frame frame;
  return decoder.next(&in, &frame);
}

TEST(Frame, ArrivesWholeHoweverItIsCut) {
  const std::string one = frame_of(request(1), "first payload");
  const std::string all = one + frame_of(request(2), "") + frame_of(request(3), "x");
  for (size_t cut = 0; cut <= all.size(); cut++) {
    for (size_t second = cut; second <= all.size(); second += 7) {
      FrameDecoder decoder(100);
      std::vector<std::string> payloads;
      for (Bytes in : {Bytes(all).substr(0, cut), Bytes(all).substr(cut, second - cut),
                       Bytes(all).substr(second)}) {
        Frame frame;
        for (;;) {
          const auto more = decoder.next(&in, &frame);
          ASSERT_TRUE(more.ok()) << more.status();
          if (!*more) break;
          payloads.emplace_back(frame.payload);
          EXPECT_EQ(frame.header.request_id, payloads.size());
          EXPECT_EQ(frame.header.method, 7);
          EXPECT_EQ(frame.header.epoch, 3u);
        }
        EXPECT_TRUE(in.empty());
      }
      EXPECT_EQ(payloads, (std::vector<std::string>{"first payload", "", "x"}));
      EXPECT_TRUE(decoder.between_frames());
    }
  }
}

TEST(Frame, EveryFlippedBitIsFound) {
  const std::string good = frame_of(request(1), "some payload of a few bytes");
  for (size_t bit = 0; bit < good.size() * 8; bit++) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(decode(bad).ok()) << "bit " << bit;
  }
}

TEST(Frame, HeadersThatVerifyAndLieAreRefused) {
  const std::string good = frame_of(request(1), "payload");
  ASSERT_TRUE(decode(good).ok());
  const Status older = decode(forged(good, 4, "\x01")).status();
  EXPECT_EQ(older.code(), StatusCode::kDataLoss);
  EXPECT_NE(older.message().find("version 1"), std::string::npos) << older;
  EXPECT_EQ(decode(forged(good, 5, "\x01")).status().code(), StatusCode::kDataLoss);  // status
  EXPECT_EQ(decode(forged(good, 8, "\x04")).status().code(), StatusCode::kDataLoss);  // kind
  EXPECT_EQ(decode(forged(good, 10, "\x01")).status().code(), StatusCode::kDataLoss) << "FR4";
  EXPECT_EQ(decode(forged(good, 36, "\x01")).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(decode(forged(good, 6, "\x08")).status().code(), StatusCode::kDataLoss)
      << "a payload belongs to one header (FR4)";
  EXPECT_EQ(decode(good, 6).status().code(), StatusCode::kResourceExhausted);
}

TEST(Frame, ARequestSaysHowItIsLaidOutAndNothingElseDoes) {  // FR5
  FrameHeader header = request(1);
  header.layout = 0xbeef;
  const std::string frame = frame_of(header, "payload");
  EXPECT_EQ(frame.substr(10, 2), "\xef\xbe");
  FrameDecoder decoder(100);
  Bytes in = frame;
  Frame got;
  const auto whole = decoder.next(&in, &got);
  ASSERT_TRUE(whole.ok() && *whole);
  EXPECT_EQ(got.header.layout, 0xbeef);
  for (const FrameKind kind : {FrameKind::kReply, FrameKind::kHeartbeat, FrameKind::kHandshake}) {
    header.flags = static_cast<uint16_t>(kind);
    header.layout = 0;
    EXPECT_TRUE(decode(frame_of(header, "payload")).ok());
    header.layout = 1;
    EXPECT_EQ(decode(frame_of(header, "payload")).status().code(), StatusCode::kDataLoss);
  }
}

TEST(Frame, LengthIsRefusedBeforeThePayloadIsWaitedFor) {
  const std::string good = frame_of(request(1), std::string(5000, 'p'));
  EXPECT_EQ(decode(good.substr(0, kFrameHeaderBytes), 4999).status().code(),
            StatusCode::kResourceExhausted);
  const auto more = decode(good.substr(0, kFrameHeaderBytes), 5000);
  EXPECT_TRUE(more.ok() && !*more);
}

TEST(Frame, NothingIsReadBehindARefusedFrame) {
  const std::string good = frame_of(request(1), "payload");
  std::string bad = good;
  bad[20] ^= 1;
  FrameDecoder decoder(100);
  Frame frame;
  Bytes in = bad;
  EXPECT_FALSE(decoder.next(&in, &frame).ok());
  in = good;
  EXPECT_FALSE(decoder.next(&in, &frame).ok());
}

TEST(Frame, RandomStreamsInRandomPieces) {
  Rng rng(1);
  for (int round = 0; round < 200; round++) {
    std::vector<std::string> sent;
    std::string stream;
    for (uint64_t n = 1 + rng.below(20); n > 0; n--) {
      sent.emplace_back(rng.below(rng.one_in(4) ? 3000 : 60), static_cast<char>(rng.next()));
      stream += frame_of(request(sent.size()), sent.back());
    }
    FrameDecoder decoder(3000);
    size_t got = 0;
    for (size_t at = 0; at < stream.size();) {
      const size_t bytes = std::min<size_t>(stream.size() - at, 1 + rng.below(500));
      const std::string piece = stream.substr(at, bytes);  // its own memory: ASan sees stale views
      at += bytes;
      Bytes in = piece;
      Frame frame;
      for (;;) {
        const auto more = decoder.next(&in, &frame);
        ASSERT_TRUE(more.ok());
        if (!*more) break;
        ASSERT_LT(got, sent.size());
        EXPECT_EQ(frame.payload, sent[got++]);
      }
    }
    EXPECT_EQ(got, sent.size());
  }
}

}  // namespace
}  // namespace strata::transport
