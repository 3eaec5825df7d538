#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mesh/layout.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle {

/// How a parameter is initialised before training from nothing.
struct Init {
  enum class Kind : std::uint8_t { normal, zeros, ones };
  Kind kind = Kind::normal;
  double stddev = 0.02;
};

/// A trainable tensor, as this rank holds it. It is made of boxes of Hugging Face tensors: several
/// for a fused projection (q, k and v, so that one matrix product serves them all), parts of them
/// under tensor parallelism. Elements that no part covers are padding: zero, and never updated.
struct Parameter {
  /// [begin, begin + extent) of the tensor `name`, which lies here from `at` on.
  struct Part {
    std::string name;  ///< the Hugging Face name; also the checkpoint key
    Shape whole;       ///< of the Hugging Face tensor
    Shape begin, at, extent;
  };

  std::vector<Part> parts;
  Shape shape;    ///< of the local tensor
  Layout layout;  ///< how the whole lies on the mesh
  /// Heads of keys and values, where tp has more ranks than there are such heads: the rows from
  /// `first_row` on are then the same on `ranks` neighbouring tp ranks. Each of those attends with
  /// query heads of its own, so each has a part of the rows' gradient, and the parts are summed.
  struct Copies {
    int ranks = 1;
    std::int64_t first_row = 0;
  } copies;
  Init init;

  Tensor value, grad;  ///< bound by the ParamStore; value is valid between its acquire and release

  bool is_matrix() const { return shape.dims() >= 2; }

  /// 0 for the first contribution to this step's gradient, which overwrites what the last step
  /// left, and 1 for later ones, which add: the beta of a matrix product.
  double claim_grad();
  /// Makes the gradient addable for operations that only add: clears what the last step left, once.
  void clear_stale_grad(Stream& stream);
  /// Declares the gradient used up.
  void retire_grad() { grad_is_stale_ = true; }

 private:
  bool grad_is_stale_ = true;
};

using ParamVisitor = std::function<void(Parameter&)>;

}  // namespace heddle
