// What a program's pager and a memory node say to each other: calls of an RpcServer of the node's
// own. Little endian. What does not parse is answered with kDataLoss, what goes beyond the region
// with kOutOfRange, and a client whose token is not known (any more) with kNotFound; nothing is
// done then.
//
//   open     pages u64 | name bytes32                          -> credentials | pages u64
//            Over a unix socket the region's file comes along: the client maps it
//            (region_memory.h).
//   write    credentials | count u16 | (page u64 | generation u64 | crc32c u32 | 4096 bytes)...  ->
//   nothing
//            Idempotent: the same generation with the same checksum again is fine; an older
//            generation is conflict. kResourceExhausted: the node is full.
//   read     credentials | count u16 | page u64...             -> (generation u64 | crc32c u32 |
//   4096 bytes)...
//            kNotFound: a page that was never written, or discarded.
//   discard  credentials | count u16 | (first page u64 | pages u64)...  -> nothing
//   renew    credentials | pages read u64 | pages written u64  -> nothing
//            Sign of life, with what the client did through its mapping. kResourceExhausted as
//            above.
//   close    credentials                                       -> nothing; the region is gone
//   credentials = client u64 | token 16 bytes
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/bytes.h"

namespace strata::farmem {

constexpr uint16_t kOpenMethod = 1;
constexpr uint16_t kWriteMethod = 2;
constexpr uint16_t kReadMethod = 3;
constexpr uint16_t kDiscardMethod = 4;
constexpr uint16_t kRenewMethod = 5;
constexpr uint16_t kCloseMethod = 6;

constexpr uint32_t kBatchPagesMax = 64;
constexpr uint64_t kDiscardPagesMax = 1 << 16;  // of one call: its headers are looked at one by one
constexpr size_t kClientNameBytesMax = 64;
constexpr size_t kTokenBytes = 16;

struct Credentials {
  uint64_t client = 0;
  std::array<char, kTokenBytes> token{};  // whoever knows it is the client
};

inline void append_credentials(std::string* out, const Credentials& credentials) {
  append_u64(out, credentials.client);
  out->append(credentials.token.data(), kTokenBytes);
}
// The reader is not ok() afterwards if there were too few bytes.
inline Credentials read_credentials(ByteReader* reader) {
  Credentials credentials{.client = reader->u64()};
  const Bytes token = reader->bytes(kTokenBytes);
  token.copy(credentials.token.data(), token.size());
  return credentials;
}

}  // namespace strata::farmem
