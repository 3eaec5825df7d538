#include "train/residuals.h"

#include <fmt/format.h>

#include "base/json.h"
#include "ops/elementwise.h"

namespace heddle {
namespace {

constexpr const char* kOwn = "residual.";  // and the rank
constexpr const char* kOfSum = "residual_of_sum";

std::string kind_of(int rank) { return kOwn + std::to_string(rank); }

/// Adds up kinds of states in one tensor.
class ResidualReader {
 public:
  ResidualReader(const StateSource& source, Stream& stream) : source_(source), stream_(stream) {}

  /// piece = the sum of those that are there.
  void read(const ParamPiece& piece, const std::vector<std::string>& kinds) const {
    Stream on_host(stream_.threads());
    fill_from_host(piece, stream_, [&](const Tensor& to) {
      bool is_first = true;
      for (const std::string& kind : kinds) {
        if (source_.shape(kind, piece.part->name) != piece.part->whole) continue;
        if (std::exchange(is_first, false)) {
          read_box(piece, kind, to);
          continue;
        }
        Memory host;
        const Tensor more = host.alloc(to.shape(), to.dtype(), MemoryTag::workspace);
        read_box(piece, kind, more);
        ops::accumulate(more, to, on_host);
      }
      if (is_first) ops::fill(to, 0.0, on_host);
    });
  }

 private:
  void read_box(const ParamPiece& piece, const std::string& kind, const Tensor& to) const {
    source_.read(kind, piece.part->name, piece.begin.sizes(), piece.end().sizes(), to);
  }

  const StateSource& source_;
  Stream& stream_;
};

}  // namespace

std::vector<StateKind> residual_states(const ParamStore& store, const std::string& prefix) {
  auto residuals = store.residuals();
  if (!residuals) return {};
  std::vector<StateKind> states = {{prefix + kind_of(residuals->rank), std::move(residuals->own)}};
  if (!residuals->of_the_sum.empty()) {
    states.push_back({prefix + kOfSum, std::move(residuals->of_the_sum)});
  }
  return states;
}

Json describe_residuals(const ParallelPlan& plan) {
  const int ranks = plan.mesh.size(kTokenAxes);
  const auto codec = plan.compress.codec(Compression::Kind::gradients);
  if (codec == nullptr || ranks == 1 || !plan.compress.feeds_back()) return {};
  return {{"codec", codec->name()}, {"ranks", ranks}};
}

std::string restore_residuals(const StateSource& source, const Json& then, Model& model,
                              Stream& stream, const std::string& prefix) {
  const Json now = describe_residuals(model.plan());
  if (now.is_null()) {
    return then.is_null() ? ""
                          : "what encoding lost of gradients before is left behind: this run keeps "
                            "none of it";
  }
  if (then.is_null()) return "the checkpoint has no residuals of gradients: they begin with zeros";
  const auto codec_then = then.value("codec", std::string()),
             codec = now.at("codec").get<std::string>();
  if (codec_then != codec) {
    return fmt::format("compress.gradients was {} and is {}: residuals begin with zeros",
                       codec_then, codec);
  }
  const int ranks_then = then.value("ranks", 0), ranks = now.at("ranks").get<int>();
  if (auto residuals = model.store().residuals()) {
    std::vector<std::string> kinds;
    for (int rank = residuals->rank; rank < ranks_then; rank += ranks) {
      kinds.push_back(prefix + kind_of(rank));
    }
    const ResidualReader reader(source, stream);
    for (const ParamPiece& piece : residuals->of_the_sum) reader.read(piece, {prefix + kOfSum});
    if (residuals->of_the_sum.empty() && residuals->rank == 0) kinds.push_back(prefix + kOfSum);
    for (const ParamPiece& piece : residuals->own) reader.read(piece, kinds);
  }
  if (ranks_then == ranks) return "";
  return fmt::format(
      "residuals of gradients were those of {} ranks and are those of {}: their sum is the same",
      ranks_then, ranks);
}

namespace {

/// A kind of what encodings have lost.
struct Unsent {
  std::string kind;
  bool is_by_rank = false;  ///< `kind` is then to be followed by the number of the rank
  std::vector<ParamPiece> pieces = {};

