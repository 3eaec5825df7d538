#include "bench/machine_bench.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>

#include "base/clock.h"
#include "base/quantile.h"
#include "codec/registry.h"
#include "ops/activation.h"
#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "ops/norm.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/rope.h"
#include "ops/softmax_xent.h"

namespace heddle {
namespace {

using ops::Transpose;

/// Sizes as training has them. What is calibrated must not depend on the model that is predicted
/// later, so they only span the range.
struct MachineSizes {
  std::vector<std::array<std::int64_t, 2>> linears;  ///< outputs, inputs
  std::vector<std::int64_t> tokens;
  std::array<std::int64_t, 2> head;  ///< words and width of the output projection
  std::int64_t head_tokens, block_tokens, width, feed_forward, parameters, copied;
  std::int64_t coded;               ///< values in a call of a codec
  std::int64_t pool;                ///< elements among which operands lie
  std::vector<std::int64_t> heads;  ///< sizes for which attention is measured
  std::int64_t reference, square;   ///< sides of the products that others are compared with
};

MachineSizes sizes_on(Device device) {
  if (device.kind == Device::Kind::cpu) {
    return {.linears = {{320, 320},
                        {960, 320},
                        {1728, 320},
                        {320, 864},
                        {640, 640},
                        {2304, 768},
                        {4096, 768},
                        {768, 2048},
                        {384, 768},
                        {768, 384},
                        {1024, 1024}},
            .tokens = {256, 1024},
            .head = {24000, 512},
            .head_tokens = 512,
            .block_tokens = 512,
            .width = 640,
            .feed_forward = 1728,
            .parameters = 16'000'000,
            .copied = 32'000'000,
            .coded = 1 << 20,
            .pool = 24'000'000,
            .heads = {64},
            .reference = 1024,
            .square = 2048};
  }
  return {.linears = {{1024, 1024},
                      {3072, 1024},
                      {2048, 2048},
                      {6144, 2048},
                      {11264, 2048},
                      {2048, 5632},
                      {4096, 4096},
                      {12288, 4096},
                      {4096, 14336}},
          .tokens = {2048, 8192},
          .head = {50304, 2048},
          .head_tokens = 4096,
          .block_tokens = 8192,
          .width = 2048,
          .feed_forward = 5632,
          .parameters = 200'000'000,
          .copied = 256'000'000,
          .coded = 1 << 24,
          .pool = 600'000'000,
          .heads = {64, 80, 96, 128},
          .reference = 4096,
          .square = 8192};
}

/// Measures all items in turns, round by round, each beside a product of fixed size: a machine that
/// runs slower for a while then slows all of them, and the ratios stay.
class Turns {
 public:
  Turns(Communicator& all, Stream& stream, const MachineBenchOptions& options)
      : all_(all), stream_(stream), options_(options) {}

  void set_reference(std::function<void()> run) { reference_.run = std::move(run); }
  /// Where none was set.
  void use_as_reference(const std::function<void()>& run) {
    if (!reference_.run) reference_.run = run;
  }
  std::size_t add(std::function<void()> run) {
    items_.push_back({.run = std::move(run)});
    return items_.size() - 1;
  }

  std::uint64_t measurements() const {
    return static_cast<std::uint64_t>(options_.rounds) * items_.size();
  }
  /// `done` of `all` measurements lie behind: those of other turns.
  void measure(std::uint64_t done, std::uint64_t all) {
    if (items_.empty()) return;
    prepare(reference_);
    for (Item& item : items_) prepare(item);
    for (int round = 0; round < options_.rounds; ++round) {
      for (Item& item : items_) {
        const double before = timed(reference_);
        references_.push_back(before);
        item.ratios.push_back(timed(item) / before);
        if (options_.progress && all_.rank() == 0) options_.progress(++done, all);
      }
    }
  }

