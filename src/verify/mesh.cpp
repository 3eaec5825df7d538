#include "verify/mesh.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "base/check.h"
#include "base/json_value.h"
#include "data/loader.h"
#include "engine/train_step.h"
#include "nn/redistribute.h"
#include "ops/elementwise.h"
#include "optim/optimizer.h"
#include "tensor/transfer.h"
#include "train/data_setup.h"
#include "train/evaluate.h"
#include "train/model_setup.h"
#include "verify/difference.h"

namespace heddle {
namespace {

enum class Direction { forward, backward, gradient, update, loss };

const char* name_of(Direction direction) {
  static constexpr const char* kNames[] = {"forward", "backward", "gradient", "update", "loss"};
  return kNames[static_cast<int>(direction)];
}

/// A place in the order in which a step makes its tensors.
struct Place {
  Direction direction = Direction::forward;
  int microbatch = 0;
  int index = 0;  ///< of the unit in the order of the pass, of the parameter, or of the step

  static constexpr std::int64_t kIndices = 1 << 20, kMicrobatches = 1 << 20;

  std::int64_t number() const {
    return (static_cast<int>(direction) * kMicrobatches + microbatch) * kIndices + index;
  }
  static Place from(std::int64_t number) {
    const std::int64_t rest = number / kIndices;
    return {static_cast<Direction>(rest / kMicrobatches), static_cast<int>(rest % kMicrobatches),
            static_cast<int>(number % kIndices)};
  }
};

/// What one rank makes of a step.
struct RecordedSteps {
  std::map<std::pair<std::string, int>, Tensor> forward, backward;  // by unit and micro-batch
  std::map<std::string, Tensor> gradients, values;
  std::vector<double> losses;
};

class MeshRun {
 public:
  MeshRun(const config::RunConfig& config, const MeshOptions& options, World& world)
      : config_(config),
        options_(options),
        world_(world),
        memory_(options.device),
        host_(memory_.for_host()),
        stream_(options.threads, options.device),
        tokenizer_(configured_tokenizer(config)),
        spec_(configured_model(config, tokenizer_)),
        plan_(configured_plan(config, spec_, world.size())),
        mesh_(plan_.mesh, world.all()),
        names_(tensor_names(spec_)),
        data_(open_run_data(config, tokenizer_,
                            {.threads = options.threads,
                             .folder = options.work_folder / std::to_string(world.rank()),
                             .terminal = {.is_silent = true}})) {
    using Kind = UnitLabel::Kind;
    const auto compare = [&](Kind kind, int block = 0) {
      labels_.push_back(UnitLabel{kind, block}.text());
    };
    compare(Kind::embedding);
    if (!spec_.rope) compare(Kind::positions);
    for (int i = 0; i < static_cast<int>(spec_.layers); ++i) compare(Kind::block, i);
    compare(Kind::norm);
  }

  MeshReport run() {
    record_one_rank();
    compare_mesh();
    return report();
  }

 private:
  /// The micro-batches [first, first + count) of all that the replicas have in a step.
  std::vector<MicroBatch> batches(std::int64_t step, std::int64_t first, std::int64_t count) {
    const BatchPlan plan{.samples_per_step = config_.tokens_per_step() / config_.data.seq_len,
                         .first_in_step = 0,
                         .rows_per_batch = config_.train.microbatch,
                         .batches_per_step = config_.accumulation() * config_.replicas()};
    const Loader loader(*data_.train, plan, host_, 0, 0);
    std::vector<MicroBatch> made;
    for (std::int64_t i = 0; i < count; ++i) {
      made.push_back(to_microbatch(loader.batch(step, first + i)));
    }
    return made;
  }

  /// A copy in host memory.
  Tensor kept(const Tensor& tensor) {
    const Tensor copy = host_.alloc(tensor.shape(), tensor.dtype(), MemoryTag::workspace);
    ops::copy(tensor, copy, stream_);
    return copy;
  }

