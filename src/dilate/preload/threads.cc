// Threads, and what they wait for of each other.
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

#include <memory>

#include "dilate/preload/runtime.h"

// The C library keeps an older function of the same name for each of these.
#define STRATA_NEXT_COND(name) STRATA_NEXT_OF(name, "GLIBC_2.3.2", nullptr)

namespace {

using strata::dilate::begin_call;
using strata::dilate::Call;
using strata::dilate::end_call;
using strata::dilate::interrupted_by_slice;
using strata::dilate::is_on;
using strata::dilate::paying;
using strata::dilate::paying_once;
using strata::dilate::real_deadline;

// As the kernel gives a processor that was yielded back: at once, if nobody else wants it. It costs
// nothing of the thread's account: waits made of yields would be dearer here than on the machine
// that is emulated.
constexpr int64_t kYieldNs = 20'000;

struct Beginning {
  void* (*function)(void*);
  void* argument;
};

void* begin(void* memory) {
  const std::unique_ptr<Beginning> beginning(static_cast<Beginning*>(memory));
  const Beginning what = *beginning;
  strata::dilate::begin_thread();
  return what.function(what.argument);
}

clockid_t clock_of(const pthread_cond_t* condition) noexcept {
  constexpr unsigned kMonotonic = 2;  // since glibc 2.25
  return (condition->__data.__wrefs & kMonotonic) != 0 ? CLOCK_MONOTONIC : CLOCK_REALTIME;
}

// `lock(deadline)` with the deadline as it really is.
template <class Lock>
int until(clockid_t clock, const timespec* deadline, Lock&& lock) {
  if (!is_on() || deadline == nullptr) return lock(deadline);
  const timespec real = real_deadline(clock, *deadline);
  return paying_once([&] { return lock(&real); });
}

// What is free is taken without paying: it is no wait.
template <class TryLock, class Lock>
int lock_or_pay(TryLock&& try_lock, Lock&& lock) {
  if (!is_on()) return lock();
  const int taken = try_lock();
  return taken != EBUSY ? taken : paying_once(lock);
}

}  // namespace

STRATA_PUBLIC int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                 void* (*function)(void*), void* argument) noexcept {
  const auto next = STRATA_NEXT(pthread_create);
  if (!is_on()) return next(thread, attributes, function, argument);
  auto beginning = std::unique_ptr<Beginning>(new (std::nothrow) Beginning{function, argument});
  if (beginning == nullptr) return EAGAIN;
  const int error = paying_once([&] { return next(thread, attributes, begin, beginning.get()); });
  if (error == 0) static_cast<void>(beginning.release());  // the thread has it now
  return error;
}

STRATA_PUBLIC int pthread_join(pthread_t thread, void** result) {
  return paying_once([&] { return STRATA_NEXT(pthread_join)(thread, result); });
}
STRATA_PUBLIC int pthread_timedjoin_np(pthread_t thread, void** result, const timespec* deadline) {
  return until(CLOCK_REALTIME, deadline, [&](const timespec* real) {
    return STRATA_NEXT(pthread_timedjoin_np)(thread, result, real);
  });
}
STRATA_PUBLIC int pthread_clockjoin_np(pthread_t thread, void** result, clockid_t clock,
                                       const timespec* deadline) {
  return until(clock, deadline, [&](const timespec* real) {
    return STRATA_NEXT(pthread_clockjoin_np)(thread, result, clock, real);
  });
}

STRATA_PUBLIC int sched_yield() noexcept {
  if (!is_on()) return STRATA_NEXT(sched_yield)();
  const timespec pause{0, kYieldNs};
  return paying_once(
      [&] { return STRATA_NEXT(clock_nanosleep)(CLOCK_MONOTONIC, 0, &pause, nullptr) * 0; });
}
// Under its old name, which the header makes another one of sched_yield().
STRATA_PUBLIC int old_yield() noexcept asm("pthread_yield");
int old_yield() noexcept { return sched_yield(); }

// --- condition variables -----------------------------------------------------------------------

STRATA_PUBLIC int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  return paying_once([&] { return STRATA_NEXT_COND(pthread_cond_wait)(condition, mutex); });
}
STRATA_PUBLIC int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                         const timespec* deadline) {
  return until(clock_of(condition), deadline, [&](const timespec* real) {
    return STRATA_NEXT_COND(pthread_cond_timedwait)(condition, mutex, real);
  });
}
STRATA_PUBLIC int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                         clockid_t clock, const timespec* deadline) {
  return until(clock, deadline, [&](const timespec* real) {
    return STRATA_NEXT(pthread_cond_clockwait)(condition, mutex, clock, real);
  });
}
STRATA_PUBLIC int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  return paying_once([&] { return STRATA_NEXT_COND(pthread_cond_signal)(condition); });
}
STRATA_PUBLIC int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  return paying_once([&] { return STRATA_NEXT_COND(pthread_cond_broadcast)(condition); });
}