  double own_seconds(std::size_t item) const {
    return quantile(items_[item].ratios, 0.5) * quantile(references_, 0.5);
  }
  /// The mean over ranks.
  double seconds(std::size_t item) {
    return all_.combine(own_seconds(item), ReduceOp::sum) / all_.size();
  }
  double reference_seconds() {
    return all_.combine(quantile(references_, 0.5), ReduceOp::sum) / all_.size();
  }
  /// How far ranks that do the same at the same time are apart, over stretches about as long as a
  /// micro-batch: what delays single products evens out over many. Relative standard deviation,
  /// from quartiles, which outliers do not move.
  double variation() {
    if (all_.size() == 1) return 0.0;
    constexpr double kStretch = 0.25;  // seconds
    constexpr std::size_t kFewest = 16;
    const auto length = static_cast<std::size_t>(
        std::clamp(kStretch / reference_seconds(), 1.0,
                   std::max(1.0, static_cast<double>(references_.size() / kFewest))));
    std::vector<double> apart;
    for (std::size_t at = 0; at + length <= references_.size(); at += length) {
      const auto from = references_.begin() + static_cast<std::ptrdiff_t>(at);
      const double own = std::accumulate(from, from + static_cast<std::ptrdiff_t>(length), 0.0);
      const double mean = all_.combine(own, ReduceOp::sum) / all_.size();
      apart.push_back(own / mean - 1.0);
    }
    constexpr double kQuartiles = 1.349;  // of a normal distribution, in standard deviations
    const double own = (quantile(apart, 0.75) - quantile(apart, 0.25)) / kQuartiles;
    const double unbiased = std::sqrt(all_.size() / (all_.size() - 1.0));
    return unbiased * all_.combine(own, ReduceOp::sum) / all_.size();
  }
  /// How long a rank waits on average, after the product of fixed size, for the slowest to have
  /// done it too. The rarest delays are left out: few steps meet them.
  double wait_for_slowest() {
    std::vector<double> waits;
    for (const double own : references_) {
      const double mean = all_.combine(own, ReduceOp::sum) / all_.size();
      waits.push_back(all_.combine(own, ReduceOp::max) - mean);
    }
    std::ranges::sort(waits);
    waits.resize(waits.size() - waits.size() / 10);
    return std::accumulate(waits.begin(), waits.end(), 0.0) / static_cast<double>(waits.size());
  }
  double spread(std::size_t item) const {
    const auto& ratios = items_[item].ratios;
    return (quantile(ratios, 0.75) - quantile(ratios, 0.25)) / quantile(ratios, 0.5);
  }

 private:
  struct Item {
    std::function<void()> run;
    int repeats = 1;
    std::vector<double> ratios = {};
  };

  /// So often in a row that the clock and the ranks' start do not matter.
  void prepare(Item& item) {
    item.run();
    timed(item);
    const double once = all_.combine(timed(item), ReduceOp::max);
    item.repeats = static_cast<int>(std::clamp(8e-3 / once, 1.0, 2000.0));
  }

  double timed(const Item& item) {
    stream_.synchronize();
    all_.barrier();
    const Stopwatch watch;
    for (int i = 0; i < item.repeats; ++i) item.run();
    stream_.synchronize();
    return watch.seconds() / item.repeats;
  }

  Communicator& all_;
  Stream& stream_;
  const MachineBenchOptions& options_;
  Item reference_;
  std::vector<Item> items_;
  std::vector<double> references_;
};

/// The work of one rank, by what of the cost model it calibrates.
class RateBench {
 public:
  RateBench(World& world, Stream& stream, const MachineBenchOptions& options)
      : world_(world),
        options_(options),
        sizes_(sizes_on(stream.device())),
        stream_(stream),
        memory_(stream.device()),
        turns_(world.all(), stream, options),
        slow_turns_(world.all(), stream, options),
        codec_turns_(world.all(), stream, options) {
    stream.set_deterministic(false);
  }