  bool is_compared(const std::string& label) const {
    return std::ranges::find(labels_, label) != labels_.end();
  }

  void record_one_rank() {
    Model model(spec_, build_options(config_, spec_), ParamStore::Purpose::training, memory_);
    start_weights(config_, model, stream_, {.is_silent = true});
    const auto optimizer = make_optimizer(optimizer_config(config_.optim), model.store());
    TrainStep step(model, *optimizer, stream_, memory_);
    step.watch(
        [&](const std::string& label, int microbatch, TrainStep::Pass pass, const Tensor& made) {
          if (!is_compared(label) || !made.defined()) return;
          auto& recorded = pass == TrainStep::Pass::forward ? one_.forward : one_.backward;
          recorded[{label, microbatch}] = kept(made);
        });
    const std::int64_t all = config_.accumulation() * config_.replicas();
    for (std::int64_t i = 0; i < options_.steps; ++i) {
      const auto result =
          step.run(batches(i, 0, all), {.lr = config_.optim.lr, .step = i + 1}, config_.optim.clip);
      one_.losses.push_back(result.loss);
      if (i > 0) continue;
      for (const std::string& label : labels_) {
        HEDDLE_CHECK(one_.forward.contains({label, 0}), "unit {} was not watched", label);
      }
      step.watch({});
      for (const ParamPiece& piece : model.store().grad_pieces()) {
        one_.gradients[piece.part->name] = kept(piece.data);
      }
      for (const ParamPiece& piece : model.store().value_pieces()) {
        one_.values[piece.part->name] = kept(piece.data);
      }
    }
  }

  void compare_mesh() {
    Model model(spec_, build_options(config_, spec_), plan_, mesh_, ParamStore::Purpose::training,
                memory_);
    start_weights(config_, model, stream_, {.is_silent = true});
    const auto optimizer = make_optimizer(optimizer_config(config_.optim), model.store());
    TrainStep step(model, *optimizer, stream_, memory_);
    const auto own = config_.accumulation();
    const std::int64_t first = mesh_.coord(Axis::dp) * own;
    step.watch(
        [&](const std::string& label, int microbatch, TrainStep::Pass pass, const Tensor& made) {
          if (!is_compared(label) || !made.defined()) return;
          compare_unit(label, static_cast<int>(first) + microbatch, pass, made);
        });
    for (std::int64_t i = 0; i < options_.steps; ++i) {
      const auto result = step.run(batches(i, first, own), {.lr = config_.optim.lr, .step = i + 1},
                                   config_.optim.clip);
      losses_.push_back(result.loss);
      const double expected = one_.losses[static_cast<std::size_t>(i)];
      note({Direction::loss, 0, static_cast<int>(i)},
           std::abs(result.loss - expected) / std::max(std::abs(expected), 1e-30));
      if (i > 0) continue;
      step.watch({});
      compare_pieces(Direction::gradient, model.store().grad_pieces(), one_.gradients);
      compare_pieces(Direction::update, model.store().value_pieces(), one_.values);
    }
  }

  /// The residual holds all tokens or this rank's share of them.
  void compare_unit(const std::string& label, int microbatch, TrainStep::Pass pass,
                    const Tensor& made) {
    const bool is_forward = pass == TrainStep::Pass::forward;
    const Tensor& whole = (is_forward ? one_.forward : one_.backward).at({label, microbatch});
    const std::int64_t begin =
        plan_.sequence ? std::min(whole.size(0), made.size(0) * mesh_.coord(Axis::tp)) : 0;
    const std::int64_t end = std::min(whole.size(0), begin + made.size(0));
    Difference difference;
    difference.add(to_host(made, stream_).slice(0, 0, end - begin), whole.slice(0, begin, end));
    const auto index = static_cast<int>(std::ranges::find(labels_, label) - labels_.begin());
    const int last = static_cast<int>(labels_.size()) - 1;
    note({is_forward ? Direction::forward : Direction::backward, microbatch,
          is_forward ? index : last - index},
         difference.relative());
  }

