#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "nn/experts/gate.h"
#include "ops/activation.h"

namespace heddle {

/// Rotary embedding: base, how many of a head's dimensions rotate, and how frequencies are scaled.
struct RopeSpec {
  enum class Scaling { none, linear, llama3 };

  double theta = 10000.0;
  std::int64_t dims = 0;
  Scaling scaling = Scaling::none;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  ///< llama3 only
  double original_positions = 8192;                      ///< llama3 only
};

/// Hugging Face names of a family's tensors. `{}` stands for the layer's index. A norm or linear
/// named "x" owns "x.weight" and, where it has one, "x.bias".
struct TensorNames {
  std::string token_embedding, position_embedding;
  std::string attention_norm, query, key, value, attention_out;
  std::string fused_qkv;  ///< in place of query, key, value
  std::string query_norm, key_norm;
  std::string mlp_norm, gate, up, down;  ///< gate is empty for a plain MLP
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

/// A block: branches on the residual, each of a kind of model/blocks/.
struct BlockSpec {
  std::vector<std::string> branches = {"attention", "dense"};
  bool is_parallel = false;  ///< all branches take the same input; otherwise one after the other
};

/// A decoder-only transformer, whatever its family: what the layers are and what their tensors are
/// called. A family's file (llama.cpp, gpt2.cpp, ...) makes it from a config.json; decoder.cpp
/// builds from it.
struct ModelSpec {
  enum class Norm { rms, layer };
  enum class Mlp { swiglu, gelu };

  std::string family;  ///< model_type of config.json
  std::int64_t vocab = 0, hidden = 0, layers = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t ffn = 0, max_positions = 0;

  std::vector<BlockSpec> blocks = {BlockSpec{}};  ///< repeated until there are `layers`
  std::optional<ExpertsSpec> experts;             ///< of branches "experts"

  Norm norm = Norm::rms;
  double norm_eps = 1e-5;
  Mlp mlp = Mlp::swiglu;
  ops::Gelu gelu = ops::Gelu::exact;  ///< for Mlp::gelu
  std::optional<RopeSpec> rope;       ///< absent: learned positions
  /// Tokens that a token attends to, itself included. We have only full attention, which is the
  /// same up to this length of sequence; longer ones are refused when the layers are built.
  std::optional<std::int64_t> window;
  bool qkv_bias = false, attention_out_bias = false, mlp_bias = false;
  bool qk_norm = false;
  bool qk_norm_joins_heads = false;  ///< it is over all heads together, not over each
  bool qkv_interleaved = false;      ///< fused q, k, v stored head by head
  bool linears_are_in_out = false;   ///< linear weights stored [in, out]
  bool tied_embeddings = false;
  double attention_scale = 0.0;  ///< usually head_dim^-1/2
  double init_stddev = 0.02;
  /// Dropout the config asks for in training ("resid_pdrop = 0.1"); we have none, so a trainer must
  /// not go on in silence. Evaluation and generation are not concerned.
  std::string dropout;

  TensorNames names;
  std::shared_ptr<const Json> config;  ///< the file as read: unknown keys are kept and written back

  const BlockSpec& block(std::int64_t index) const {
    return blocks[static_cast<std::size_t>(index) % blocks.size()];
  }

  /// Blocks with experts, of all or of those before one.
  std::int64_t expert_layers() const { return expert_layers_before(layers); }
  std::int64_t expert_layers_before(std::int64_t block) const;

  /// What the model was made for: its positions, or its window where that is shorter.
  std::int64_t longest_sequence() const;

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