  std::string kind_of_rank(int rank) const { return kind + std::to_string(rank); }
  std::vector<std::string> kinds_of(const std::vector<int>& ranks) const {
    if (!is_by_rank) return {kind};
    std::vector<std::string> kinds;
    for (const int rank : ranks) kinds.push_back(kind_of_rank(rank));
    return kinds;
  }
};

std::vector<Unsent> unsent_of(const ParamStore& store) {
  std::vector<Unsent> all;
  if (auto residuals = store.residuals()) {
    all.push_back({kOwn, true, std::move(residuals->own)});
    all.push_back({kOfSum, false, std::move(residuals->of_the_sum)});
  }
  using Lies = OptimizerState::Lies;
  for (std::size_t i = 0; i < store.states().size(); ++i) {
    const OptimizerState& state = store.states()[i];
    if (state.lies == Lies::as_gradients) continue;
    const bool is_by_rank = state.lies == Lies::by_rank;
    all.push_back({state.name + (is_by_rank ? "_" : ""), is_by_rank, store.state_pieces(i)});
  }
  return all;
}

}  // namespace

std::vector<recover::HeldBox> unsent_boxes(const ParamStore& store) {
  const int rank = store.mesh().group(kTokenAxes).rank();
  std::vector<StateKind> kinds;
  for (Unsent& unsent : unsent_of(store)) {
    kinds.push_back({unsent.kinds_of({rank}).front(), std::move(unsent.pieces)});
  }
  return recover::boxes_of(kinds);
}

std::vector<recover::HeldBox> wanted_unsent(const ParamStore& store,
                                            const std::vector<int>& taken) {
  std::vector<StateKind> kinds;
  for (const Unsent& unsent : unsent_of(store)) {
    for (const std::string& kind : unsent.kinds_of(taken)) kinds.push_back({kind, unsent.pieces});
  }
  return recover::boxes_of(kinds);
}

void restore_unsent(const StateSource& source, ParamStore& store, const std::vector<int>& taken,
                    Stream& stream) {
  const ResidualReader reader(source, stream);
  for (const Unsent& unsent : unsent_of(store)) {
    for (const ParamPiece& piece : unsent.pieces) reader.read(piece, unsent.kinds_of(taken));
  }
}

std::vector<std::string> unsent_states(const ParamStore& store) {
  std::vector<std::string> names;
  for (const OptimizerState& state : store.states()) {
    if (state.lies != OptimizerState::Lies::as_gradients) names.push_back(state.name);
  }
  return names;
}

namespace {

bool has_residuals(const config::RunConfig& config) {
  return config.compress.codec(Compression::Kind::gradients) != nullptr &&
         config.compress.feeds_back();
}

bool has_errors(const config::RunConfig& config) {
  return config.optim.name == planner::Updates::onebit_adam;
}

/// Before 1-bit Adam has made a frozen step, it has lost nothing.
bool has_made_frozen_steps(const config::RunConfig& config, const RunState& state) {
  const std::int64_t done = state.step - state.skipped_updates;
  if (config.optim.freeze_step) return done > *config.optim.freeze_step;
  const auto frozen_at = state.optimizer.find("frozen_at");
  return frozen_at != state.optimizer.end() && static_cast<double>(done) > frozen_at->second;
}

}  // namespace

bool keeps_unsent(const config::RunConfig& config) {
  return has_residuals(config) || has_errors(config);
}

std::string unsent_text(const config::RunConfig& config, const RunState& state,
                        const MeshShape& mesh) {
  if (mesh.size(kTokenAxes) == 1 || state.step == 0) return "";
  if (has_errors(config) && has_made_frozen_steps(config, state)) return "errors of 1-bit Adam";
  return has_residuals(config) ? "residuals of gradients" : "";
}

}  // namespace heddle
