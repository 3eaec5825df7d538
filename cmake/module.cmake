set(HEDDLE_WARNINGS -Wall -Wextra)
if(HEDDLE_UNITY)
  # Many sources in one compilation show the compiler too much: more of these warnings are false. Who edits compiles file
  # by file, with all of them as errors.
  list(APPEND HEDDLE_WARNINGS -Wno-maybe-uninitialized -Wno-array-bounds -Wno-stringop-overflow)
else()
  list(APPEND HEDDLE_WARNINGS -Werror)
endif()
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

# One compilation for all sources of a module instead of one for each: half of the processor time of a whole build, but
# more for whoever edits one file. The Makefile sets it for a first build of the program alone.
option(HEDDLE_UNITY "Compile the sources of a module together" OFF)

function(heddle_module_options target)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${HEDDLE_WARNINGS};-Wconversion;-Wno-sign-conversion>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Wall>")
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${HEDDLE_UNITY} UNITY_BUILD_BATCH_SIZE 0)
endfunction()

# heddle_module(name SOURCES a.cpp ... [HOT b.cpp ...] DEPENDS other ... LINKS lib ...)
# One static library per folder of src/, with an explicit file list. DEPENDS are other folders,
# LINKS are third-party libraries. HOT are the sources whose own loops take time, compiled with -O3
# (as the target heddle_NAME_hot); the others call them, run once, or wait for the disk, and are
# compiled with -O1 (see CMakeLists.txt), which takes a third less time where JSON and formatting
# are instantiated.
function(heddle_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;HOT;DEPENDS;LINKS" ${ARGN})
  list(TRANSFORM arg_DEPENDS PREPEND heddle_)
  add_library(heddle_${name} STATIC ${arg_SOURCES})
  heddle_module_options(heddle_${name})
  target_link_libraries(heddle_${name} PUBLIC ${arg_DEPENDS} PRIVATE ${arg_LINKS})
  if(name STREQUAL "base")
    target_precompile_headers(heddle_base PRIVATE ${HEDDLE_PRECOMPILED})
  elseif(arg_SOURCES)
    target_precompile_headers(heddle_${name} REUSE_FROM heddle_base)
  endif()
  if(arg_HOT)
    add_library(heddle_${name}_hot OBJECT ${arg_HOT})
    heddle_module_options(heddle_${name}_hot)
    target_compile_options(heddle_${name}_hot PRIVATE -O3)
    target_link_libraries(heddle_${name}_hot PRIVATE ${arg_DEPENDS} ${arg_LINKS})
    target_sources(heddle_${name} PRIVATE $<TARGET_OBJECTS:heddle_${name}_hot>)
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
  target_compile_options(${name}_test PRIVATE ${HEDDLE_WARNINGS})
  list(TRANSFORM arg_DEPENDS PREPEND heddle_)
  target_link_libraries(${name}_test PRIVATE ${arg_DEPENDS} heddle_test_support GTest::gtest_main)
  set(properties TIMEOUT ${arg_TIMEOUT})
  if(arg_LABELS)
    list(APPEND properties LABELS ${arg_LABELS})
  endif()
  gtest_discover_tests(${name}_test DISCOVERY_MODE PRE_TEST PROPERTIES ${properties})
endfunction()
