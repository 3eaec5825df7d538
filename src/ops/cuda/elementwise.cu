#include "ops/cuda/columns.h"
#include "ops/cuda/map.h"
#include "ops/elementwise.h"

namespace heddle::ops::cuda {
namespace {

struct Fill {
  float value;
  __device__ void operator()(const float (&)[1], float (&out)[1]) const { out[0] = value; }
};
struct Add {
  __device__ void operator()(const float (&in)[2], float (&out)[1]) const {
    out[0] = in[0] + in[1];
  }
};
struct Scale {
  float factor;
  __device__ void operator()(const float (&in)[1], float (&out)[1]) const {
    out[0] = in[0] * factor;
  }
};

/// Of types that rounding to f32 would change.
template <class T>
__global__ void fill_exactly_kernel(RowLayout<1> layout, T* y, T value) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= layout.rows * layout.length) return;
  std::int64_t at[1];
  layout.offsets(i / layout.length, at);
  y[at[0] + i % layout.length] = value;
}

template <class T>
void fill_exactly(const Tensor& y, T value, cudaStream_t queue) {
  const RowLayout<1> layout({&y}, Rows<1>::Merge::all);
  fill_exactly_kernel<<<blocks_for(y.count(), 256), 256, 0, queue>>>(layout, device_data<T>(y),
                                                                     value);
  HEDDLE_CUDA(cudaGetLastError());
}

/// Copies rows of whole units: lengths and strides of `layout` are counted in elements of
/// `units_per_element` or fewer bytes.
template <class Unit>
__global__ void copy_kernel(RowLayout<2> layout, const Unit* x, Unit* y, std::int64_t units) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= units) return;
  std::int64_t at[2];
  layout.offsets(i / layout.length, at);
  y[at[1] + i % layout.length] = x[at[0] + i % layout.length];
}

/// The largest power of two, up to 16, that divides all of the layout's bytes and both addresses.
std::int64_t unit_bytes(const RowLayout<2>& layout, std::int64_t element, const Tensor& x,
                        const Tensor& y) {
  auto all = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(x.bytes()) |
                                       reinterpret_cast<std::uintptr_t>(y.bytes())) |
             (layout.length * element) | 16;
  for (int level = 0; level < layout.levels; ++level) {
    all |= (layout.strides[level][0] | layout.strides[level][1]) * element;
  }
  return all & -all;
}

void copy_on_device(RowLayout<2> layout, const Tensor& x, const Tensor& y, cudaStream_t queue) {
  const auto element = static_cast<std::int64_t>(size_of(y.dtype()));
  if (layout.rows == 1) {
    HEDDLE_CUDA(
        cudaMemcpyAsync(y.bytes(), x.bytes(), y.size_bytes(), cudaMemcpyDeviceToDevice, queue));
    return;
  }
  const std::int64_t unit = unit_bytes(layout, element, x, y);
  const auto in_units = [&](std::int64_t elements) { return elements * element / unit; };
  layout.length = in_units(layout.length);
  for (int level = 0; level < layout.levels; ++level) {
    for (auto& stride : layout.strides[level]) stride = in_units(stride);
  }
  const std::int64_t units = layout.rows * layout.length;
  const auto launch = [&](auto zero) {
    using Unit = decltype(zero);
    copy_kernel<Unit><<<blocks_for(units, 256), 256, 0, queue>>>(
        layout, reinterpret_cast<const Unit*>(x.bytes()), reinterpret_cast<Unit*>(y.bytes()),
        units);
    HEDDLE_CUDA(cudaGetLastError());
  };
  switch (unit) {
    case 16: return launch(uint4{});
    case 8: return launch(uint2{});
    case 4: return launch(std::uint32_t{});
    case 2: return launch(std::uint16_t{});
    default: return launch(std::uint8_t{});
  }
}

