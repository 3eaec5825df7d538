#include "train/model_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/file_system.h"
#include "data/token_file.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using config::Scope;

const char* name_of(RopeSpec::Scaling scaling) {
  switch (scaling) {
    case RopeSpec::Scaling::none: return "none";
    case RopeSpec::Scaling::linear: return "linear";
    case RopeSpec::Scaling::dynamic: return "dynamic";
    case RopeSpec::Scaling::yarn: return "yarn";
    case RopeSpec::Scaling::longrope: return "longrope";
    case RopeSpec::Scaling::llama3: return "llama3";
  }
  return "";
}

const char* choice_name(GateRule::Choice choice) {
  switch (choice) {
    case GateRule::Choice::top_scores: return "top scores";
    case GateRule::Choice::sinkhorn: return "sinkhorn";
    case GateRule::Choice::expert_choice: return "expert choice";
  }
  return "";
}

/// The names of tensors follow from the family; what else a gate does is compared by the keys of
/// the run file.
template <class Put>
void add_experts(const ExpertsSpec& experts, const Put& put) {
  put("experts", experts.count);
  put("experts of a token", experts.per_token);
  put("experts' width", experts.width);
  put("shared expert's width", experts.shared_width);
  const auto& [score, renormalize, scale, groups, kept_groups] = experts.rule;
  put("router's score", score == ops::RouterRule::Score::softmax ? "softmax" : "sigmoid");
  put("router divides by the sum", renormalize);
  put("router's scale", scale);
  put("router's groups", fmt::format("{} of {}", kept_groups, groups));
  put("router's choice", choice_name(experts.gating.choice));
  put("router's cosines", experts.cosine_width);
  put("router has a bias", !experts.bias.empty());
}

/// What scales frequencies, and how.
template <class Put>
void add_rope(const RopeSpec& rope, const Put& put) {
  const auto& [theta, dims, scaling, factor, low_freq_factor, high_freq_factor, original_positions,
               beta_fast, beta_slow, truncates, short_factors, long_factors, attention_factor,
               pairs_neighbours] = rope;
  static_cast<void>(theta);
  put("rope dimensions", dims);
  put("rope pairs", pairs_neighbours ? "neighbours" : "halves");
  using Scaling = RopeSpec::Scaling;
  if (scaling == Scaling::none) return put("rope scaling", "none");
  put("rope scaling", fmt::format("{}, factor {}", name_of(scaling), factor));
  if (scaling == Scaling::linear) return;
  put("rope original positions", original_positions);
  if (scaling == Scaling::llama3) {
    put("rope low_freq_factor", low_freq_factor);
    put("rope high_freq_factor", high_freq_factor);
  }
  if (scaling == Scaling::yarn) {
    put("rope turns", fmt::format("{} to {}{}", beta_slow, beta_fast, truncates ? "" : ", exact"));
  }
  if (scaling == Scaling::longrope) {
    put("rope short factors", fmt::format("{}", fmt::join(short_factors, " ")));
    put("rope long factors", fmt::format("{}", fmt::join(long_factors, " ")));
  }
  if (scaling == Scaling::yarn || scaling == Scaling::longrope) {
    put("rope attention factor", attention_factor);
  }
}

}  // namespace

