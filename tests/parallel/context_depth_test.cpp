// Rounding through many layers of attention that ranks share: what is computed in f32, or in bf16
// on a GPU, must not be further from f64 than on one rank.

#include <numeric>

#include "comm/staged/staged_backend.h"
#include "ops/elementwise.h"
#include "parallel/context_attention_testing.h"

namespace heddle {
namespace {

constexpr int kLayers = 32;
constexpr Device kGpu{Device::Kind::cuda, 0};

struct ChainResult {
  Tensor out;                ///< of the last layer, with its input
  std::vector<Tensor> dqkv;  ///< of every layer
};

/// A chain of layers on some tokens. Each attends to its input, q, k and v side by side, and adds
/// what comes out to it. The next one's input has its columns moved on by a head, so that errors of
/// each part get into all others, and rows of size 1. Everything but attention is exact.
class Chain {
 public:
  Chain(const ContextShape& shape, Memory& memory)
      : width_(attention_of(shape).qkv_width()),
        out_width_(attention_of(shape).out_width()),
        head_dim_(shape.head_dim),
        memory_(memory) {}

  /// From the first input and the last gradient. attend(layer, qkv) gives out, and
  /// attend_back(layer, dout) dqkv, in f64.
  template <class Attend, class AttendBack>
  ChainResult run(Tensor x, Tensor dx, const Attend& attend, const AttendBack& attend_back) const {
    std::vector<Tensor> inputs;
    std::vector<std::vector<double>> sizes;  // of rows before they got size 1
    for (int layer = 0; layer < kLayers; ++layer) {
      x = sum_of(x, attend(layer, x));
      sizes.push_back(normalize(x));
      inputs.push_back(x);
    }
    ChainResult result{x, std::vector<Tensor>(kLayers)};
    for (auto layer = static_cast<std::size_t>(kLayers); layer-- > 0;) {
      dx = normalize_back(inputs[layer], sizes[layer], dx);
      result.dqkv[layer] = attend_back(static_cast<int>(layer), dout_of(dx));
      dx = dx_of(dx, result.dqkv[layer]);
    }
    return result;
  }

 private:
  /// value(row, column) everywhere.
  template <class Value>
  Tensor made(std::int64_t rows, std::int64_t width, const Value& value) const {
    const Tensor tensor = memory_.alloc({rows, width}, DType::f64, MemoryTag::workspace);
    double* to = tensor.data<double>();
    for (std::int64_t t = 0; t < rows; ++t) {
      for (std::int64_t c = 0; c < width; ++c) *to++ = value(t, c);
    }
    return tensor;
  }
  Tensor sum_of(const Tensor& x, const Tensor& out) const {
    return made(x.size(0), width_, [&](std::int64_t t, std::int64_t c) {
      const std::int64_t from = (c + width_ - head_dim_) % width_;
      const double added = from < out_width_ ? out.data<double>()[t * out_width_ + from] : 0.0;
      return x.data<double>()[t * width_ + from] + added;
    });
  }
  /// Where column `c` of a layer's input goes in the next one's.
  std::int64_t moved(std::int64_t c) const { return (c + head_dim_) % width_; }
  Tensor dout_of(const Tensor& dsum) const {
    return made(dsum.size(0), out_width_, [&](std::int64_t t, std::int64_t c) {
      return dsum.data<double>()[t * width_ + moved(c)];
    });
  }
  Tensor dx_of(const Tensor& dsum, const Tensor& dqkv) const {
    return made(dsum.size(0), width_, [&](std::int64_t t, std::int64_t c) {
      return dsum.data<double>()[t * width_ + moved(c)] + dqkv.data<double>()[t * width_ + c];
    });
  }

  double mean_product(const double* a, const double* b) const {
    return std::inner_product(a, a + width_, b, 0.0) / static_cast<double>(width_);
  }
  std::vector<double> normalize(const Tensor& x) const {
    std::vector<double> sizes;
    for (std::int64_t t = 0; t < x.size(0); ++t) {
      double* row = x.data<double>() + t * width_;
      sizes.push_back(std::sqrt(mean_product(row, row)));
      for (std::int64_t c = 0; c < width_; ++c) row[c] /= sizes.back();
    }
    return sizes;
  }
  Tensor normalize_back(const Tensor& y, const std::vector<double>& sizes, const Tensor& dy) const {
    std::vector<double> along;
    for (std::int64_t at = 0; at < y.count(); at += width_) {
      along.push_back(mean_product(y.data<double>() + at, dy.data<double>() + at));
    }
    return made(y.size(0), width_, [&](std::int64_t t, std::int64_t c) {
      const auto row = static_cast<std::size_t>(t);
      const std::int64_t at = t * width_ + c;
      return (dy.data<double>()[at] - along[row] * y.data<double>()[at]) / sizes[row];
    });
  }

