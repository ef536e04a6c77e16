// Statistics of one table as several servers share them: the record's bytes, and which record
// follows which. Knows nothing of the server.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/kernel.h"

namespace strata::glue {

// How many rows share a value of the first n parts of an index.
struct IndexStatistics {
  std::vector<double> rows_per_prefix;
};

struct StatisticsRecord {
  uint32_t space_id = 0;  // of the table: with another one it is not the same any more (TRUNCATE)
  engine::TableCounts counts;
  uint64_t number = 0;        // the version in which the indexes were sampled; 0: never
  uint64_t sampled_rows = 0;  // the table's rows then
  std::map<uint32_t, IndexStatistics> indexes;  // by IndexSpec::index_id
};

// What one server has found out; a record follows from it.
struct Calculated {
  engine::TableCounts counts;        // as they were then
  engine::Committed committed = {};  // totals of this server, likewise
  bool sampled = false;              // pages are from a sample, not what was known before
  bool recounted = false;            // rows, too
  uint64_t sampled_rows = 0;         // with `indexes`
  std::map<uint32_t, IndexStatistics> indexes = {};  // empty: not sampled
};

// Key of the record in the kernel's journal; all of them begin with the prefix.
constexpr std::string_view kStatisticsPrefix = "statistics/";
std::string statistics_key(uint64_t table_id);
std::optional<uint64_t> table_of_statistics(Bytes key);  // nothing: it is no such key

std::string encode(const StatisticsRecord& record);
// Nothing: of a format that this build does not know, or damaged. The next one replaces it.
std::optional<StatisticsRecord> decode_statistics(Bytes bytes);

// `older`, then `newer`, of one table, neither of which has become a record yet.
void add(Calculated* older, Calculated newer);
// What comes after `before`, of the same space, or null: there is none. `untold`: what this server
// has committed that is not in `before`; `since`: what it has committed since `mine` was found.
StatisticsRecord next_record(const StatisticsRecord* before, uint32_t space_id,
                             const Calculated& mine, const engine::Committed& untold,
                             const engine::Committed& since, uint64_t version);
// Rows counted here are worth telling the others. `rows`: of the table; `waited_us`: since the
// first of them.
bool is_worth_telling(const engine::Committed& untold, uint64_t rows, uint64_t waited_us) noexcept;

}  // namespace strata::glue
