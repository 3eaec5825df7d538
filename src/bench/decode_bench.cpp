#include "bench/decode_bench.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/clock.h"
#include "base/quantile.h"
#include "nn/kv_cache.h"
#include "ops/attention.h"
#include "ops/cast.h"
#include "ops/random.h"
#include "parallel/sequence/context_attention.h"
#include "tensor/transfer.h"

namespace heddle {
namespace {

constexpr double kDecodeScale = 0.125;

/// One rank with its part of a cache of random keys, and the query that all have.
class TokenAttention {
 public:
  TokenAttention(World& world, Stream& stream, Memory& memory, const DecodeBenchOptions& options)
      : shape_{.ranks = world.size(),
               .context = options.context,
               .heads = options.heads,
               .key_heads = options.key_heads,
               .head_dim = options.head_dim},
        heads_{.heads = options.heads, .kv_heads = options.key_heads, .head_dim = options.head_dim},
        dtype_(options.dtype),
        all_(world.all()),
        stream_(stream),
        memory_(memory),
        layer_(heads_, kDecodeScale, 0, world.all()),
        cache_({.layers = 1,
                .capacity = keys_of(world.rank()),
                .kv_heads = options.key_heads,
                .head_dim = options.head_dim,
                .dtype = options.dtype},
               memory),
        own_(allocate_block(world.rank())) {
    fill(own_, 1 + static_cast<std::uint64_t>(world.rank()));
    cache_.keep_only(keys_of(world.rank()));
    cache_.store(0, keys(own_), values(own_), stream);
    cache_.advance(options.context);
    qkv_ = memory.alloc({1, heads_.qkv_width()}, dtype_, MemoryTag::activations);
    fill(qkv_, 0);
    batch_.ids = memory.for_host().alloc({1, 1}, DType::i32, MemoryTag::data);
    out_ = memory.alloc({1, 1, shape_.heads, shape_.head_dim}, statistics_of(dtype_),
                        MemoryTag::activations);
    lse_ = memory.alloc({1, shape_.heads, 1}, statistics_of(dtype_), MemoryTag::activations);
  }

  /// The output, [heads x head_dim].
  Tensor attend(DecodeMethod method) {
    switch (method) {
      case DecodeMethod::tree: return tree();
      case DecodeMethod::ring: return ring();
      case DecodeMethod::gather: return gather();
    }
    return {};
  }

 private:
  std::int64_t keys_of(int rank) const { return decode_keys(shape_, rank).count; }
  int around(int distance) const { return (all_.rank() + distance + shape_.ranks) % shape_.ranks; }

  /// K and V of a rank's tokens, as they travel: [2, 1, T, G, K].
  Tensor allocate_block(int rank) {
    return memory_.alloc({2, 1, keys_of(rank), shape_.key_heads, shape_.head_dim}, dtype_,
                         MemoryTag::activations);
  }
  static Tensor part(const Tensor& block, std::int64_t index) {
    return block.slice(0, index, index + 1).view({1, block.size(2), block.size(3), block.size(4)});
  }
  static Tensor keys(const Tensor& block) { return part(block, 0); }
  static Tensor values(const Tensor& block) { return part(block, 1); }
  void fill(const Tensor& tensor, std::uint64_t seed) {
    ops::fill_normal(tensor.view({tensor.count()}), seed, 0, 1.0, stream_);
  }

  void add(const Tensor& block, ops::KeyBlock which) {
    ops::attention_block_forward(split_qkv(qkv_, heads_, batch_).q_BSHK, keys(block), values(block),
                                 {.query_offset = block.size(2), .first_key_BS = {}}, kDecodeScale,
                                 which, out_, lse_, stream_);
  }

  Tensor tree() {
    Saved nothing;
    Ctx ctx{.stream = stream_, .memory = memory_, .batch = batch_, .keep = Keep::nothing};
    ctx.kv_cache = &cache_;
    cache_.keep_only(0);  // the new token's own key is nobody's
    return layer_.forward(qkv_, nothing, ctx);
  }

  Tensor ring() {
    Tensor here = own_;
    for (int step = 0; step < shape_.ranks; ++step) {
      const bool is_last = step + 1 == shape_.ranks;
      Tensor next;
      Work received, sent;
      if (!is_last) {
        next = allocate_block(around(-step - 1));
        all_.begin_group();
        received = all_.recv(next, around(-1), stream_);
        sent = all_.send(here, around(1), stream_);
        all_.end_group();
      }
      add(here, step == 0 ? ops::KeyBlock::first : ops::KeyBlock::further);
      received.wait(stream_);
      sent.wait(stream_);
      here = next;
    }
    return out_;
  }

