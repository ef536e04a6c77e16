// What the optimiser asks: sizes, range estimates, rows per key; and ANALYZE and CHECK TABLE.
#include "base/clock.h"
#include "engine/page_size.h"
#include "mariadb/ha_strata.h"
#include "mariadb/settings.h"
#include "mariadb/shared_statistics.h"

namespace strata::glue {
namespace {

// The optimiser of this server version was calibrated with engines that halve their rows per key:
// told the whole number, it begins joins with a scan of the largest table (TPC-H Q5, Q8).
constexpr double kLookUpAdvantage = 2;
// They also round down; but whether 3.99 or 4.01 was sampled must not decide between 1 and 2.
constexpr double kSamplingError = 0.25;

// Estimates from sampled leaves how many values the first parts of an index have. Of two entries
// that are neighbours, as a share of all such pairs, so many differ as values begin in the index.
class PrefixCounter {
 public:
  explicit PrefixCounter(const KeyCodec* codec)
      : codec_(codec), changes_(codec->parts().size(), 0), first_of_leaf_(codec->parts().size()) {}

  void add(uint32_t leaf, Bytes key) {
    if (!codec_->part_ends(key, &ends_)) return;
    if (started_ && leaf == leaf_) {
      ++pairs_;
      bool changed = false;
      for (size_t i = 0; i < ends_.size(); ++i) {
        changed = changed || last_ends_[i] != ends_[i] ||
                  key.substr(0, ends_[i]) != Bytes(last_).substr(0, ends_[i]);
        if (changed) ++changes_[i];
      }
    } else {
      for (size_t i = 0; i < ends_.size(); ++i)
        first_of_leaf_[i].insert(std::string(key.substr(0, ends_[i])));
    }
    started_ = true;
    leaf_ = leaf;
    last_.assign(key);
    last_ends_ = ends_;
  }

  // Rows that share the first `part + 1` parts, when `rows` are in the table.
  [[nodiscard]] double rows_per_prefix(size_t part, uint64_t rows) const {
    if (!started_ || rows == 0) return 1;
    double values = 1;
    if (pairs_ > 0) {
      values += static_cast<double>(changes_[part]) / static_cast<double>(pairs_) *
                static_cast<double>(rows - 1);
    }
    values = std::max(values, static_cast<double>(first_of_leaf_[part].size()));
    return std::max(1.0, static_cast<double>(rows) / values);
  }

