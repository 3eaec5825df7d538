#pragma once

#include <algorithm>
#include <memory>

#include "nn/fusible.h"

namespace heddle {

/// A product of very many tokens, a chunk of them after the other, so that what lies between its
/// input and its output (an MLP is several times wider inside) exists for one chunk only. Up to
/// `most` tokens it is the product inside and nothing else. Of more it keeps nothing and computes
/// each chunk again in backward, from the input: for use inside Recompute, where that is done
/// anyway.
class ChunkedProduct final : public Product {
 public:
  ChunkedProduct(std::unique_ptr<Product> inner, std::int64_t most);

  Tensor multiply(Tensor x, const Tensor& addend, Saved& saved, Ctx& ctx) override;
  void prepare_given(const Tensor& x, Saved& saved, Ctx& ctx) override;
  Tensor backward_input_given(const Tensor& dy, const MakeInput& input, Saved& saved,
                              Ctx& ctx) override;
  void backward_weight_given(const Tensor& x, Saved& saved, Ctx& ctx) override;
  /// With the chunk's weights' gradients right behind the chunk, which holds least.
  Tensor backward_given(Tensor dy, const MakeInput& input, Saved& saved, Ctx& ctx) override;
  void visit(const ParamVisitor& visitor) override;
  Cost cost(const CostShape& shape) const override;

 private:
  std::int64_t chunks(std::int64_t tokens) const {
    return std::max<std::int64_t>(1, (tokens + most_ - 1) / most_);
  }
  /// Of a tensor whose rows are tokens, cut into so many chunks; none of one that is absent.
  Tensor part(const Tensor& rows, std::int64_t chunk, std::int64_t count) const;
  /// For the layers of a chunk, whose rows begin later.
  Ctx context_of(std::int64_t chunk, std::int64_t count, std::int64_t tokens, const Ctx& ctx) const;
  /// Rows of the whole that `make(chunk)` gives chunk by chunk.
  template <class Make>
  Tensor joined(std::int64_t tokens, const Make& make, Ctx& ctx) const;

  std::unique_ptr<Product> inner_;
  std::int64_t most_;
};

}  // namespace heddle
