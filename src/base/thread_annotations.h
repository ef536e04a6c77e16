// What Clang's thread safety analysis is told about locks; other compilers see nothing of it.
// tools/check_locks.py runs it over all sources. How to annotate: docs/how_to_add.md.
//
//   BA10  What a mutex guards says so (STRATA_GUARDED_BY), and so does a function that wants the
//         mutex held (STRATA_REQUIRES) or takes it itself and is called from where it might be held
//         (STRATA_EXCLUDES). Where the analysis cannot follow, STRATA_NO_THREAD_SAFETY_ANALYSIS
//         stands with the reason above it; the check knows how many there are.
#pragma once

#if defined(__clang__)
#define STRATA_THREAD_ANNOTATION(what) __attribute__((what))
#else
#define STRATA_THREAD_ANNOTATION(what)
#endif

// --- of types ---
#define STRATA_CAPABILITY(kind) STRATA_THREAD_ANNOTATION(capability(kind))
#define STRATA_SCOPED_CAPABILITY STRATA_THREAD_ANNOTATION(scoped_lockable)

// --- of members and variables ---
#define STRATA_GUARDED_BY(mutex) STRATA_THREAD_ANNOTATION(guarded_by(mutex))
#define STRATA_PT_GUARDED_BY(mutex) STRATA_THREAD_ANNOTATION(pt_guarded_by(mutex))

// --- of functions: what is held before and after ---
#define STRATA_REQUIRES(...) STRATA_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define STRATA_REQUIRES_SHARED(...) \
  STRATA_THREAD_ANNOTATION(requires_shared_capability(__VA_ARGS__))
#define STRATA_EXCLUDES(...) STRATA_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define STRATA_RETURN_CAPABILITY(mutex) STRATA_THREAD_ANNOTATION(lock_returned(mutex))

// --- of functions: what they change ---
#define STRATA_ACQUIRE(...) STRATA_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define STRATA_ACQUIRE_SHARED(...) STRATA_THREAD_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define STRATA_RELEASE(...) STRATA_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define STRATA_RELEASE_SHARED(...) STRATA_THREAD_ANNOTATION(release_shared_capability(__VA_ARGS__))
#define STRATA_RELEASE_EITHER(...) STRATA_THREAD_ANNOTATION(release_generic_capability(__VA_ARGS__))
#define STRATA_TRY_ACQUIRE(...) STRATA_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define STRATA_TRY_ACQUIRE_SHARED(...) \
  STRATA_THREAD_ANNOTATION(try_acquire_shared_capability(__VA_ARGS__))

#define STRATA_NO_THREAD_SAFETY_ANALYSIS STRATA_THREAD_ANNOTATION(no_thread_safety_analysis)
