#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nn/layer.h"
#include "tensor/memory.h"

namespace heddle {

/// A flat, local stretch of one kind of parameter, as the optimizer sees it: values, gradients and
/// moments of equal length, contiguous.
struct OptShard {
  Tensor value, grad, moment1, moment2;
  bool decays = false;  ///< weight decay applies: matrices and embeddings only
};

/// Owns the memory of a stage's parameters: one flat buffer each for values, gradients and moments
/// per unit (a block), in which every Parameter is a view. A parameter that occurs in several units
/// (tied embeddings) belongs to the first.
class ParamStore {
 public:
  enum class Purpose { inference, training };

  /// Allocates and binds value (and for training grad and zeroed moments) of every parameter.
  ParamStore(std::span<Layer* const> units, DType dtype, Purpose purpose, Memory& memory);

  /// In the order of the model, each once.
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  std::span<OptShard> shards() { return shards_; }
  /// The parameter's slices of the moment buffers (for checkpoints); order as parameters().
  const Tensor& moment1(std::size_t parameter) const { return moment1_[parameter]; }
  const Tensor& moment2(std::size_t parameter) const { return moment2_[parameter]; }

  /// Elements of all parameters, without padding.
  std::int64_t parameter_count() const { return parameter_count_; }

  /// Ends the step: the gradients are used up.
  void retire_grads();
  /// Makes every gradient defined, also of parameters that no micro-batch touched.
  void finish_grads(Stream& stream);

 private:
  void bind_unit(const std::vector<Parameter*>& unit, DType dtype, Purpose purpose, Memory& memory);

  std::vector<Parameter*> parameters_;
  std::vector<Tensor> moment1_, moment2_;
  std::vector<OptShard> shards_;
  std::int64_t parameter_count_ = 0;
};

/// Fills every parameter by its Init rule: counter-based, keyed by (seed, part name, index in the
/// part), so that every mesh and every fusion of parts starts from the same weights.
void initialize(const ParamStore& store, std::uint64_t seed, Stream& stream);

}  // namespace heddle
