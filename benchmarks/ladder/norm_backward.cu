// The backward of RMS norm, [rows, width] in bf16, with the residual's gradient added: dx and the
// weight's gradient dw, which is a sum over all rows. From plain kernels to the one that trains
// (src/ops/cuda/norm.cu). Every rung prints its time, the time that the bytes it moves would take
// at the speed of a copy, and its error.
//   ladder_norm_backward [rows] [width, at most 2048]
#include "ladder/ladder.h"
#include "ops/norm.h"

namespace {

using namespace heddle;
using ladder::Bf16;

struct Operands {
  const Bf16 *dy, *x, *w, *addend;
  const float* rstd;
  Bf16* dx;
  float *dw, *partial;
  int rows, width;
};

__device__ float at(const Bf16* from, std::int64_t i) { return __bfloat162float(from[i]); }

__device__ Bf16 input_gradient(const Operands& o, std::int64_t i, int column, float rstd,
                               float mean_gh) {
  const float h = at(o.x, i) * rstd, g = at(o.dy, i) * at(o.w, column);
  return __float2bfloat16(rstd * (g - h * mean_gh) + at(o.addend, i));
}

/// Rung 1: a thread per row for dx, whose neighbours read a row apart, and a thread per column for
/// dw, of which there are far too few.
__global__ void thread_per_row(Operands o) {
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (t >= o.rows) return;
  const std::int64_t row = static_cast<std::int64_t>(t) * o.width;
  float sum = 0.0F;
  for (int c = 0; c < o.width; ++c) {
    sum += at(o.dy, row + c) * at(o.w, c) * at(o.x, row + c) * o.rstd[t];
  }
  const float mean = sum / static_cast<float>(o.width);
  for (int c = 0; c < o.width; ++c) {
    o.dx[row + c] = input_gradient(o, row + c, c, o.rstd[t], mean);
  }
}
__global__ void thread_per_column(Operands o) {
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= o.width) return;
  float sum = 0.0F;
  for (std::int64_t t = 0; t < o.rows; ++t) {
    sum += at(o.dy, t * o.width + c) * at(o.x, t * o.width + c) * o.rstd[t];
  }
  o.dw[c] = sum;
}

__device__ float over_block(float value) {
  __shared__ float scratch[8];
  for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(~0U, value, d);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0.0F;
  for (const float part : scratch) value += part;
  return value;
}

/// Rung 2: a block per row for dx; blocks of rows leave partial sums for dw. Memory is read in
/// whole lines, but x and dy twice by the first kernel (the second time from the cache) and once
/// more by the second.
__global__ void __launch_bounds__(256) block_per_row(Operands o) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * o.width;
  const float rstd = o.rstd[blockIdx.x];
  float sum = 0.0F;
  for (int c = static_cast<int>(threadIdx.x); c < o.width; c += 256) {
    sum += at(o.dy, row + c) * at(o.w, c) * at(o.x, row + c) * rstd;
  }
  const float mean = over_block(sum) / static_cast<float>(o.width);
  for (int c = static_cast<int>(threadIdx.x); c < o.width; c += 256) {
    o.dx[row + c] = input_gradient(o, row + c, c, rstd, mean);
  }
}
__global__ void __launch_bounds__(256) partial_columns(Operands o, int rows_a_block) {
  const int c = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
  if (c >= o.width) return;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * rows_a_block;
  const std::int64_t end = min(begin + rows_a_block, static_cast<std::int64_t>(o.rows));
  float sum = 0.0F;
  for (std::int64_t t = begin; t < end; ++t) {
    sum += at(o.dy, t * o.width + c) * at(o.x, t * o.width + c) * o.rstd[t];
  }
  o.partial[static_cast<std::int64_t>(blockIdx.y) * o.width + c] = sum;
}
__global__ void add_partial(Operands o, int parts) {
  const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (c >= o.width) return;
  float sum = 0.0F;
  for (std::int64_t p = 0; p < parts; ++p) sum += o.partial[p * o.width + c];
  o.dw[c] = sum;
}

/// Rung 3: one pass. A block walks over rows with a pack of 8 columns a thread, whose sums for dw
/// it keeps; but every row costs two barriers, at which all its loads have been used up.
__global__ void __launch_bounds__(256) block_walks(Operands o) {
  const int c = static_cast<int>(threadIdx.x) * 8;
  const bool is_inside = c < o.width;
  float dw[8] = {};
  for (std::int64_t t = blockIdx.x; t < o.rows; t += gridDim.x) {
    const std::int64_t i = t * o.width + c;
    const float rstd = o.rstd[t];
    uint4 dy{}, x{}, w{}, addend{};
    if (is_inside) {
      dy = *reinterpret_cast<const uint4*>(o.dy + i);
      x = *reinterpret_cast<const uint4*>(o.x + i);
      w = *reinterpret_cast<const uint4*>(o.w + c);
      addend = *reinterpret_cast<const uint4*>(o.addend + i);
    }
    const auto get = [](const uint4& pack, int n) {
      return __bfloat162float(reinterpret_cast<const Bf16*>(&pack)[n]);
    };
    float sum = 0.0F;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float h = get(x, n) * rstd;
      dw[n] += get(dy, n) * h;
      sum += get(dy, n) * get(w, n) * h;
    }
    const float mean = over_block(sum) / static_cast<float>(o.width);
    uint4 dx;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float value = rstd * (get(dy, n) * get(w, n) - get(x, n) * rstd * mean);
      reinterpret_cast<Bf16*>(&dx)[n] = __float2bfloat16(value + get(addend, n));
    }
    if (is_inside) *reinterpret_cast<uint4*>(o.dx + i) = dx;
  }
  if (!is_inside) return;
  for (int n = 0; n < 8; ++n) {
    o.partial[static_cast<std::int64_t>(blockIdx.x) * o.width + c + n] = dw[n];
  }
}