  RankRates run() {
    RankRates rates{.ranks = world_.size(), .threads = stream_.threads()};
    inputs_.emplace(tensor({sizes_.pool}));
    outputs_.emplace(tensor({sizes_.pool}));
    gradients_.emplace(options_.dtype == DType::f32 ? tensor({sizes_.pool})
                                                    : precise({sizes_.pool}));
    turns_.set_reference(square(sizes_.reference));
    const std::size_t product = turns_.add(square(sizes_.square));
    add_products(rates);
    add_attention();
    add_block();
    add_others();
    add_codecs();
    const std::uint64_t slow = slow_turns_.measurements(), most = slow + turns_.measurements(),
                        all = most + codec_turns_.measurements();
    slow_turns_.measure(0, all);
    turns_.measure(slow, all);
    codec_turns_.measure(most, all);
    const double side = static_cast<double>(sizes_.square);
    rates.product_flops = 2.0 * side * side * side / turns_.seconds(product);
    rates.product_spread = turns_.spread(product);
    for (std::size_t i = 0; i < rates.products.size(); ++i) {
      rates.products[i].seconds = products_[i].turns->seconds(products_[i].item);
    }
    for (const AttentionItems& items : attention_) {
      const double flops =
          items.flops / (turns_.seconds(items.forward) + turns_.seconds(items.backward));
      if (items.head_dim == kUsualHead) rates.attention_flops = flops;
      rates.attention_by_head.push_back({static_cast<double>(items.head_dim), flops});
    }
    rates.block_bytes = block_bytes_ / turns_.seconds(block_);
    rates.copy_bytes = 8.0 * static_cast<double>(sizes_.copied) / turns_.seconds(copy_);
    rates.logit_seconds =
        turns_.seconds(loss_) / static_cast<double>(sizes_.head_tokens * sizes_.head[0]);
    rates.parameter_seconds = turns_.seconds(update_) / static_cast<double>(sizes_.parameters);
    rates.kernel_seconds = turns_.seconds(kernel_);
    rates.variation = turns_.variation();
    for (const CodecItems& items : codecs_) {
      const auto rate = [&](std::size_t item) {
        return 4.0 * static_cast<double>(sizes_.coded) / codec_turns_.seconds(item);
      };
      rates.codecs.push_back({.codec = items.codec->name(),
                              .encode = rate(items.encode),
                              .encode_with_residual = rate(items.encode_with_residual),
                              .decode = rate(items.decode)});
    }
    return rates;
  }

 private:
  Tensor tensor(const Shape& shape, DType dtype) {
    const Tensor t = memory_.alloc(shape, dtype, MemoryTag::workspace);
    // Not all alike: a GPU multiplies those faster than any real matrix.
    if (dtype == DType::f32 || dtype == DType::bf16) {
      ops::fill_normal(t.view({shape.count()}), 1, 0, 0.05, stream_);
    } else {
      ops::fill(t, 0.0, stream_);
    }
    return t;
  }
  Tensor tensor(const Shape& shape) { return tensor(shape, options_.dtype); }
  Tensor precise(const Shape& shape) { return tensor(shape, DType::f32); }

  std::function<void()> square(std::int64_t side) {
    const Tensor a = tensor({side, side}), c = tensor({side, side});
    return [this, a, c] { ops::gemm(a, Transpose::no, a, Transpose::no, c, {}, stream_); };
  }

  /// Operands at another place for every call, as a step has them: what is used again and again
  /// would stay in a cache.
  class Places {
   public:
    explicit Places(const Tensor& pool) : pool_(pool) {}
    Tensor next(std::int64_t rows, std::int64_t columns) {
      const std::int64_t count = rows * columns;
      if (at_ + count > pool_.count()) at_ = 0;
      const Tensor place = pool_.slice(0, at_, at_ + count).view({rows, columns});
      at_ += (count + 63) / 64 * 64;
      return place;
    }

   private:
    Tensor pool_;
    std::int64_t at_ = 0;
  };

