#include "train/run_state.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "parallel/exchange/outer_steps.h"

namespace heddle {

RunState run_state_of(const Manifest& manifest, int site) {
  const auto skipped = manifest.trainer->value(
      "skipped_updates_by_site",
      std::vector<std::int64_t>{manifest.trainer->value("skipped_updates", std::int64_t{0})});
  return {.step = manifest.step,
          .tokens = manifest.tokens,
          .skipped_updates = skipped[static_cast<std::size_t>(site) % skipped.size()],
          .seconds = manifest.trainer->value("seconds", 0.0),
          .eval_loss = manifest.eval_loss};
}

std::vector<StateKind> states_of(const ParamStore& store) {
  const Mesh& mesh = store.mesh();
  const bool has_sites = mesh.size(Axis::site) > 1;
  const auto own = [&](const std::string& kind) {
    return has_sites ? own_kind(mesh.coord(Axis::site), kind) : kind;
  };
  std::vector<StateKind> kinds = {{own(kWeightsKind), store.value_pieces()}};
  for (std::size_t i = 0; i < store.states().size(); ++i) {
    const OptimizerState& state = store.states()[i];
    kinds.push_back({state.name == OuterSteps::kWeights ? kWeightsKind
                     : state.is_common                  ? state.name
                                                        : own(state.name),
                     store.state_pieces(i)});
  }
  return kinds;
}

std::string own_kind(int site, const std::string& kind) {
  return fmt::format("site{}.{}", site, kind);
}

namespace {

/// How many wrote it; 1 where nothing in it is of a site.
int sites_of(const StateSource& source) {
  int sites = 0;
  while (!source.names(own_kind(sites, kWeightsKind)).empty()) ++sites;
  return std::max(1, sites);
}

/// What a site goes on with, of a source that so many sites wrote: its own, or where there was no
/// such site, that of another.
std::string stored_kind(const std::string& kind, int site, int sites, int sites_then) {
  const bool is_own = sites == 1 || kind.starts_with(own_kind(site, ""));
  if (!is_own || sites == sites_then || (sites == 1 && kind == kWeightsKind)) return kind;
  const std::string bare = sites == 1 ? kind : kind.substr(own_kind(site, "").size());
  return sites_then == 1 ? bare : own_kind(site % sites_then, bare);
}

}  // namespace

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
  const int site = model.mesh().coord(Axis::site), sites = model.mesh().size(Axis::site);
  const int sites_then = sites_of(source);
  if (sites != sites_then && model.mesh().rank() == 0) {
    log_info(
        "{} was written by {} site{}: site k goes on with the weights and states of site k "
        "mod {}",
        source.place(), sites_then, sites_then == 1 ? "" : "s", sites_then);
  }
  for (const auto& [own, pieces] : states_of(model.store())) {
    const std::string kind = stored_kind(own, site, sites, sites_then);
    const bool is_optimizers = own != kWeightsKind && own != own_kind(site, kWeightsKind);
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
