// Pages that several processes share, of which the kernel has some (the cache of a file that all
// of them map), this process holds a few, and a memory node has the rest. Decides who is answered
// when, and which pages the kernel has to forget. It neither waits for the kernel nor knows it: its
// owner tells it what the kernel says and does what it is asked for. For one thread at a time.
//
//      read() --answer--> in the kernel --leave()--> leaving --forgotten()--> in the node only
//        ^                                              | second chance: with a copy
//        +------------------------- held <--------------+
//
//   FM50  Pages that the kernel may have and pages held or copied here are together never more than
//         policy.frames: a read of any other page waits until forgotten() has been told. (The
//         kernel has, besides, an empty page for each thread that waits for one.)
//   FM51  A read of a page that the kernel may have, leaving or not, is answered at once, whatever
//         else waits: the kernel cannot forget a page while somebody reads it, so whoever made this
//         read wait for a page to leave might wait for ever.
//   FM52  What a read is answered with is what was written last (write()), zeros if nothing was.
//         write() never waits for a page to leave either. So each page that the kernel has
//         forgotten by itself, which it may do at any time, can be read again.
//   FM53  After an error of the memory node everything that waits is refused, and so is what comes:
//         nobody waits for ever.
// Besides the frames there are pages on their way to the node and a buffer for those that come:
// both of kBatchPagesMax pages.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/mapped_memory.h"
#include "base/status.h"
#include "farmem/node/memory_client.h"
#include "farmem/pager/counters.h"
#include "farmem/policy/local_pages.h"

namespace strata::farmem {

// Pages first .. first+count-1 the kernel has to forget, after it was asked for a copy of each, if
// wanted.
struct Leave {
  uint64_t first = 0;
  uint64_t count = 0;
  bool copy = false;
};

// None of them may call back.
struct SharedPagesOwner {
  std::function<void(uint64_t request, const char* page)> answer;
  std::function<void(uint64_t request)> refuse;
  // Returns at once; forgotten() is called for the same pages when it has been done.
  std::function<void(const Leave& leave)> leave;
};

class SharedPages {
 public:
  // For all pages of the client's region. `counters` outlive it. Errors: those of
  // LocalPages::make().
  static StatusOr<std::unique_ptr<SharedPages>> make(std::unique_ptr<MemoryClient> client,
                                                     const PolicyOptions& policy,
                                                     SharedPagesOwner owner,
                                                     PagerCounters* counters);
  ~SharedPages();
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;

  // The kernel wants a page. May block for the node.
  void read(uint64_t request, uint64_t page);
  // The kernel gives the content of pages it has, or is about to forget. May block for the node.
  // An error: they are lost, and so is all.
  Status write(uint64_t first, uint64_t count, const char* bytes);
  // Of a Leave with `copy`.
  void copied(uint64_t page, const char* bytes);
  void forgotten(const Leave& leave);
  // Nothing is to be done now: what had better be done before it must.
  void rest();

  void lose(const Status& why);
  [[nodiscard]] const Status& lost() const noexcept { return lost_; }
  // Monotonic, of the read that has waited longest; 0: none waits.
  [[nodiscard]] uint64_t waiting_since_ns() const noexcept {
    return waiting_.empty() ? 0 : waiting_.front().begin_ns;
  }
  [[nodiscard]] uint32_t local() const noexcept { return in_kernel_ + held_ + copied_; }
  // Leaves not yet forgotten().
  [[nodiscard]] uint32_t leaving() const noexcept { return leaving_; }
  // For any thread: signs of life.
  [[nodiscard]] MemoryClient& client() const noexcept { return *client_; }

 private:
  // Of each page, any of these.
  static constexpr uint8_t kInKernel = 1;  // it may have it
  static constexpr uint8_t kLeaving = 2;   // between leave() and forgotten()
  static constexpr uint8_t kAgain = 4;     // it was given to the kernel since
  static constexpr uint8_t kHeld = 8;      // it is in its frame of hold_, and not in the kernel
  static constexpr uint8_t kCopied = 16;   // it is in its frame of hold_, until it is held
  static constexpr uint8_t kWritten = 32;  // it was written since it began to leave

  struct Waiting {
    uint64_t request = 0;
    uint64_t page = 0;
    uint32_t run = 0;  // with those that come along
    uint64_t begin_ns = 0;
  };

  SharedPages(std::unique_ptr<MemoryClient> client, const PolicyOptions& policy,
              SharedPagesOwner owner, PagerCounters* counters, std::unique_ptr<LocalPages> pages,
              MappedMemory states, MappedMemory hold);
  [[nodiscard]] uint8_t& state(uint64_t page) const noexcept;
  [[nodiscard]] bool is(uint64_t page, uint8_t any) const noexcept {
    return (state(page) & any) != 0;
  }
  [[nodiscard]] char* hold(uint32_t frame) const noexcept {
    return hold_.get() + uint64_t{frame} * kPageBytes;
  }
  [[nodiscard]] const char* behind(uint64_t page) const noexcept;  // null: it is not there
  [[nodiscard]] bool comes_from_node(uint64_t page) const noexcept;
  void bring(uint64_t page);
  void away(const Framed& framed);
  void staged(const Framed& framed);
  void leave(uint64_t page, bool copy);
  void send_leaves();
  void leave_again(uint64_t page);
  void left(uint64_t page);
  void drop_hold(uint64_t page, uint32_t frame);
  uint32_t run_of(const Waiting& waiting) const;
  void answer_waiting();
  void answer(const Waiting& waiting, uint32_t run);
  void hold_along(uint64_t first, uint32_t run);
  void give(const Waiting& waiting, const char* bytes);
  void count_dropped(uint64_t page) noexcept;
  Status store_behind();
  void note_places() noexcept;

  const std::unique_ptr<MemoryClient> client_;
  const PolicyOptions policy_;
  const SharedPagesOwner owner_;
  PagerCounters& counters_;
  const std::unique_ptr<LocalPages> pages_;
  const MappedMemory states_;
  const MappedMemory hold_;          // a page for each frame
  std::unique_ptr<char[]> buffer_;   // what comes
  std::unique_ptr<char[]> behind_;   // what goes, until the node has it
  std::vector<uint64_t> behind_of_;  // of each page there its number
  std::vector<Waiting> waiting_;     // in the order they came; few: one of each thread at most
  Moves moves_;
  std::vector<uint64_t> leaves_;  // to be sent, together
  bool leaves_copy_ = false;
  uint32_t in_kernel_ = 0;
  uint32_t held_ = 0;
  uint32_t copied_ = 0;
  uint32_t leaving_ = 0;
  Status lost_;
};

}  // namespace strata::farmem
