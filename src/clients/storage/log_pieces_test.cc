// Goal: whatever parts a log comes in, its pieces are whole groups, together the log, and none is
// longer than allowed (LPC1-LPC3). Method: random groups in random parts, a batch far above the
// limit among them.
#include "clients/storage/log_pieces.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/rng.h"

namespace strata::clients {
namespace {

std::string group_of(size_t length, Rng* rng) {
  std::string group(length, static_cast<char>(rng->next()));
  store_u16(group.data(), redo::kGroupMagic);
  store_u32(group.data() + offsetof(redo::GroupHeader, length), static_cast<uint32_t>(length));
  return group;
}

TEST(LogPieces, AreWholeGroupsAndTogetherTheLog) {
  Rng rng(1);
  for (int round = 0; round < 2; ++round) {
    std::string log;
    std::set<size_t> boundaries;
    for (int i = 0; i < 40; ++i) {
      const bool large = rng.one_in(12);
      const size_t length =
          large ? redo::kGroupBytesMax - 8 * rng.below(1000) : 40 + 8 * rng.below(300);
      log += group_of(length, &rng);
      boundaries.insert(log.size());
    }
    LogPieces pieces;
    std::string out;
    for (size_t at = 0; at < log.size();) {
      const size_t most = rng.one_in(3) ? log.size() : 8 * (1 + rng.below(400'000));
      const size_t part = std::min(most, log.size() - at);
      size_t whole = out.size();
      pieces.add(Bytes(log).substr(at, part), [&](std::string piece) {
        EXPECT_LE(piece.size(), LogPieces::kBytesMax);
        out += piece;
        EXPECT_EQ(boundaries.count(out.size()), 1u);
        whole = out.size();
      });
      at += part;
      // Nothing waits but the beginning of one group.
      EXPECT_TRUE(boundaries.upper_bound(whole) == boundaries.end() ||
                  *boundaries.upper_bound(whole) > at);
      EXPECT_EQ(pieces.at_boundary(), boundaries.count(at) == 1);
    }
    EXPECT_TRUE(out == log);
  }
}

TEST(LogPieces, ABatchFarAboveTheLimitIsCut) {
  Rng rng(2);
  std::string log;
  for (int i = 0; i < 40; ++i) log += group_of(redo::kGroupBytesMax, &rng);
  LogPieces pieces;
  size_t count = 0, bytes = 0;
  pieces.add(log, [&](std::string piece) {
    ++count;
    bytes += piece.size();
    EXPECT_LE(piece.size(), LogPieces::kBytesMax);
  });
  EXPECT_EQ(bytes, log.size());
  EXPECT_EQ(count, log.size() / LogPieces::kBytesMax);
}

}  // namespace
}  // namespace strata::clients
