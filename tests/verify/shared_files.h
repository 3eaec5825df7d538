#pragma once

#include <cstdlib>
#include <filesystem>

#include "support/source_dir.h"

namespace heddle {

/// Files that lie beside a checkout, or where HEDDLE_SHARED says; tests that need them skip when
/// they are absent.
inline std::filesystem::path shared_folder() {
  if (const char* given = std::getenv("HEDDLE_SHARED")) return given;
  return std::filesystem::path(source_dir()) / ".." / "shared";
}

inline std::filesystem::path reference_folder() {
  return std::filesystem::path(source_dir()) / "tests" / "reference";
}

}  // namespace heddle