  void add_product(RankRates& rates, ProductSample::Kind kind, std::int64_t tokens,
                   std::int64_t out, std::int64_t in) {
    add_product(rates, turns_, kind, tokens, out, in);
  }
  void add_product(RankRates& rates, Turns& turns, ProductSample::Kind kind, std::int64_t tokens,
                   std::int64_t out, std::int64_t in) {
    using Kind = ProductSample::Kind;
    const auto add = [&](std::int64_t m, std::int64_t n, std::int64_t k,
                         std::function<void()> run) {
      const auto d = [](std::int64_t size) { return static_cast<double>(size); };
      rates.products.push_back({kind, d(m), d(n), d(k)});
      turns.use_as_reference(run);
      products_.push_back({&turns, turns.add(std::move(run))});
    };
    switch (kind) {
      case Kind::output:
        return add(tokens, out, in, [=, this] {
          ops::gemm(inputs_->next(tokens, in), Transpose::no, inputs_->next(out, in),
                    Transpose::yes, outputs_->next(tokens, out), {}, stream_);
        });
      case Kind::input_gradient:
        return add(tokens, in, out, [=, this] {
          ops::gemm(inputs_->next(tokens, out), Transpose::no, inputs_->next(out, in),
                    Transpose::no, outputs_->next(tokens, in), {}, stream_);
        });
      case Kind::weight_gradient:
        return add(out, in, tokens, [=, this] {
          ops::gemm(inputs_->next(tokens, out), Transpose::yes, inputs_->next(tokens, in),
                    Transpose::no, gradients_->next(out, in), {.beta = 1.0}, stream_);
        });
    }
  }

  void add_products(RankRates& rates) {
    using Kind = ProductSample::Kind;
    for (const Kind kind : {Kind::output, Kind::input_gradient, Kind::weight_gradient}) {
      for (const auto& [out, in] : sizes_.linears) {
        for (const std::int64_t tokens : sizes_.tokens) {
          add_product(rates, kind, tokens, out, in);
        }
      }
      add_product(rates, kind, sizes_.head_tokens, sizes_.head[0], sizes_.head[1]);
      if (stream_.device().kind == Device::Kind::cuda) add_unaligned_products(rates, kind);
    }
  }

  /// A width a little below an aligned one, that only 1, 2, 4, ... 32 divides, as a layer's outputs
  /// and as its inputs: a model that has it once has it as both. As outputs also twice as wide,
  /// since gate and up are one product. And an odd vocabulary.
  void add_unaligned_products(RankRates& rates, ProductSample::Kind kind) {
    const std::int64_t tokens = sizes_.tokens.back();
    for (std::int64_t power = 1; power < 64; power *= 2) {
      Turns& turns = power < kFullRate ? slow_turns_ : turns_;
      const std::int64_t unaligned = sizes_.feed_forward - 64 + power;
      add_product(rates, turns, kind, tokens, unaligned, sizes_.width);
      add_product(rates, turns, kind, tokens, 2 * unaligned, sizes_.width);
      add_product(rates, turns, kind, tokens, sizes_.width, unaligned);
    }
    constexpr std::int64_t kWords = 50257;  // GPT-2's
    add_product(rates, slow_turns_, kind, sizes_.head_tokens, kWords, sizes_.head[1]);
  }

  void add_attention() {
    for (const std::int64_t head_dim : sizes_.heads) add_attention(head_dim);
  }

  void add_attention(std::int64_t K) {
    const bool is_cpu = stream_.device().kind == Device::Kind::cpu;
    const std::int64_t B = is_cpu ? 2 : 8, S = is_cpu ? 256 : 2048, H = is_cpu ? 8 : 1024 / K;
    const Shape shape{B, S, H, K};
    const Tensor q = tensor(shape), k = tensor(shape), v = tensor(shape), out = tensor(shape);
    const Tensor dq = tensor(shape), dk = tensor(shape), dv = tensor(shape);
    const Tensor lse = precise({B, H, S}), delta = precise({B, H, S});
    constexpr double kScale = 0.125;
    const std::size_t forward =
        turns_.add([=, this] { ops::attention_forward(q, k, v, {}, kScale, out, lse, stream_); });
    const std::size_t backward = turns_.add([=, this] {
      ops::attention_backward(out, q, k, v, out, lse, {}, kScale, dq, dk, dv, delta, stream_);
    });
    // Two products forward and five backward, half of each masked.
    attention_.push_back({K, forward, backward, 7.0 * static_cast<double>(B * H * S * S * K)});
  }

