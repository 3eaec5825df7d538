#include <algorithm>

#include "ops/attention.h"
#include "ops/cpu/attention_problem.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_rows.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/attention_rows-inl.h"
#include "ops/cpu/dispatch-inl.h"

#ifndef HEDDLE_OPS_CPU_ATTENTION_ROWS_ONCE
#define HEDDLE_OPS_CPU_ATTENTION_ROWS_ONCE
namespace heddle::ops::cpu {

/// Up to kBlockRows queries of one head.
struct HeadRows {
  std::int64_t b, h, begin, end;
};

}  // namespace heddle::ops::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {

void merge_rows(const Tensor& part_BSHK, const Tensor& part_lse_BHS, const Tensor& out_BSHK,
                const Tensor& lse_BHS, const HeadRows& rows) {
  visit_float(out_BSHK.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const HeadView<const T> part(part_BSHK);
    const HeadView<T> out(out_BSHK);
    const StatisticsView<const T> part_lse(part_lse_BHS);
    const StatisticsView<T> lse(lse_BHS);
    const std::int64_t count = rows.end - rows.begin, width = out_BSHK.size(3);
    RowMerge<T> merge;
    std::fill_n(merge.old_lse, kBlockRows, kNoKeys<T>);
    std::fill_n(merge.new_lse, kBlockRows, kNoKeys<T>);
    std::copy_n(lse.at(rows.b, rows.h, rows.begin), count, merge.old_lse);
    std::copy_n(part_lse.at(rows.b, rows.h, rows.begin), count, merge.new_lse);
    merge.compute();
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t s = rows.begin + i;
      merge.apply(i, part.at(rows.b, s, rows.h), width, T{1}, out.at(rows.b, s, rows.h),
                  lse.at(rows.b, rows.h, s));
    }
  });
}

void delta_rows(const Tensor& dout_BSHK, const Tensor& out_BSHK, const Tensor& delta_BHS,
                const HeadRows& rows) {
  visit_float(out_BSHK.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const HeadView<const T> dout(dout_BSHK), out(out_BSHK);
    const StatisticsView<T> delta(delta_BHS);
    for (std::int64_t s = rows.begin; s < rows.end; ++s) {
      *delta.at(rows.b, rows.h, s) =
          dot(dout.at(rows.b, s, rows.h), out.at(rows.b, s, rows.h), out_BSHK.size(3));
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops::cpu {
namespace {

HWY_EXPORT(merge_rows);
HWY_EXPORT(delta_rows);

template <class Body>
void for_head_rows(const Tensor& rows_BSHK, Stream& stream, const Body& body) {
  if (rows_BSHK.count() == 0) return;
  const std::int64_t queries = rows_BSHK.size(1), heads = rows_BSHK.size(2);
  const std::int64_t blocks = blocks_in(queries, kBlockRows);
  parallel_items(stream, rows_BSHK.size(0) * heads * blocks, [&](std::int64_t i) {
    const std::int64_t begin = i % blocks * kBlockRows;
    body(HeadRows{.b = i / blocks / heads,
                  .h = i / blocks % heads,
                  .begin = begin,
                  .end = std::min(begin + kBlockRows, queries)});
  });
}

}  // namespace

void attention_merge(const Tensor& part_BSHK, const Tensor& part_lse_BHS, const Tensor& out_BSHK,
                     const Tensor& lse_BHS, Stream& stream) {
  const auto merge = HEDDLE_DISPATCH(merge_rows, out_BSHK.dtype());
  for_head_rows(out_BSHK, stream, [&](const HeadRows& rows) {
    merge(part_BSHK, part_lse_BHS, out_BSHK, lse_BHS, rows);
  });
}

void attention_delta(const Tensor& dout_BSHK, const Tensor& out_BSHK, const Tensor& delta_BHS,
                     Stream& stream) {
  const auto delta = HEDDLE_DISPATCH(delta_rows, out_BSHK.dtype());
  for_head_rows(out_BSHK, stream,
                [&](const HeadRows& rows) { delta(dout_BSHK, out_BSHK, delta_BHS, rows); });
}

}  // namespace heddle::ops::cpu
#endif
