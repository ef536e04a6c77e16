#include "clients/fusion/tit_region.h"

#include <atomic>
#include <cstddef>

#include "base/assert.h"
#include "proto/fusion.h"

namespace strata::clients {
namespace {

static_assert(static_cast<uint8_t>(TrxState::kAborted) < proto::kTitEnded);

struct Slot {
  std::atomic_ref<uint64_t> sequence, word, waiters;
};

Slot slot_at(char* memory, uint64_t index) noexcept {
  char* const slot = memory + index * sizeof(proto::TitSlot);
  return {std::atomic_ref<uint64_t>(
              *reinterpret_cast<uint64_t*>(slot + offsetof(proto::TitSlot, sequence))),
          std::atomic_ref<uint64_t>(
              *reinterpret_cast<uint64_t*>(slot + offsetof(proto::TitSlot, word))),
          std::atomic_ref<uint64_t>(
              *reinterpret_cast<uint64_t*>(slot + offsetof(proto::TitSlot, waiters)))};
}

bool is_undecided(uint8_t state) noexcept {
  return state == static_cast<uint8_t>(TrxState::kActive) ||
         state == static_cast<uint8_t>(TrxState::kPrepared) ||
         state == static_cast<uint8_t>(TrxState::kCommitting);
}

}  // namespace

TitRegion::TitRegion(char* memory, uint64_t slots) noexcept : memory_(memory), slots_(slots) {
  STRATA_ASSERT(slots != 0 && (slots & (slots - 1)) == 0);
  STRATA_ASSERT(reinterpret_cast<uintptr_t>(memory) % 8 == 0);
}

void TitRegion::claim(uint64_t sequence, TrxState state) noexcept {
  char* const memory = memory_.load();
  if (memory == nullptr) return;
  const Slot slot = slot_at(memory, sequence & (slots_ - 1));
  if (is_undecided(proto::tit_state(slot.word.load()))) return;  // FC7
  slot.sequence.store(0);
  slot.waiters.store(0);  // FC15
  slot.word.store(
      proto::tit_word(static_cast<uint8_t>(state), Cts{}, proto::tit_tag(sequence, slots_)));
  slot.sequence.store(sequence);
}

// Only while the slot is this transaction's: then nobody else claims it.
void TitRegion::store(uint64_t sequence, uint8_t state, Cts cts) noexcept {
  char* const memory = memory_.load();
  if (memory == nullptr) return;
  const Slot slot = slot_at(memory, sequence & (slots_ - 1));
  if (slot.sequence.load() != sequence) return;
  slot.word.store(proto::tit_word(state, cts, proto::tit_tag(sequence, slots_)));
}

void TitRegion::set(uint64_t sequence, TrxState state, Cts cts) noexcept {
  store(sequence, static_cast<uint8_t>(state), cts);
}

void TitRegion::set_ended(uint64_t sequence, Cts cts) noexcept {
  store(sequence, proto::kTitEnded, cts);
}

void TitRegion::made_durable(uint64_t sequence, Cts cts) noexcept {
  char* const memory = memory_.load();
  if (memory == nullptr) return;
  const Slot slot = slot_at(memory, sequence & (slots_ - 1));
  const uint64_t tag = proto::tit_tag(sequence, slots_);
  uint64_t before = proto::tit_word(proto::kTitEnded, cts, tag);
  slot.word.compare_exchange_strong(
      before, proto::tit_word(static_cast<uint8_t>(TrxState::kCommitted), cts, tag));
}

bool TitRegion::may_be_waited_for(uint64_t sequence) noexcept {
  char* const memory = memory_.load();
  if (memory == nullptr) return true;
  const Slot slot = slot_at(memory, sequence & (slots_ - 1));
  const bool waited_for = slot.waiters.fetch_add(0) != 0;  // FC15
  return waited_for || slot.sequence.load() != sequence;
}

}  // namespace strata::clients
