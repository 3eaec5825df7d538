#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace heddle {

/// What one layer remembers of one micro-batch between its forward and its backward: forward puts,
/// backward_input takes or leaves, backward_weight takes the rest, and then it must be empty. Slots
/// are numbered by the layer (an enum of its own); layers made of layers give each a child.
class Saved {
 public:
  void put(int slot, Tensor tensor);
  /// Removes and returns.
  Tensor take(int slot);
  const Tensor& get(int slot) const;
  bool has(int slot) const;

  Saved& child(int index);

  /// Nothing here or in any child.
  bool empty() const;
  /// Bytes held here and in the children; a tensor put in two places counts once.
  std::size_t size_bytes() const;

 private:
  void collect(std::vector<std::pair<const std::byte*, std::size_t>>& held) const;

  std::vector<std::pair<int, Tensor>> slots_;
  std::vector<std::unique_ptr<Saved>> children_;
};

}  // namespace heddle
