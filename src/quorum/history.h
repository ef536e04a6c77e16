// The epoch history of a replicated log, and where two logs part. Pure.
//
// A log is bytes addressed by Lsn; each byte was written under one epoch. The history lists where
// each epoch began, oldest first. Beginning an epoch is part of the log, too: a log that ends where
// its last epoch began is newer than the same bytes without it.
//   QH1  Epochs and starts grow strictly along a history. An epoch that wrote nothing is forgotten
//        when the next one begins at the same place; the last one may be empty.
//   QH2  An epoch begins at one place only, and what lies before that place is one and the same in
//        every log that has the epoch. So two logs with a common entry agree up to where either
//        one's next entry begins, or where it ends. Logs that break this are kDataLoss.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace strata::quorum {

struct EpochStart {
  Epoch epoch;
  Lsn start;
  auto operator<=>(const EpochStart&) const noexcept = default;
};
using History = std::vector<EpochStart>;

// kDataLoss unless QH1 holds.
Status check_history(const History& history);
// Zero when there is none.
[[nodiscard]] Epoch last_epoch(const History& history) noexcept;
// Of the byte at `lsn`; zero before the first entry.
[[nodiscard]] Epoch epoch_at(const History& history, Lsn lsn) noexcept;
// The first boundary behind `lsn`, or `end` when none comes before it.
[[nodiscard]] Lsn next_boundary(const History& history, Lsn lsn, Lsn end) noexcept;
// What a log with this history has to say when it ends at `end`: entries that begin at or before.
[[nodiscard]] History clipped(History history, Lsn end);
// The history of a log cut at `start` on which `epoch` begins there.
[[nodiscard]] History begun(History history, Epoch epoch, Lsn start);
// The history of a log that agrees with the one that has `chosen`, whose holder may have forgotten
// early epochs that this log still has bytes of.
[[nodiscard]] History joined(const History& own, const History& chosen);
// Drops entries that only concern bytes below `lsn`. The entry that covers `lsn` keeps its start.
void forget_below(History* history, Lsn lsn);
// Drops the oldest entries until at most `entries_max` are left. What lies before the first entry
// that is left is of epochs that nobody remembers: epoch_at() is zero there.
void forget_oldest(History* history, size_t entries_max);

// Bytes [start, end) under a history whose last entry begins at or before `end`. Without a history
// start == end: nothing was ever written.
struct LogShape {
  Lsn start;
  Lsn end;
  History history;
};

// Up to where the logs hold the same bytes and epochs; nothing when no common place is known (all
// of one log lies below what is still known of the other). May lie below the starts.
// kDataLoss: QH2 is broken.
StatusOr<std::optional<Lsn>> agreed_end(const LogShape& a, const LogShape& b);

// Which of two sealed logs holds everything acknowledged: the one with the higher last epoch, then
// the longer one.
[[nodiscard]] bool is_newer(Epoch a_epoch, Lsn a_end, Epoch b_epoch, Lsn b_end) noexcept;

[[nodiscard]] std::string describe(const History& history);  // "1@0 3@4096", for messages

}  // namespace strata::quorum
