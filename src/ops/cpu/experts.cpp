#include "ops/experts.h"

#include <algorithm>
#include <cstring>

#include "ops/backend.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/experts.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/dispatch-inl.h"
#include "ops/cpu/probability-inl.h"
#include "ops/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::ops::cpu {
namespace HWY_NAMESPACE {

void combine_rows(const Tensor& rows_RD, const Tensor& row_TK, const Tensor& weights_TK,
                  const Tensor& addend_TD, const Tensor& y_TD, Stream& stream) {
  visit_float(y_TD.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const std::int64_t n = y_TD.size(1), K = row_TK.size(1);
    const T* const rows = rows_RD.data<T>();
    const T* const weights = weights_TK.defined() ? weights_TK.data<T>() : nullptr;
    const std::int32_t* const row_of = row_TK.data<std::int32_t>();
    parallel_for(stream, y_TD.size(0), kGrain / std::max<std::int64_t>(n * K, 1) + 1,
                 [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
                   for (std::int64_t t = begin; t < end; ++t) {
                     T* const y = y_TD.data<T>() + t * y_TD.stride(0);
                     std::fill(y, y + n, T{0});
                     for (std::int64_t k = t * K; k < (t + 1) * K; ++k) {
                       if (row_of[k] == kAbsentRow) continue;
                       const T* const row = rows + row_of[k] * rows_RD.stride(0);
                       const T weight = weights == nullptr ? T{1} : weights[k];
                       for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
                         hn::StoreU(hn::MulAdd(hn::Set(d, weight), hn::LoadU(d, row + i),
                                               hn::LoadU(d, y + i)),
                                    d, y + i);
                       });
                     }
                     if (!addend_TD.defined()) continue;
                     const T* const addend = addend_TD.data<T>() + t * addend_TD.stride(0);
                     for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
                       hn::StoreU(hn::Add(hn::LoadU(d, addend + i), hn::LoadU(d, y + i)), d, y + i);
                     });
                   }
                 });
  });
}

void expert_swiglu_backward(const Tensor& dy_RF, const Tensor& gate_up_RG, const Tensor& row_TK,
                            const Tensor& weights_TK, const Tensor& dgate_up_RG, const Tensor& y_RF,
                            const Tensor& dweights_TK, Stream& stream) {
  visit_float(y_RF.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const std::int64_t n = y_RF.size(1);
    const std::int32_t* const row_of = row_TK.data<std::int32_t>();
    const T* const weights = weights_TK.data<T>();
    T* const dweights = dweights_TK.data<T>();
    parallel_for(stream, row_TK.count(), kGrain / std::max<std::int64_t>(4 * n, 1) + 1,
                 [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
                   for (std::int64_t choice = begin; choice < end; ++choice) {
                     const std::int64_t row = row_of[choice];
                     dweights[choice] = 0;
                     if (row == kAbsentRow) continue;
                     const T weight = weights[choice];
                     const T* const gate = gate_up_RG.data<T>() + row * gate_up_RG.stride(0);
                     const T* const dy = dy_RF.data<T>() + row * dy_RF.stride(0);
                     T* const dgate = dgate_up_RG.data<T>() + row * dgate_up_RG.stride(0);
                     T* const y = y_RF.data<T>() + row * y_RF.stride(0);
                     for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
                       const auto g = hn::LoadU(d, gate + i), u = hn::LoadU(d, gate + n + i);
                       const auto s = sigmoid(d, g);
                       const auto silu = hn::Mul(g, s.p);
                       hn::StoreU(hn::Mul(silu, u), d, y + i);
                       const auto out = hn::Mul(hn::Set(d, weight), hn::LoadU(d, dy + i));
                       const auto slope = hn::Mul(s.p, hn::MulAdd(g, s.q, hn::Set(d, 1)));
                       hn::StoreU(hn::Mul(hn::Mul(out, u), slope), d, dgate + i);
                       hn::StoreU(hn::Mul(out, silu), d, dgate + n + i);
                     });
                     dweights[choice] = sum_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
                       return hn::Mul(hn::LoadU(d, y + i), hn::LoadU(d, dy + i));
                     });
                     for_vectors<T>(n, [=](auto d, std::int64_t i) HWY_ATTR {
                       hn::StoreU(hn::Mul(hn::Set(d, weight), hn::LoadU(d, y + i)), d, y + i);
                     });
                   }
                 });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace heddle::ops::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace heddle::ops::cpu {
namespace {

HWY_EXPORT(combine_rows);
HWY_EXPORT(expert_swiglu_backward);

void check_row_indices(const Tensor& row_TK, std::int64_t rows) {
  for (const std::int32_t row : row_TK.host<std::int32_t>()) {
    HEDDLE_CHECK(row == kAbsentRow || (row >= 0 && row < rows), "row {} of {}", row, rows);
  }
}

/// Calls body(expert, first row, row behind its last) for every expert.
template <class Body>
void for_experts(const Tensor& offsets_E1, std::int64_t rows, const Body& body) {
  const auto offsets = offsets_E1.host<std::int32_t>();
  HEDDLE_CHECK(offsets.front() == 0 && std::ranges::is_sorted(offsets) && offsets.back() <= rows,
               "experts' rows end at {} of {}", offsets.back(), rows);
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
    body(static_cast<std::int64_t>(e), offsets[e], offsets[e + 1]);
  }
}

}  // namespace

void held_offsets(const Tensor& offsets_E1, std::int64_t first, std::int64_t held,
                  const Tensor& held_E1, Stream& /*stream*/) {
  std::ranges::transform(
      offsets_E1.host<std::int32_t>(), held_E1.host<std::int32_t>().begin(),
      [&](std::int64_t offset) {
        return static_cast<std::int32_t>(std::clamp<std::int64_t>(offset - first, 0, held));
      });
}

