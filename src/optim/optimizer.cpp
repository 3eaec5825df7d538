#include "optim/optimizer.h"

#include "optim/adamw.h"
#include "optim/muon.h"
#include "optim/onebit_adam.h"
#include "optim/sgd.h"

namespace heddle {
namespace {

/// The class of a config.
template <class Config>
struct ClassOf;
template <>
struct ClassOf<AdamWConfig> {
  using type = AdamW;
};
template <>
struct ClassOf<SgdConfig> {
  using type = Sgd;
};
template <>
struct ClassOf<MuonConfig> {
  using type = Muon;
};
template <>
struct ClassOf<OnebitAdamConfig> {
  using type = OnebitAdam;
};

}  // namespace

std::vector<OptimizerState> optimizer_states(const OptimizerConfig& config) {
  return std::visit(
      []<class Config>(const Config& own) { return ClassOf<Config>::type::states(own); }, config);
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, ParamStore& store) {
  store.declare(optimizer_states(config));
  return std::visit(
      [&]<class Config>(const Config& own) -> std::unique_ptr<Optimizer> {
        return std::make_unique<typename ClassOf<Config>::type>(own, store);
      },
      config);
}

bool needs_whole_matrices(const OptimizerConfig& config) {
  return std::holds_alternative<MuonConfig>(config);
}

std::optional<OptimizerConfig> behind_warm_up(const OptimizerConfig& config) {
  const auto* const onebit = std::get_if<OnebitAdamConfig>(&config);
  if (onebit == nullptr) return std::nullopt;
  OnebitAdamConfig frozen = *onebit;
  frozen.freeze_step = 0;
  return frozen;
}

}  // namespace heddle
