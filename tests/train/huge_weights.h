#pragma once

#include <cstring>
#include <filesystem>
#include <string>

#include "base/file_system.h"
#include "checkpoint/safetensors.h"

namespace heddle {

/// A copy of a model folder in which every value of a tensor is finite, and so large that products
/// with it overflow.
inline void copy_with_huge(const std::filesystem::path& model, const std::string& tensor,
                           const std::filesystem::path& copy) {
  std::filesystem::create_directories(copy);
  std::filesystem::copy_file(model / "config.json", copy / "config.json");
  const SafetensorsFile file(model / "model.safetensors");
  std::string bytes = read_text_file(file.path());
  const auto values = file.bytes(file.entry(tensor));
  const auto begin = static_cast<std::size_t>(values.data() - file.file_bytes().data());
  const float huge = 3e38F;
  for (std::size_t at = begin; at < begin + values.size(); at += sizeof huge) {
    std::memcpy(&bytes[at], &huge, sizeof huge);
  }
  write_file_atomically(real_file_system(), copy / "model.safetensors", bytes);
}

}  // namespace heddle