  std::int64_t width_, out_width_, head_dim_;
  Memory& memory_;
};

double scale_of(const ContextShape& shape) {
  return 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
}

/// The first input and the last gradient of a chain, of all tokens.
struct Ends {
  Tensor x, dx;
};
Ends random_ends(const ContextShape& shape, Memory& memory) {
  const std::int64_t width = attention_of(shape).qkv_width();
  return {random_rows(shape.tokens, width, "x", memory),
          random_rows(shape.tokens, width, "dx", memory)};
}

ChainResult exact_chain(const ContextShape& shape, const Ends& ends, int threads, Memory& memory) {
  std::vector<Tensor> inputs;
  const Tensor none = memory.alloc({shape.tokens, attention_of(shape).out_width()}, DType::f64,
                                   MemoryTag::workspace);
  std::ranges::fill(none.host<double>(), 0.0);
  const auto attention = [&](const Tensor& qkv, const Tensor& dout) {
    return whole_attention(shape, {qkv, dout}, scale_of(shape), memory, threads);
  };
  return Chain(shape, memory)
      .run(
          ends.x, ends.dx,
          [&](int, const Tensor& qkv) {
            inputs.push_back(qkv);
            return attention(qkv, none).out;
          },
          [&](int layer, const Tensor& dout) {
            return attention(inputs[static_cast<std::size_t>(layer)], dout).dqkv;
          });
}

struct Computation {
  Device device = {};
  DType dtype = DType::f32;
  bool sums_in_order = true;
};

/// One rank's layers; what they are given and give is on the host, in f64.
class RankLayers {
 public:
  RankLayers(const ContextShape& shape, const std::shared_ptr<const RankContext>& context,
             std::int64_t tokens, Communicator& ranks, const Computation& how)
      : memory_(how.device), stream_(1, how.device), dtype_(how.dtype), saved_(kLayers) {
    stream_.set_deterministic(how.sums_in_order);
    batch_ = {.ids = host_.alloc({1, tokens}, DType::i32, MemoryTag::data),
              .targets = {},
              .positions = {},
              .first_key = {},
              .context = context};
    for (int layer = 0; layer < kLayers; ++layer) {
      layers_.push_back(
          std::make_unique<ContextAttention>(attention_of(shape), scale_of(shape), layer, ranks));
    }
  }

  Tensor forward(int layer, const Tensor& qkv) {
    Ctx ctx{.stream = stream_, .memory = memory_, .batch = batch_};
    return to_host(at(layer).forward(to_device(qkv), saved_[static_cast<std::size_t>(layer)], ctx));
  }
  Tensor backward(int layer, const Tensor& dout) {
    Ctx ctx{.stream = stream_, .memory = memory_, .batch = batch_};
    return to_host(
        at(layer).backward_input(to_device(dout), saved_[static_cast<std::size_t>(layer)], ctx));
  }

 private:
  ContextAttention& at(int layer) { return *layers_[static_cast<std::size_t>(layer)]; }

  static Tensor cast(const Tensor& x, DType dtype, Memory& memory, Stream& stream) {
    if (x.dtype() == dtype) return x;
    const Tensor y = memory.alloc(x.shape(), dtype, MemoryTag::workspace);
    ops::cast(x, y, stream);
    return y;
  }
  Tensor moved(const Tensor& x, Memory& to) {
    const Tensor y = to.alloc(x.shape(), x.dtype(), MemoryTag::workspace);
    ops::copy(x, y, stream_);
    stream_.synchronize();
    return y;
  }
  Tensor to_device(const Tensor& x) {
    Stream host(1);
    return cast(moved(cast(x, DType::f32, host_, host), memory_), dtype_, memory_, stream_);
  }
  Tensor to_host(const Tensor& x) {
    Stream host(1);
    return cast(moved(cast(x, DType::f32, memory_, stream_), host_), DType::f64, host_, host);
  }

