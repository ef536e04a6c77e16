// A server's table of transactions as others read it (FU9): slots in a region of the server's own,
// which it exposes for reading only. The server itself never reads it.
//
//   FU9  claim(): sequence 0, then the word of the new sequence, then the sequence. Whoever reads
//        the sequence and then a word with its tag has a state that the transaction had in between:
//        a word of another transaction has another tag.
//   FC7  A slot whose transaction is undecided is left to it: a younger one that would have the
//        same slot is not shown, and others ask. (The server's own table has as many slots, and
//        skips busy ones; after a restart with many old transactions it may have more.)
#pragma once

#include <cstdint>

#include "txn/tit_source.h"

namespace strata::clients {

class TitRegion final : public PublishedSlots {
 public:
  // `memory`: bytes_of(slots) zeroes, aligned to 8; outlives this. `slots`: a power of two.
  TitRegion(char* memory, uint64_t slots) noexcept;
  [[nodiscard]] static constexpr uint64_t bytes_of(uint64_t slots) noexcept { return slots * 32; }

  void claim(uint64_t sequence, TrxState state) noexcept override;
  void set(uint64_t sequence, TrxState state, Cts cts) noexcept override;
  void set_ended(uint64_t sequence, Cts cts) noexcept override;
  void made_durable(uint64_t sequence, Cts cts) noexcept override;

 private:
  void store(uint64_t sequence, uint8_t state, Cts cts) noexcept;
  char* const memory_;
  const uint64_t slots_;
};

}  // namespace strata::clients