// --- semaphores, barriers ------------------------------------------------------------------------

STRATA_PUBLIC int sem_post(sem_t* semaphore) noexcept {
  return paying_once([&] { return STRATA_NEXT(sem_post)(semaphore); });
}
STRATA_PUBLIC int sem_wait(sem_t* semaphore) {
  return paying([&] { return STRATA_NEXT(sem_wait)(semaphore); });
}
STRATA_PUBLIC int sem_clockwait(sem_t* semaphore, clockid_t clock, const timespec* deadline) {
  if (!is_on() || deadline == nullptr)
    return STRATA_NEXT(sem_clockwait)(semaphore, clock, deadline);
  const timespec real = real_deadline(clock, *deadline);
  return paying([&] { return STRATA_NEXT(sem_clockwait)(semaphore, clock, &real); });
}
STRATA_PUBLIC int sem_timedwait(sem_t* semaphore, const timespec* deadline) {
  if (!is_on() || deadline == nullptr) return STRATA_NEXT(sem_timedwait)(semaphore, deadline);
  const timespec real = real_deadline(CLOCK_REALTIME, *deadline);
  return paying([&] { return STRATA_NEXT(sem_timedwait)(semaphore, &real); });
}
STRATA_PUBLIC int pthread_barrier_wait(pthread_barrier_t* barrier) noexcept {
  return paying_once([&] { return STRATA_NEXT(pthread_barrier_wait)(barrier); });
}

// --- mutexes and reader-writer locks -----------------------------------------------------------

STRATA_PUBLIC int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  return lock_or_pay([&] { return STRATA_NEXT(pthread_mutex_trylock)(mutex); },
                     [&] { return STRATA_NEXT(pthread_mutex_lock)(mutex); });
}
STRATA_PUBLIC int pthread_mutex_timedlock(pthread_mutex_t* mutex,
                                          const timespec* deadline) noexcept {
  return until(CLOCK_REALTIME, deadline, [&](const timespec* real) {
    return STRATA_NEXT(pthread_mutex_timedlock)(mutex, real);
  });
}
STRATA_PUBLIC int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock,
                                          const timespec* deadline) noexcept {
  return until(clock, deadline, [&](const timespec* real) {
    return STRATA_NEXT(pthread_mutex_clocklock)(mutex, clock, real);
  });
}
STRATA_PUBLIC int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  return lock_or_pay([&] { return STRATA_NEXT(pthread_rwlock_tryrdlock)(lock); },
                     [&] { return STRATA_NEXT(pthread_rwlock_rdlock)(lock); });
}
STRATA_PUBLIC int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  return lock_or_pay([&] { return STRATA_NEXT(pthread_rwlock_trywrlock)(lock); },
                     [&] { return STRATA_NEXT(pthread_rwlock_wrlock)(lock); });
}
STRATA_PUBLIC int pthread_rwlock_timedrdlock(pthread_rwlock_t* lock,
                                             const timespec* deadline) noexcept {
  return until(CLOCK_REALTIME, deadline, [&](const timespec* real) {
    return STRATA_NEXT(pthread_rwlock_timedrdlock)(lock, real);
  });
}
STRATA_PUBLIC int pthread_rwlock_timedwrlock(pthread_rwlock_t* lock,
                                             const timespec* deadline) noexcept {
  return until(CLOCK_REALTIME, deadline, [&](const timespec* real) {
    return STRATA_NEXT(pthread_rwlock_timedwrlock)(lock, real);
  });
}
STRATA_PUBLIC int pthread_rwlock_clockrdlock(pthread_rwlock_t* lock, clockid_t clock,
                                             const timespec* deadline) noexcept {
  return until(clock, deadline, [&](const timespec* real) {
    return STRATA_NEXT(pthread_rwlock_clockrdlock)(lock, clock, real);
  });
}
STRATA_PUBLIC int pthread_rwlock_clockwrlock(pthread_rwlock_t* lock, clockid_t clock,
                                             const timespec* deadline) noexcept {
  return until(clock, deadline, [&](const timespec* real) {
    return STRATA_NEXT(pthread_rwlock_clockwrlock)(lock, clock, real);
  });
}
