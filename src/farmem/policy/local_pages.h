// Which pages of far memory are local, and which of them must go so that another one can come.
// Pure: it moves nothing itself, it says what its owner has to move. Not thread-safe.
//
//                 bring()                     bring() of another page
//      away ----------------> mapped -------------------------------> staged
//        ^                       ^                                       |
//        |                       +---------------------------------------+ bring()
//        +---------------------------------------------------------------+ bring() of another page
//      forget(): from anywhere to away
//
//   FM1  Mapped and staged pages together are never more than the frames, not for a moment, when
//        the owner does what it is told in its order: evict, then stage, then bring.
//   FM2  A page is in one place. It loses its local content only when it is named in `evict`, or by
//        forget().
//   FM3  The page that comes, and the pages brought by the owner just before it that still fit its
//        set, are not its victims: victims are taken in the order of their coming.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/mapped_memory.h"
#include "base/status.h"
#include "farmem/policy/policy_options.h"

namespace strata::farmem {

enum class Place : uint8_t { kAway, kMapped, kStaged };

// A page and the frame it has, or had until now.
struct Framed {
  uint64_t page = 0;
  uint32_t frame = 0;
  friend bool operator==(const Framed&, const Framed&) = default;
};

// What must be done before a page can come, first all of `evict`, then all of `stage`.
struct Moves {
  // Staged pages: written to far memory, where that is needed, and gone.
  std::vector<Framed> evict;
  // Mapped pages: out of the program's sight, content kept.
  std::vector<Framed> stage;
  void clear() noexcept {
    evict.clear();
    stage.clear();
  }
};

class LocalPages {
 public:
  // For pages 0..pages-1. Errors: those of check_policy(), kResourceExhausted.
  static StatusOr<std::unique_ptr<LocalPages>> make(const PolicyOptions& options, uint64_t pages);

  [[nodiscard]] Place place(uint64_t page) const noexcept;
  // Of a local page; it stays the same until the page is away.
  [[nodiscard]] uint32_t frame(uint64_t page) const noexcept { return node_of(page) - 1; }
  // The page is mapped afterwards. Asserts that it was not. Adds to `moves`, which belongs to this
  // call: after clear().
  void bring(uint64_t page, Moves* moves) noexcept;
  // Background write-back: what had better leave now, so that no missing page has to wait for it
  // later. To be asked when no page is waited for. Adds to `moves->evict` only.
  void tidy(Moves* moves) noexcept;
  // The program has no use for it any more.
  void forget(uint64_t page) noexcept;

  [[nodiscard]] uint32_t mapped() const noexcept { return mapped_; }
  [[nodiscard]] uint32_t staged() const noexcept { return staged_.count; }
  [[nodiscard]] const Shares& shares() const noexcept { return shares_; }

 private:
  using Node = uint32_t;  // index of a frame, from 1; 0 is none
  struct Frame {
    uint64_t page = 0;
    Node before = 0;
    Node after = 0;  // in the list it is in; of a free frame: the next free one
    Place place = Place::kAway;
  };
  struct List {
    Node first = 0;  // came first
    Node last = 0;
    uint32_t count = 0;
  };

  LocalPages(const Shares& shares, uint32_t frames, uint64_t pages, MappedMemory index);
  [[nodiscard]] Node& node_of(uint64_t page) const noexcept;
  [[nodiscard]] List& set_of(uint64_t page) noexcept { return sets_[page % shares_.sets]; }
  void append(List* list, Node node) noexcept;
  void unlink(List* list, Node node) noexcept;
  void make_room_among_staged(Moves* moves) noexcept;
  void release(Node node) noexcept;

  const Shares shares_;
  const uint64_t pages_;
  MappedMemory index_;  // of each page its frame
  std::vector<Frame> frames_;
  std::vector<List> sets_;
  List staged_;
  Node free_ = 0;
  uint32_t mapped_ = 0;
};

}  // namespace strata::farmem
