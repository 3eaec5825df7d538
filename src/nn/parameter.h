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

/// A trainable tensor. In memory it may be several Hugging Face tensors stacked along dimension 0
/// (q, k and v of one projection), so that one matrix product serves them all; in files each part
/// stands alone under its own name.
struct Parameter {
  struct Part {
    std::string name;  ///< the Hugging Face name; also the checkpoint key
    std::int64_t rows = 0;
  };

  std::vector<Part> parts;
  Shape shape;    ///< of the whole; dimension 0 is the sum of the parts' rows
  Layout layout;  ///< how the whole lies on the mesh
  Init init;

  Tensor value, grad;  ///< bound by the ParamStore; value is valid between its acquire and release

  /// The part's slice of `whole` (value, grad, or an optimizer moment of the same shape).
  Tensor part_of(const Tensor& whole, std::size_t part) const;
  Shape part_shape(std::size_t part) const;
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
