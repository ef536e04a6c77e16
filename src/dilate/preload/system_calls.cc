// syscall(), by which libraries reach futexes. It must not become a frame of its own for calls such
// as clone(), whose child returns on another stack: so it is an assembler's jump for all but the
// few calls that concern us.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dilate/preload/runtime.h"

namespace {

using strata::dilate::begin_call;
using strata::dilate::Call;
using strata::dilate::end_call;
using strata::dilate::interrupted_by_slice;
using strata::dilate::is_on;
using strata::dilate::paying;
using strata::dilate::real_deadline;
using strata::dilate::real_limit;

constexpr int kLockPi2 = 13;  // FUTEX_LOCK_PI2, newer than some headers

// What the time of a futex call is: null, or no time at all for calls that take a number there.
const timespec* real_time_of(int operation, const timespec* time, timespec* room) noexcept {
  if (time == nullptr) return time;
  const bool realtime = (operation & FUTEX_CLOCK_REALTIME) != 0;
  switch (operation & FUTEX_CMD_MASK) {
    case FUTEX_WAIT:
      return real_limit(time, room);
    case FUTEX_WAIT_BITSET:
    case FUTEX_WAIT_REQUEUE_PI:
    case kLockPi2:
      *room = real_deadline(realtime ? CLOCK_REALTIME : CLOCK_MONOTONIC, *time);
      return room;
    case FUTEX_LOCK_PI:
      *room = real_deadline(CLOCK_REALTIME, *time);
      return room;
    default:
      return time;
  }
}

}  // namespace

extern "C" {

// Where syscall() goes on for what is not ours.
__attribute__((visibility("hidden"))) void* strata_dilate_next_system_call() {
  return reinterpret_cast<void*>(STRATA_NEXT(syscall));
}

__attribute__((visibility("hidden"))) long strata_dilate_futex(long number, long word,
                                                               long operation, long value,
                                                               long time, long second_word,
                                                               long second_value) {
  const auto next = STRATA_NEXT(syscall);
  if (!is_on()) return next(number, word, operation, value, time, second_word, second_value);
  timespec room;
  const timespec* const real =
      real_time_of(static_cast<int>(operation), reinterpret_cast<const timespec*>(time), &room);
  return paying([&] {
    return next(number, word, operation, value, reinterpret_cast<long>(real), second_word,
                second_value);
  });
}

__attribute__((visibility("hidden"))) long strata_dilate_clock_gettime(long /*number*/, long clock,
                                                                       long time) {
  return ::clock_gettime(static_cast<clockid_t>(clock), reinterpret_cast<timespec*>(time));
}
}

// Arguments: number in rdi, the call's in rsi, rdx, rcx, r8, r9 and on the stack, where futex() has
// one, too. The registers are kept while the function is looked up.
asm(R"(
  .text
  .globl syscall
  .type syscall, @function
syscall:
  .cfi_startproc
  cmpq $202, %rdi
  je strata_dilate_futex
  cmpq $228, %rdi
  je strata_dilate_clock_gettime
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  pushq %rdx
  .cfi_adjust_cfa_offset 8
  pushq %rcx
  .cfi_adjust_cfa_offset 8
  pushq %r8
  .cfi_adjust_cfa_offset 8
  pushq %r9
  .cfi_adjust_cfa_offset 8
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  call strata_dilate_next_system_call
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  popq %r9
  .cfi_adjust_cfa_offset -8
  popq %r8
  .cfi_adjust_cfa_offset -8
  popq %rcx
  .cfi_adjust_cfa_offset -8
  popq %rdx
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  jmp *%rax
  .cfi_endproc
  .size syscall, .-syscall
)");
static_assert(SYS_futex == 202 && SYS_clock_gettime == 228);
