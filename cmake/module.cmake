set(HEDDLE_WARNINGS -Wall -Wextra -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND HEDDLE_WARNINGS -Wno-restrict)  # false positives on std::string in GCC 12
  if(HEDDLE_SANITIZE)
    list(APPEND HEDDLE_WARNINGS -Wno-maybe-uninitialized)  # false positives on std::regex
  endif()
endif()

# Half of the time to compile an ordinary file goes into these headers, so they are read once.
# Modules must not change the compiler's options for their targets: the result would not fit.
set(HEDDLE_PRECOMPILED
  <algorithm> <array> <chrono> <cmath> <cstddef> <cstdint> <filesystem> <functional> <map> <memory>
  <mutex> <optional> <span> <string> <string_view> <vector> <fmt/format.h>)

# heddle_module(name SOURCES a.cpp ... [HOT b.cpp ...] DEPENDS other ... LINKS lib ...)
# One static library per folder of src/, with an explicit file list. DEPENDS are other folders,
# LINKS are third-party libraries. HOT are the sources whose own loops take time, compiled with -O3;
# the others call them, run once, or wait for the disk, and are compiled with -O1 (see
# CMakeLists.txt), which takes a third less time where JSON and formatting are instantiated.
function(heddle_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;HOT;DEPENDS;LINKS" ${ARGN})
  set_source_files_properties(${arg_HOT} PROPERTIES
    COMPILE_OPTIONS -O3 SKIP_PRECOMPILE_HEADERS ON)
  add_library(heddle_${name} STATIC ${arg_SOURCES} ${arg_HOT})
  target_include_directories(heddle_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(heddle_${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${HEDDLE_WARNINGS};-Wconversion;-Wno-sign-conversion>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Wall>")
  list(TRANSFORM arg_DEPENDS PREPEND heddle_)
  target_link_libraries(heddle_${name} PUBLIC ${arg_DEPENDS} PRIVATE ${arg_LINKS})
  if(name STREQUAL "base")
    target_precompile_headers(heddle_base PRIVATE ${HEDDLE_PRECOMPILED})
  else()
    target_precompile_headers(heddle_${name} REUSE_FROM heddle_base)
  endif()
endfunction()

# heddle_test(name SOURCES a_test.cpp ... DEPENDS module ... [LABELS slow])
# One GoogleTest program per folder of tests/.
function(heddle_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_executable(${name}_test ${arg_SOURCES})
  target_include_directories(${name}_test PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_options(${name}_test PRIVATE ${HEDDLE_WARNINGS})
  target_compile_definitions(${name}_test PRIVATE HEDDLE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  list(TRANSFORM arg_DEPENDS PREPEND heddle_)
  target_link_libraries(${name}_test PRIVATE ${arg_DEPENDS} fmt::fmt GTest::gtest_main)
  set(properties TIMEOUT ${arg_TIMEOUT})
  if(arg_LABELS)
    list(APPEND properties LABELS ${arg_LABELS})
  endif()
  gtest_discover_tests(${name}_test DISCOVERY_MODE PRE_TEST PROPERTIES ${properties})
endfunction()
