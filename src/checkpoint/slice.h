#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace heddle {

/// A box of a named tensor of the model: data holds [begin, end) of a tensor of global_shape. A
/// rank gives the boxes it owns; their union over the ranks is the model, whatever the mesh.
struct SliceEntry {
  std::string name;
  Shape global_shape;
  std::vector<std::int64_t> begin, end;
  Tensor data;  ///< host memory; shape is end - begin

  bool is_whole() const { return data.shape() == global_shape; }
};

/// The entry of a tensor that this rank holds whole.
SliceEntry whole_entry(std::string name, const Tensor& data);

}  // namespace heddle
