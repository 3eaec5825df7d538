#include "verify/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/error.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/safetensors.h"
#include "engine/train_step.h"
#include "engine/weights.h"
#include "infer/generate.h"
#include "model/registry.h"
#include "ops/softmax_xent.h"
#include "optim/optimizer.h"
#include "tensor/transfer.h"
#include "verify/difference.h"

namespace heddle {
namespace {

/// max() that keeps NaN: a difference that is not a number must never look small.
void raise(double& worst, double value) {
  if (!(value <= worst)) worst = value;
}

/// One folder's model and reference, and the comparisons between them.
class ReferenceRun {
 public:
  ReferenceRun(const std::filesystem::path& folder, const ReferenceOptions& options, World& world)
      : world_(world),
        memory_(options.device),
        host_(memory_.for_host()),
        stream_(options.threads, options.device),
        reference_(folder / "reference.safetensors"),
        weights_(folder),
        spec_(read_model_spec(folder / "config.json")),
        plan_(make_plan(spec_, options.parallel, world.size(),
                        reference_.entry("input_ids").shape()[-1])),
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
    const std::int64_t longest = std::max(reference_.entry("input_ids").shape()[-1],
                                          reference_.entry("greedy.output").shape()[-1]);
    return {.dtype = options.dtype, .positions = longest, .recompute_blocks = options.recompute};
  }

  Tensor floats(const std::string& name) {
    const Tensor out =
        host_.alloc(reference_.entry(name).shape(), DType::f32, MemoryTag::workspace);
    reference_.read(name, out);
    return out;
  }

  /// Token ids, stored as 64-bit integers, as the i32 we compute with.
  Tensor ids(const std::string& name) {
    const Shape shape = reference_.entry(name).shape();
    const Tensor wide = host_.alloc(shape, DType::i64, MemoryTag::workspace);
    reference_.read(name, wide);
    const Tensor narrow = host_.alloc(shape, DType::i32, MemoryTag::data);
    std::ranges::transform(wide.host<std::int64_t>(), narrow.host<std::int32_t>().begin(),
                           [](std::int64_t id) { return static_cast<std::int32_t>(id); });
    return narrow;
  }

  /// This data-parallel rank's micro-batches of one sequence of [B, S] ids and labels each. Where
  /// ranks have fewer than others, one whose targets do not count stands in.
  std::vector<MicroBatch> by_sequence(const Tensor& input, const Tensor& labels) {
    const int ranks = mesh_.size(Axis::dp), rank = mesh_.coord(Axis::dp);
    const std::int64_t each = (input.size(0) + ranks - 1) / ranks;
    std::vector<MicroBatch> batches;
    for (std::int64_t row = rank * each; row < (rank + 1) * each; ++row) {
      const std::int64_t at = std::min(row, input.size(0) - 1);
      batches.push_back(
          plain_batch(input.slice(0, at, at + 1), labels.slice(0, at, at + 1), 0, memory_));
      if (row == at) continue;
      const Tensor none = host_.alloc(batches.back().ids.shape(), DType::i32, MemoryTag::data);
      std::ranges::fill(none.host<std::int32_t>(), ops::kIgnoreTarget);
      batches.back().targets = none;
    }
    return batches;
  }

  void compare_forward() {
    const Tensor expected = floats("logits"), input = ids("input_ids");
    const Tensor logits =
        to_host(model_.logits(plain_batch(input, {}, 0, memory_), false, nullptr, stream_, memory_),
                stream_);
    Difference difference;
    difference.add(logits.host<float>(), expected.host<float>());
    report_.logits_rel = difference.relative();
  }

  void compare_gradients() {
    const auto result = step_.gradients(by_sequence(ids("input_ids"), ids("labels")));
    report_.loss_abs = std::abs(result.loss - static_cast<double>(floats("loss").host<float>()[0]));
    compare_pieces("grad.", model_.store().grad_pieces(), report_.grad_rel, report_.grad_worst);
  }

