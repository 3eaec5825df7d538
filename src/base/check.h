#pragma once

#include <fmt/core.h>

#include <string>

namespace heddle {

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& detail);

}  // namespace heddle

/// States an invariant of our own code; a violation is our bug and throws Error(internal) with the
/// place. Never for user input. `HEDDLE_CHECK(a == b, "a is {}", a)`; always on.
#define HEDDLE_CHECK(condition, ...) \
  (static_cast<bool>(condition)      \
       ? static_cast<void>(0)        \
       : ::heddle::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)))
