#include "ops/cosine.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "ops/cpu/rows.h"
#include "ops/operands.h"

namespace heddle::ops {
namespace {

template <class T>
T product_of(const T* a, const T* b, std::int64_t n) {
  T sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// 1 over the lengths of rows; 0 of rows that have none.
template <class T>
std::vector<T> inverse_lengths(const Tensor& rows) {
  const std::int64_t n = rows.size(1);
  std::vector<T> inverse;
  for (std::int64_t r = 0; r < rows.size(0); ++r) {
    const T* const row = rows.data<T>() + r * n;
    const T length = std::sqrt(product_of(row, row, n));
    inverse.push_back(length == 0 ? T{0} : 1 / length);
  }
  return inverse;
}

template <class T>
struct Temperature {
  explicit Temperature(const Tensor& warmth) {
    const T free = 2 * std::exp(warmth.data<T>()[0]);
    is_limited = free > static_cast<T>(kMostTemperature);
    value = is_limited ? static_cast<T>(kMostTemperature) : free;
  }
  T value = 0;
  bool is_limited = false;
};

void check_cosines(const Tensor& logits_TE, const Tensor& u_TP, const Tensor& v_EP,
                   const Tensor& warmth, const Stream& stream) {
  check_like(logits_TE, {u_TP.size(0), v_EP.size(0)}, u_TP.dtype());
  check_like(v_EP, {v_EP.size(0), u_TP.size(1)}, u_TP.dtype());
  check_like(warmth, {1}, u_TP.dtype());
  for (const Tensor* t : {&logits_TE, &u_TP, &v_EP}) check_flat({t});
  if (stream.is_dry() || stream.device().kind == Device::Kind::cpu) return;
  throw Error(ErrorCode::usage, "a router by cosines does not run on a GPU yet", "use the CPU");
}

/// The gradient of a row a from those of its cosines with the rows of b.
template <class T>
void add_row_gradient(const T* a, T inverse_a, const Tensor& b, const std::vector<T>& inverse_b,
                      const T* dcosines, std::int64_t stride, T* da) {
  const std::int64_t n = b.size(1);
  for (std::int64_t j = 0; j < b.size(0); ++j) {
    const auto at = static_cast<std::size_t>(j);
    const T* const row = b.data<T>() + j * n;
    const T d = dcosines[j * stride];
    const T cosine = product_of(a, row, n) * inverse_a * inverse_b[at];
    for (std::int64_t i = 0; i < n; ++i) {
      da[i] += d * inverse_a * (row[i] * inverse_b[at] - cosine * a[i] * inverse_a);
    }
  }
}

/// All rows of u with all rows of v.
template <class T>
struct Pairs {
  const T *u, *v;
  std::int64_t width, count;  // of a row, and of the rows of v
  std::vector<T> of_u, of_v;  // inverse lengths

  Pairs(const Tensor& u_TP, const Tensor& v_EP)
      : u(u_TP.data<T>()),
        v(v_EP.data<T>()),
        width(u_TP.size(1)),
        count(v_EP.size(0)),
        of_u(inverse_lengths<T>(u_TP)),
        of_v(inverse_lengths<T>(v_EP)) {}

  T times_cosine(T factor, std::int64_t t, std::int64_t e) const {
    return factor * of_u[static_cast<std::size_t>(t)] * of_v[static_cast<std::size_t>(e)] *
           product_of(u + t * width, v + e * width, width);
  }
};

}  // namespace

void cosine_logits(const Tensor& u_TP, const Tensor& v_EP, const Tensor& warmth,
                   const Tensor& logits_TE, Stream& stream) {
  check_cosines(logits_TE, u_TP, v_EP, warmth, stream);
  if (stream.is_dry()) return;
  cpu::visit_float(u_TP.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const Pairs<T> pairs(u_TP, v_EP);
    const std::int64_t E = pairs.count;
    const Temperature<T> temperature(warmth);
    cpu::parallel_for(stream, u_TP.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t e = 0; e < E; ++e) {
          logits_TE.data<T>()[t * E + e] = pairs.times_cosine(temperature.value, t, e);
        }
      }
    });
  });
}

void cosine_logits_backward_input(const Tensor& dlogits_TE, const Tensor& u_TP, const Tensor& v_EP,
                                  const Tensor& warmth, const Tensor& du_TP, Stream& stream) {
  check_cosines(dlogits_TE, u_TP, v_EP, warmth, stream);
  check_like(du_TP, u_TP.shape(), u_TP.dtype());
  if (stream.is_dry()) return;
  cpu::visit_float(u_TP.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const Pairs<T> pairs(u_TP, v_EP);
    const std::int64_t P = pairs.width, E = pairs.count;
    const Temperature<T> temperature(warmth);
    cpu::parallel_for(stream, u_TP.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        T* const du = du_TP.data<T>() + t * P;
        std::fill(du, du + P, T{0});
        add_row_gradient<T>(pairs.u + t * P, pairs.of_u[static_cast<std::size_t>(t)], v_EP,
                            pairs.of_v, dlogits_TE.data<T>() + t * E, 1, du);
        for (std::int64_t i = 0; i < P; ++i) du[i] *= temperature.value;
      }
    });
  });
}

void cosine_logits_backward_weight(const Tensor& dlogits_TE, const Tensor& u_TP, const Tensor& v_EP,
                                   const Tensor& warmth, const Tensor& dv_EP, const Tensor& dwarmth,
                                   Stream& stream) {
  check_cosines(dlogits_TE, u_TP, v_EP, warmth, stream);
  check_like(dv_EP, v_EP.shape(), v_EP.dtype());
  check_like(dwarmth, {1}, v_EP.dtype());
  if (stream.is_dry()) return;
  cpu::visit_float(u_TP.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const Pairs<T> pairs(u_TP, v_EP);
    const std::int64_t P = pairs.width, E = pairs.count;
    const Temperature<T> temperature(warmth);
    cpu::parallel_for(stream, E, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<T> dv(static_cast<std::size_t>(P));
      for (std::int64_t e = begin; e < end; ++e) {
        std::fill(dv.begin(), dv.end(), T{0});
        add_row_gradient<T>(pairs.v + e * P, pairs.of_v[static_cast<std::size_t>(e)], u_TP,
                            pairs.of_u, dlogits_TE.data<T>() + e, E, dv.data());
        for (std::int64_t i = 0; i < P; ++i) {
          dv_EP.data<T>()[e * P + i] += temperature.value * dv[static_cast<std::size_t>(i)];
        }
      }
    });
    if (temperature.is_limited) return;
    T sum = 0;
    for (std::int64_t t = 0; t < u_TP.size(0); ++t) {
      for (std::int64_t e = 0; e < E; ++e) {
        sum += pairs.times_cosine(dlogits_TE.data<T>()[t * E + e], t, e);
      }
    }
    dwarmth.data<T>()[0] += temperature.value * sum;
  });
}

}  // namespace heddle::ops
