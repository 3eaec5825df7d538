#include "planner/block_cost.h"

#include <algorithm>
#include <cmath>

#include "planner/codec_time.h"
#include "planner/collectives.h"
#include "planner/experts_cost.h"
#include "planner/gemm.h"

namespace heddle::planner {
namespace {

/// Works out one block: Heddle's from what its layers say of themselves, Megatron's by formulas.
/// Names as in the literature: T tokens of a rank, h hidden, t ranks of tp, f width of the MLP.
class BlockModel {
 public:
  BlockModel(const Machine& machine, const Job& job, const Candidate& candidate,
             const ContextCost& context)
      : machine_(machine),
        job_(job),
        candidate_(candidate),
        context_(context),
        spec_(job.spec),
        stack_(job.stack),
        rate_(machine.device.matrix_rate(job.stack.compute)),
        e_(job.stack.element_bytes()),
        t_(candidate.tp),
        T_(candidate.tokens(job)),
        S_(static_cast<double>(job.seq_len)),
        b_(candidate.sequences),
        h_(static_cast<double>(job.spec.hidden)),
        q_(static_cast<double>(job.spec.heads * job.spec.head_dim)),
        kv_(static_cast<double>(job.spec.kv_heads * job.spec.head_dim)),
        f_(static_cast<double>(job.spec.ffn)),
        sequence_(candidate.sequence && candidate.tp > 1),
        tensor_codec_(job.compress.is_none() ? nullptr
                                             : job.compress.codec(Compression::Kind::tensor)) {}

  BlockCost make(DryBlocks dry) const {
    BlockCost cost;
    cost.tp = static_cast<int>(t_);
    cost.sequences = b_;
    cost.sequence = sequence_;
    cost.exchange = candidate_.ep_exchange;
    cost.stride_bytes = T_ * h_ * e_;
    cost.dry = std::move(dry);
    if (stack_.stores_scores) {
      fill_megatron_block(cost);
    } else {
      fill_block(cost.dry, cost);
    }
    fill_vocabulary(cost);
    return cost;
  }

 private:
  double product(double m, double n, double k, double batch = 1, double efficiency = 1) const {
    return gemm_seconds(machine_.device, rate_, e_, {m, n, k, batch}, efficiency);
  }
  /// Of a linear layer with so many inputs.
  double layer_product(double m, double n, double k, double inputs) const {
    return gemm_seconds(machine_.device, rate_, e_, {m, n, k, 1.0, inputs});
  }
  double memory(double bytes) const { return bytes / machine_.device.memory_bytes_per_s; }
  double kernels(double count) const { return count * machine_.device.kernel_s; }
  double launches(double count, double collectives) const {
    const double collective_s = t_ > 1 ? collectives * machine_.device.host_collective_s : 0.0;
    return stack_.host_fraction * (count * machine_.device.host_s + collective_s);
  }
  double collective(CommOp op, double bytes) const {
    const int ranks = static_cast<int>(t_);
    return collective_seconds(machine_, op, group_shape(machine_, ranks, 1), bytes);
  }
  /// Into the divided products and out of them again: an all-reduce, or its two halves.
  double exchange() const {
    const double bytes = T_ * h_ * e_;
    if (tensor_codec_ && bytes >= static_cast<double>(job_.compress.min_bytes)) {
      // A sum is dealt out and gathered; with the sequence divided it is one of the two each way.
      const double part = T_ * h_ / t_;
      const double wire =
          t_ * static_cast<double>(tensor_codec_->encoded_bytes(static_cast<std::int64_t>(part)));
      return collective(CommOp::all_to_all, wire) + collective(CommOp::all_gather, wire) +
             codec_seconds(CommOp::all_to_all, bytes) + codec_seconds(CommOp::all_gather, bytes);
    }
    if (!sequence_) return collective(CommOp::all_reduce, bytes);
    return collective(CommOp::all_gather, bytes) + collective(CommOp::reduce_scatter, bytes);
  }

  // ---- Heddle's blocks: the mean of one of each kind --------------------------------------------