void spread_rows(const Tensor& x_TD, const Tensor& row_TK, const Tensor& rows_RD, Stream& stream) {
  check_row_indices(row_TK, rows_RD.size(0));
  const auto row_of = row_TK.host<std::int32_t>();
  const std::int64_t slots = row_TK.size(1);
  const std::size_t bytes =
      static_cast<std::size_t>(x_TD.size(1)) * static_cast<std::size_t>(size_of(x_TD.dtype()));
  const auto at = [](const Tensor& t, std::int64_t row) {
    return t.bytes() + row * t.stride(0) * static_cast<std::int64_t>(size_of(t.dtype()));
  };
  parallel_for(stream, x_TD.size(0), kGrain / std::max<std::int64_t>(x_TD.size(1) * slots, 1) + 1,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t choice = begin * slots; choice < end * slots; ++choice) {
                   const std::int32_t row = row_of[static_cast<std::size_t>(choice)];
                   if (row == kAbsentRow) continue;
                   std::memcpy(at(rows_RD, row), at(x_TD, choice / slots), bytes);
                 }
               });
}

void combine_rows(const Tensor& rows_RD, const Tensor& row_TK, const Tensor& weights_TK,
                  const Tensor& addend_TD, const Tensor& y_TD, Stream& stream) {
  check_row_indices(row_TK, rows_RD.size(0));
  HEDDLE_DISPATCH(combine_rows, y_TD.dtype())
  (rows_RD, row_TK, weights_TK, addend_TD, y_TD, stream);
}

void expert_swiglu_backward(const Tensor& dy_RF, const Tensor& gate_up_RG, const Tensor& row_TK,
                            const Tensor& weights_TK, const Tensor& dgate_up_RG, const Tensor& y_RF,
                            const Tensor& dweights_TK, Stream& stream) {
  check_row_indices(row_TK, dy_RF.size(0));
  HEDDLE_DISPATCH(expert_swiglu_backward, y_RF.dtype())
  (dy_RF, gate_up_RG, row_TK, weights_TK, dgate_up_RG, y_RF, dweights_TK, stream);
}

void grouped_gemm(const Tensor& a_RK, const Tensor& b_EXX, Transpose transpose_b,
                  const Tensor& offsets_E1, const Tensor& c_RN, Stream& stream) {
  for_experts(offsets_E1, a_RK.size(0),
              [&](std::int64_t expert, std::int64_t begin, std::int64_t end) {
                cpu::gemm(a_RK.slice(0, begin, end), Transpose::no, b_EXX.select(0, expert),
                          transpose_b, c_RN.slice(0, begin, end), {}, stream);
              });
}

void grouped_gemm_weight(const Tensor& a_RM, const Tensor& b_RN, const Tensor& offsets_E1,
                         double beta, const Tensor& c_EMN, Stream& stream) {
  for_experts(offsets_E1, a_RM.size(0),
              [&](std::int64_t expert, std::int64_t begin, std::int64_t end) {
                cpu::gemm(a_RM.slice(0, begin, end), Transpose::yes, b_RN.slice(0, begin, end),
                          Transpose::no, c_EMN.select(0, expert), {.beta = beta}, stream);
              });
}

void grouped_gemm_weight_part(const Tensor& a_PM, const Tensor& b_PN, const Tensor& offsets_E1,
                              std::int64_t first, double beta, const Tensor& c_EMN,
                              Stream& stream) {
  const auto offsets = offsets_E1.host<std::int32_t>();
  HEDDLE_CHECK(offsets.front() == 0 && std::ranges::is_sorted(offsets), "experts' rows from {} on",
               offsets.front());
  for (std::size_t e = 0; e + 1 < offsets.size(); ++e) {
    const auto here = [&](std::int64_t row) {
      return std::clamp<std::int64_t>(row - first, 0, a_PM.size(0));
    };
    const std::int64_t begin = here(offsets[e]), end = here(offsets[e + 1]);
    const bool has_none = offsets[e] == offsets[e + 1];
    if (begin == end && !(has_none && first == 0)) continue;
    cpu::gemm(a_PM.slice(0, begin, end), Transpose::yes, b_PN.slice(0, begin, end), Transpose::no,
              c_EMN.select(0, static_cast<std::int64_t>(e)),
              {.beta = offsets[e] < first ? 1.0 : beta}, stream);
  }
}

void grouped_swiglu(const Tensor& x_RI, const Tensor& w_EGI, const Tensor& offsets_E1,
                    const Tensor& gate_up_RG, const Tensor& y_RF, Stream& stream) {
  cpu::grouped_gemm(x_RI, w_EGI, Transpose::yes, offsets_E1, gate_up_RG, stream);
  const std::int64_t used = offsets_E1.host<std::int32_t>().back();
  const auto [gate, up] = halves(gate_up_RG.slice(0, 0, used));
  cpu::swiglu_forward(gate, up, y_RF.slice(0, 0, used), stream);
}

void grouped_swiglu_backward(const Tensor& dout_RO, const Tensor& w_EOF, const Tensor& offsets_E1,
                             const Tensor& gate_up_RG, const Tensor& row_TK,
                             const Tensor& weights_TK, const Tensor& scratch_RF,
                             const Tensor& dgate_up_RG, const Tensor& y_RF,
                             const Tensor& dweights_TK, Stream& stream) {
  cpu::grouped_gemm(dout_RO, w_EOF, Transpose::no, offsets_E1, scratch_RF, stream);
  cpu::expert_swiglu_backward(scratch_RF, gate_up_RG, row_TK, weights_TK, dgate_up_RG, y_RF,
                              dweights_TK, stream);
}

}  // namespace heddle::ops::cpu
#endif  // HWY_ONCE
