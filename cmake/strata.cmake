# One place that says how a Strata library, test and benchmark is built.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

option(STRATA_WITH_MARIADB "Build the ha_strata plugin" OFF)
set(STRATA_SANITIZE "" CACHE STRING "empty, 'address,undefined' or 'thread'")

find_package(absl REQUIRED)
find_package(GTest REQUIRED)
find_package(Threads REQUIRED)

# Assertions (STRATA_ASSERT) stay on in every build type; NDEBUG only affects third-party code.
add_compile_options(-Wall -Wextra -Wno-unused-parameter -fno-strict-aliasing -fno-omit-frame-pointer
                    -march=x86-64-v2)
# g++ 12 sees strings copied beyond their end where it inlines their move (its bug 105651); ASan looks for the real ones.
add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds>)
if(STRATA_WERROR)
  add_compile_options(-Werror)
endif()
# Linking sanitized programs with GNU ld takes seconds each.
find_program(STRATA_MOLD mold)
if(STRATA_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
option(STRATA_FUZZ "Build the libFuzzer programs (clang)" OFF)
if(STRATA_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link,address -DSTRATA_DEBUG_CHECKS=1)
  add_link_options(-fsanitize=address)
endif()
if(STRATA_SANITIZE)
  add_compile_options(-fsanitize=${STRATA_SANITIZE} -fno-sanitize-recover=all)
  # What g++ concludes from instrumented code is often wrong; the release build has these warnings.
  add_compile_options(-Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-stringop-overread)
  add_link_options(-fsanitize=${STRATA_SANITIZE})
endif()

# What nearly every file includes takes most of its compile time: parsed once for the libraries, once for the tests.
# Files still include what they use; clang-tidy compiles them without.
set(STRATA_COMMON_HEADERS
  <algorithm> <array> <atomic> <chrono> <cstdint> <cstring> <deque> <functional> <map> <memory> <mutex> <optional> <set>
  <string> <string_view> <thread> <unordered_map> <utility> <vector>
  <absl/functional/any_invocable.h> <absl/functional/function_ref.h> <absl/status/status.h> <absl/status/statusor.h>
  <absl/types/span.h>)
set(STRATA_LIBRARY_OPTIONS -fno-exceptions)
# What a test spends its time in is the libraries; compiling the tests with -O2 takes longer than it saves. UBSan looks at
# the libraries only: it doubles the time to compile the macros of GoogleTest.
set(STRATA_TEST_OPTIONS -O1 -g1)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  list(APPEND STRATA_TEST_OPTIONS -finline-small-functions -findirect-inlining)
  # Often wrong about strings at -O1. The libraries have these warnings.
  list(APPEND STRATA_TEST_OPTIONS -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-stringop-overread)
endif()
if(STRATA_SANITIZE MATCHES undefined)
  list(APPEND STRATA_TEST_OPTIONS -fno-sanitize=undefined)
endif()

# strata_precompiled(strata_x OPTIONS ... HEADERS ...): an object that other targets with the same options can reuse.
function(strata_precompiled name)
  cmake_parse_arguments(ARG "" "" "OPTIONS;HEADERS;DEPS" ${ARGN})
  add_library(${name} OBJECT ${CMAKE_SOURCE_DIR}/cmake/precompiled.cc)
  target_compile_options(${name} PRIVATE ${ARG_OPTIONS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()
strata_precompiled(strata_library_headers OPTIONS ${STRATA_LIBRARY_OPTIONS} HEADERS ${STRATA_COMMON_HEADERS}
                   DEPS absl::status)
strata_precompiled(strata_test_headers OPTIONS ${STRATA_TEST_OPTIONS} -fPIE HEADERS ${STRATA_COMMON_HEADERS} <gtest/gtest.h>
                   DEPS absl::status GTest::gtest)  # -fPIE: as programs are compiled

# Every library, all of it, links into a program by itself with what it says to need and nothing else: a DEPS that is missing
# would go unnoticed as long as every program happens to link the other library, too. Part of the build, where no sanitizer makes
# programs of this kind large; `--target links` makes these alone.
if(NOT STRATA_FUZZ AND NOT STRATA_SANITIZE)
  add_library(strata_link_main OBJECT ${CMAKE_SOURCE_DIR}/cmake/link_main.cc)
  add_custom_target(links)
endif()
function(strata_link_test name)
  if(TARGET links)
    add_executable(links_${name} $<TARGET_OBJECTS:strata_link_main>)
    target_link_libraries(links_${name} PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,strata_${name}>)
    target_link_options(links_${name} PRIVATE -s)
    set_target_properties(links_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/links)
    add_dependencies(links links_${name})
  endif()
endfunction()

# strata_library(name SRCS a.cc ... DEPS strata_base absl::status ...)
# A folder is a library; headers are included as "folder/header.h" from src/.
function(strata_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_library(strata_${name} STATIC ${ARG_SRCS})
  target_include_directories(strata_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(strata_${name} PUBLIC ${ARG_DEPS})
  target_compile_options(strata_${name} PRIVATE ${STRATA_LIBRARY_OPTIONS})
  target_precompile_headers(strata_${name} REUSE_FROM strata_library_headers)
  strata_link_test(${name})
endfunction()

if(STRATA_SANITIZE MATCHES thread)
  add_library(strata_tsan_suppressions OBJECT ${CMAKE_SOURCE_DIR}/cmake/tsan_suppressions.cc)
endif()

# strata_test(btree_split_test SRCS split_test.cc DEPS strata_btree [LABELS model] [TIMEOUT 120] [COST 30] [WAITS])
# COST: about the seconds under ASan, or TSan if that is more; ctest begins with the longest. WAITS: its time passes waiting
# for timeouts, leases and other processes, so one such test runs beside those that keep the cores busy: a program counts as
# two of the 2n+1 that `./strata test` has on n cores, a waiting one as one. Every test is a target of its own name, so that
# `./strata test` can build those that it draws.
function(strata_test name)
  cmake_parse_arguments(ARG "WAITS" "TIMEOUT;COST" "SRCS;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gtest_main Threads::Threads)
  target_compile_options(${name} PRIVATE ${STRATA_TEST_OPTIONS})
  target_precompile_headers(${name} REUSE_FROM strata_test_headers)
  if(TARGET strata_tsan_suppressions)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:strata_tsan_suppressions>)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)  # generous: sanitizer builds on a busy machine
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  if(ARG_COST)
    set_tests_properties(${name} PROPERTIES COST ${ARG_COST})
  endif()
  if(NOT ARG_WAITS)
    set_tests_properties(${name} PROPERTIES PROCESSORS 2)
  endif()
endfunction()
