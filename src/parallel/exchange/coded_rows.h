#pragma once

#include <memory>

#include "nn/experts/hooks.h"
#include "parallel/compression.h"
#include "parallel/exchange/bad_notes.h"

namespace heddle {

/// Rows on their way to experts and back as a codec's bytes, each row by itself. What is lost is
/// forgotten: no row comes again.
class CodedRows final : public ExpertHook {
 public:
  /// `memory` outlives it. `compression` has a codec for `experts`; rows are of this width and
  /// type.
  CodedRows(const Compression& compression, std::int64_t width, DType dtype, Memory& memory,
            std::shared_ptr<BadNotes> notes);

  Tensor at(ExpertPlace place, const Tensor& rows, Ctx& ctx) const override;
  std::int64_t row_bytes(std::int64_t width, DType dtype) const override;
  bool takes(std::int64_t mean_bytes) const override { return mean_bytes >= min_bytes_; }

 private:
  Tensor encoded(const Tensor& rows, Stream& stream) const;
  Tensor decoded(const Tensor& bytes, Ctx& ctx) const;
  /// Rows end where the codec's blocks do, so that all of them are encoded as one tensor.
  bool are_whole_blocks() const { return codec_->block() > 0 && width_ % codec_->block() == 0; }

  const std::shared_ptr<const codec::Codec> codec_;
  const std::int64_t min_bytes_, width_;
  const DType dtype_;
  Memory& memory_;
  const std::shared_ptr<BadNotes> notes_;
};

}  // namespace heddle
