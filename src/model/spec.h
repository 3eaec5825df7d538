#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "model/tuning.h"
#include "nn/experts/gate.h"
#include "ops/activation.h"

namespace heddle {

/// Rotary embedding: base, how many of a head's dimensions rotate, and how frequencies are scaled.
struct RopeSpec {
  enum class Scaling { none, linear, dynamic, yarn, longrope, llama3 };

  double theta = 10000.0;
  std::int64_t dims = 0;
  Scaling scaling = Scaling::none;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  ///< llama3 only
  /// That the model was trained for at first; of dynamic those from which on frequencies change.
  double original_positions = 8192;
  double beta_fast = 32.0, beta_slow = 1.0;                   ///< yarn only
  bool truncates = true;                                      ///< yarn only
  std::vector<double> short_factors = {}, long_factors = {};  ///< longrope only, by pair
  double attention_factor = 1.0;                              ///< of all cosines and sines
  /// Elements 2i and 2i + 1 are a pair; otherwise i and i + dims / 2.
  bool pairs_neighbours = false;

  /// The length behind which all angles of a sequence are others, those of its first tokens too.
  std::optional<std::int64_t> turning_length() const {
    if (scaling != Scaling::longrope) return std::nullopt;
    return static_cast<std::int64_t>(original_positions);
  }
  /// Whether angles depend on how long a sequence is.
  bool depends_on_length() const {
    return scaling == Scaling::dynamic || scaling == Scaling::longrope;
  }
};

/// Hugging Face names of a family's tensors. `{}` stands for the layer's index. A norm or linear
/// named "x" owns "x.weight" and, where it has one, "x.bias".
struct TensorNames {
  std::string token_embedding, position_embedding;
  // Norms before a branch, and behind it; empty: there is none.
  std::string attention_norm, attention_post_norm, mlp_norm, mlp_post_norm;
  std::string query, key, value, attention_out;
  std::string fused_qkv;  ///< in place of query, key, value
  std::string query_norm, key_norm;
  std::string gate, up, down;  ///< gate is empty for a plain MLP
  std::string fused_gate_up;   ///< in place of gate and up
  std::string final_norm, head;
};

/// A feed-forward part of many MLPs, of which a router chooses some for every token. For names, the
/// second `{}` stands for the expert.
struct ExpertsSpec {
  std::int64_t count = 0, per_token = 0;
  std::int64_t width = 0;         ///< of each
  std::int64_t shared_width = 0;  ///< of an MLP beside them that all tokens use; 0: there is none
  ops::RouterRule rule;
  /// What training adds to a token's loss (ops::RouterLoss): `balance` for the mean over all layers
  /// with experts, `z` for each.
  ops::RouterLoss loss;
  GateRule gating;
  /// Above 0: logits are cosines of projections so wide (nn/experts/router_logits.h).
  std::int64_t cosine_width = 0;
  /// What the bias of a router moves by in a step; 0: it stays.
  double bias_rate = 0.0;

  std::string router, gate, up, down;
  std::string bias;  ///< of the router; empty: it has none
  std::string shared_gate, shared_up, shared_down;
  /// As transformers 5 holds them, with one tensor for all experts: [experts, 2 width, hidden] and
  /// [experts, hidden, width]. Files may do so too.
  std::string stacked_router, stacked_up, stacked_down;

  /// Of a token, absent ones included.
  std::int64_t choices() const {
    return gating.choice == GateRule::Choice::expert_choice ? count : per_token;
  }
};

/// A block: branches on the residual, each of a kind of model/blocks/, and how its attention sees
/// where tokens are.
struct BlockSpec {
  std::vector<std::string> branches = {"attention", "dense"};
  bool is_parallel = false;  ///< all branches take the same input; otherwise one after the other
  bool rotates = true;       ///< false: q and k stay as they are, although the model has a rope
  /// Tokens that a token attends to, itself included; absent: all before it.
  std::optional<std::int64_t> window = {};

  bool operator==(const BlockSpec&) const = default;
};

/// A decoder-only transformer, whatever its family: what the layers are and what their tensors are
/// called. A family's file (llama.cpp, gpt2.cpp, ...) makes it from a config.json; decoder.cpp
/// builds from it.
struct ModelSpec {
  enum class Norm { rms, layer };
  enum class Mlp { swiglu, geglu, gelu };

  std::string family;  ///< model_type of config.json
  std::int64_t vocab = 0, hidden = 0, layers = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t ffn = 0, max_positions = 0;

  std::vector<BlockSpec> blocks = {BlockSpec{}};  ///< repeated until there are `layers`
  std::optional<ExpertsSpec> experts;             ///< of branches "experts"

  Norm norm = Norm::rms;
  double norm_eps = 1e-5;
  bool norm_adds_one = false;  ///< weights of norms are stored less one
  Mlp mlp = Mlp::swiglu;
  ops::Gelu gelu = ops::Gelu::exact;    ///< for Mlp::geglu and gelu
  std::optional<RopeSpec> rope;         ///< absent: learned positions
  std::optional<RopeSpec> window_rope;  ///< of blocks with a window; absent: the same
  bool qkv_bias = false, attention_out_bias = false, mlp_bias = false;
  bool qk_norm = false;
  bool qk_norm_joins_heads = false;  ///< it is over all heads together, not over each
  bool qkv_interleaved = false;      ///< fused q, k, v stored head by head
  bool linears_are_in_out = false;   ///< linear weights stored [in, out]
  bool tied_embeddings = false;
  /// The token whose row of the embedding learns nothing where it is looked up (`padding_idx` of
  /// PyTorch); as a head's row it does.
  std::optional<std::int64_t> padding = {};
  double attention_scale = 0.0;  ///< usually head_dim^-1/2
  double embedding_scale = 1.0;  ///< of what is looked up
  double residual_scale = 1.0;   ///< of what a branch adds
  double logits_scale = 1.0;
  /// Scores of attention, and logits, become cap * tanh(value / cap); 0: they stay.
  double attention_cap = 0.0, logits_cap = 0.0;
  double init_stddev = 0.02;
  /// Dropout the config asks for in training ("resid_pdrop = 0.1"); we have none, so a trainer must
  /// not go on in silence. Evaluation and generation are not concerned.
  std::string dropout;

  Tuning tuning;  ///< what of it trains, and its adapters

  TensorNames names;
  std::shared_ptr<const Json> config;  ///< the file as read: unknown keys are kept and written back

  const BlockSpec& block(std::int64_t index) const {
    return blocks[static_cast<std::size_t>(index) % blocks.size()];
  }

  /// Blocks with experts, of all or of those before one.
  std::int64_t expert_layers() const { return expert_layers_before(layers); }
  std::int64_t expert_layers_before(std::int64_t block) const;

  /// What the model was made for: its positions, or as many as dynamic frequencies stretch them to.
  std::int64_t longest_sequence() const;
  /// The windows of blocks, each once, ascending.
  std::vector<std::int64_t> windows() const;

  std::int64_t parameter_count() const;
  /// Those that matrix products touch for every token: all but embedding tables that are only
  /// looked up.
  std::int64_t matmul_parameter_count() const;
};

/// Floating-point operations of training on one token at the given sequence length, as its layers
/// count them: 6 per matmul parameter, plus attention at half for the causal mask; recomputation
/// does not count.
double training_flops_per_token(const ModelSpec& spec, std::int64_t seq_len);

}  // namespace heddle
