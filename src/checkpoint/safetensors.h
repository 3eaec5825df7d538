#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/file_system.h"
#include "checkpoint/safetensors_header.h"
#include "tensor/tensor.h"

namespace heddle {

/// A safetensors file, memory-mapped: opening reads and checks the header only, and reading a
/// tensor touches only its bytes. All failures are Error(data) that name the file and the tensor.
/// Reading is thread-safe.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  /// In the order of their bytes.
  std::span<const SafetensorsEntry> entries() const { return header_.entries; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  /// nullptr when there is none.
  const SafetensorsEntry* find(std::string_view name) const;
  /// Throws, with the nearest name as a hint, when there is none.
  const SafetensorsEntry& entry(std::string_view name) const;

  /// The tensor's bytes in the map: valid while this object lives, aligned to nothing.
  std::span<const std::byte> bytes(const SafetensorsEntry& entry) const;
  std::span<const std::byte> file_bytes() const { return file_.bytes(); }

  /// Copies the whole tensor into `out` (host memory, any strides), whose shape must be the
  /// tensor's; floats are converted to out's dtype.
  void read(std::string_view name, const Tensor& out) const;
  /// Copies the box [begin, end) of the tensor; out's shape is end - begin.
  void read_slice(std::string_view name, std::span<const std::int64_t> begin,
                  std::span<const std::int64_t> end, const Tensor& out) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // views into header_.entries
};

/// Throws Error(data) naming `where` and the tensor unless its elements can become `to`.
void require_convertible(const TensorSpec& tensor, DType to, const std::string& where);

}  // namespace heddle
