set(HEDDLE_WARNINGS -Wall -Wextra -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND HEDDLE_WARNINGS -Wno-restrict)  # false positives on std::string in GCC 12
  if(HEDDLE_SANITIZE)
    list(APPEND HEDDLE_WARNINGS -Wno-maybe-uninitialized)  # false positives on std::regex
  endif()
endif()

# heddle_module(name SOURCES a.cpp ... [COLD b.cpp ...] DEPENDS other ... LINKS lib ...)
# One static library per folder of src/, with an explicit file list. DEPENDS are other folders,
# LINKS are third-party libraries. COLD are sources that run once or wait for the disk: compiled with
# -O1, which takes a third less time than -O2 where JSON and formatting are instantiated.
function(heddle_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;COLD;DEPENDS;LINKS" ${ARGN})
  set_source_files_properties(${arg_COLD} PROPERTIES COMPILE_OPTIONS -O1)
  add_library(heddle_${name} STATIC ${arg_SOURCES} ${arg_COLD})
  target_include_directories(heddle_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(heddle_${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${HEDDLE_WARNINGS};-Wconversion;-Wno-sign-conversion>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Wall>")
  list(TRANSFORM arg_DEPENDS PREPEND heddle_)
  target_link_libraries(heddle_${name} PUBLIC ${arg_DEPENDS} PRIVATE ${arg_LINKS})
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
