#include "ops/at_once.h"

#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/operands.h"

namespace heddle::ops {
namespace {

bool is_on_gpu(Stream& stream) {
  return !stream.is_dry() && stream.device().kind == Device::Kind::cuda;
}

}  // namespace

void copy_all(std::span<const Copied> copies, Stream& stream) {
  for (const auto& [from, to] : copies) check_like(from, to.shape(), to.dtype());
  if (is_on_gpu(stream) && cuda::copy_at_once(copies, stream)) return;
  for (const auto& [from, to] : copies) copy(from, to, stream);
}

void accumulate_all(std::span<const Summed> sums, Stream& stream) {
  for (const auto& [from, to] : sums) {
    for (const Tensor& part : from) check_like(part, to.shape(), to.dtype());
  }
  if (is_on_gpu(stream) && cuda::accumulate_at_once(sums, stream)) return;
  for (const auto& [from, to] : sums) {
    for (const Tensor& part : from) accumulate(part, to, stream);
  }
}

void attention_merge_all(std::span<const PartialRows> parts, const Tensor& out_BSHK,
                         const Tensor& lse_BHS, Stream& stream) {
  for (const auto& [rows, lse] : parts) {
    check_attention_rows(rows, out_BSHK.shape(), out_BSHK.dtype(), {&lse, &lse_BHS});
  }
  if (is_on_gpu(stream) && cuda::merge_at_once(parts, out_BSHK, lse_BHS, stream)) return;
  for (const auto& [rows, lse] : parts) attention_merge(rows, lse, out_BSHK, lse_BHS, stream);
}

}  // namespace heddle::ops
