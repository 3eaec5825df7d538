#include "verify/reference.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/safetensors.h"
#include "engine/train_step.h"
#include "engine/weights.h"
#include "infer/generate.h"
#include "model/registry.h"
#include "optim/adamw.h"

namespace heddle {
namespace {

/// Norm of a - b over norm of b.
double relative(std::span<const float> a, std::span<const float> b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

/// max() that keeps NaN: a difference that is not a number must never look small.
void raise(double& worst, double value) {
  if (!(value <= worst)) worst = value;
}

/// One folder's model and reference, and the comparisons between them.
class ReferenceRun {
 public:
  ReferenceRun(const std::filesystem::path& folder, const ReferenceOptions& options)
      : stream_(options.threads),
        reference_(folder / "reference.safetensors"),
        weights_(folder),
        model_(read_model_spec(folder / "config.json"), build_options(options),
               ParamStore::Purpose::training, memory_),
        optimizer_({.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1}),
        step_(model_, optimizer_, stream_, memory_) {}

  ReferenceReport run() {
    load_weights(weights_, model_.spec(), model_.store(), stream_);
    compare_forward();
    compare_greedy();
    compare_gradients();
    compare_training();
    return report_;
  }

 private:
  BuildOptions build_options(const ReferenceOptions& options) const {
    const std::int64_t longest = std::max(reference_.entry("input_ids").shape()[-1],
                                          reference_.entry("greedy.output").shape()[-1]);
    return {.positions = longest, .recompute_blocks = options.recompute};
  }

  Tensor floats(const std::string& name) {
    const Tensor out =
        memory_.alloc(reference_.entry(name).shape(), DType::f32, MemoryTag::workspace);
    reference_.read(name, out);
    return out;
  }

  /// Token ids, stored as 64-bit integers, as the i32 we compute with.
  Tensor ids(const std::string& name) {
    const Shape shape = reference_.entry(name).shape();
    const Tensor wide = memory_.alloc(shape, DType::i64, MemoryTag::workspace);
    reference_.read(name, wide);
    const Tensor narrow = memory_.alloc(shape, DType::i32, MemoryTag::data);
    std::ranges::transform(wide.host<std::int64_t>(), narrow.host<std::int32_t>().begin(),
                           [](std::int64_t id) { return static_cast<std::int32_t>(id); });
    return narrow;
  }

  /// One micro-batch per sequence of [B, S] ids and labels.
  std::vector<MicroBatch> by_sequence(const Tensor& input, const Tensor& labels) {
    std::vector<MicroBatch> batches;
    for (std::int64_t row = 0; row < input.size(0); ++row) {
      batches.push_back(
          plain_batch(input.slice(0, row, row + 1), labels.slice(0, row, row + 1), 0, memory_));
    }
    return batches;
  }

  void compare_forward() {
    const Tensor expected = floats("logits"), input = ids("input_ids");
    const Tensor logits =
        model_.logits(plain_batch(input, {}, 0, memory_), false, nullptr, stream_, memory_);
    report_.logits_rel = relative(logits.host<float>(), expected.host<float>());
  }

  void compare_gradients() {
    const auto result = step_.gradients(by_sequence(ids("input_ids"), ids("labels")));
    report_.loss_abs = std::abs(result.loss - static_cast<double>(floats("loss").host<float>()[0]));
    for_each_part([&](const Parameter& parameter, std::size_t part, const std::string& name) {
      const Tensor grad = parameter.part_of(parameter.grad, part);
      const double rel = relative(grad.host<float>(), floats("grad." + name).host<float>());
      if (!(rel <= report_.grad_rel)) report_.grad_worst = name;
      raise(report_.grad_rel, rel);
    });
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
    for_each_part([&](const Parameter& parameter, std::size_t part, const std::string& name) {
      const Tensor value = parameter.part_of(parameter.value, part);
      const double rel = relative(value.host<float>(), floats("trained." + name).host<float>());
      if (!(rel <= report_.trained_rel)) report_.trained_worst = name;
      raise(report_.trained_rel, rel);
    });
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

  template <class Visit>
  void for_each_part(const Visit& visit) {
    for (const Parameter* parameter : model_.store().parameters()) {
      for (std::size_t part = 0; part < parameter->parts.size(); ++part) {
        visit(*parameter, part, parameter->parts[part].name);
      }
    }
  }

  Memory memory_;
  Stream stream_;
  SafetensorsFile reference_;
  HfFolder weights_;
  Model model_;
  AdamW optimizer_;
  TrainStep step_;
  ReferenceReport report_;
};

}  // namespace

bool ReferenceReport::ok() const {
  return logits_rel <= 1e-5 && loss_abs <= 1e-5 && grad_rel <= 1e-4 && train_loss_abs <= 1e-4 &&
         trained_rel <= 1e-3 && greedy_equal;
}

ReferenceReport verify_reference(const std::filesystem::path& folder,
                                 const ReferenceOptions& options) {
  return ReferenceRun(folder, options).run();
}

Json to_json(const ReferenceReport& report) {
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
          {"ok", report.ok()}};
}

}  // namespace heddle