  void fill_block(const DryBlocks& dry, BlockCost& cost) const {
    const Cost& of_layers = dry.cost;
    const double attention =
        of_layers.attention_flops /
        (rate_ * attention_efficiency(machine_.software, static_cast<double>(spec_.head_dim)));
    // Each branch is added to the residual, and its gradient.
    constexpr double kBranches = 2.0;
    const double residual = kBranches * 3.0 * T_ * h_ * e_ / (sequence_ ? t_ : 1.0) * dry.kinds;
    double forward = attention + memory(of_layers.touched_bytes_f + residual);
    // Half of each product is masked; backward makes the scores again.
    double backward = 2.5 * attention + memory(of_layers.touched_bytes_b + residual);
    double weights = 0.0;
    for (const auto& [rows, in, out, groups, trains] : of_layers.products) {
      const auto inputs = static_cast<double>(in);
      forward += groups * layer_product(rows / groups, out, in, inputs);
      backward += groups * layer_product(rows / groups, in, out, inputs);
      if (trains) weights += groups * layer_product(in, out, rows / groups, inputs);
    }
    const ExpertsCost experts = experts_cost(machine_, job_, candidate_, dry);
    cost.forward = {.device = forward / dry.kinds + kernels(stack_.kernels_forward),
                    .comm = seconds_of(of_layers.calls_f) / dry.kinds,
                    .host = launches(stack_.launches_forward, 2),
                    .context = context_.exposed_f,
                    .experts = experts.exposed_f};
    cost.backward_input = {.device = backward / dry.kinds + kernels(stack_.kernels_backward),
                           .comm = seconds_of(of_layers.calls_b) / dry.kinds,
                           .host = launches(stack_.launches_backward, 2),
                           .context = context_.exposed_b,
                           .experts = experts.exposed_b};
    cost.backward_weight.device = weights / dry.kinds;
    cost.again_full = cost.forward;
    // Attention's output is kept, the block's own is not wanted, and some is made by backward.
    double spared = attention;
    for (const WeightProduct& made : dry.recomputed.output_products) {
      spared += made.groups * layer_product(made.rows / made.groups, made.out, made.in, made.in);
    }
    for (const WeightProduct& made : dry.recomputed.rebuilt_products) {
      spared -= made.groups * layer_product(made.rows / made.groups, made.out, made.in, made.in);
    }
    cost.again_full.device -= spared / dry.kinds;
    cost.again_full.context = context_.again;
    cost.again_full.experts = experts.again;
    cost.again_selective = {.device = attention / dry.kinds, .host = launches(6, 0)};
  }

  double seconds_of(const std::vector<LayerCall>& calls) const {
    double seconds = 0.0;
    for (const LayerCall& call : calls) {
      if (is_point_to_point(call.op)) continue;  // over cp: they run beside attention
      seconds += collective(call.op, static_cast<double>(call.bytes));
      if (call.payload > 0) seconds += codec_seconds(call.op, static_cast<double>(call.payload));
    }
    return seconds;
  }
  /// Around a call that stands for so many bytes: sums are encoded and decoded by each rank whole,
  /// of what is gathered it encodes its part.
  double codec_seconds(CommOp op, double payload) const {
    const codec::Codec* const codec = tensor_codec_.get();
    const double values = payload / e_;
    return encode_seconds(machine_, codec, op == CommOp::all_gather ? values / t_ : values) +
           decode_seconds(machine_, codec, values);
  }

  // ---- Megatron's blocks, before flash attention ------------------------------------------------

  void fill_megatron_block(BlockCost& cost) const {
    const double ups = spec_.mlp == ModelSpec::Mlp::swiglu ? 2.0 : 1.0;
    const double qkv = (q_ + 2.0 * kv_) / t_, q = q_ / t_, up = ups * f_ / t_, f = f_ / t_;
    const double heads = b_ * static_cast<double>(spec_.heads) / t_;
    const double head_dim = static_cast<double>(spec_.head_dim);
    const double efficiency = machine_.device.gemm.batched;
    const double scores = product(S_, S_, head_dim, heads, efficiency);
    const double values = product(S_, head_dim, S_, heads, efficiency);
    const double touched = memory(heads * S_ * S_ * e_);
    // Softmax reads and writes, dropout too and its mask; backward reads one more.
    const double core_forward = scores + values + 4.5 * touched;
    const double core_backward = scores + 3.0 * values + 5.5 * touched;
    // Norms, residuals and dropout: of every token on every rank, or divided where the sequence is.
    const double residual = T_ * h_ * e_ / (sequence_ ? t_ : 1.0);
    // The activation, and transposing q, k, v: divided over tp.
    const double transposed = 2.0 * (2.0 * q_ + 2.0 * kv_);
    const double divided_f = (ups == 2.0 ? 3.0 : 2.0) * f_ + transposed;
    const double divided_b = (ups == 2.0 ? 6.0 : 3.0) * f_ + 2.0 * transposed;
    const double divided = T_ * e_ / t_;

    cost.forward.device = product(T_, qkv, h_) + product(T_, h_, q) + product(T_, up, h_) +
                          product(T_, h_, f) + core_forward +
                          memory(11.0 * residual + divided_f * divided) +
                          kernels(stack_.kernels_forward);
    cost.forward.comm = t_ > 1 ? 2.0 * exchange() : 0.0;
    cost.forward.host = launches(stack_.launches_forward, 2);

    cost.backward_input.device = product(T_, h_, qkv) + product(T_, q, h_) + product(T_, h_, up) +
                                 product(T_, f, h_) + core_backward +
                                 memory(17.0 * residual + divided_b * divided) +
                                 kernels(stack_.kernels_backward);
    cost.backward_input.comm = cost.forward.comm;
    if (sequence_ && stack_.regathers) {
      cost.backward_input.comm += collective(CommOp::all_gather, T_ * h_ * e_);
    }
    cost.backward_input.host = launches(stack_.launches_backward, 2);
    cost.backward_weight.device =
        product(h_, qkv, T_) + product(q, h_, T_) + product(h_, up, T_) + product(f, h_, T_);

    cost.again_full = cost.forward;
    cost.again_selective = {.device = core_forward, .host = launches(6, 0)};
  }

