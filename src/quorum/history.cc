#include "quorum/history.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace strata::quorum {
namespace {

Status contradiction(const History& a, const History& b) {
  return error_corruption("two logs of one stream contradict each other: epochs " + describe(a) +
                          " and " + describe(b) +
                          "; one of them is of another stream or was restored from an old copy");
}

using Indexes = std::optional<std::pair<size_t, size_t>>;

// The last entry both have; nothing when there is none. Meets every epoch both have behind it.
StatusOr<Indexes> last_common(const History& a, const History& b) {
  size_t i = a.size();
  size_t j = b.size();
  while (i > 0 && j > 0) {
    if (a[i - 1].epoch > b[j - 1].epoch) {
      --i;
    } else if (b[j - 1].epoch > a[i - 1].epoch) {
      --j;
    } else if (a[i - 1].start != b[j - 1].start) {
      return contradiction(a, b);
    } else {
      return Indexes(std::pair(i - 1, j - 1));
    }
  }
  return Indexes();
}

// Before a common entry nothing differs, as far back as both remember (QH2).
bool agree_before(const History& a, size_t i, const History& b, size_t j) {
  while (i > 0 && j > 0)
    if (a[--i] != b[--j]) return false;
  return true;
}

// Where the part of `log` that belongs to entry `index` ends.
Lsn end_of_entry(const LogShape& log, size_t index) noexcept {
  return index + 1 < log.history.size() ? log.history[index + 1].start : log.end;
}

// `empty` has no history: it only has a place.
std::optional<Lsn> place_in(const LogShape& empty, const LogShape& log) {
  const Lsn known = log.history.empty() ? log.start : log.history.front().start;
  if (empty.end < known || empty.end > log.end) return std::nullopt;
  return empty.end;
}

}  // namespace

Status check_history(const History& history) {
  for (size_t i = 0; i < history.size(); ++i) {
    const bool grows = i == 0 || (history[i - 1].epoch < history[i].epoch &&
                                  history[i - 1].start < history[i].start);
    if (!grows || history[i].epoch.is_zero())
      return error_corruption("not an epoch history: " + describe(history));
  }
  return ok_status();
}

Epoch last_epoch(const History& history) noexcept {
  return history.empty() ? Epoch{} : history.back().epoch;
}

Epoch epoch_at(const History& history, Lsn lsn) noexcept {
  const auto behind = std::upper_bound(history.begin(), history.end(), lsn,
                                       [](Lsn l, const EpochStart& e) { return l < e.start; });
  return behind == history.begin() ? Epoch{} : std::prev(behind)->epoch;
}

Lsn next_boundary(const History& history, Lsn lsn, Lsn end) noexcept {
  for (const EpochStart& e : history)
    if (e.start > lsn) return std::min(e.start, end);
  return end;
}

History clipped(History history, Lsn end) {
  while (!history.empty() && history.back().start > end) history.pop_back();
  return history;
}

History begun(History history, Epoch epoch, Lsn start) {
  while (!history.empty() && history.back().start >= start) history.pop_back();
  history.push_back(EpochStart{epoch, start});
  return history;
}

History joined(const History& own, const History& chosen) {
  if (chosen.empty()) return own;
  History out;
  for (const EpochStart& e : own)
    if (e.start < chosen.front().start) out.push_back(e);
  out.insert(out.end(), chosen.begin(), chosen.end());
  return out;
}

void forget_below(History* history, Lsn lsn) {
  size_t covering = 0;
  while (covering + 1 < history->size() && (*history)[covering + 1].start <= lsn) ++covering;
  history->erase(history->begin(), history->begin() + static_cast<ptrdiff_t>(covering));
}

void forget_oldest(History* history, size_t entries_max) {
  if (history->size() <= entries_max) return;
  history->erase(history->begin(), history->end() - static_cast<ptrdiff_t>(entries_max));
}

StatusOr<std::optional<Lsn>> agreed_end(const LogShape& a, const LogShape& b) {
  if (a.history.empty()) return place_in(a, b);
  if (b.history.empty()) return place_in(b, a);
  STRATA_ASSIGN_OR_RETURN(const Indexes common, last_common(a.history, b.history));
  if (!common.has_value()) return std::optional<Lsn>();
  const auto [i, j] = *common;
  if (!agree_before(a.history, i, b.history, j)) return contradiction(a.history, b.history);
  return std::optional<Lsn>(std::min(end_of_entry(a, i), end_of_entry(b, j)));
}

bool is_newer(Epoch a_epoch, Lsn a_end, Epoch b_epoch, Lsn b_end) noexcept {
  return std::tie(a_epoch, a_end) > std::tie(b_epoch, b_end);
}

std::string describe(const History& history) {
  std::string text;
  for (const EpochStart& e : history) {
    if (!text.empty()) text += ' ';
    text += std::to_string(e.epoch.value) + "@" + std::to_string(e.start.value);
  }
  return text.empty() ? "none" : text;
}

}  // namespace strata::quorum
