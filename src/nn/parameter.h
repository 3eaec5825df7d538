#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mesh/layout.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle {

/// How a parameter is initialised before training from nothing.
struct Init {
  enum class Kind : std::uint8_t { normal, zeros, ones, uniform };
  Kind kind = Kind::normal;
  double stddev = 0.02;  ///< of uniform, the bound: values lie between it and its negative
};

/// A tensor of the model, as this rank holds it. It is made of boxes of Hugging Face tensors:
/// several for a fused projection (q, k and v, so that one matrix product serves them all), parts
/// of them under tensor parallelism. Elements that no part covers are padding: zero, and never
/// updated.
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
  /// Rows from `first_row` on, where they lie otherwise: heads of keys and values, where tp has
  /// more ranks than there are such heads. Neighbouring tp ranks then hold the same rows; each
  /// attends with query heads of its own, so each has a part of the rows' gradient.
  struct Tail {
    std::int64_t first_row = 0;
    Layout layout;
  };
  std::optional<Tail> tail;
  /// One tensor of the model that is a parameter at the first stage and another at the last. Their
  /// gradients are summed; the first stage's is the one that is counted and written.
  enum class Tie : std::uint8_t { none, first, last };
  Tie tie = Tie::none;
  Init init;
  /// A matrix between the hidden states of a block: not a table, a head, a norm or a bias. What
  /// optimizers that work on whole matrices take.
  bool is_inner = false;
  /// False: frozen. It has no gradient (`grad` stays absent), and no optimizer sees it.
  bool trains = true;
  /// Of an adapter beside the model's own weights (nn/low_rank.h).
  bool is_adapter = false;
  /// Not trained, its gradient is zero: once a step it moves against the load of a layer with
  /// experts, which is this row of Ctx::expert_load (the bias of DeepSeek-V3's routers).
  std::optional<std::int64_t> balances = {};

  Tensor value, grad;  ///< bound by the ParamStore; value is valid between its acquire and release

  bool is_matrix() const { return shape.dims() >= 2; }
  bool is_inner_matrix() const { return is_inner && shape.dims() == 2; }

  /// A stretch of the parameter's elements that lie on the mesh in one way.
  struct Region {
    std::int64_t begin = 0, end = 0;  ///< elements, in storage order
    const Layout& layout;
  };
  std::vector<Region> regions() const;

  /// How a part lies on the mesh.
  const Layout& layout_of(const Part& part) const {
    return tail && part.at[0] >= tail->first_row ? tail->layout : layout;
  }

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
