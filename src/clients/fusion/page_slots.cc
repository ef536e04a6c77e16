#include "clients/fusion/page_slots.h"

namespace strata::clients {

void PageSlots::add(const std::vector<uint32_t>& slots) {
  const MutexLock lock(mutex_);
  free_.insert(free_.end(), slots.begin(), slots.end());
}

std::optional<uint32_t> PageSlots::take() {
  const MutexLock lock(mutex_);
  if (free_.empty()) return std::nullopt;
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

size_t PageSlots::free() const {
  const MutexLock lock(mutex_);
  return free_.size();
}

void PageSlots::clear() {
  const MutexLock lock(mutex_);
  free_.clear();
}

Status PageSlots::check(const char* page, PageId id, Llsn llsn) {
  if (header_of(page)->llsn == llsn.value && verify_page(page, id).ok()) return ok_status();
  return error_peer_down("the memory node's slot has another page, or half of one");
}

}  // namespace strata::clients
