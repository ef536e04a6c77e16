// The places of servers that write the same tables (profile fusion): a place is a number, and with
// it a log stream of that number, an undo space, a range of transactions' numbers. One record per
// place. Thread-safe.
//   PLC1  A place is one data folder's from when it was taken until it is given back: the folder
//         gets the same place at each start. No place is two folders' at once, and no folder has
//         two.
//   PLC2  Only the holder of the place's stream changes its record (move_in(), give_back()): who
//         has lost the stream changes nothing.
//   PLC3  The record says who of the place's own folder held its stream last (`server`), and who
//         has held it since in that one's stead and has not left in order (`adopter`). Who was a
//         member at the memory node for it since, and never held the stream, has changed nothing.
//   PLC4  A place is settled when the last epoch of its stream is one whose holder has left in
//         order: all that it had exclusively was given back, and there is nothing to recover. Who
//         seals the stream of one that was killed takes a later epoch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/keys.h"
#include "cluster/stream_epochs.h"
#include "registry/registry.h"

namespace strata::cluster {

// Places are numbered from 1 on: the number of the server, of its log stream (log_stream_of()) and
// of its transactions' range.
constexpr uint8_t kPlacesMax = 254;

// On which the database is made.
constexpr NodeId kFirstPlace{1};

struct Place {
  NodeId number;
  uint64_t folder = 0;  // the identity of the data folder whose it is; not 0
  std::string server;   // PLC3: StreamHolder::holder; empty: nobody yet
  std::string adopter;  // PLC3: empty: nobody
  Epoch settled;        // PLC4; zero: nobody has ever left in order
  bool operator==(const Place&) const = default;
};

struct KnownPlace {
  Place place;
  Version version;
};

class Places {
 public:
  Places(Registry* registry, ClusterKeys keys) : registry_(registry), keys_(std::move(keys)) {}

  // By number. Blocks. Errors: kDataLoss, the registry's.
  StatusOr<std::vector<KnownPlace>> all(uint64_t deadline_us);
  // The folder's place; if it has none, the free one with the lowest number is its from now on
  // (*taken). Blocks. Errors: no_space (there are kPlacesMax), kDataLoss, the registry's; after
  // kUnknown the next call finds what became of it.
  StatusOr<KnownPlace> take(uint64_t folder, bool* taken, uint64_t deadline_us);
  // PLC2, PLC3. The holder of the place's stream writes down that the place is that folder's and
  // who it is itself, in place of the record that it has read (nothing: there was none). Blocks.
  // Errors: conflict (the stream is not held so any more, or the record is another one), the
  // registry's.
  StatusOr<KnownPlace> move_in(const Place& place, Version before, const EpochGrant& grant,
                               uint64_t deadline_us);
  // PLC2, PLC4. The holder has left in order but for letting the stream go, and nobody else is at
  // it (`alone`: nor was one before that may still be there). Blocks. Errors: as move_in().
  StatusOr<KnownPlace> settle(const KnownPlace& place, bool alone, const EpochGrant& grant,
                              uint64_t deadline_us);
  // PLC4. Those on which somebody is, or has ended without leaving in order. By number. Blocks.
  // Errors: as all().
  StatusOr<std::vector<KnownPlace>> unsettled(uint64_t deadline_us);
  StatusOr<bool> is_settled(const Place& place, uint64_t deadline_us);
  // PLC2. The place is nobody's: nothing was ever written on it. Blocks. Errors: as move_in().
  Status give_back(const KnownPlace& place, const EpochGrant& grant, uint64_t deadline_us);
  // The same of one that was taken, and on which nobody has moved in. Errors: conflict (somebody
  // has), the registry's.
  Status give_back_unused(const KnownPlace& place, uint64_t deadline_us);

 private:
  Registry* const registry_;
  const ClusterKeys keys_;
};

}  // namespace strata::cluster