  // ---- Embedding and head -----------------------------------------------------------------------

  void fill_vocabulary(BlockCost& cost) const {
    fill_head(T_, table_rows(t_), cost.head_forward, cost.head_backward);
    fill_head(T_ / t_, table_rows(1.0), cost.whole_head_forward, cost.whole_head_backward);
    cost.embedding.device = cost.whole_embedding.device = memory(4.0 * T_ * h_ * e_);
    if (t_ == 1) return;
    const double bytes = T_ * h_ * e_, small = collective(CommOp::all_reduce, 4.0 * T_);
    // Out of the embedding forward, into the head backward; and three small sums for the softmax.
    cost.embedding.comm = exchange();
    cost.head_forward.comm = 3.0 * small;
    cost.head_backward.comm = exchange();
    if (!sequence_) {
      cost.whole_embedding.comm = cost.whole_head_backward.comm =
          collective(CommOp::all_gather, bytes);
    }
  }

  /// Of each of so many ranks that divide the vocabulary.
  double table_rows(double ranks) const {
    const auto multiple = static_cast<double>(vocabulary_multiple(stack_.place()));
    return std::ceil(static_cast<double>(spec_.vocab) / (ranks * multiple)) * multiple;
  }

  void fill_head(double tokens, double rows, PassCost& forward, PassCost& backward) const {
    // The logits, their exponentials and the gradient, mostly in 32 bits: rather more of it
    // forward.
    constexpr double kForward = 14.0 / 24.0;
    const double touched = memory(machine_.software.loss_bytes * tokens * rows);
    forward.device = layer_product(tokens, rows, h_, h_) + kForward * touched;
    backward.device = layer_product(tokens, h_, rows, h_) + layer_product(h_, rows, tokens, h_) +
                      (1.0 - kForward) * touched;
  }

  const Machine& machine_;
  const Job& job_;
  const Candidate& candidate_;
  const ContextCost& context_;
  const ModelSpec& spec_;
  const Stack& stack_;
  const double rate_, e_, t_, T_, S_;
  const int b_;
  const double h_, q_, kv_, f_;
  const bool sequence_;
  const std::shared_ptr<const codec::Codec> tensor_codec_;
};

}  // namespace

PassCost& PassCost::operator+=(const PassCost& other) {
  device += other.device;
  comm += other.comm;
  host += other.host;
  context += other.context;
  experts += other.experts;
  return *this;
}

double PassCost::seconds() const {
  const double busy = this->busy(), most = std::max(busy, host);
  if (most <= 0.0) return 0.0;
  const double a = busy / most, b = host / most;
  const double a2 = a * a, b2 = b * b;
  return most * std::sqrt(std::sqrt(a2 * a2 + b2 * b2));
}

BlockCost block_cost(const Machine& machine, const Job& job, const Candidate& candidate) {
  return block_cost(machine, job, candidate, context_cost(machine, job, candidate),
                    dry_blocks(job, candidate));
}

BlockCost block_cost(const Machine& machine, const Job& job, const Candidate& candidate,
                     const ContextCost& context, DryBlocks dry) {
  return BlockModel(machine, job, candidate, context).make(std::move(dry));
}

}  // namespace heddle::planner
