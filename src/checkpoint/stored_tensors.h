#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "checkpoint/slice.h"

namespace heddle {

/// Tensors that lie in safetensors files whole or in boxes; a reader asks for any box of a tensor
/// and gets it from whatever boxes are stored, touching only the bytes it needs. Thread-safe to
/// read.
class StoredTensors {
 public:
  /// Throws Error(data) when boxes of a tensor overlap or disagree about its shape.
  explicit StoredTensors(std::span<const std::shared_ptr<const SafetensorsFile>> files);

  /// Sorted.
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  Shape shape(std::string_view name) const { return tensor(name).shape; }
  /// "F32", as stored.
  const std::string& dtype_name(std::string_view name) const;

  /// As SafetensorsFile::read and read_slice, in coordinates of the whole tensor. Throws
  /// Error(data) where a part of what is asked for was not stored.
  void read(std::string_view name, const Tensor& out) const;
  void read_slice(std::string_view name, std::span<const std::int64_t> begin,
                  std::span<const std::int64_t> end, const Tensor& out) const;

 private:
  struct Box {
    std::shared_ptr<const SafetensorsFile> file;
    const SafetensorsEntry* entry;
    std::vector<std::int64_t> begin, end;
  };
  struct StoredTensor {
    Shape shape;
    std::vector<Box> boxes;
  };
  void add(const std::shared_ptr<const SafetensorsFile>& file, const SafetensorsEntry& entry);
  const StoredTensor& tensor(std::string_view name) const;

  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

/// A safetensors file keeps a box under a key of its own; the metadata entry "slice:" + key says
/// which box of which tensor it is (docs/formats/checkpoint.md).
std::string slice_key(const SliceEntry& entry);
std::string slice_metadata(const SliceEntry& entry);
inline constexpr std::string_view kSlicePrefix = "slice:";

}  // namespace heddle
