#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/hf_folder_writer.h"
#include "tensor/tensor.h"

namespace heddle {

/// A tensor that a checkpoint keeps: of a kind (state_source.h), with the name of its weight.
struct KeptTensor {
  std::string kind, name;
  DType dtype = DType::f32;
  Shape shape;
};

/// Where in which file of a checkpoint every element lies. It follows from the tensors alone, so
/// that all ranks know it before anything is written, and does not depend on the mesh.
class CheckpointLayout {
 public:
  /// Weights become Hugging Face's shards, other kinds the files `optimizer/KIND`, in the order of
  /// `tensors`. `stem`: of the names of the weights' files; those of adapters are one file.
  explicit CheckpointLayout(const std::vector<KeptTensor>& tensors,
                            std::uint64_t max_shard_bytes = kDefaultMaxShardBytes,
                            const std::string& stem = "model");

  struct File {
    std::string path;    ///< relative to the checkpoint
    std::string header;  ///< the bytes before the first tensor
    std::uint64_t size_bytes = 0;
  };
  const std::vector<File>& files() const { return files_; }
  /// The index of the weights' shards; empty when there is one.
  const std::string& index() const { return index_; }
  std::uint64_t size_bytes() const;

  struct Place {
    std::size_t file = 0;
    std::uint64_t at = 0;  ///< of its first byte in the file
    DType dtype = DType::f32;
    Shape shape;
  };
  const Place& place(const std::string& kind, const std::string& name) const;

 private:
  std::vector<File> files_;
  std::string index_;
  std::map<std::pair<std::string, std::string>, Place> places_;
};

}  // namespace heddle