  /// What a block of a Llama does between its products, forward and backward.
  void add_block() {
    const std::int64_t T = sizes_.block_tokens, h = sizes_.width, f = sizes_.feed_forward;
    const std::int64_t S = T / 2, K = 64, H = h / K;
    const Tensor x = tensor({T, h}), y = tensor({T, h}), dx = tensor({T, h}), w = tensor({h});
    const Tensor rstd = precise({T}), dw = precise({h});
    const Tensor both = tensor({T, 2 * f}), act = tensor({T, f}), dact = tensor({T, f});
    // Repeated in place, numbers would shrink until they are slow.
    const Tensor dboth = tensor({T, 2 * f});
    const Tensor gate = both.slice(1, 0, f), up = both.slice(1, f, 2 * f);
    const Tensor dgate = dboth.slice(1, 0, f), dup = dboth.slice(1, f, 2 * f);
    const Tensor qkv = tensor({T, 3 * h});
    const Tensor q = qkv.slice(1, 0, h).view({2, S, H, K});
    const Tensor k = qkv.slice(1, h, 2 * h).view({2, S, H, K});
    const Tensor cosine = precise({S, K / 2}), sine = precise({S, K / 2});
    const Tensor positions = memory_.alloc({2, S}, DType::i32, MemoryTag::workspace);
    ops::fill(positions, 0.0, stream_);
    ops::fill(cosine, 1.0, stream_);
    ops::fill(sine, 0.0, stream_);
    ops::fill(w, 1.0, stream_);
    constexpr double kEps = 1e-5;
    block_ = turns_.add([=, this] {
      for (int half = 0; half < 2; ++half) {
        ops::rms_norm_forward(x, w, kEps, y, rstd, stream_);
        ops::accumulate(x, y, stream_);
        ops::rms_norm_forward(x, w, kEps, y, rstd, stream_);  // again in backward
        ops::rms_norm_backward(y, x, w, rstd, y, dx, dw, stream_);
        ops::rope(q, positions, cosine, sine, ops::RopePairs::halves, half == 1, stream_);
        ops::rope(k, positions, cosine, sine, ops::RopePairs::halves, half == 1, stream_);
      }
      ops::swiglu_forward(gate, up, act, stream_);
      ops::swiglu_backward(dact, gate, up, dgate, dup, act, stream_);
    });
    // As planner/block_cost counts them.
    const auto elements = static_cast<double>(T * (22 * h + 9 * f + 8 * h));
    block_bytes_ = elements * static_cast<double>(size_of(options_.dtype));
  }

  void add_others() {
    const std::int64_t rows = sizes_.head_tokens, words = sizes_.head[0];
    const Tensor logits = tensor({rows, words}), loss = tensor({rows}, DType::f64);
    const Tensor targets = tensor({rows}, DType::i32);
    loss_ = turns_.add(
        [=, this] { ops::cross_entropy_forward_backward(logits, targets, 1.0, loss, stream_); });
    const Shape flat{sizes_.parameters};
    const Tensor p = precise(flat), g = precise(flat), m = precise(flat), v = precise(flat);
    const Tensor sum = tensor({1}, DType::f64), clip = precise({1});
    ops::fill(v, 1.0, stream_);
    ops::fill(clip, 1.0, stream_);
    ops::AdamWArgs args{.lr = 1e-4, .step = 10, .clip = clip};
    if (options_.dtype == DType::bf16) args.p_low = tensor(flat);
    update_ = turns_.add([=, this] {
      ops::add_sum_of_squares(g, sum, stream_);
      ops::adamw(p, g, m, v, args, stream_);
    });
    const Tensor from = precise({sizes_.copied}), to = precise({sizes_.copied});
    copy_ = turns_.add([=, this] { ops::copy(from, to, stream_); });
    const Tensor little = tensor({4, 64}), row = tensor({64}), rstd = precise({4});
    ops::fill(row, 1.0, stream_);
    kernel_ =
        turns_.add([=, this] { ops::rms_norm_forward(little, row, 1e-5, little, rstd, stream_); });
  }

