// What a pool's file says of itself, in its first 4096 bytes (docs/data_formats.md): whose it is,
// and three things that change while others may be killed or may be reading. Not thread-safe.
//   MST1  Whose it is (Owner) is written once, when the file is made.
//   MST2  Each of the others has two places that are written in turns, with a number that grows and
//         a checksum, which is stored last: a process that is killed leaves what was said before.
//         One that is damaged is taken for one that was never finished.
#pragma once

#include <array>
#include <cstdint>

#include "base/ids.h"
#include "base/status.h"

namespace strata::memnode {

constexpr uint64_t kStateBytes = 4096;

class StateRecords {
 public:
  struct Owner {
    StreamId stream;
    uint64_t node = 0;  // the memory node, in its cluster
    uint32_t slots = 0;
    bool operator==(const Owner&) const noexcept = default;
  };
  // Who used the pool last: larger than all before it.
  struct User {
    Epoch epoch;
    uint64_t number = 0;
    auto operator<=>(const User&) const noexcept = default;
  };
  // From where the stream's log is redone onto the pool's pages. Of one content of the pool.
  struct Checkpoint {
    Epoch epoch;
    Lsn lsn;
    uint64_t bias = 0;
    bool operator==(const Checkpoint&) const noexcept = default;
  };

  // `place`: kStateBytes that may hold anything; aligned to 8.
  explicit StateRecords(char* place) noexcept : place_(place) {}

  // kNotFound: nothing was ever written there; kDataLoss: damaged, or of another version.
  [[nodiscard]] StatusOr<Owner> owner() const;
  // Begins anew: nothing of what was there counts any more.
  void begin(const Owner& owner) noexcept;

  // 0: there is no content.
  [[nodiscard]] uint64_t incarnation() const noexcept;
  // During which boot of the machine it was set.
  [[nodiscard]] std::array<uint64_t, 2> boot() const noexcept;
  // Whether all that was answered for in this content is durable, since it began.
  [[nodiscard]] bool persistent() const noexcept;
  void set_incarnation(uint64_t incarnation, const std::array<uint64_t, 2>& boot,
                       bool persistent) noexcept;
  [[nodiscard]] User user() const noexcept;  // epoch 0: nobody yet
  void set_user(const User& user) noexcept;
  // Lsn 0: none, or of another content.
  [[nodiscard]] Checkpoint checkpoint() const noexcept;
  void set_checkpoint(const Checkpoint& checkpoint) noexcept;

 private:
  char* const place_;
};

}  // namespace strata::memnode
