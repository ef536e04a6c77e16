// Keys and values of the column families (docs/data_formats.md). Pure.
#pragma once

#include <optional>
#include <string>

#include "base/bytes.h"
#include "storenode/versions/version_db.h"

namespace strata::storenode::internal {

constexpr size_t kPagePrefixBytes = 8;
constexpr size_t kVersionKeyBytes = 16;
constexpr uint32_t kStoreFormat = 1;

// Big endian, so that bytewise order is the order of (space, number, llsn).
std::string version_key(PageId page, Llsn llsn);
// False: not such a key.
bool parse_version_key(Bytes key, PageId* page, Llsn* llsn) noexcept;

std::string encode_version(const Version& version);
bool decode_version(Bytes value, Llsn llsn, Version* version) noexcept;

// Marks. Values end with their crc32c, which also covers the key.
std::string identity_key();
std::string map_whole_key();
std::string horizon_key();
std::string mark_key(Mark kind, StreamId stream);
std::string dropped_key(SpaceId space);
std::string broken_key(PageId page);
Bytes replayed_prefix() noexcept;
Bytes dropped_prefix() noexcept;
Bytes broken_prefix() noexcept;

struct Identity {
  uint32_t format = 0;
  uint64_t cluster_id = 0;
  StoreLayout layout = StoreLayout::kVersions;
};
// Each returns nothing when the value is damaged.
std::string seal_value(Bytes key, std::string payload);
std::optional<Bytes> open_value(Bytes key, Bytes value) noexcept;
std::string encode_identity(const Identity& identity);
bool decode_identity(Bytes payload, Identity* identity) noexcept;
std::string encode_mark(const StreamMark& mark);
bool decode_mark(Bytes payload, StreamMark* mark) noexcept;
// Whose replayed mark it is.
bool decode_marked(Bytes key, StreamId* stream) noexcept;
std::string encode_dropped(const DroppedSpace& dropped);
bool decode_dropped(Bytes key, Bytes payload, DroppedSpace* dropped) noexcept;
std::string encode_broken(const BrokenPage& broken);
bool decode_broken(Bytes key, Bytes payload, BrokenPage* broken) noexcept;
std::string encode_llsn(Llsn llsn);
bool decode_llsn(Bytes payload, Llsn* llsn) noexcept;

}  // namespace strata::storenode::internal
