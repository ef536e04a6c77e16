// What a channel or server has done, for metrics and experiments. Thread-safe; relaxed counts, each
// by itself.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace strata::transport {

constexpr uint16_t kMethodsMax = 256;  // method numbers are below this; 0 is none

struct alignas(64) MethodCounters {
  std::atomic<uint64_t> operations{0};  // that ended, in whatever way
  std::atomic<uint64_t> errors{0};      // of them, with a status other than OK
  std::atomic<uint64_t> retries{0};     // sent again on a new connection
  std::atomic<uint64_t> bytes_out{0};   // frames, headers included
  std::atomic<uint64_t> bytes_in{0};
  // Caller: from call to reply, link model included. Server: from arrival to answer.
  std::atomic<uint64_t> nanoseconds{0};
};

// Why a connection was closed by us, other than because its owner wished it.
enum class Refusal : uint8_t {
  kTooMany,        // connections, or connections not authenticated yet
  kCredentials,    // user of the process behind a unix socket
  kHandshakeTime,  // not authenticated in time
  kWrongSecret,    //
  kBadFrame,       // bytes that are no frame, or damaged
  kTooLarge,       // a frame above the limit
  kOutOfTurn,      // a frame that may not come now, or from this side
  kNoSignOfLife,   // heartbeats missing
  count
};
const char* refusal_name(Refusal refusal) noexcept;

class Counters {
 public:
  Counters() = default;
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;
  [[nodiscard]] MethodCounters& of(uint16_t method) noexcept {
    return methods_[method < kMethodsMax ? method : 0];
  }
  [[nodiscard]] std::atomic<uint64_t>& refused(Refusal r) noexcept {
    return refused_[static_cast<size_t>(r)];
  }
  std::atomic<uint64_t> connections_opened{0};    // authenticated
  std::atomic<uint64_t> connections_closed{0};    // of those
  std::atomic<uint64_t> connections_replaced{0};  // by a newer one of the same channel
  std::atomic<uint64_t> late_replies{0};          // to calls that had been given up
  std::atomic<uint64_t> other_layouts{0};         // requests refused by RS7

 private:
  std::array<MethodCounters, kMethodsMax> methods_;
  std::array<std::atomic<uint64_t>, static_cast<size_t>(Refusal::count)> refused_{};
};

inline void count(std::atomic<uint64_t>& counter, uint64_t by = 1) noexcept {
  counter.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace strata::transport
