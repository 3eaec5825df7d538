#include "train/run_state.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"

namespace heddle {

RunState run_state_of(const Manifest& manifest) {
  return {.step = manifest.step,
          .tokens = manifest.tokens,
          .skipped_updates = manifest.trainer->value("skipped_updates", std::int64_t{0}),
          .seconds = manifest.trainer->value("seconds", 0.0),
          .eval_loss = manifest.eval_loss};
}

std::vector<StateKind> states_of(const ParamStore& store) {
  std::vector<StateKind> kinds = {{kWeightsKind, store.value_pieces()}};
  for (std::size_t i = 0; i < store.states().size(); ++i) {
    kinds.push_back({store.states()[i].name, store.state_pieces(i)});
  }
  return kinds;
}

void restore_state(const StateSource& source, Model& model, MissingStates missing, Stream& stream) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::data, source.place() + what,
                "the run file's model changed since; start afresh with --fresh or another run.dir");
  };
  const auto known = tensor_names(model.spec());
  for (const std::string& name : source.names(kWeightsKind)) {
    if (std::ranges::find(known, name) == known.end()) {
      refuse(fmt::format(" has {}, which the model has not", name));
    }
  }
  for (const auto& [kind, pieces] : states_of(model.store())) {
    const bool is_optimizers = kind != kWeightsKind;
    if (is_optimizers && missing == MissingStates::all_start_at_zero) continue;
    if (is_optimizers && source.names(kind).empty()) {
      if (missing == MissingStates::start_at_zero) continue;
      throw Error(
          ErrorCode::usage,
          fmt::format("{} has no {}, which the optimizer keeps: another optimizer wrote it, "
                      "or one with other settings",
                      source.place(), kind),
          "--accept-changes lets it start at zero, --fresh starts over");
    }
    for (const ParamPiece& piece : pieces) {
      const std::string& name = piece.part->name;
      const bool has_master = kind == kWeightsKind && source.shape(kMasterKind, name);
      const std::string stored = has_master ? kMasterKind : kind;
      if (source.shape(stored, name) != piece.part->whole) {
        refuse(fmt::format(": {} is not there with shape {}", state_key(stored, name),
                           piece.part->whole.text()));
      }
      fill_from_host(piece, stream, [&](const Tensor& to) {
        source.read(stored, name, piece.begin.sizes(), piece.end().sizes(), to);
      });
    }
  }
  model.store().values_changed(stream);
}

}  // namespace heddle
