// The transaction information table: the recent window of the status pages in memory (T3). Readers
// take no lock: version, state, version.
//   Written by: claim() under the id mutex; the rest by the owner of the slot's transaction
//   (kCommitting under the commit mutex). Read by: anyone. Torn read: the sequence changed, the
//   reader looks again or takes the slot for reused. Reused: only when the state is not busy.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/assert.h"
#include "base/clock.h"
#include "base/ids.h"
#include "txn/trx_system.h"

namespace strata::txn_internal {

constexpr uint64_t kCtsMask = (uint64_t{1} << 61) - 1;
constexpr Lsn kLsnUnknown{UINT64_MAX};

constexpr uint64_t pack_state(TrxState state, Cts cts) noexcept {
  return (static_cast<uint64_t>(state) << 61) | (cts.value & kCtsMask);
}
constexpr TrxState state_of(uint64_t word) noexcept { return static_cast<TrxState>(word >> 61); }
constexpr Cts cts_of(uint64_t word) noexcept { return Cts{word & kCtsMask}; }
constexpr bool is_undecided_state(TrxState state) noexcept {
  return state == TrxState::kActive || state == TrxState::kPrepared ||
         state == TrxState::kCommitting;
}

class Tit {
 public:
  explicit Tit(uint32_t slots) { resize(slots); }
  // Only before any other thread looks.
  void resize(uint32_t slots) {
    STRATA_ASSERT((slots & (slots - 1)) == 0 && slots != 0);
    slots_ = std::make_unique<Slot[]>(slots);
    since_us_ = std::make_unique<std::atomic<uint64_t>[]>(slots);
    mask_ = slots - 1;
  }
  // Of whatever is in that slot; 0: nothing.
  [[nodiscard]] uint64_t sequence_at(uint32_t slot) const noexcept {
    return slots_[slot].sequence.load(std::memory_order_acquire);
  }
  // When the slot was claimed last, for people.
  [[nodiscard]] uint64_t since_us(uint64_t sequence) const noexcept {
    return since_us_[sequence & mask_].load(std::memory_order_relaxed);
  }
  // Where changes are shown to other nodes; only before any.
  void publish_to(PublishedSlots* published) noexcept { published_ = published; }
  [[nodiscard]] uint32_t size() const noexcept { return static_cast<uint32_t>(mask_ + 1); }

  // False if the slot belongs to another sequence.
  bool read(uint64_t sequence, TrxLookup* out) const noexcept {
    const Slot& s = slots_[sequence & mask_];
    if (s.sequence.load(std::memory_order_acquire) != sequence) return false;
    const uint64_t word = s.word.load(std::memory_order_acquire);  // pairs with claim() and set()
    const uint64_t lsn = s.commit_lsn.load(std::memory_order_acquire);
    // A claimer cleared the sequence before it wrote word: whoever saw its word sees that too.
    if (s.sequence.load(std::memory_order_relaxed) != sequence) return false;
    *out = TrxLookup{state_of(word), cts_of(word), Lsn{lsn}};
    return true;
  }
  [[nodiscard]] bool busy(uint64_t sequence) const noexcept {
    return is_undecided_state(
        state_of(slots_[sequence & mask_].word.load(std::memory_order_acquire)));
  }
  // L14: whoever takes the owner away asks for reports afterwards, and whoever reports says so
  // before it looks: both with seq_cst.
  [[nodiscard]] void* owner(uint64_t sequence) const noexcept {
    const Slot& s = slots_[sequence & mask_];
    if (s.sequence.load(std::memory_order_acquire) != sequence) return nullptr;
    void* const owner = s.owner.load(std::memory_order_seq_cst);
    return s.sequence.load(std::memory_order_acquire) == sequence ? owner : nullptr;
  }
  void forget_owner(uint64_t sequence) noexcept {
    Slot& s = slots_[sequence & mask_];
    if (s.owner.load(std::memory_order_relaxed) != nullptr &&
        s.sequence.load(std::memory_order_relaxed) == sequence)
      s.owner.store(nullptr, std::memory_order_seq_cst);
  }
  void claim(uint64_t sequence, TrxState state, void* owner = nullptr) noexcept {
    Slot& s = slots_[sequence & mask_];
    STRATA_ASSERT(!busy(sequence));
    s.sequence.store(0, std::memory_order_relaxed);
    s.commit_lsn.store(kLsnUnknown.value, std::memory_order_release);
    s.owner.store(owner, std::memory_order_release);
    since_us_[sequence & mask_].store(monotonic_us(), std::memory_order_relaxed);
    s.word.store(pack_state(state, Cts{}), std::memory_order_release);
    s.sequence.store(sequence, std::memory_order_release);
    if (published_ != nullptr) published_->claim(sequence, state);
  }
  // What others are told of a commit that is not durable yet is not kCommitted (MW20).
  void set(uint64_t sequence, TrxState state, Cts cts, bool durable = true) noexcept {
    Slot& s = slots_[sequence & mask_];
    STRATA_ASSERT(s.sequence.load(std::memory_order_relaxed) == sequence);
    // The copy first: once the slot is not busy another sequence may claim it.
    if (published_ != nullptr) {
      if (durable) {
        published_->set(sequence, state, cts);
      } else {
        published_->set_ended(sequence, cts);
      }
    }
    s.word.store(pack_state(state, cts), std::memory_order_release);
  }
  void made_durable(uint64_t sequence, Cts cts) noexcept {
    if (published_ != nullptr) published_->made_durable(sequence, cts);
  }
  void set_commit_lsn(uint64_t sequence, Lsn lsn) noexcept {
    slots_[sequence & mask_].commit_lsn.store(lsn.value, std::memory_order_release);
  }

 private:
  struct alignas(32) Slot {
    std::atomic<uint64_t> sequence{0};
    std::atomic<uint64_t> word{0};
    std::atomic<uint64_t> commit_lsn{0};
    std::atomic<void*> owner{nullptr};  // of the session that runs it
  };
  static_assert(sizeof(Slot) == 32);
  std::unique_ptr<Slot[]> slots_;
  std::unique_ptr<std::atomic<uint64_t>[]> since_us_;
  uint64_t mask_ = 0;
  PublishedSlots* published_ = nullptr;
};

// trx_id -> cts of committed transactions, found in status pages. Direct mapped; each entry's two
// words check each other, so that a torn pair is a miss.
class CtsCache {
 public:
  bool find(TrxId id, Cts* cts) const noexcept {
    const Entry& e = entries_[index(id)];
    const uint64_t value = e.cts.load(std::memory_order_relaxed);
    if (value == 0 || (e.key.load(std::memory_order_relaxed) ^ mix64(value)) != id.value)
      return false;
    *cts = Cts{value};
    return true;
  }
  void put(TrxId id, Cts cts) noexcept {
    Entry& e = entries_[index(id)];
    e.key.store(id.value ^ mix64(cts.value), std::memory_order_relaxed);
    e.cts.store(cts.value, std::memory_order_relaxed);
  }

 private:
  static constexpr size_t kEntries = size_t{1} << 14;
  static size_t index(TrxId id) noexcept { return mix64(id.value) & (kEntries - 1); }
  struct Entry {
    std::atomic<uint64_t> key{0}, cts{0};
  };
  std::unique_ptr<Entry[]> entries_ = std::make_unique<Entry[]>(kEntries);
};

}  // namespace strata::txn_internal
