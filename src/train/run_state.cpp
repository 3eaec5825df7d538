#include "train/run_state.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "ops/elementwise.h"

namespace heddle {
namespace {

std::string kind_of_rank(const std::string& name, int rank) {
  return fmt::format("{}_{}", name, rank);
}

/// How many ranks have written a state of their own.
int ranks_in(const StateSource& source, const std::string& name) {
  int ranks = 0;
  while (!source.names(kind_of_rank(name, ranks)).empty()) ++ranks;
  return ranks;
}

/// What lies by rank.
class RestoreByRank {
 public:
  RestoreByRank(const StateSource& source, const ParamStore& store, std::size_t state,
                Stream& stream)
      : source_(source),
        store_(store),
        state_(state),
        name_(store.states()[state].name),
        ranks_(store.mesh().shape().size(kTokenAxes)),
        stream_(stream) {}

  void run() const {
    const int theirs = ranks_in(source_, name_);
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
  void add(const ParamPiece& piece, int rank, bool is_first, const Tensor& to) const {
    const std::string kind = kind_of_rank(name_, rank);
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
  const std::string name_;
  const int ranks_;
  Stream& stream_;
};

}  // namespace

RunState run_state_of(const Manifest& manifest) {
  return {.step = manifest.step,
          .tokens = manifest.tokens,
          .skipped_updates = manifest.trainer->value("skipped_updates", std::int64_t{0}),
          .seconds = manifest.trainer->value("seconds", 0.0),
          .eval_loss = manifest.eval_loss,
          .optimizer = manifest.trainer->value("optimizer", Optimizer::Numbers{})};
}

std::vector<StateKind> states_of(const ParamStore& store) {
  std::vector<StateKind> kinds = {{kWeightsKind, store.value_pieces()}};
  for (std::size_t i = 0; i < store.states().size(); ++i) {
    kinds.push_back({store.state_kind(i), store.state_pieces(i)});
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
  using Lies = OptimizerState::Lies;
  const auto kinds = states_of(model.store());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const auto& [kind, pieces] = kinds[i];
    const bool is_optimizers = kind != kWeightsKind;
    if (is_optimizers && missing == MissingStates::all_start_at_zero) continue;
    const Lies lies = is_optimizers ? model.store().states()[i - 1].lies : Lies::as_gradients;
    if (lies == Lies::by_rank) {
      RestoreByRank(source, model.store(), i - 1, stream).run();
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