  void add_codecs() {
    const std::int64_t values = sizes_.coded;
    const Tensor x = precise({values}), y = precise({values}), residual = precise({values});
    codec_turns_.set_reference([=, this] { ops::copy(x, y, stream_); });
    const auto zeros = [&](std::int64_t count, DType dtype) {
      return memory_.zeros({count}, dtype, MemoryTag::workspace);
    };
    const Tensor bad = zeros(1, DType::i64);
    for (const codec::CodecHelp& known : codec::known_codecs()) {
      const std::shared_ptr<const codec::Codec> codec = codec::make_codec(known.usual);
      const auto bytes = [&](std::size_t count) {
        return zeros(static_cast<std::int64_t>(count), DType::u8);
      };
      codec::Encoding plain{.x = x,
                            .bytes = bytes(codec->encoded_bytes(values)),
                            .bad = bad,
                            .workspace = bytes(codec->workspace_bytes(values))};
      codec::Encoding with_residual = plain;
      if (!codec->is_lossless()) with_residual.residual = residual;
      CodecItems items{.codec = codec};
      items.encode_with_residual =
          codec_turns_.add([=, this] { codec->encode(with_residual, stream_); });
      // Leaves the bytes that are decoded.
      items.encode = codec_turns_.add([=, this] { codec->encode(plain, stream_); });
      items.decode = codec_turns_.add([=, this] { codec->decode(plain.bytes, y, stream_); });
      codecs_.push_back(std::move(items));
    }
  }

  World& world_;
  const MachineBenchOptions& options_;
  const MachineSizes sizes_;
  Stream& stream_;
  Memory memory_;
  /// Products whose rows are less than 16 bytes apart from an aligned address use a GPU's older
  /// matrix units, which draw little power. Between others that draw all there is they would be
  /// measured at those products' lower clocks, which a step that is full of them does not have.
  static constexpr std::int64_t kFullRate = 8;
  Turns turns_, slow_turns_;
  Turns codec_turns_;  ///< beside copies of their values, which take less time than products
  std::optional<Places> inputs_, outputs_, gradients_;
  struct ProductItem {
    Turns* turns;
    std::size_t item;
  };
  std::vector<ProductItem> products_;
  /// With heads of one size.
  struct AttentionItems {
    std::int64_t head_dim;
    std::size_t forward, backward;
    double flops;
  };
  struct CodecItems {
    std::shared_ptr<const codec::Codec> codec;
    std::size_t encode = 0, encode_with_residual = 0, decode = 0;
  };
  std::vector<CodecItems> codecs_;
  static constexpr std::int64_t kUsualHead = 64;
  std::vector<AttentionItems> attention_;
  std::size_t block_ = 0, loss_ = 0, update_ = 0, copy_ = 0, kernel_ = 0;
  double block_bytes_ = 0;
};

/// Collectives among all ranks and messages between the first two.
class LinkBench {
 public:
  LinkBench(World& world, Stream& stream, const MachineBenchOptions& options)
      : all_(world.all()),
        stream_(stream),
        memory_(stream.device()),
        turns_(world.all(), stream, options) {}

