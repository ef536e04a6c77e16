// A process that makes a place to swap to, keeps it, and puts everything back when it is told to,
// or when whoever started it is gone. It serves the pages of a memory node to the kernel itself,
// so that pages of anybody can be taken back from there before it ends.
//
//   program's process tree --swaps--> kernel --loop device--> FUSE file --> keeper --> memory node
//                                            --swap file, zram
//
//   FM43  When the starter is killed, the keeper ends the program and puts everything back; when
//         the keeper is killed, the starter does. (When both are, at once: nobody does.)
//   FM44  When the memory node is lost or silent, `lost` is set, with the reason, in time: nothing
//         waits for ever.
// Places to swap to are everybody's on a host: while this one is used, any process may be swapped
// there if the whole host runs out of memory. So only one can be used, and none beside another.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "farmem/pager/counters.h"
#include "farmem/swap/host_changes.h"
#include "transport/link_model.h"
#include "transport/secret.h"

namespace strata::farmem {

enum class SwapTo : uint8_t {
  kMemoryNode,  // as Infiniswap does
  kDisk,        // a file
  kZram,        // compressed, in this host's memory: the kernel's own way without any link
};

struct SwapOptions {
  SwapTo to = SwapTo::kMemoryNode;
  uint64_t local_bytes = 0;
  uint64_t swap_bytes = 0;
  uint32_t prefetch = 0;    // 0, 1, 3, 7 ...: the kernel reads two to some power of pages
  std::string memory_node;  // kMemoryNode
  uint64_t timeout_us = 5'000'000;
  transport::LinkSpeed link;
  std::string folder;                  // kDisk: where the file is
  uint64_t operations_per_second = 0;  // kDisk: of the disk; 0: as many as it can
};

// What both processes see.
struct SwapState {
  HostChanges changes;
  std::atomic<uint64_t> lost{0};  // not 0: `message` says why
  std::array<char, kMessageBytesMax> message{};
  // kMemoryNode only.
  Counter reads{0};  // requests of the kernel's
  Counter writes{0};
  Counter pages_in{0};
  Counter pages_out{0};
  Counter service_ns{0};  // sum over both, from being asked to having answered
};

class SwapKeeper {
 public:
  // Whether it can be done at all. Error: kInvalidArgument, which says what is missing.
  static Status check(const SwapOptions& options);
  // Blocks until the kernel can swap there. For a process that has one thread: it forks. Errors:
  // kInvalidArgument, and those of MemoryClient::open().
  static StatusOr<std::unique_ptr<SwapKeeper>> start(const transport::Secret& secret,
                                                     const SwapOptions& options);
  ~SwapKeeper();
  SwapKeeper(const SwapKeeper&) = delete;
  SwapKeeper& operator=(const SwapKeeper&) = delete;

  [[nodiscard]] SwapState& state() const noexcept { return *state_; }
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  // The keeper has been ended by somebody else.
  [[nodiscard]] bool is_gone() const;
  // Ends the program, if it still runs, and puts everything back. Blocks. What could not be.
  Status stop();

 private:
  SwapKeeper(SwapState* state, pid_t pid, int socket) noexcept
      : state_(state), pid_(pid), socket_(socket) {}
  SwapState* const state_;
  pid_t pid_;
  int socket_;
};

}  // namespace strata::farmem
