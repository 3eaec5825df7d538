#include "train/run_state.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "ops/elementwise.h"
#include "parallel/exchange/outer_steps.h"

namespace heddle {
namespace {

/// What lies by rank; `stored` is the name under which this site finds a kind.
class RestoreByRank {
 public:
  using Stored = std::function<std::string(const std::string& kind)>;
  RestoreByRank(const StateSource& source, const ParamStore& store, std::size_t state,
                Stored stored, Stream& stream)
      : source_(source),
        store_(store),
        state_(state),
        stored_(std::move(stored)),
        name_(store.states()[state].name),
        ranks_(store.mesh().shape().size(kTokenAxes)),
        stream_(stream) {}

  void run() const {
    int theirs = 0;  // ranks that have written a state of their own
    while (!source_.names(kind_of(theirs)).empty()) ++theirs;
    const auto pieces = store_.state_pieces(state_);
    tell(theirs);
    if (theirs == 0) return;
    const int own = store_.mesh().group(kTokenAxes).rank();
    for (const ParamPiece& piece : pieces) {
      fill_from_host(piece, stream_, [&](const Tensor& to) {
        for (int rank = own; rank < theirs; rank += ranks_) add(piece, rank, rank == own, to);
      });
    }
  }

 private:
  std::string kind_of(int rank) const { return stored_(fmt::format("{}_{}", name_, rank)); }

  void add(const ParamPiece& piece, int rank, bool is_first, const Tensor& to) const {
    const std::string kind = kind_of(rank);
    const auto read = [&](const Tensor& out) {
      source_.read(kind, piece.part->name, piece.begin.sizes(), piece.end().sizes(), out);
    };
    if (is_first) return read(to);
    Memory host;
    Stream here(1);
    const Tensor more = host.alloc(to.shape(), to.dtype(), MemoryTag::workspace);
    read(more);
    ops::accumulate(more, to, here);
  }

  void tell(int theirs) const {
    if (theirs == ranks_ || store_.mesh().rank() != 0 || (theirs == 0 && ranks_ == 1)) return;
    if (theirs == 0) {
      log_info("{} has no {}: it starts at zero on {} ranks", source_.place(), name_, ranks_);
    } else if (ranks_ == 1) {
      log_info("{} of {} ranks is left behind: a single rank loses nothing", name_, theirs);
    } else {
      log_info("{} of {} ranks goes on on {}: each takes those of every {}th, and their sum stays",
               name_, theirs, ranks_, ranks_);
    }
  }

  const StateSource& source_;
  const ParamStore& store_;
  const std::size_t state_;
  const Stored stored_;
  const std::string name_;
  const int ranks_;
  Stream& stream_;
};

}  // namespace

RunState run_state_of(const Manifest& manifest, int site) {
  const auto skipped = manifest.trainer->value(
      "skipped_updates_by_site",
      std::vector<std::int64_t>{manifest.trainer->value("skipped_updates", std::int64_t{0})});
  return {.step = manifest.step,
          .tokens = manifest.tokens,
          .skipped_updates = skipped[static_cast<std::size_t>(site) % skipped.size()],
          .seconds = manifest.trainer->value("seconds", 0.0),
          .eval_loss = manifest.eval_loss,
          .optimizer = manifest.trainer->value("optimizer", Optimizer::Numbers{})};
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
                                                        : own(store.state_kind(i)),
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
  using Lies = OptimizerState::Lies;
  const auto kinds = states_of(model.store());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const auto& [own, pieces] = kinds[i];
    const std::string kind = stored_kind(own, site, sites, sites_then);
    const bool is_optimizers = own != kWeightsKind && own != own_kind(site, kWeightsKind);
    if (is_optimizers && missing == MissingStates::all_start_at_zero) continue;
    const Lies lies = is_optimizers ? model.store().states()[i - 1].lies : Lies::as_gradients;
    if (lies == Lies::by_rank) {
      const auto stored = [&](const std::string& state) {
        return stored_kind(sites > 1 ? own_kind(site, state) : state, site, sites, sites_then);
      };
      RestoreByRank(source, model.store(), i - 1, stored, stream).run();
      continue;
    }
    if (is_optimizers && source.names(kind).empty()) {
      if (missing == MissingStates::start_at_zero || lies == Lies::by_chunk) continue;
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