/// Between host and device, matrix by matrix.
void copy_across(const RowLayout<2>& layout, const Tensor& x, const Tensor& y, Stream& stream) {
  const cudaStream_t queue = state_of(stream).stream;
  const auto element = static_cast<std::int64_t>(size_of(y.dtype()));
  const std::int64_t height = layout.levels > 0 ? layout.sizes[0] : 1;
  const auto width = static_cast<std::size_t>(layout.length * element);
  const auto pitch = [&](int n) {
    return layout.levels > 0 ? static_cast<std::size_t>(layout.strides[0][n] * element) : width;
  };
  for (std::int64_t matrix = 0; matrix < layout.rows / height; ++matrix) {
    std::int64_t from = 0, to = 0, rest = matrix;
    for (int level = 1; level < layout.levels; ++level) {
      from += rest % layout.sizes[level] * layout.strides[level][0];
      to += rest % layout.sizes[level] * layout.strides[level][1];
      rest /= layout.sizes[level];
    }
    HEDDLE_CUDA(cudaMemcpy2DAsync(y.bytes() + to * element, pitch(1), x.bytes() + from * element,
                                  pitch(0), width, static_cast<std::size_t>(height),
                                  cudaMemcpyDefault, queue));
  }
  if (y.device().kind == Device::Kind::cpu) stream.synchronize();
}

/// y_TN += b_N, a pack of W columns per thread.
template <class T, int W>
__global__ void __launch_bounds__(256)
    add_bias_kernel(T* y, const T* bias, std::int64_t stride, std::int64_t packs,
                    std::int64_t packs_per_row) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= packs) return;
  const std::int64_t row = i / packs_per_row, column = i % packs_per_row * W;
  T* const at = y + row * stride + column;
  auto values = Pack<T, W>::load(at);
  const auto add = Pack<T, W>::load(bias + column);
#pragma unroll
  for (int n = 0; n < W; ++n) values.set(n, values.get(n) + add.get(n));
  values.store(at);
}

}  // namespace

void fill(const Tensor& y, double value, Stream& stream) {
  const cudaStream_t queue = state_of(stream).stream;
  if (value == 0.0 && y.is_contiguous()) {
    HEDDLE_CUDA(cudaMemsetAsync(y.bytes(), 0, y.size_bytes(), queue));
  } else if (y.dtype() == DType::i32) {
    fill_exactly(y, static_cast<std::int32_t>(value), queue);
  } else if (y.dtype() == DType::f64) {
    fill_exactly(y, value, queue);
  } else {
    map<0, 1>(stream, {&y}, Fill{static_cast<float>(value)});
  }
}

void copy(const Tensor& x, const Tensor& y, Stream& stream) {
  const RowLayout<2> layout({&x, &y}, Rows<2>::Merge::all);
  if (layout.rows * layout.length == 0) return;
  const bool is_across = x.device() != y.device();
  if (is_across) return copy_across(layout, x, y, stream);
  HEDDLE_CHECK(x.device() == stream.device(), "a copy of host memory on a GPU's stream");
  copy_on_device(layout, x, y, state_of(stream).stream);
}

void add(const Tensor& a, const Tensor& b, const Tensor& y, Stream& stream) {
  map<2, 1>(stream, {&a, &b, &y}, Add{});
}

void accumulate(const Tensor& x, const Tensor& y, Stream& stream) { cuda::add(x, y, y, stream); }

void scale(const Tensor& y, double factor, Stream& stream) {
  map<1, 1>(stream, {&y, &y}, Scale{static_cast<float>(factor)});
}

void add_bias(const Tensor& y_TN, const Tensor& b_N, Stream& stream) {
  if (y_TN.count() == 0) return;
  const cudaStream_t queue = state_of(stream).stream;
  visit_float(y_TN.dtype(), [&](auto zero) {
    using T = decltype(zero);
    constexpr int W = kWidest<T>;
    const bool wide = is_aligned(y_TN) && is_aligned(b_N) && y_TN.size(1) % W == 0;
    const std::int64_t per_row = y_TN.size(1) / (wide ? W : 1), packs = y_TN.size(0) * per_row;
    const auto kernel = wide ? add_bias_kernel<T, W> : add_bias_kernel<T, 1>;
    kernel<<<blocks_for(packs, 256), 256, 0, queue>>>(device_data<T>(y_TN), device_data<T>(b_N),
                                                      y_TN.stride(0), packs, per_row);
    HEDDLE_CUDA(cudaGetLastError());
  });
}

void bias_backward(const Tensor& dy_TN, const Tensor& db_N, Stream& stream) {
  add_column_sums({.dy = dy_TN, .db_D = db_N}, stream);
}

}  // namespace heddle::ops::cuda
