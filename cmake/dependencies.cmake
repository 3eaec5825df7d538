# Third-party code comes only as packages; scripts/setup.sh installs them.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Threads REQUIRED)
find_library(PCRE2_LIBRARY pcre2-8 REQUIRED)
find_package(ZLIB REQUIRED)
find_library(ZSTD_LIBRARY zstd REQUIRED)
find_library(LZ4_LIBRARY lz4 REQUIRED)
find_library(SNAPPY_LIBRARY snappy REQUIRED)
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # Without this sloppiness it would not remember files that are compiled with precompiled headers. Paths below the
  # project's folder do not count, so that a second clone finds what the first has compiled.
  set(CCACHE_COMMAND ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} ${CCACHE_PROGRAM})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_COMMAND})
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fdebug-prefix-map=${CMAKE_SOURCE_DIR}=.>")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)
  endif()
endif()

if(HEDDLE_SANITIZE)
  add_compile_options(-fsanitize=${HEDDLE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${HEDDLE_SANITIZE})
endif()

if(HEDDLE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "HEDDLE_FUZZ needs clang: cmake --preset fuzz")
  endif()
  # The fuzzers link the ordinary modules, so every module reports its coverage and its faults.
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
endif()