  LinkRates run() {
    LinkRates links{.ranks = all_.size()};
    if (all_.size() == 1) return links;
    const std::int64_t side = sizes_on(stream_.device()).reference;
    const Tensor a = tensor(4 * side * side).view({side, side});
    const Tensor c = tensor(4 * side * side).view({side, side});
    turns_.set_reference(
        [=, this] { ops::gemm(a, Transpose::no, a, Transpose::no, c, {}, stream_); });
    std::vector<std::vector<std::size_t>> items;
    for (const CommOp op :
         {CommOp::all_reduce, CommOp::all_gather, CommOp::reduce_scatter, CommOp::all_to_all}) {
      links.collectives.push_back({.op = op, .ranks = all_.size()});
      items.emplace_back();
      for (std::int64_t bytes = kSmallest; bytes <= kLargest; bytes *= 4) {
        items.back().push_back(turns_.add(collective(op, bytes)));
      }
    }
    const std::size_t small = turns_.add(there_and_back(kSmallest));
    const std::size_t large = turns_.add(there_and_back(kLargest));
    turns_.measure(0, turns_.measurements());
    // In a step, ranks come to a collective from work, and wait for the slowest.
    const double wait = turns_.wait_for_slowest();
    for (std::size_t i = 0; i < items.size(); ++i) {
      auto bytes = static_cast<double>(kSmallest);
      for (const std::size_t item : items[i]) {
        links.collectives[i].points.push_back({bytes, turns_.seconds(item) + wait});
        bytes *= 4;
      }
    }
    // Ranks but the first two only waited: theirs are not the times of a message.
    const double first = all_.rank() == 0 ? 1.0 : 0.0;
    links.message_latency = all_.combine(first * turns_.own_seconds(small) / 2, ReduceOp::sum);
    links.message_bytes = static_cast<double>(kLargest) /
                          (all_.combine(first * turns_.own_seconds(large) / 2, ReduceOp::sum) -
                           links.message_latency);
    return links;
  }

 private:
  static constexpr std::int64_t kSmallest = std::int64_t{1} << 12, kLargest = std::int64_t{1} << 26;

  Tensor tensor(std::int64_t bytes) {
    return memory_.zeros({bytes / 4}, DType::f32, MemoryTag::communication);
  }

  std::function<void()> collective(CommOp op, std::int64_t bytes) {
    const std::int64_t shard_bytes = bytes / 4 / all_.size() * 4;
    const Tensor whole = tensor(shard_bytes * all_.size()), shard = tensor(shard_bytes);
    switch (op) {
      case CommOp::all_reduce:
        return [=, this] { all_.all_reduce(whole, ReduceOp::sum, stream_).wait(stream_); };
      case CommOp::all_gather:
        return [=, this] { all_.all_gather(shard, whole, stream_).wait(stream_); };
      case CommOp::all_to_all: {
        const Tensor other = tensor(shard_bytes * all_.size());
        const std::vector<std::int64_t> rows(static_cast<std::size_t>(all_.size()),
                                             shard_bytes / 4);
        return [=, this] { all_.all_to_all(whole, other, rows, rows, stream_).wait(stream_); };
      }
      default:
        return
            [=, this] { all_.reduce_scatter(whole, shard, ReduceOp::sum, stream_).wait(stream_); };
    }
  }

  std::function<void()> there_and_back(std::int64_t bytes) {
    const Tensor data = tensor(bytes);
    return [=, this] {
      if (all_.rank() > 1) return;
      const int peer = 1 - all_.rank();
      if (all_.rank() == 0) all_.send(data, peer, stream_).wait(stream_);
      all_.recv(data, peer, stream_).wait(stream_);
      if (all_.rank() == 1) all_.send(data, peer, stream_).wait(stream_);
    };
  }

  Communicator& all_;
  Stream& stream_;
  Memory memory_;
  Turns turns_;
};

}  // namespace

RankRates measure_rates(World& world, Stream& stream, const MachineBenchOptions& options) {
  return RateBench(world, stream, options).run();
}

LinkRates measure_links(World& world, Stream& stream, const MachineBenchOptions& options) {
  return LinkBench(world, stream, options).run();
}

}  // namespace heddle
