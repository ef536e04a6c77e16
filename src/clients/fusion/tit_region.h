// A server's table of transactions as others read it (FU9): slots in a region of the server's own.
// The server itself reads nothing of it but the words `waiters`, which others add to: somebody
// waits for the transaction in the slot.
//
//   FU9  claim(): sequence 0, then the word of the new sequence, then the sequence. Whoever reads
//        the sequence and then a word with its tag has a state that the transaction had in between:
//        a word of another transaction has another tag.
//   FC7  A slot whose transaction is undecided is left to it: a younger one that would have the
//        same slot is not shown, and others ask. (The server's own table has as many slots, and
//        skips busy ones; after a restart with many old transactions it may have more.)
//   FC15  Others add to `waiters` and look at the slot then; the owner stores the outcome, then
//         does a read-modify-write on `waiters`: one of the two comes second and sees (FU26). Both
//         are read-modify-writes because a store that a load follows may be seen after it. claim()
//         clears the word before it shows the sequence; what is added late is for nobody.
//   FC52  A memory node in the place of one that is gone has another region (move_to()): it shows
//         what begins from then on. Of what is under way it shows nothing, and others ask (FC7).
#pragma once

#include <atomic>
#include <cstdint>

#include "txn/tit_source.h"

namespace strata::clients {

class TitRegion final : public PublishedSlots {
 public:
  // `memory`: bytes_of(slots) zeroes, aligned to 8; outlives this. `slots`: a power of two.
  TitRegion(char* memory, uint64_t slots) noexcept;
  [[nodiscard]] static constexpr uint64_t bytes_of(uint64_t slots) noexcept { return slots * 32; }

  // FC52. As large, all zeroes; null: nothing is shown. The one before may still be written to.
  void move_to(char* memory) noexcept { memory_.store(memory); }

  void claim(uint64_t sequence, TrxState state) noexcept override;
  void set(uint64_t sequence, TrxState state, Cts cts) noexcept override;
  void set_ended(uint64_t sequence, Cts cts) noexcept override;
  void made_durable(uint64_t sequence, Cts cts) noexcept override;
  // After its outcome was set. True, too, if the slot shows another one: who waits cannot say so.
  [[nodiscard]] bool may_be_waited_for(uint64_t sequence) noexcept;

 private:
  void store(uint64_t sequence, uint8_t state, Cts cts) noexcept;
  std::atomic<char*> memory_;
  const uint64_t slots_;
};

}  // namespace strata::clients