  void compare_training() {
    const Tensor inputs = ids("train.input_ids"), labels = ids("train.labels");
    const Tensor losses = floats("train.loss"), norms = floats("train.grad_norm");
    for (std::int64_t i = 0; i < inputs.size(0); ++i) {
      const auto result = step_.run(by_sequence(inputs.select(0, i), labels.select(0, i)),
                                    {.lr = 1e-3, .step = i + 1}, 1.0);
      const double loss = losses.host<float>()[static_cast<std::size_t>(i)];
      const double norm = norms.host<float>()[static_cast<std::size_t>(i)];
      raise(report_.train_loss_abs, std::abs(result.loss - loss));
      raise(report_.train_norm_rel, std::abs(result.grad_norm - norm) / norm);
    }
    compare_pieces("trained.", model_.store().value_pieces(), report_.trained_rel,
                   report_.trained_worst);
  }

  void compare_greedy() {
    const Tensor prompt = ids("greedy.prompt"), output = ids("greedy.output");
    const auto expected =
        output.host<std::int32_t>().subspan(static_cast<std::size_t>(prompt.count()));
    const auto made =
        generate(model_, prompt.host<std::int32_t>(),
                 {.max_tokens = static_cast<std::int64_t>(expected.size())}, {}, stream_, memory_);
    report_.greedy_equal = std::ranges::equal(made, expected);
  }

  /// Compares every tensor of the reference with this prefix. Each rank compares the boxes that it
  /// would save; their sums over all ranks are the tensor's.
  void compare_pieces(const std::string& prefix, const std::vector<ParamPiece>& pieces,
                      double& worst, std::string& worst_name) {
    std::map<std::string, Difference> differences;  // the same names in the same order everywhere
    for (const auto& entry : reference_.entries()) {
      if (entry.name.starts_with(prefix)) differences[entry.name.substr(prefix.size())];
    }
    for (const ParamPiece& piece : pieces) {
      if (!piece.is_first_writer()) continue;
      const Tensor expected = host_.alloc(piece.data.shape(), DType::f32, MemoryTag::workspace);
      reference_.read_slice(prefix + piece.part->name, piece.begin.sizes(), piece.end().sizes(),
                            expected);
      differences[piece.part->name].add(on_host(piece, stream_), expected);
    }
    sum_over_ranks(differences);
    for (const auto& [name, difference] : differences) {
      const auto whole = static_cast<double>(reference_.entry(prefix + name).shape().count());
      const double rel =
          difference.elements == whole ? difference.relative() : std::nan("");  // a box is missing
      if (!(rel <= worst)) worst_name = name;
      raise(worst, rel);
    }
  }

  void sum_over_ranks(std::map<std::string, Difference>& differences) {
    const Tensor sums = host_.alloc({static_cast<std::int64_t>(differences.size()), 3}, DType::f64,
                                    MemoryTag::workspace);
    double* at = sums.data<double>();
    for (const auto& [name, d] : differences) {
      *at++ = d.squares;
      *at++ = d.norm_squares;
      *at++ = d.elements;
    }
    world_.all().all_reduce(sums, ReduceOp::sum, stream_).wait(stream_);
    at = sums.data<double>();
    for (auto& [name, d] : differences) {
      d.squares = *at++;
      d.norm_squares = *at++;
      d.elements = *at++;
    }
  }

  World& world_;
  Memory memory_, host_;
  Stream stream_;
  SafetensorsFile reference_;
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
  if (dtype == DType::bf16) return {2e-2, 1e-2, kAny, 3e-2, kAny, false};
  return {1e-5, 1e-5, 1e-4, 1e-4, 1e-3, true};
}

bool ReferenceReport::ok() const {
  const Limits most = limits();
  return logits_rel <= most.logits && loss_abs <= most.loss && grad_rel <= most.gradients &&
         train_loss_abs <= most.training_losses && trained_rel <= most.trained &&
         (greedy_equal || !most.greedy);
}

ReferenceReport verify_reference(const std::filesystem::path& folder,
                                 const ReferenceOptions& options, World& world) {
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