 private:
  const KeyCodec* codec_;
  bool started_ = false;
  uint32_t leaf_ = 0;
  uint64_t pairs_ = 0;  // neighbours on one leaf
  std::vector<uint64_t> changes_;
  std::vector<std::set<std::string>> first_of_leaf_;
  std::vector<uint32_t> ends_, last_ends_;
  std::string last_;
};

}  // namespace

void ha_strata::sample_indexes() {
  const KillReachesReads reaches(current_thd);
  const uint64_t rows = table_->estimated_rows();
  std::vector<IndexStatistics> all(table->s->keys);
  for (uint key = 0; key < table->s->keys; ++key) {
    const uint32_t index = rows_.layout().kernel_index(key);
    const KeyCodec& codec = rows_.layout().index(index).codec;
    PrefixCounter counter(&codec);
    const Status sampled =
        home_->sample(table_.get(), index, setting_stats_pages,
                      [&](uint32_t leaf, Bytes entry) { counter.add(leaf, entry); });
    if (is_interrupted(sampled)) return;  // the next query does it; other errors: what there is
    for (size_t part = 0; part < codec.parts().size(); ++part) {
      double per = counter.rows_per_prefix(part, rows);
      const bool whole = part + 1 == codec.parts().size();
      if (whole && rows_.layout().index(index).unique) per = 1;
      all[key].rows_per_prefix.push_back(per);
    }
  }
  share_->set_statistics(all, rows);
  share_what_was_found({}, std::move(all), rows);
}

bool ha_strata::shares_statistics() const noexcept {
  return !is_temporary() && kernel->shares_tables() && !table_->spec().internal_name;
}

// TS4. Whoever finds no record goes on as a single server does, and makes one.
void ha_strata::follow_shared_statistics() {
  if (!shares_statistics()) return;
  const uint64_t now_us = monotonic_us();
  if (!share_->is_look_due(now_us)) return;
  const std::optional<StatisticsRecord> record = read_statistics(table_->spec());
  if (!record.has_value()) return;
  take_shared_statistics(*record);
  if (!share_->is_sample_due(now_us)) return;
  engine::Sampled sampled;
  if (!home_->refresh_statistics(table_.get(), &sampled).ok()) return;
  if (sampled.recounted)
    share_what_was_found(sampled, {}, 0);
  else
    take_statistics(table_.get(), record->counts);  // as all others have it
}

void ha_strata::take_shared_statistics(const StatisticsRecord& record) {
  // What was found here since, and could not be written, is not thrown away again and again.
  if (share_->is_news(record.counts.version)) take_statistics(table_.get(), record.counts);
  std::vector<IndexStatistics> all(table->s->keys);
  for (uint key = 0; key < table->s->keys; ++key) {
    const uint32_t index = rows_.layout().kernel_index(key);
    const auto known = record.indexes.find(table_->spec().indexes[index].index_id);
    if (known == record.indexes.end()) return;  // it is sampled, like one that is not shared
    all[key] = known->second;
  }
  if (record.number != 0 && share_->has_newer_indexes(record.number))
    share_->set_statistics(std::move(all), record.sampled_rows);
}

void ha_strata::share_what_was_found(const engine::Sampled& sampled,
                                     std::vector<IndexStatistics> indexes, uint64_t sampled_rows) {
  if (!shares_statistics()) return;
  Calculated found{.counts = engine::Kernel::counts(*table_),
                   .committed = engine::Kernel::committed(*table_),
                   .sampled = sampled.done,
                   .recounted = sampled.recounted,
                   .sampled_rows = sampled_rows};
  for (uint key = 0; key < indexes.size(); ++key) {
    const uint32_t index = rows_.layout().kernel_index(key);
    found.indexes[table_->spec().indexes[index].index_id] = std::move(indexes[key]);
  }
  share_statistics(table_, std::move(found));
}

int ha_strata::info(uint flags) {
  return guarded([&] {
    if ((flags & HA_STATUS_ERRKEY) != 0) errkey = duplicate_key_;
    if (table_ == nullptr) return 0;
    if ((flags & HA_STATUS_AUTO) != 0)
      stats.auto_increment_value =
          table->found_next_number_field == nullptr ? 0 : table_->next_auto_increment();
    if ((flags & HA_STATUS_VARIABLE) != 0) {
      const KillReachesReads reaches(current_thd);
      follow_shared_statistics();
      engine::Sampled sampled;
      (void)home_->refresh_old_statistics(table_.get(), &sampled);  // old ones do, too
      if (sampled.done) share_what_was_found(sampled, {}, 0);
      stats.records = table_->estimated_rows();
      stats.deleted = 0;
      stats.data_file_length = table_->data_bytes();
      stats.index_file_length = table_->index_bytes();
      // What people ask for, not the optimiser.
      if ((flags & HA_STATUS_VARIABLE_EXTRA) != 0) tell_sizes();
      stats.mean_rec_length =
          stats.records == 0 ? 0 : static_cast<ulong>(stats.data_file_length / stats.records);
      stats.mrr_length_per_rec = ref_length + sizeof(void*);
      stats.check_time = 0;
      // The optimiser believes 0 and reads no rows; an estimate of 0 is not that certain.
      if (stats.records == 0 && (flags & (HA_STATUS_TIME | HA_STATUS_OPEN)) == 0) stats.records = 1;
    }
    if ((flags & HA_STATUS_TIME) != 0) stats.update_time = static_cast<ulong>(table_->updated_at());
    if ((flags & (HA_STATUS_VARIABLE | HA_STATUS_CONST)) != 0) tell_rows_per_key();
    if ((flags & HA_STATUS_CONST) == 0) return 0;
    stats.create_time = static_cast<ulong>(table_->spec().created_at);
    stats.block_size = engine::kPageSize;
    stats.max_data_file_length = 0;  // not known, which is shown as such
    return 0;
  });
}

void ha_strata::tell_sizes() {
  const engine::TableSizes sizes = home_->sizes(*table_);
  stats.data_file_length = sizes.data;
  stats.index_file_length = sizes.indexes;
  stats.delete_length = sizes.free;
}

// Before every query, not only at open: a TABLE opened while it was empty lives on when a million
// rows have been loaded.
void ha_strata::tell_rows_per_key() {
  if (share_->needs_sampling(table_->estimated_rows())) sample_indexes();
  if (!share_->newer_statistics(&statistics_number_, &index_statistics_)) return;
  for (uint key = 0; key < table->s->keys && key < index_statistics_.size(); ++key) {
    KEY& info = table->key_info[key];
    const std::vector<double>& per_prefix = index_statistics_[key].rows_per_prefix;
    for (uint part = 0; part < info.ext_key_parts; ++part) {
      const double per =
          part < per_prefix.size() ? per_prefix[part] : 1;  // with the primary key: one row
      info.rec_per_key[part] =
          std::max<ulong>(1, static_cast<ulong>(per / kLookUpAdvantage + kSamplingError));
    }
  }
}

ha_rows ha_strata::records_in_range(uint key, const key_range* low, const key_range* high,
                                    page_range*) {
  ha_rows rows = 1;
  (void)guarded([&] {
    const uint32_t index = rows_.layout().kernel_index(key);
    KeyCodec& codec = rows_.layout().index(index).codec;
    const size_t in_order = rows_.layout().in_order_bytes(index);
    Buffer from;
    Buffer to;
    bool infinite = true;
    size_t own = 0;
    if (low != nullptr) {
      codec.append_server_key(low->key, low->length, &from, &own);
      if (low->flag == HA_READ_AFTER_KEY) {
        make_successor(&from, &infinite);
        if (infinite) return 0;
      }
    }
    infinite = high == nullptr;
    if (high != nullptr) {
      codec.append_server_key(high->key, high->length, &to, &own);
      if (high->flag != HA_READ_BEFORE_KEY) make_successor(&to, &infinite);
    }
    if (from.size() > in_order) from.shrink(in_order);
    if (!infinite && to.size() > in_order) {
      to.shrink(in_order);
      make_successor(&to, &infinite);
    }
    if (infinite) to.clear();
    const KillReachesReads reaches(current_thd);
    const StatusOr<uint64_t> estimate =
        home_->estimate_range(table_.get(), index, from.bytes(), to.bytes());
    // 0 would be believed.
    if (estimate.ok()) rows = std::max<uint64_t>(*estimate, 1);
    return 0;
  });
  return rows;
}

ha_rows ha_strata::estimate_rows_upper_bound() { return 2 * table_->estimated_rows() + 1000; }

double ha_strata::scan_time() { return static_cast<double>(table_->clustered_leaf_pages()) + 1; }

double ha_strata::read_time(uint key, uint ranges, ha_rows rows) {
  if (key != table->s->primary_key) return handler::read_time(key, ranges, rows);
  const double all = scan_time();
  const auto total = static_cast<double>(std::max<uint64_t>(table_->estimated_rows(), 1));
  const auto wanted = static_cast<double>(rows);
  // A row is on one page: through a secondary index it would not be cheaper, however small the
  // table is.
  const double most = std::min(all, std::max<double>(ranges, wanted));
  if (wanted >= total) return most;
  return std::min(most, static_cast<double>(ranges) + wanted / total * all);
}

int ha_strata::analyze(THD* thd, HA_CHECK_OPT*) {
  return guarded([&]() -> int {
    const KillReachesReads reaches(thd);
    engine::Sampled sampled;
    const Status status = home_->refresh_statistics(table_.get(), &sampled);
    if (!status.ok()) return handler_error(status, thd) == 0 ? HA_ADMIN_OK : HA_ADMIN_FAILED;
    share_what_was_found(sampled, {}, 0);
    sample_indexes();
    if (shares_statistics()) wait_until_statistics_are_shared();
    return info(HA_STATUS_CONST | HA_STATUS_VARIABLE) == 0 ? HA_ADMIN_OK : HA_ADMIN_FAILED;
  });
}

int ha_strata::check(THD* thd, HA_CHECK_OPT* options) {
  return guarded([&]() -> int {
    engine::CheckResult result;
    Buffer entry;
    uchar* const record = table->record[0];
    const auto row_entries = [&](Bytes, Bytes row, const LoadExternal& load,
                                 const engine::Kernel::EmitEntry& emit) -> Status {
      STRATA_RETURN_IF_ERROR(rows_.codec().decode(row, nullptr, load, record));
      for (size_t i = 1; i < rows_.layout().index_count(); ++i) {
        entry.clear();
        bool has_null = false;
        rows_.layout().index(i).append_key(record, &entry, &has_null);
        emit(static_cast<uint32_t>(i), entry.bytes());
      }
      return ok_status();
    };
    const bool entries = (options->flags & T_QUICK) == 0;
    const KillReachesReads reaches(thd);
    const Status status = home_->check_table(session(), table_, entries, row_entries, &result);
    for (const std::string& problem : result.problems) {
      push_warning_printf(thd, Sql_condition::WARN_LEVEL_WARN, ER_NOT_KEYFILE, "STRATA: %s",
                          problem.c_str());
      sql_print_error("STRATA: CHECK TABLE %s/%s: %s", table_->spec().schema.c_str(),
                      table_->spec().name.c_str(), problem.c_str());
    }
    if (!status.ok() && !is_corruption(status)) {
      (void)handler_error(status, thd);
      return HA_ADMIN_FAILED;
    }
    return status.ok() && result.problems.empty() ? HA_ADMIN_OK : HA_ADMIN_CORRUPT;
  });
}

}  // namespace strata::glue
