#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace heddle {

/// Tensors that lie in safetensors files whole or in boxes; a reader asks for any box of a tensor
/// and gets it from whatever boxes are stored, touching only the bytes it needs. Thread-safe to
/// read.
class StoredTensors {
 public:
  /// Throws Error(data) when boxes of a tensor overlap or disagree about its shape.
  explicit StoredTensors(std::span<const std::shared_ptr<const SafetensorsFile>> files);

  /// In the order of files and of bytes within a file.
  std::span<const std::string> names() const { return names_; }
  bool contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  Shape shape(std::string_view name) const { return tensor(name).shape; }
  /// The whole tensor with the dtype it is stored in.
  TensorSpec spec(std::string_view name) const;

  /// The whole tensor's bytes, row by row: in the map when it was stored in one piece (also of a
  /// dtype we do not compute with), else joined in `memory`. `joined` keeps them alive then.
  struct Content {
    std::span<const std::byte> bytes;
    Tensor joined;
  };
  Content content(std::string_view name, Memory& memory) const;

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
  std::vector<std::string> names_;
};

/// A safetensors file may keep a box under a key of its own; the metadata entry "slice:" + key says
/// which box of which tensor it is (docs/formats/checkpoint.md).
inline constexpr std::string_view kSlicePrefix = "slice:";

}  // namespace heddle
