#include "mariadb/statistics_record.h"

#include <algorithm>

#include "base/bytes.h"

namespace strata::glue {
namespace {

constexpr uint8_t kFormat = 1;
constexpr double kUnit = 1000;  // rows per prefix are kept in thousandths

uint64_t plus(uint64_t rows, int64_t net) noexcept {
  if (net >= 0) return rows + static_cast<uint64_t>(net);
  const uint64_t fewer = uint64_t{0} - static_cast<uint64_t>(net);
  return rows - std::min(rows, fewer);
}

}  // namespace

std::string statistics_key(uint64_t table_id) {
  std::string key(kStatisticsPrefix);
  append_be64(&key, table_id);
  return key;
}

std::optional<uint64_t> table_of_statistics(Bytes key) {
  if (key.size() != kStatisticsPrefix.size() + 8 || !key.starts_with(kStatisticsPrefix))
    return std::nullopt;
  return load_be64(key.data() + kStatisticsPrefix.size());
}

std::string encode(const StatisticsRecord& record) {
  std::string out;
  append_u8(&out, kFormat);
  append_u32(&out, record.space_id);
  const engine::TableCounts& counts = record.counts;
  for (const uint64_t value :
       {counts.version, counts.base, counts.rows, counts.modified, counts.clustered_pages,
        counts.index_pages, counts.index_pages_beside, static_cast<uint64_t>(counts.updated_at),
        record.number, record.sampled_rows})
    append_u64(&out, value);
  append_u16(&out, static_cast<uint16_t>(record.indexes.size()));
  for (const auto& [id, index] : record.indexes) {
    append_u32(&out, id);
    append_u16(&out, static_cast<uint16_t>(index.rows_per_prefix.size()));
    for (const double rows : index.rows_per_prefix)
      append_u64(&out, static_cast<uint64_t>(rows * kUnit + 0.5));
  }
  return out;
}

std::optional<StatisticsRecord> decode_statistics(Bytes bytes) {
  ByteReader reader(bytes);
  if (reader.u8() != kFormat) return std::nullopt;
  StatisticsRecord record;
  record.space_id = reader.u32();
  engine::TableCounts& counts = record.counts;
  counts.known = true;
  for (uint64_t* const value :
       {&counts.version, &counts.base, &counts.rows, &counts.modified, &counts.clustered_pages,
        &counts.index_pages, &counts.index_pages_beside})
    *value = reader.u64();
  counts.updated_at = static_cast<int64_t>(reader.u64());
  record.number = reader.u64();
  record.sampled_rows = reader.u64();
  for (uint32_t indexes = reader.u16(); indexes != 0 && reader.ok(); --indexes) {
    IndexStatistics& index = record.indexes[reader.u32()];
    for (uint32_t parts = reader.u16(); parts != 0 && reader.ok(); --parts)
      index.rows_per_prefix.push_back(static_cast<double>(reader.u64()) / kUnit);
  }
  if (!reader.ok() || reader.remaining() != 0) return std::nullopt;
  return record;
}

void add(Calculated* older, Calculated newer) {
  newer.sampled |= older->sampled;
  newer.recounted |= older->recounted;
  if (newer.indexes.empty()) {
    newer.indexes = std::move(older->indexes);
    newer.sampled_rows = older->sampled_rows;
  }
  *older = std::move(newer);
}

StatisticsRecord next_record(const StatisticsRecord* before, uint32_t space_id,
                             const Calculated& mine, const engine::Committed& untold,
                             const engine::Committed& since, uint64_t version) {
  StatisticsRecord next;
  if (before != nullptr) {
    next = *before;
    next.counts.rows = plus(before->counts.rows, untold.net);
    next.counts.modified += untold.changed;
  }
  const bool new_rows = before == nullptr || mine.recounted;
  if (new_rows) next.counts.rows = plus(mine.counts.rows, since.net);
  if (before == nullptr || mine.sampled) {
    next.counts.clustered_pages = mine.counts.clustered_pages;
    next.counts.index_pages = mine.counts.index_pages;
    next.counts.index_pages_beside = mine.counts.index_pages_beside;
    next.counts.modified = mine.counts.modified + since.changed;
  }
  next.space_id = space_id;
  next.counts.known = true;
  next.counts.version = std::max(version, next.counts.version + 1);
  if (new_rows) next.counts.base = next.counts.version;
  next.counts.updated_at = std::max(next.counts.updated_at, mine.counts.updated_at);
  if (!mine.indexes.empty()) {
    next.indexes = mine.indexes;
    next.sampled_rows = mine.sampled_rows;
    next.number = next.counts.version;
  }
  return next;
}

bool is_worth_telling(const engine::Committed& untold, uint64_t rows, uint64_t waited_us) noexcept {
  constexpr uint64_t kAlwaysUs = 5'000'000;
  constexpr uint64_t kFew = 16;
  if (untold.changed == 0) return false;
  return waited_us >= kAlwaysUs || untold.changed > rows / 64 + kFew;
}

}  // namespace strata::glue