  Tensor gather() {
    std::vector<Tensor> blocks;
    std::vector<Work> under_way;
    all_.begin_group();
    for (int distance = 1; distance < shape_.ranks; ++distance) {
      blocks.push_back(allocate_block(around(-distance)));
      under_way.push_back(all_.recv(blocks.back(), around(-distance), stream_));
      under_way.push_back(all_.send(own_, around(distance), stream_));
    }
    all_.end_group();
    add(own_, ops::KeyBlock::first);
    for (const Work& work : under_way) work.wait(stream_);
    for (const Tensor& block : blocks) add(block, ops::KeyBlock::further);
    return out_;
  }

  const DecodeShape shape_;
  const AttentionShape heads_;
  const DType dtype_;
  Communicator& all_;
  Stream& stream_;
  Memory& memory_;
  ContextAttention layer_;
  KvCache cache_;
  const Tensor own_;
  MicroBatch batch_;
  Tensor qkv_, out_, lse_;
};

std::int64_t most_sent(DecodeMethod method, const DecodeBenchOptions& options, int ranks) {
  const auto value = static_cast<int>(size_of(options.dtype));
  if (method == DecodeMethod::tree) {  // output and lse of this rank, to each of the others
    return (ranks - 1) * static_cast<std::int64_t>(size_of(statistics_of(options.dtype))) *
           options.heads * (options.head_dim + 1);
  }
  const ContextPlan plan = make_decode_plan(method, {.ranks = ranks,
                                                     .context = options.context,
                                                     .heads = options.heads,
                                                     .key_heads = options.key_heads,
                                                     .head_dim = options.head_dim});
  std::int64_t most = 0;
  for (const RankCounts& counts : count_by_rank(plan.forward, plan.shape)) {
    most = std::max(most, bytes_of(counts.sent, {.value = value}));
  }
  return most;
}

/// Numbers of the output as float32, on the host.
Tensor on_host(const Tensor& output, Stream& stream, Memory& memory) {
  Tensor wide = output;
  if (output.dtype() == DType::bf16) {
    wide = memory.alloc(output.shape(), DType::f32, MemoryTag::activations);
    ops::cast(output, wide, stream);
  }
  return to_host(wide, stream);
}

double largest(const Tensor& a) {
  double most = 0.0;
  for (std::int64_t i = 0; i < a.count(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(a.data<float>()[i])));
  }
  return most;
}

double largest_difference(const Tensor& a, const Tensor& b) {
  double most = 0.0;
  for (std::int64_t i = 0; i < a.count(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(a.data<float>()[i] - b.data<float>()[i])));
  }
  return most;
}

}  // namespace

std::vector<DecodeBenchResult> bench_decode(World& world, Stream& stream,
                                            const DecodeBenchOptions& options) {
  Memory memory(stream.device());
  Communicator& all = world.all();
  TokenAttention attention(world, stream, memory, options);
  constexpr DecodeMethod kMethods[] = {DecodeMethod::tree, DecodeMethod::ring,
                                       DecodeMethod::gather};
  std::vector<DecodeBenchResult> results;
  std::vector<std::vector<double>> seconds(std::size(kMethods));
  Tensor expected;
  for (int round = -1; round < options.rounds; ++round) {  // the first one warms up and compares
    if (round == 0) all.connect_groups();
    for (std::size_t i = 0; i < std::size(kMethods); ++i) {
      stream.synchronize();
      all.barrier();
      const Stopwatch watch;
      const Tensor output = attention.attend(kMethods[i]);
      stream.synchronize();
      const double slowest = all.combine(watch.seconds(), ReduceOp::max);
      if (round >= 0) {
        seconds[i].push_back(slowest);
        continue;
      }
      const Tensor here = on_host(output, stream, memory);
      if (i == 0) expected = here;
      const double difference =
          all.combine(largest_difference(here, expected) / largest(expected), ReduceOp::max);
      HEDDLE_CHECK(difference < (options.dtype == DType::bf16 ? 1e-2 : 1e-5),
                   "decoding by {} gives another output than by tree: {} apart",
                   name_of(kMethods[i]), difference);
      results.push_back({.method = kMethods[i],
                         .sent_bytes = most_sent(kMethods[i], options, world.size()),
                         .difference = difference});
    }
  }
  for (std::size_t i = 0; i < results.size(); ++i) results[i].seconds = quantile(seconds[i], 0.5);
  return results;
}

}  // namespace heddle
