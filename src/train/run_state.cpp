#include "train/run_state.h"

#include <algorithm>
#include <numeric>

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

std::vector<int> SiteNumbers::all(int sites) const {
  if (!in_mesh.empty()) return in_mesh;
  std::vector<int> numbers(static_cast<std::size_t>(sites));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

std::vector<int> sites_of(const Manifest& manifest) {
  const Json& trainer = *manifest.trainer;
  if (const auto sites = trainer.find("sites"); sites != trainer.end()) return *sites;
  const auto skipped = trainer.value("skipped_updates_by_site", std::vector<std::int64_t>());
  return SiteNumbers().all(static_cast<int>(skipped.size()));
}

RunState run_state_of(const Manifest& manifest, int site) {
  const auto skipped = manifest.trainer->value(
      "skipped_updates_by_site",
      std::vector<std::int64_t>{manifest.trainer->value("skipped_updates", std::int64_t{0})});
  const std::vector<int> sites = sites_of(manifest);
  const auto own = std::ranges::find(sites, site);
  const std::size_t at = own != sites.end() ? static_cast<std::size_t>(own - sites.begin())
                                            : static_cast<std::size_t>(site) % skipped.size();
  std::optional<double> best;
  if (const auto found = manifest.trainer->find("best_eval_loss");
      found != manifest.trainer->end()) {
    best = found->get<double>();
  }
  return {
      .step = manifest.step,
      .tokens = manifest.tokens,
      .skipped_updates = skipped[at],
      .seconds = manifest.trainer->value("seconds", 0.0),
      .eval_loss = manifest.eval_loss,
      .best_eval_loss = best,
      .evaluations_since_best = manifest.trainer->value("evaluations_since_best", std::int64_t{0}),
      .optimizer = manifest.trainer->value("optimizer", Optimizer::Numbers{}),
      .made_anew = manifest.trainer->value("made_anew", std::map<int, std::int64_t>{}),
      .left_out = left_out_from(manifest.trainer->value("left_out", Json::array())),
      .expert_load = manifest.trainer->value("expert_load", std::vector<double>{})};
}

Json left_out_json(const std::vector<recover::LostBlocks>& left_out) {
  Json json = Json::array();
  for (const recover::LostBlocks& blocks : left_out) {
    json.push_back({{"begin", blocks.begin},
                    {"end", blocks.end},
                    {"before", blocks.before},
                    {"after", blocks.after},
                    {"weights", {blocks.weight_before, blocks.weight_after}}});
  }
  return json;
}

std::vector<recover::LostBlocks> left_out_from(const Json& json) {
  std::vector<recover::LostBlocks> left_out;
  for (const Json& blocks : json) {
    left_out.push_back({.begin = blocks.at("begin"),
                        .end = blocks.at("end"),
                        .before = blocks.at("before"),
                        .after = blocks.at("after"),
                        .weight_before = blocks.at("weights").at(0),
                        .weight_after = blocks.at("weights").at(1)});
  }
  return left_out;
}

namespace {

/// Also where a single one is left.
bool has_sites(const ParamStore& store) {
  return std::ranges::any_of(store.states(), [](const OptimizerState& state) {
    return state.name == OuterSteps::kWeights;
  });
}

}  // namespace

std::string own_prefix(const ParamStore& store, const SiteNumbers& sites) {
  return has_sites(store) ? own_kind(sites.of(store.mesh()), "") : "";
}

std::vector<StateKind> states_of(const ParamStore& store, const SiteNumbers& sites) {
  const auto own = [&](const std::string& kind) { return own_prefix(store, sites) + kind; };
  std::vector<StateKind> kinds = {{own(kWeightsKind), store.value_pieces()}};
  for (std::size_t i = 0; i < store.states().size(); ++i) {
    const OptimizerState& state = store.states()[i];
    kinds.push_back({state.name == OuterSteps::kWeights ? kWeightsKind
                     : state.is_common                  ? state.name
                                                        : own(store.state_kind(i)),
                     store.state_pieces(i, sites.are_apart)});
  }
  return kinds;
}

std::vector<ParamPiece> weights_kept(const Model& model, std::vector<ParamPiece> pieces) {
  if (!model.spec().tuning.lora) return pieces;
  // Asked of the model: a rank's stage may have no adapters at all.
  std::erase_if(pieces, [](const ParamPiece& piece) { return !piece.parameter->is_adapter; });
  return pieces;
}

std::vector<StateKind> states_of(const Model& model, const SiteNumbers& sites) {
  std::vector<StateKind> kinds = states_of(model.store(), sites);
  kinds.front().pieces = weights_kept(model, std::move(kinds.front().pieces));
  return kinds;
}

std::string own_kind(int site, const std::string& kind) {
  return fmt::format("site{}.{}", site, kind);
}

namespace {

/// Under which names a site finds what it goes on with.
class StoredKinds {
 public:
  /// `site`: -1 where the run has one only, which has no number. `then`: that may be there.
  StoredKinds(const StateSource& source, int site, std::vector<int> then)
      : site_(site), there_(std::move(then)) {
    std::erase_if(there_,
                  [&](int other) { return source.names(own_kind(other, kWeightsKind)).empty(); });
    from_ = source_of(site);
  }

  /// Of this site, of what it calls so.
  std::string of(const std::string& kind) const {
    const std::string prefix = site_ < 0 ? "" : own_kind(site_, "");
    if (!kind.starts_with(prefix) || (site_ < 0 && kind == kWeightsKind)) return kind;  // common
    const std::string bare = kind.substr(prefix.size());
    return from_ < 0 ? bare : own_kind(from_, bare);
  }
  /// What another site finds; -1: what has no number.
  int source_of(int site) const {
    if (there_.empty()) return -1;
    if (std::ranges::find(there_, site) != there_.end()) return site;
    return there_[static_cast<std::size_t>(std::max(0, site)) % there_.size()];
  }

 private:
  const int site_;
  std::vector<int> there_;
  int from_ = -1;
};

/// Says what sites go on with that is not their own.
void tell_sources(const StateSource& source, const StoredKinds& kinds,
                  const std::vector<int>& sites) {
  for (const int site : sites) {
    const int from = kinds.source_of(site);
    if (from == site) continue;
    log_info("{} has nothing of {}: {} goes on with the {} of {}", source.place(),
             site < 0 ? "a single site" : fmt::format("site {}", site), site < 0 ? "it" : "that",
             site < 0 ? "outer weights, and the states" : "weights and states",
             from < 0 ? std::string("its only one") : fmt::format("site {}", from));
  }
}

}  // namespace

std::string stored_prefix(const StateSource& source, const ParamStore& store,
                          const RestoredSites& sites) {
  const int site = has_sites(store) ? sites.now.of(store.mesh()) : -1;
  return StoredKinds(source, site, sites.then).of(own_prefix(store, sites.now));
}

void restore_state(const StateSource& source, Model& model, MissingStates missing, Stream& stream,
                   const RestoredSites& sites) {
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
  const Mesh& mesh = model.mesh();
  const int site = has_sites(model.store()) ? sites.now.of(mesh) : -1;
  const StoredKinds stored_kinds(source, site, sites.then);
  const bool speaks =
      sites.now.are_apart ? mesh.shape().is_first(kStepAxes, mesh.rank()) : mesh.rank() == 0;
  if (speaks) {
    tell_sources(
        source, stored_kinds,
        site < 0 || sites.now.are_apart ? std::vector{site} : sites.now.all(mesh.size(Axis::site)));
  }
  using Lies = OptimizerState::Lies;
  const std::string prefix = own_prefix(model.store(), sites.now);
  const auto kinds = states_of(model, sites.now);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const auto& [own, pieces] = kinds[i];
    const std::string kind = stored_kinds.of(own);
    const bool is_optimizers = own != kWeightsKind && own != prefix + kWeightsKind;
    if (is_optimizers &&
        std::ranges::count(sites.left_behind, model.store().states()[i - 1].name) > 0) {
      continue;
    }
    if (is_optimizers && missing == MissingStates::all_start_at_zero) continue;
    const Lies lies = is_optimizers ? model.store().states()[i - 1].lies : Lies::as_gradients;
    if (lies == Lies::by_rank) {
      const auto stored = [&](const std::string& state) { return stored_kinds.of(prefix + state); };
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
