#include "nn/fuse.h"

#include <span>

#include "nn/chunked_product.h"
#include "nn/fused_layers.h"

namespace heddle {
namespace {

using Run = std::span<std::unique_ptr<Layer>>;

template <class T>
T* as(const std::unique_ptr<Layer>& layer) {
  return dynamic_cast<T*>(layer.get());
}

/// Takes the layer out, which is a T.
template <class T>
std::unique_ptr<T> take(std::unique_ptr<Layer>& layer) {
  return std::unique_ptr<T>(static_cast<T*>(layer.release()));
}

/// What may stand in place of a run of so many neighbours. `fused` returns null, and leaves the run
/// alone, where the rule does not apply.
struct Rule {
  std::size_t length;
  std::unique_ptr<Layer> (*fused)(Run run, const FuseOptions& options);
};

std::unique_ptr<Layer> mlp(Run run, const FuseOptions& options) {
  if (!as<Linear>(run[0]) || !as<Activation>(run[1]) || !as<Linear>(run[2])) return nullptr;
  auto whole =
      std::make_unique<Mlp>(take<Linear>(run[0]), take<Activation>(run[1]), take<Linear>(run[2]));
  if (options.mlp_tokens == 0) return whole;
  return std::make_unique<ChunkedProduct>(std::move(whole), options.mlp_tokens);
}

std::unique_ptr<Layer> attention_core(Run run, const FuseOptions&) {
  if (!as<PrepareQkv>(run[0]) || !as<CausalAttention>(run[1])) return nullptr;
  return std::make_unique<AttentionCore>(take<PrepareQkv>(run[0]), take<CausalAttention>(run[1]));
}

/// Of two, or of three with a change of placement between them.
std::unique_ptr<Layer> norm_product(Run run, const FuseOptions& options) {
  if (options.norm_output == NormOutput::kept) return nullptr;
  if (!as<Norm>(run.front()) || !as<Product>(run.back())) return nullptr;
  std::unique_ptr<Redistribute> change;
  if (run.size() == 3) {
    const Redistribute* between = as<Redistribute>(run[1]);
    if (!between || !between->keeps_tensor()) return nullptr;
    change = take<Redistribute>(run[1]);
  }
  return std::make_unique<NormProduct>(take<Norm>(run.front()), std::move(change),
                                       take<Product>(run.back()));
}

constexpr Rule kRules[] = {{3, mlp}, {2, attention_core}, {2, norm_product}, {3, norm_product}};

}  // namespace

Layers fuse(Layers layers, const FuseOptions& options) {
  for (const Rule& rule : kRules) {
    Layers rewritten;
    for (std::size_t at = 0; at < layers.size();) {
      std::unique_ptr<Layer> fused;
      if (at + rule.length <= layers.size()) {
        fused = rule.fused(Run(layers).subspan(at, rule.length), options);
      }
      at += fused ? rule.length : 1;
      rewritten.push_back(fused ? std::move(fused) : std::move(layers[at - 1]));
    }
    layers = std::move(rewritten);
  }
  return layers;
}

}  // namespace heddle