constexpr int kParts = 1056;

struct Problem {
  int rows, width;
  Tensor dy, x, w, addend, rstd, dx, dw, partial;

  Problem(ladder::Bench& bench, int rows_, int width_)
      : rows(rows_),
        width(width_),
        dy(bench.normal({rows_, width_}, DType::bf16, 1)),
        x(bench.normal({rows_, width_}, DType::bf16, 2)),
        w(bench.normal({width_}, DType::bf16, 3)),
        addend(bench.normal({rows_, width_}, DType::bf16, 4)),
        rstd(bench.empty({rows_}, DType::f32)),
        dx(bench.empty({rows_, width_}, DType::bf16)),
        dw(bench.empty({width_}, DType::f32)),
        partial(bench.empty({kParts, width_}, DType::f32)) {
    ops::rms_norm_forward(x, w, 1e-5, dx, rstd, bench.stream);
    ops::fill(dw, 0.0, bench.stream);
  }
  Operands operands() const {
    const auto low = [](const Tensor& t) { return reinterpret_cast<Bf16*>(t.bytes()); };
    return {low(dy),
            low(x),
            low(w),
            low(addend),
            rstd.data<float>(),
            low(dx),
            dw.data<float>(),
            partial.data<float>(),
            rows,
            width};
  }
};

using Kernel = std::function<void(const Problem&)>;

/// The worse of dx and dw, against double precision.
double error_of(const Kernel& kernel, int width, ladder::Bench& bench) {
  const Problem p(bench, 1000, width);
  kernel(p);
  const auto host = [&](const Tensor& t) { return ladder::as_double(bench.on_host<Bf16>(t)); };
  const auto dy = host(p.dy), x = host(p.x), w = host(p.w), addend = host(p.addend);
  const auto got_dw = bench.on_host<float>(p.dw);
  std::vector<double> dx(dy.size()), dw(w.size(), 0.0);
  const auto D = static_cast<std::size_t>(width);
  for (std::size_t row = 0; row < dy.size(); row += D) {
    double squares = 0.0, sum = 0.0;
    for (std::size_t c = 0; c < D; ++c) squares += x[row + c] * x[row + c];
    const double rstd = 1.0 / std::sqrt(squares / width + 1e-5);
    for (std::size_t c = 0; c < D; ++c) {
      sum += dy[row + c] * w[c] * x[row + c] * rstd;
      dw[c] += dy[row + c] * x[row + c] * rstd;
    }
    for (std::size_t c = 0; c < D; ++c) {
      dx[row + c] = rstd * (dy[row + c] * w[c] - x[row + c] * rstd * sum / width) + addend[row + c];
    }
  }
  return std::max(ladder::difference(host(p.dx), dx),
                  ladder::difference(std::vector<double>(got_dw.begin(), got_dw.end()), dw));
}

}  // namespace

int main(int argc, char** argv) {
  const int rows = argc > 1 ? std::atoi(argv[1]) : 65536,
            width = argc > 2 ? std::atoi(argv[2]) : 2048;
  ladder::Bench bench;
  const cudaStream_t queue = bench.queue();
  const auto columns = [](int count) { return static_cast<unsigned>((count + 255) / 256); };
  const Kernel kernels[] = {
      [=](const Problem& p) {
        thread_per_row<<<columns(p.rows), 256, 0, queue>>>(p.operands());
        thread_per_column<<<columns(p.width), 256, 0, queue>>>(p.operands());
      },
      [=](const Problem& p) {
        block_per_row<<<static_cast<unsigned>(p.rows), 256, 0, queue>>>(p.operands());
        partial_columns<<<dim3(columns(p.width), kParts), 256, 0, queue>>>(
            p.operands(), (p.rows + kParts - 1) / kParts);
        add_partial<<<columns(p.width), 256, 0, queue>>>(p.operands(), kParts);
      },
      [=](const Problem& p) {
        block_walks<<<kParts, 256, 0, queue>>>(p.operands());
        add_partial<<<columns(p.width), 256, 0, queue>>>(p.operands(), kParts);
      },
      [&](const Problem& p) {
        ops::rms_norm_backward(p.dy, p.x, p.w, p.rstd, p.addend, p.dx, p.dw, bench.stream);
      }};
  const Problem problem(bench, rows, width);
  const double rate = bench.copy_rate();
  const auto tensor = static_cast<double>(problem.dy.size_bytes());
  const char* const names[] = {"1 a thread per row, then a thread per column",
                               "2 a block per row, then partial sums of columns",
                               "3 one pass: blocks walk over rows",
                               "4 one pass: warps walk over rows, waiting for nobody"};
  const double tensors[] = {6, 6, 4, 4};  // dy, x, addend and dx; dy and x again
  std::vector<ladder::Rung> rungs;
  for (int i = 0; i < 4; ++i) {
    const Kernel& kernel = kernels[i];
    rungs.push_back(
        {names[i], tensors[i] * tensor, [&] { kernel(problem); }, error_of(kernel, width, bench)});
  }
  return ladder::climb(bench, rungs, 4.0 * tensor, rate, 4e-3);
}
