#include "verify/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "checkpoint/hf_folder.h"
#include "engine/train_step.h"
#include "engine/weights.h"
#include "infer/generate.h"
#include "model/registry.h"
#include "optim/optimizer.h"
#include "tensor/transfer.h"
#include "verify/reference_file.h"

namespace heddle {
namespace {

/// References are of the cross-entropy alone: no loss of a router, and nobody moves its bias, for
/// which tokens that only fill a replica would count too.
ModelSpec reference_spec(const std::filesystem::path& folder) {
  ModelSpec spec = read_model_spec(folder / "config.json");
  if (spec.experts) {
    spec.experts->loss = {};
    spec.experts->bias_rate = 0.0;
  }
  return spec;
}

/// One folder's model and reference, and the comparisons between them.
class ReferenceRun {
 public:
  ReferenceRun(const std::filesystem::path& folder, const ReferenceOptions& options, World& world)
      : world_(world),
        memory_(options.device),
        host_(memory_.for_host()),
        stream_(options.threads, options.device),
        reference_(folder, host_),
        weights_(folder),
        spec_(reference_spec(folder)),
        plan_(make_plan(spec_, options.parallel, world.size(), reference_.shape("input_ids")[-1])),
        mesh_(plan_.mesh, world.all()),
        model_(spec_, build_options(options), plan_, mesh_, ParamStore::Purpose::training, memory_),
        optimizer_(make_optimizer(
            AdamWConfig{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1},
            model_.store())),
        step_(model_, *optimizer_, stream_, memory_) {}

  ReferenceReport run() {
    load_weights(weights_, model_.spec(), model_.store(), stream_);
    compare_forward();
    compare_greedy();
    compare_gradients();
    compare_training();
    report_.ranks = world_.size();
    report_.mesh = plan_.mesh.text();
    report_.dtype = model_.dtype();
    return report_;
  }

 private:
  BuildOptions build_options(const ReferenceOptions& options) const {
    const std::int64_t longest =
        std::max(reference_.shape("input_ids")[-1], reference_.shape("greedy.output")[-1]);
    return {.dtype = options.dtype, .positions = longest, .recompute_blocks = options.recompute};
  }

  std::vector<MicroBatch> own_sequences(const Tensor& input, const Tensor& labels) {
    return by_sequence(input, labels, mesh_.coord(Axis::dp), mesh_.size(Axis::dp), host_);
  }

  void compare(const std::string& prefix, const std::vector<ParamPiece>& pieces, double& rel,
               std::string& worst) {
    const WorstTensor found = reference_.compare(prefix, pieces, world_, stream_);
    rel = found.rel;
    worst = found.name;
  }

  void compare_forward() {
    const Tensor expected = reference_.floats("logits"), input = reference_.ids("input_ids");
    const Tensor logits =
        to_host(model_.logits(plain_batch(input, {}, 0, memory_), false, nullptr, stream_, memory_),
                stream_);
    Difference difference;
    difference.add(logits.host<float>(), expected.host<float>());
    report_.logits_rel = difference.relative();
  }

  void compare_gradients() {
    const auto result =
        step_.gradients(own_sequences(reference_.ids("input_ids"), reference_.ids("labels")));
    report_.loss_abs =
        std::abs(result.loss - static_cast<double>(reference_.floats("loss").host<float>()[0]));
    compare("grad.", model_.store().grad_pieces(), report_.grad_rel, report_.grad_worst);
  }

  void compare_training() {
    const Tensor inputs = reference_.ids("train.input_ids"),
                 labels = reference_.ids("train.labels");
    const Tensor losses = reference_.floats("train.loss"),
                 norms = reference_.floats("train.grad_norm");
    for (std::int64_t i = 0; i < inputs.size(0); ++i) {
      const auto result = step_.run(own_sequences(inputs.select(0, i), labels.select(0, i)),
                                    {.lr = 1e-3, .step = i + 1}, 1.0);
      const double loss = losses.host<float>()[static_cast<std::size_t>(i)];
      const double norm = norms.host<float>()[static_cast<std::size_t>(i)];
      raise(report_.train_loss_abs, std::abs(result.loss - loss));
      raise(report_.train_norm_rel, std::abs(result.grad_norm - norm) / norm);
    }
    compare("trained.", model_.store().value_pieces(), report_.trained_rel, report_.trained_worst);
  }

  void compare_greedy() {
    const Tensor prompt = reference_.ids("greedy.prompt"), output = reference_.ids("greedy.output");
    const auto expected =
        output.host<std::int32_t>().subspan(static_cast<std::size_t>(prompt.count()));
    const auto made =
        generate(model_, prompt.host<std::int32_t>(),
                 {.max_tokens = static_cast<std::int64_t>(expected.size())}, {}, stream_, memory_);
    report_.greedy_equal = std::ranges::equal(made, expected);
  }

  World& world_;
  Memory memory_, host_;
  Stream stream_;
  ReferenceFile reference_;
  HfFolder weights_;
  const ModelSpec spec_;
  const ParallelPlan plan_;
  const Mesh mesh_;
  Model model_;
  const std::unique_ptr<Optimizer> optimizer_;
  TrainStep step_;
  ReferenceReport report_;
};

}  // namespace

ReferenceReport::Limits ReferenceReport::limits() const {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  if (dtype == DType::bf16) return {2e-2, 1e-2, kAny, 3e-2, kAny, kAny, false};
  return {1e-5, 1e-5, 1e-4, 1e-4, 1e-3, 1e-3, true};
}

bool ReferenceReport::ok() const {
  const Limits most = limits();
  return logits_rel <= most.logits && loss_abs <= most.loss && grad_rel <= most.gradients &&
         train_loss_abs <= most.training_losses && train_norm_rel <= most.training_norms &&
         trained_rel <= most.trained && (greedy_equal || !most.greedy);
}

ReferenceReport verify_reference(const std::filesystem::path& folder,
                                 const ReferenceOptions& options, World& world) {
  if (options.parallel.sites > 1) {
    fail(ErrorCode::usage,
         "parallel.sites = {} has no meaning for a reference of one model; leave "
         "it out, or give a folder with a recipe of sites",
         options.parallel.sites);
  }
  return ReferenceRun(folder, options, world).run();
}

JsonValue to_json(const ReferenceReport& report) {
  return {{"logits_rel", report.logits_rel},
          {"loss_abs", report.loss_abs},
          {"grad_rel", report.grad_rel},
          {"grad_worst", report.grad_worst},
          {"train_loss_abs", report.train_loss_abs},
          {"train_norm_rel", report.train_norm_rel},
          {"trained_rel", report.trained_rel},
          {"trained_worst", report.trained_worst},
          {"greedy_equal", report.greedy_equal},
          {"ranks", report.ranks},
          {"mesh", report.mesh},
          {"dtype", name_of(report.dtype)},
          {"ok", report.ok()}};
}

}  // namespace heddle