  Memory host_, memory_;
  Stream stream_;
  DType dtype_;
  MicroBatch batch_;
  std::vector<std::unique_ptr<ContextAttention>> layers_;
  std::vector<Saved> saved_;
};

ChainResult rounded_chain(const ContextShape& shape, const Ends& ends, const Computation& how,
                          Memory& memory) {
  const auto like = [&](const Tensor& x) {
    return memory.alloc(x.shape(), DType::f64, MemoryTag::workspace);
  };
  ChainResult gathered{like(ends.x), {}};
  for (int layer = 0; layer < kLayers; ++layer) gathered.dqkv.push_back(like(ends.x));
  run_ranks(shape.ranks, [&](World& host) {
    const bool is_on_host = how.device.kind == Device::Kind::cpu || host.size() == 1;
    Communicator ranks(
        is_on_host ? host.all().backend() : through_host(host.all().backend(), how.device),
        host.all().shared_flight(), "cp");
    Memory own;
    Stream stream(1);
    const auto context = shape.ranks == 1 ? nullptr : make_rank_context(shape, host.rank());
    const TokenRuns tokens = context ? context->plan.held[static_cast<std::size_t>(host.rank())]
                                     : TokenRuns{{.first = 0, .count = shape.tokens}};
    RankLayers layers(shape, context, tokens_in(tokens), ranks, how);
    const auto mine = [&](const Tensor& x) { return rows_of(x, tokens, DType::f64, own, stream); };
    const ChainResult made =
        Chain(shape, own)
            .run(
                mine(ends.x), mine(ends.dx),
                [&](int layer, const Tensor& qkv) { return layers.forward(layer, qkv); },
                [&](int layer, const Tensor& dout) { return layers.backward(layer, dout); });
    put_rows(made.out, tokens, gathered.out);  // ranks have different tokens
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      put_rows(made.dqkv[layer], tokens, gathered.dqkv[layer]);
    }
  });
  return gathered;
}

/// Relative to the size of what is exact, over all rows and layers.
struct Errors {
  double out = 0, dq = 0, dk = 0, dv = 0;
};

class Difference {
 public:
  void add(double made, double exact) {
    off_ += (made - exact) * (made - exact);
    size_ += exact * exact;
  }
  double relative() const { return std::sqrt(off_ / size_); }

 private:
  double off_ = 0, size_ = 0;
};

Errors errors_of(const ChainResult& made, const ChainResult& exact, const ContextShape& shape) {
  Difference out, dq, dk, dv;
  for (std::int64_t i = 0; i < exact.out.count(); ++i) {
    out.add(made.out.data<double>()[i], exact.out.data<double>()[i]);
  }
  const std::int64_t queries = attention_of(shape).out_width();
  const std::int64_t keys = queries + shape.key_heads * shape.head_dim;
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    const Tensor &a = made.dqkv[layer], &b = exact.dqkv[layer];
    for (std::int64_t i = 0; i < b.count(); ++i) {
      const std::int64_t column = i % b.size(1);
      (column < queries ? dq
       : column < keys  ? dk
                        : dv)
          .add(a.data<double>()[i], b.data<double>()[i]);
    }
  }
  return {out.relative(), dq.relative(), dk.relative(), dv.relative()};
}

/// EXPECTs that no way to share a sequence is further from f64 than 1.3 times one rank.
void expect_errors_of_one_rank(std::int64_t tokens, int head_dim, const Computation& how,
                               int threads) {
  Memory memory;
  const ContextShape one{.ranks = 1,
                         .tokens = tokens,
                         .documents = {tokens},
                         .heads = 8,
                         .key_heads = 2,
                         .head_dim = head_dim};
  const Ends ends = random_ends(one, memory);
  const ChainResult exact = exact_chain(one, ends, threads, memory);
  const Errors limits = errors_of(rounded_chain(one, ends, how, memory), exact, one);
  fmt::print("heads of {}, one rank: out {:.2e}, dq {:.2e}, dk {:.2e}, dv {:.2e}\n", head_dim,
             limits.out, limits.dq, limits.dk, limits.dv);
  EXPECT_GT(limits.out, 0.0);
  for (const int ranks : {2, 4, 8}) {
    for (const ContextMethod method : kContextMethodsTested) {
      ContextShape shape = one;
      shape.ranks = ranks;
      shape.method = method;
      if (!problems_of(shape).empty()) continue;
      shape = resolved(shape);
      SCOPED_TRACE(to_text(shape));
      const Errors errors = errors_of(rounded_chain(shape, ends, how, memory), exact, one);
      fmt::print("{:<10} {} ranks: out {:.3f}, dq {:.3f}, dk {:.3f}, dv {:.3f} times that\n",
                 name_of(method), ranks, errors.out / limits.out, errors.dq / limits.dq,
                 errors.dk / limits.dk, errors.dv / limits.dv);
      EXPECT_LE(errors.out, 1.3 * limits.out);
      EXPECT_LE(errors.dq, 1.3 * limits.dq);
      EXPECT_LE(errors.dk, 1.3 * limits.dk);
      EXPECT_LE(errors.dv, 1.3 * limits.dv);
    }
  }
}

TEST(AttentionThrough32Layers, InFloat32IsAsExactAsOnOneRank) {
  expect_errors_of_one_rank(77, 16, {}, 1);
}

TEST(AttentionThrough32Layers, InBf16OnAGpuIsAsExactAsOnOneRank) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const int head_dim : {64, 128}) {
    expect_errors_of_one_rank(1100, head_dim, {kGpu, DType::bf16}, 16);
  }
  // Stretches of 64 tokens and more: sums of dQ stay from call to call.
  expect_errors_of_one_rank(1024, 128, {kGpu, DType::bf16, false}, 16);
}

}  // namespace
}  // namespace heddle