  void compare_pieces(Direction direction, const std::vector<ParamPiece>& pieces,
                      const std::map<std::string, Tensor>& expected) {
    for (const ParamPiece& piece : pieces) {
      Difference difference;
      difference.add(on_host(piece, stream_),
                     expected.at(piece.part->name).box(piece.begin, piece.data.shape()));
      const auto index = std::ranges::find(names_, piece.part->name) - names_.begin();
      note({direction, 0, static_cast<int>(index)}, difference.relative());
    }
  }

  void note(const Place& place, double rel) {
    if (!(rel <= worst_)) worst_ = rel;
    if (rel <= options_.tolerance) return;
    if (!first_ || place.number() < first_->first) first_ = {place.number(), rel};
  }

  /// The largest value over all ranks.
  double largest(double value) {
    const double known = std::isnan(value) ? std::numeric_limits<double>::infinity() : value;
    return world_.all().combine(known, ReduceOp::max);
  }

  MeshReport report() {
    MeshReport report{.tolerance = options_.tolerance,
                      .loss_one = one_.losses.front(),
                      .loss_mesh = losses_.front(),
                      .steps = options_.steps,
                      .ranks = world_.size(),
                      .mesh = plan_.mesh.text()};
    constexpr double kNone = 1e300;
    const double own = first_ ? static_cast<double>(first_->first) : kNone;
    const double earliest = -largest(-own);
    report.rel = largest(worst_);
    if (earliest == kNone) return report;
    report.ok = false;
    report.rel = largest(first_ && own == earliest ? first_->second : 0.0);
    describe(Place::from(static_cast<std::int64_t>(earliest)), report);
    return report;
  }

  void describe(const Place& place, MeshReport& report) const {
    report.direction = name_of(place.direction);
    const auto index = static_cast<std::size_t>(place.index);
    switch (place.direction) {
      case Direction::forward:
        report.tensor = labels_[index];
        report.microbatch = place.microbatch;
        break;
      case Direction::backward:
        report.tensor = labels_[labels_.size() - 1 - index];
        report.microbatch = place.microbatch;
        break;
      case Direction::gradient:
      case Direction::update: report.tensor = names_[index]; break;
      case Direction::loss:
        report.tensor = fmt::format("loss of step {}", place.index + 1);
        report.loss_one = one_.losses[index];
        report.loss_mesh = losses_[index];
        break;
    }
  }

  const config::RunConfig& config_;
  const MeshOptions& options_;
  World& world_;
  Memory memory_, host_;
  Stream stream_;
  const RunTokenizer tokenizer_;
  const ModelSpec spec_;
  const ParallelPlan plan_;
  const Mesh mesh_;
  const std::vector<std::string> names_;  // of all tensors
  std::vector<std::string> labels_;       // of the units that are compared, in order
  const RunData data_;
  RecordedSteps one_;
  std::vector<double> losses_;  // on the mesh
  double worst_ = 0.0;
  std::optional<std::pair<std::int64_t, double>> first_;  // place and difference
};

}  // namespace

MeshReport verify_mesh(const config::RunConfig& config, const MeshOptions& options, World& world) {
  if (config.parallel.sites > 1) {
    throw Error(ErrorCode::usage,
                fmt::format("parallel.sites = {} compute different things on purpose",
                            config.parallel.sites),
                "compare the mesh of one of them: --set parallel.sites=1");
  }
  return MeshRun(config, options, world).run();
}

JsonValue to_json(const MeshReport& report) {
  return {{"ok", report.ok},
          {"tolerance", report.tolerance},
          {"tensor", report.tensor},
          {"direction", report.direction},
          {"microbatch", report.microbatch},
          {"rel", report.rel},
          {"loss_one", report.loss_one},
          {"loss_mesh", report.loss_mesh},
          {"steps", report.steps},
          {"ranks", report.ranks},
          {"mesh", report.mesh}};
}

}  // namespace heddle
