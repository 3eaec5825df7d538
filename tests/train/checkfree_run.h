#pragma once

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "base/json.h"
#include "checkpoint/reader.h"
#include "comm/threads/thread_world.h"
#include "recover/checkfree.h"
#include "train/model_setup.h"
#include "train/planned_losses.h"
#include "train/tiny_run.h"

namespace heddle {

using Settings = std::vector<std::string>;
using PlannedLosses = std::map<std::int64_t, std::set<int>>;
using Values = std::vector<float>;

/// A run of a few steps whose ranks are threads and are lost by a plan. Gradients are not clipped
/// and the first moment is the last gradient, so that a checkpoint says what norms there were.
class CheckFreeRun {
 public:
  static constexpr std::int64_t kSteps = 6;

  explicit CheckFreeRun(Settings settings, int ranks = 5, int blocks = 4)
      : run_({{"hidden_size", 16},
              {"intermediate_size", 24},
              {"num_hidden_layers", blocks},
              {"num_attention_heads", 2}}),
        ranks_(ranks) {
    run_.write_tokens("held_out.tokens", 2);
    const Settings usual = {fmt::format("train.steps={}", kSteps),
                            "train.tokens_per_step=256",
                            "train.microbatch=1",
                            "checkpoint.every=1",
                            "checkpoint.keep=10",
                            "parallel.zero=0",
                            "recover.elastic=true",
                            fmt::format("data.eval=\"{}/held_out.tokens\"", run_.path().string()),
                            "train.eval_tokens=256",
                            "optim.beta1=0",
                            "optim.clip=0",
                            "optim.weight_decay=0",
                            "optim.warmup_steps=0"};
    settings.insert(settings.begin(), usual.begin(), usual.end());
    config_ = load_run(run_.path() / "run.toml", settings, ranks).config;
  }

  /// Somebody new takes the place of each that is lost, or comes when `comers` say.
  PlannedRun train(const PlannedLosses& losses, const Comers& comers = {}) {
    return train_with_losses(config_, options(), ranks_, losses, comers);
  }
  /// With so many ranks, whatever the run file says.
  PlannedRun train_with(int ranks) { return train_with_losses(config_, options(), ranks, {}); }
  void train_in_one_world() {
    run_ranks(ranks_, [&](World& world) { heddle::train(config_, options(), world); });
  }

  const TinyRun& files() const { return run_; }
  std::filesystem::path last() const { return run_.checkpoint(kSteps); }
  /// A tensor of a checkpoint.
  Values tensor(std::int64_t step, const std::string& name,
                const std::string& kind = kWeightsKind) const {
    const CheckpointReader reader(run_.checkpoint(step));
    const Shape shape = reader.shape(kind, name).value();
    Memory memory;
    const Tensor out = memory.alloc(shape, DType::f32, MemoryTag::workspace);
    const Shape begin(std::vector<std::int64_t>(static_cast<std::size_t>(shape.dims()), 0));
    reader.read(kind, name, begin.sizes(), shape.sizes(), out);
    return {out.host<float>().begin(), out.host<float>().end()};
  }
  std::vector<std::string> names(const std::string& kind = kWeightsKind) const {
    return CheckpointReader(last()).names(kind);
  }
  /// Of the gradient of these tensors in a step.
  float norm(std::int64_t step, const std::vector<std::string>& names) const {
    double squares = 0.0;
    for (const std::string& name : names) {
      for (const float value : tensor(step, name, "exp_avg")) squares += double{value} * value;
    }
    return static_cast<float>(std::sqrt(squares));
  }
  Json trainer(std::int64_t step) const {
    return *CheckpointReader(run_.checkpoint(step)).manifest().trainer;
  }
  Json epochs() const {
    return parse_json(read_text_file(run_.run_folder() / "report.json"), "report")["epochs"];
  }
  std::string page() const { return read_text_file(run_.run_folder() / "report.html"); }
  void expect_every_step_once() const {
    std::int64_t step = 0;
    for (const Json& line : run_.metrics()) {
      if (!line.contains("loss")) continue;
      EXPECT_EQ(line["step"].get<std::int64_t>(), ++step);
    }
    EXPECT_EQ(step, kSteps);
  }

 private:
  static TrainOptions options() {
    TrainOptions options;
    options.terminal.is_silent = true;
    return options;
  }

  TinyRun run_;
  const int ranks_;
  config::RunConfig config_;
};

/// The last step changes no weights: what it ends with is what was recovered before it.
inline Settings with_idle_end(Settings settings) {
  settings.insert(settings.end(), {"optim.schedule=\"linear\"", "optim.min_lr=0"});
  return settings;
}

inline std::vector<std::string> of_block(const std::vector<std::string>& names, int block) {
  std::vector<std::string> found;
  for (const std::string& name : names) {
    if (name.starts_with(fmt::format("model.layers.{}.", block))) found.push_back(name);
  }
  return found;
}

inline std::string moved(const std::string& name, int from, int to) {
  const std::string old = fmt::format("model.layers.{}.", from);
  return fmt::format("model.layers.{}.{}", to, name.substr(old.size()));
}

/// EXPECTs a tensor to be the mean, bit for bit.
inline void expect_mean(const Values& made, const Values& before, float a, const Values& after,
                        float b, const std::string& what) {
  ASSERT_EQ(made.size(), before.size());
  for (std::size_t i = 0; i < made.size(); ++i) {
    volatile float left = a * before[i];
    volatile float right = b * after[i];
    volatile float above = left + right;
    volatile float below = a + b;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(made[i]),
              std::bit_cast<std::uint32_t>(static_cast<float>(above / below)))
        << what << " " << i;
  }
}

}  // namespace heddle
