#include "verify/recipe.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/json.h"
#include "engine/train_step.h"
#include "train/model_setup.h"
#include "verify/recipe_kinds.h"
#include "verify/reference_file.h"

namespace heddle {
namespace {

constexpr const char* kRecipeFile = "recipe.json";

/// The inner steps of all recipes: AdamW at a constant rate, decay on matrices, clipping at 1.
void configure_steps(const std::filesystem::path& folder, const Shape& batches, const Json& recipe,
                     config::RunConfig& config) {
  config.model.path = folder;
  config.data.seq_len = batches[-1];
  config.train.steps = batches[0];
  config.train.microbatch = 1;
  config.optim = {};
  config.optim.lr = recipe_number(recipe, "lr");
  config.optim.schedule = config::LrSchedule::constant;
}

/// One folder's recipe, played.
class Play {
 public:
  Play(const std::filesystem::path& folder, const config::RunConfig& settings,
       const RecipeOptions& options, World& world)
      : world_(world),
        memory_(options.device),
        host_(memory_.for_host()),
        stream_(options.threads, options.device),
        reference_(folder, host_),
        recipe_(read_json_file(folder / kRecipeFile)),
        kind_(recipe_kind(recipe_, (folder / kRecipeFile).string())),
        run_(configured(folder, settings)),
        spec_(configured_model(run_.config, {})),
        plan_(configured_plan(run_.config, spec_, world.size())),
        mesh_(plan_.mesh, world.all()),
        model_(spec_, build_options(run_.config, spec_), plan_, mesh_,
               ParamStore::Purpose::training, memory_),
        optimizer_(make_optimizer(optimizer_config(run_.config.optim), model_.store())) {
    const OuterPolicy& policy = plan_.policy.outer;
    if (policy.every > 0) outer_.emplace(model_.store(), model_.units(), policy);
  }

  RecipeReport run() {
    start_weights(run_.config, model_, stream_, {.is_silent = true});
    RecipeReport report{.kind = std::string(kind_.name),
                        .weights_limit = run_.weights_limit,
                        .ranks = world_.size(),
                        .mesh = plan_.mesh.text(),
                        .dtype = model_.dtype()};
    if (outer_) outer_->start(stream_);
    train(report.train_loss_abs);
    const bool is_first_site = mesh_.coord(Axis::site) == 0;
    const auto trained = reference_.compare(
        "trained.", is_first_site ? trained_pieces() : std::vector<ParamPiece>(), world_, stream_);
    report.trained_rel = trained.rel;
    report.trained_worst = trained.name;
    if (outer_) compare_outer(report);
    return report;
  }

 private:
  RecipeRun configured(const std::filesystem::path& folder, const config::RunConfig& settings) {
    const Shape batches = reference_.shape("train.input_ids");
    const auto parts = static_cast<std::int64_t>(recipe_number(recipe_, kind_.parts));
    if (batches.dims() != 4 || batches[1] != parts) {
      fail(ErrorCode::data,
           "{}: train.input_ids is {}, but for {} = {} it has to be [steps, {}, rows, length]",
           folder.string(), batches.text(), kind_.parts, parts, parts);
    }
    RecipeRun run{.config = settings};
    configure_steps(folder, batches, recipe_, run.config);
    kind_.configure(recipe_, run);
    return run;
  }

  /// What is frozen is not in a reference.
  std::vector<ParamPiece> trained_pieces() const {
    std::vector<ParamPiece> pieces = model_.store().value_pieces();
    std::erase_if(pieces, [](const ParamPiece& piece) { return !piece.parameter->trains; });
    return pieces;
  }

  void compare_outer(RecipeReport& report) {
    const auto& states = model_.store().states();
    const auto at = std::ranges::find(states, OuterSteps::kWeights, &OptimizerState::name);
    const auto pieces = model_.store().state_pieces(static_cast<std::size_t>(at - states.begin()));
    const auto outer = reference_.compare("outer.", pieces, world_, stream_);
    report.outer_rel = outer.rel;
    report.outer_worst = outer.name;
  }

  void train(double& worst) {
    const Tensor inputs = reference_.ids("train.input_ids"),
                 labels = reference_.ids("train.labels");
    const Tensor losses = reference_.floats("train.loss");
    const LrSchedule lr = lr_schedule(run_.config);
    const RecipeShare share = kind_.share(mesh_);
    TrainStep step(model_, *optimizer_, stream_, memory_, outer_ ? &*outer_ : nullptr);
    for (std::int64_t i = 0; i < inputs.size(0); ++i) {
      const auto batches = by_sequence(inputs.select(0, i).select(0, share.part),
                                       labels.select(0, i).select(0, share.part), share.replica,
                                       share.replicas, host_);
      const StepResult result =
          step.run(batches, {.lr = lr.at(i + 1), .step = i + 1}, run_.config.optim.clip);
      // Of all parts together, or of each.
      const std::int64_t at = losses.dims() == 1 ? i : i * losses.size(1) + share.part;
      const double expected = losses.host<float>()[static_cast<std::size_t>(at)];
      raise(worst, std::abs(result.loss - expected));
    }
    worst = world_.all().combine(std::isnan(worst) ? HUGE_VAL : worst, ReduceOp::max);
  }

  World& world_;
  Memory memory_, host_;
  Stream stream_;
  const ReferenceFile reference_;
  const Json recipe_;
  const RecipeKind& kind_;
  const RecipeRun run_;
  const ModelSpec spec_;
  const ParallelPlan plan_;
  const Mesh mesh_;
  Model model_;
  const std::unique_ptr<Optimizer> optimizer_;
  std::optional<OuterSteps> outer_;  // of a recipe of sites
};

}  // namespace

bool has_recipe(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / kRecipeFile);
}

int recipe_ranks(const std::filesystem::path& folder, const config::RunConfig& settings) {
  const Json recipe = read_json_file(folder / kRecipeFile);
  const RecipeKind& kind = recipe_kind(recipe, (folder / kRecipeFile).string());
  RecipeRun run{.config = settings};
  kind.configure(recipe, run);
  const ParallelRequest& mesh = run.config.parallel;
  return mesh.sites * std::max(1, mesh.dp) * mesh.tp * mesh.pp * mesh.cp;
}

RecipeReport verify_recipe(const std::filesystem::path& folder, const config::RunConfig& settings,
                           const RecipeOptions& options, World& world) {
  return Play(folder, settings, options, world).run();
}

JsonValue to_json(const RecipeReport& report) {
  JsonValue json = {{"kind", report.kind},
                    {"train_loss_abs", report.train_loss_abs},
                    {"trained_rel", report.trained_rel},
                    {"trained_worst", report.trained_worst},
                    {"ranks", report.ranks},
                    {"mesh", report.mesh},
                    {"dtype", name_of(report.dtype)},
                    {"ok", report.ok()}};
  if (report.outer_rel) {
    json["outer_rel"] = *report.outer_rel;
    json["outer_worst"] = report.outer_worst;
  }
  return json;
}

}  // namespace heddle