void add_model_facts(RunIdentity& identity, const ModelSpec& spec) {
  // The bindings name every member: one that is added to a spec does not compile here until it is
  // a fact too, or said to be none.
  const auto& [family, vocab, hidden, layers, heads, kv_heads, head_dim, ffn, max_positions, blocks,
               experts, norm, norm_eps, norm_adds_one, mlp, gelu, rope, window_rope, qkv_bias,
               attention_out_bias, mlp_bias, qk_norm, qk_norm_joins_heads, qkv_interleaved,
               linears_are_in_out, tied_embeddings, padding, attention_scale, embedding_scale,
               residual_scale, logits_scale, attention_cap, logits_cap, init_stddev, dropout,
               tuning, names, config] = spec;
  static_cast<void>(init_stddev);  // compared as model.init_std
  static_cast<void>(tuning);       // compared as [lora] and train.freeze
  static_cast<void>(names);        // follow from the family
  static_cast<void>(config);       // the file; what it means is here
  const auto put = [&](const char* name, const auto& value, Scope scope = Scope::weights) {
    identity.add(fmt::format("model {}", name), fmt::format("{}", value), scope);
  };
  put("family", family);
  put("vocabulary", vocab);
  put("hidden size", hidden);
  put("layers", layers);
  put("attention heads", heads);
  put("key heads", kv_heads);
  put("head size", head_dim);
  put("MLP width", ffn);
  // Rotary embeddings have no table: the number only says how far to use them.
  put("positions", max_positions, rope ? Scope::run : Scope::weights);
  put("norm", norm == ModelSpec::Norm::rms ? "rms" : "layer");
  put("norm eps", norm_eps);
  put("norm adds one", norm_adds_one);
  put("MLP", mlp == ModelSpec::Mlp::swiglu
                 ? "swiglu"
                 : fmt::format("{}{}", mlp == ModelSpec::Mlp::geglu ? "geglu" : "gelu",
                               gelu == ops::Gelu::exact ? "" : " (tanh)"));
  put("rope_theta", rope ? fmt::format("{}", rope->theta) : "none: learned positions");
  if (rope) {
    add_rope(*rope, put);
  }
  if (window_rope) {
    put("rope_theta of windows", window_rope->theta);
    add_rope(*window_rope, [&](const char* name, const auto& value) {
      put(fmt::format("{} of windows", name).c_str(), value);
    });
  }
  put("attention bias", qkv_bias);
  put("attention output bias", attention_out_bias);
  put("MLP bias", mlp_bias);
  put("norms of q and k", qk_norm_joins_heads ? "over all heads" : qk_norm ? "true" : "false");
  put("interleaved q, k, v", qkv_interleaved);
  put("transposed linears", linears_are_in_out);
  std::vector<std::string> kinds;  // one fact of all blocks: facts are told apart by their names
  for (const auto& [branches, is_parallel, rotates, window] : blocks) {
    kinds.push_back(fmt::format("{}{}{}", fmt::join(branches, is_parallel ? " beside " : ", then "),
                                rotates ? "" : " without rope",
                                window ? fmt::format(" with a window of {}", *window) : ""));
  }
  put("block", fmt::format("{}", fmt::join(kinds, "; ")));
  if (experts) add_experts(*experts, put);
  put("tied embeddings", tied_embeddings);
  put("padding token", padding ? fmt::format("{}", *padding) : "none", Scope::run);
  put("attention scale", attention_scale);
  put("embedding scale", embedding_scale);
  put("residual scale", residual_scale);
  put("logits scale", logits_scale);
  put("attention cap", attention_cap);
  put("logits cap", logits_cap);
  put("dropout", dropout.empty() ? "none" : dropout, Scope::run);
}

std::string weights_digest(const fs::path& folder) {
  constexpr std::size_t kSample = 64 * 1024;
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  if (files.empty()) return "none";
  std::ranges::sort(files);
  std::string seen;
  for (const fs::path& path : files) {
    const MappedFile file(path);
    const auto bytes = file.bytes();
    seen += fmt::format("{} {}", path.filename().string(), bytes.size());
    for (const std::size_t at : std::array<std::size_t, 3>{
             0, bytes.size() / 2, bytes.size() - std::min(kSample, bytes.size())}) {
      const auto sample = bytes.subspan(at, std::min(kSample, bytes.size() - at));
      seen += fmt::format(" {:016x}", content_hash(sample));
    }
    seen += '\n';
  }
  return fmt::format("{} file{}, sampled xxh64 {:016x}", files.size(), files.size() == 1 ? "" : "s",
                     content_hash(std::as_bytes(std::span(seen))));
}

}  // namespace heddle
