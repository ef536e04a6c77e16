// Fields that many messages have: flags, texts, lists, who calls. Pure. What reads says whether
// that was well formed; past the end of the bytes it reads zeros (ByteReader).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/status.h"
#include "proto/methods.h"
#include "proto/page_locks.h"

namespace strata::proto::internal {

inline bool whole(const ByteReader& in) { return in.ok() && in.remaining() == 0; }

inline void append_flag(std::string* out, bool flag) { append_u8(out, flag ? 1 : 0); }

inline bool read_flag(ByteReader* in, bool* flag) {
  const uint8_t value = in->u8();
  *flag = value == 1;
  return value <= 1;
}

// A list with its count in front. `read_one` says whether what it has read is well formed.
template <class T, class AppendOne>
void append_list(std::string* out, const std::vector<T>& list, const AppendOne& append_one) {
  append_u32(out, static_cast<uint32_t>(list.size()));
  for (const T& one : list) append_one(out, one);
}

template <class T, class ReadOne>
bool read_list(ByteReader* in, uint32_t count_max, size_t bytes_min, std::vector<T>* list,
               const ReadOne& read_one) {
  const uint32_t count = in->u32();
  if (!in->ok() || count > count_max || count * bytes_min > in->remaining()) return false;
  list->resize(count);
  for (T& one : *list)
    if (!read_one(in, &one)) return false;
  return true;
}

// The bytes up to a limit.
inline bool read_text(ByteReader* in, size_t bytes_max, std::string* text) {
  const Bytes bytes = in->bytes32();
  if (bytes.size() > bytes_max) return false;
  text->assign(bytes.data(), bytes.size());
  return true;
}

inline bool is_server(NodeId server) {
  return server.value >= 1 && server.value <= kFusionServersMax;
}

inline void append_caller(std::string* out, const PageCaller& caller) {
  append_u8(out, caller.server.value);
  append_u64(out, caller.life);
  append_u64(out, caller.epoch.value);
}

inline bool read_caller(ByteReader* in, PageCaller* caller) {
  caller->server = NodeId{in->u8()};
  caller->life = in->u64();
  caller->epoch = Epoch{in->u64()};
  return is_server(caller->server) && caller->life != 0 && !caller->epoch.is_zero();
}

// A message of which nothing is to be decoded that `read` does not.
template <class Message, class Read>
StatusOr<Message> decoded(Bytes bytes, const Status& bad, const Read& read) {
  ByteReader in(bytes);
  Message out;
  if (!read(&in, &out) || !whole(in)) return bad;
  return out;
}

}  // namespace strata::proto::internal
