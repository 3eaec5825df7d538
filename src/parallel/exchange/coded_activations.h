#pragma once

#include <memory>

#include "nn/activation_exchange.h"
#include "parallel/compression.h"
#include "parallel/exchange/bad_notes.h"
#include "parallel/exchange/coded_gather.h"
#include "parallel/exchange/compressed_sum.h"

namespace heddle {

/// Activations and their gradients between the ranks of tp, as a codec's bytes. What is lost is
/// forgotten: no tensor comes again.
class CodedActivations final : public ActivationExchange {
 public:
  /// `ranks` and `memory` outlive it. `compression` has a codec for `tensor`.
  CodedActivations(const Compression& compression, DType dtype, Communicator& ranks, Memory& memory,
                   std::shared_ptr<BadNotes> notes);

  bool takes(std::int64_t elements, DType dtype) const override;
  void all_reduce(const Tensor& x, Stream& stream) const override;
  void all_gather(const Tensor& part, const Tensor& whole, Stream& stream) const override;
  void reduce_scatter(const Tensor& whole, const Tensor& part, Stream& stream) const override;
  std::vector<LayerCall> calls(CommOp op, std::int64_t elements, DType dtype) const override;

 private:
  /// part (f32) = this rank's of the sum.
  void scatter(const Tensor& whole, const Tensor& part, Stream& stream) const;

  const std::shared_ptr<const codec::Codec> codec_;
  const std::int64_t min_bytes_;
  Communicator& ranks_;
  Memory& memory_;
  const std::shared_ptr<BadNotes> notes_;
  const CompressedSum sums_;
  const CodedGather gathers_;
};

}  // namespace heddle
