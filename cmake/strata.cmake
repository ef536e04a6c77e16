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
if(STRATA_WERROR)
  add_compile_options(-Werror)
endif()
option(STRATA_FUZZ "Build the libFuzzer programs (clang)" OFF)
if(STRATA_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link,address -DSTRATA_DEBUG_CHECKS=1)
  add_link_options(-fsanitize=address)
endif()
if(STRATA_SANITIZE)
  add_compile_options(-fsanitize=${STRATA_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${STRATA_SANITIZE})
endif()

# strata_library(name SRCS a.cc ... DEPS strata_base absl::status ...)
# A folder is a library; headers are included as "folder/header.h" from src/.
function(strata_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_library(strata_${name} STATIC ${ARG_SRCS})
  target_include_directories(strata_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(strata_${name} PUBLIC ${ARG_DEPS})
  target_compile_options(strata_${name} PRIVATE -fno-exceptions)
endfunction()

# strata_test(btree_split_test SRCS split_test.cc DEPS strata_btree [LABELS model] [TIMEOUT 120])
function(strata_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gtest_main Threads::Threads)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)  # generous: sanitizer builds on a busy machine
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()
