#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/file_system.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"
#include "tensor/tensor.h"

namespace heddle::testing_support {

inline void write_file(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string read_file(const std::filesystem::path& path) { return read_text_file(path); }

/// A safetensors file from any header text and data, however wrong.
inline std::string safetensors_text(const std::string& header, const std::string& data = "") {
  const std::uint64_t length = header.size();
  std::string text(sizeof length, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  return text + header + data;
}

/// The Error that `action` throws; a failed expectation when it throws none.
inline std::optional<Error> error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "no error";
  return std::nullopt;
}

inline void expect_error(const std::function<void()>& action, ErrorCode code,
                         const std::string& part) {
  if (const auto error = error_of(action)) {
    EXPECT_EQ(error->code(), code) << error->what();
    EXPECT_NE(std::string(error->what()).find(part), std::string::npos)
        << "\"" << error->what() << "\" does not say \"" << part << "\"";
  }
}

/// A float tensor holding first, first + 1, ...
inline Tensor counting(Memory& memory, const Shape& shape, float first = 0) {
  Tensor tensor = memory.alloc(shape, DType::f32, MemoryTag::parameters);
  const auto values = tensor.host<float>();
  std::iota(values.begin(), values.end(), first);
  return tensor;
}

/// The shared fixtures beside the project, or where HEDDLE_SHARED says.
inline std::optional<std::filesystem::path> shared_fixtures() {
  const char* variable = std::getenv("HEDDLE_SHARED");
  const std::filesystem::path shared = variable != nullptr
                                           ? std::filesystem::path(variable)
                                           : std::filesystem::path(source_dir()) / ".." / "shared";
  if (!std::filesystem::is_directory(shared / "fixtures")) return std::nullopt;
  return shared / "fixtures";
}

}  // namespace heddle::testing_support
