#pragma once

#include <span>
#include <vector>

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

// What single calls do to one tensor after the other (copy and accumulate of ops/elementwise.h,
// attention_merge of ops/attention.h), told at once. Results have the same bits. On a GPU one
// kernel does it, where rows allow: small ones leave most of the device idle, and what several
// things are added to is read and written once.

/// Tensors of the same shape and type.
struct Copied {
  Tensor from, to;
};
/// No two have the same target, and no target is another's source.
void copy_all(std::span<const Copied> copies, Stream& stream);

/// to += from[0], then from[1], ...
struct Summed {
  std::vector<Tensor> from;
  Tensor to;
};
void accumulate_all(std::span<const Summed> sums, Stream& stream);

/// A result of attention over some keys.
struct PartialRows {
  Tensor rows_BSHK, lse_BHS;
};
/// Merges the parts into out and lse, one after the other.
void attention_merge_all(std::span<const PartialRows> parts, const Tensor& out_BSHK,
                         const Tensor& lse_BHS, Stream& stream);

namespace cuda {
// By one kernel. False, having done nothing, where rows are others than it takes.
bool copy_at_once(std::span<const Copied> copies, Stream& stream);
bool accumulate_at_once(std::span<const Summed> sums, Stream& stream);
bool merge_at_once(std::span<const PartialRows> parts, const Tensor& out_BSHK,
                   const Tensor& lse_BHS, Stream& stream);
}  // namespace cuda

}  // namespace heddle::ops
