#include "cluster/places.h"

#include <algorithm>
#include <array>
#include <utility>

#include "cluster/internal/records.h"

namespace strata::cluster {

StatusOr<std::vector<KnownPlace>> Places::all(uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(const Listing listing, registry_->list(keys_.places(), deadline_us));
  std::vector<KnownPlace> all;
  for (const KeyValue& entry : listing.entries) {
    STRATA_ASSIGN_OR_RETURN(Place place, internal::decode_place(keys_.places(), entry));
    all.push_back({std::move(place), entry.version});
  }
  return all;
}

StatusOr<KnownPlace> Places::take(uint64_t folder, bool* taken, uint64_t deadline_us) {
  *taken = false;
  for (;;) {
    STRATA_ASSIGN_OR_RETURN(const std::vector<KnownPlace> there, all(deadline_us));
    // A change whose outcome was lost may have left it a second one, on which nobody ever wrote.
    const KnownPlace* own = nullptr;
    uint32_t free = kFirstPlace.value;
    for (const KnownPlace& one : there) {  // in their order
      if (one.place.folder == folder && (own == nullptr || own->place.server.empty())) own = &one;
      if (one.place.number.value == free) ++free;
    }
    if (own != nullptr) return *own;
    if (free > kPlacesMax)
      return error_no_space("all " + std::to_string(kPlacesMax) +
                            " places of the cluster are taken; to do: give one back");
    const Place place{NodeId{static_cast<uint8_t>(free)}, folder, {}, {}, {}};
    const auto made = registry_->change(
        Change::create(keys_.place(place.number), internal::encode_place(place)), deadline_us);
    if (made.ok()) {
      *taken = true;
      return KnownPlace{place, *made};
    }
    // Somebody else was quicker. What is unknown may still come to be: the folder's next look
    // finds it then, since no second place is taken before that is known.
    if (!is_conflict(made.status())) return made.status();
  }
}

StatusOr<KnownPlace> Places::move_in(const Place& place, Version before, const EpochGrant& grant,
                                     uint64_t deadline_us) {
  STRATA_RETURN_IF_ERROR(internal::check_place(place));
  const std::array changes = {
      Change::replace(keys_.place(place.number), before, internal::encode_place(place)),
      Change::require(keys_.writer(grant.stream), grant.writer)};
  const auto changed = registry_->change(changes, deadline_us);
  if (changed.ok()) return KnownPlace{place, *changed};
  return changed.status();
}

StatusOr<KnownPlace> Places::settle(const KnownPlace& place, bool alone, const EpochGrant& grant,
                                    uint64_t deadline_us) {
  Place settled = place.place;
  settled.settled = grant.epoch;
  if (alone) settled.adopter.clear();
  return move_in(settled, place.version, grant, deadline_us);
}

// A stream that nobody was ever given is one on which nothing was ever written.
StatusOr<bool> Places::is_settled(const Place& place, uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(
      const auto holder,
      StreamEpochs(registry_, keys_).current(log_stream_of(place.number), deadline_us));
  return !holder.has_value() || holder->epoch == place.settled;
}

StatusOr<std::vector<KnownPlace>> Places::unsettled(uint64_t deadline_us) {
  STRATA_ASSIGN_OR_RETURN(std::vector<KnownPlace> places, all(deadline_us));
  std::vector<KnownPlace> unsettled;
  for (KnownPlace& one : places) {
    STRATA_ASSIGN_OR_RETURN(const bool settled, is_settled(one.place, deadline_us));
    if (!settled) unsettled.push_back(std::move(one));
  }
  return unsettled;
}

Status Places::give_back(const KnownPlace& place, const EpochGrant& grant, uint64_t deadline_us) {
  const std::array changes = {Change::remove(keys_.place(place.place.number), place.version),
                              Change::require(keys_.writer(grant.stream), grant.writer)};
  return registry_->change(changes, deadline_us).status();
}

// Who moves in changes the record's version.
Status Places::give_back_unused(const KnownPlace& place, uint64_t deadline_us) {
  return registry_
      ->change(Change::remove(keys_.place(place.place.number), place.version), deadline_us)
      .status();
}

}  // namespace strata::cluster
