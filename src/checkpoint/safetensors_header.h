#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace heddle {

/// What a safetensors header says about one tensor, apart from where its bytes lie.
struct TensorSpec {
  std::string name;
  std::string dtype_name;           ///< as in the file: "F32", "F8_E4M3"
  std::vector<std::int64_t> sizes;  ///< any number of dimensions

  std::uint64_t opaque_bytes = 0;  ///< all its bytes, where the dtype's size is not known

  /// Ours, where we have it; other kinds of element are copied but never computed with.
  std::optional<DType> dtype() const;
  /// Floating-point numbers that we cannot read (fp8), or a kind of element we do not know.
  /// Integers and booleans that we have no type for are not: nobody computes with them.
  bool is_opaque() const;
  /// Throws Error(data) when there are more dimensions than Shape holds.
  Shape shape() const;
  /// Elements; 1 for a scalar.
  std::int64_t count() const;
  /// count * element size, or opaque_bytes.
  std::uint64_t size_bytes() const;
};

TensorSpec tensor_spec(std::string name, DType dtype, const Shape& shape);

/// A tensor of a file: [begin, end) counts from the first byte after the header.
struct SafetensorsEntry : TensorSpec {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< in the order of their bytes
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  ///< of the file
};

/// Whether a tensor of these sizes can be: its elements, of 64 bits at most, do not overflow.
bool can_be_counted(std::span<const std::int64_t> sizes);

/// Reads and checks the header of a whole safetensors file in memory: sizes, offsets, overlaps and
/// gaps, so that afterwards every entry's bytes can be used without a further check. `where` (the
/// file's name) starts the message of the Error(data).
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                           const std::string& where);

/// "F32" for DType::f32, and so on.
std::string_view safetensors_name_of(DType dtype);
/// Bits per element of a dtype of the format, also of those we do not compute with.
std::optional<int> safetensors_bits(std::string_view dtype_name);

/// The largest header that readers of the format accept.
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

}  // namespace heddle
