#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/json_fwd.h"
#include "checkpoint/manifest.h"
#include "checkpoint/own_boxes.h"
#include "checkpoint/state_source.h"
#include "engine/model.h"
#include "optim/optimizer.h"
#include "recover/checkfree.h"

namespace heddle {

/// Where a run stands between two steps: with the weights, the optimizer's states and the run file,
/// all that the rest of the run depends on.
struct RunState {
  std::int64_t step = 0;  ///< steps done; also the data cursor
  std::int64_t tokens = 0;
  std::int64_t skipped_updates = 0;  ///< of this rank's site
  double seconds = 0.0;              ///< of training so far
  std::optional<double> eval_loss = {};
  std::optional<double> best_eval_loss = {};
  std::int64_t evaluations_since_best = 0;  ///< with a loss that was not below it
  Optimizer::Numbers optimizer = {};        ///< what it keeps beside its states
  /// Blocks that were lost and made of others (recover/checkfree.h), and how many updates their
  /// moments have not seen.
  std::map<int, std::int64_t> made_anew = {};
  /// Blocks that nothing goes through until they are made of others (recover.stages = "skip"), with
  /// what these would be weighted by now.
  std::vector<recover::LostBlocks> left_out = {};
  /// StepResult::expert_load of the last step, where losses of the next go by it (Balance::global).
  std::vector<double> expert_load = {};
};

/// RunState::left_out as checkpoints and members have it.
Json left_out_json(const std::vector<recover::LostBlocks>& left_out);
std::vector<recover::LostBlocks> left_out_from(const Json& json);

/// Which sites train. They go by their numbers in the run file, also where others are lost.
struct SiteNumbers {
  std::vector<int> in_mesh = {};  ///< in the order of the axis; empty: 0, 1, ...
  bool are_apart = false;         ///< each saves for itself, and with it what is common

  int at(int coord) const {
    return in_mesh.empty() ? coord : in_mesh[static_cast<std::size_t>(coord)];
  }
  int of(const Mesh& mesh) const { return at(mesh.coord(Axis::site)); }
  std::vector<int> all(int sites) const;
};

/// Those that trained when it was written; empty where it was one that has no number.
std::vector<int> sites_of(const Manifest& manifest);

/// Where the run stood that wrote it, of the site with this number.
RunState run_state_of(const Manifest& manifest, int site = 0);

/// What a store keeps from step to step, by kind: the weights and the optimizer's states. Where
/// sites train apart, the outer weights are the weights, and what each has of its own lies under
/// kinds of the site (own_kind).
std::vector<StateKind> states_of(const ParamStore& store, const SiteNumbers& sites = {});
/// The same of a model: of one with adapters only their weights, as nothing else changes.
std::vector<StateKind> states_of(const Model& model, const SiteNumbers& sites = {});
/// Those of `pieces`, of its weights, that states_of a model has.
std::vector<ParamPiece> weights_kept(const Model& model, std::vector<ParamPiece> pieces);
/// "site1.exp_avg".
std::string own_kind(int site, const std::string& kind);

/// What kinds of a site's own begin with: "site1.", or nothing where the run has no sites.
std::string own_prefix(const ParamStore& store, const SiteNumbers& sites);

/// What becomes of states of the optimizer that a source does not have.
enum class MissingStates : std::uint8_t {
  are_refused,
  start_at_zero,     ///< those that it has of no parameter
  all_start_at_zero  ///< it is another optimizer's, and what it has is left behind
};

/// Of a run of sites that goes on.
struct RestoredSites {
  SiteNumbers now = {};
  std::vector<int> then = {};                 ///< that may be in the source (sites_of)
  std::vector<std::string> left_behind = {};  ///< states that start at zero all the same
};

/// What of such kinds this rank's site finds in a source: own_prefix, or that of another.
std::string stored_prefix(const StateSource& source, const ParamStore& store,
                          const RestoredSites& sites);

/// Puts this rank's weights and states back from `source`, whatever the mesh that saved them. A
/// state of which every rank has its own (OptimizerState::Lies::by_rank) goes on, when their number
/// is another, with its sum over ranks: rank r of N takes those of all q with q mod N = r. Where it
/// is not there it starts at zero. The first rank says so. A site whose number is not there takes
/// what is of another: number k that of entry k mod n of the n that are there.
/// Error(data) when something is missing, has another shape, or is not the model's.
void restore_state(const StateSource& source, Model& model, MissingStates missing, Stream& stream,
                   const RestoredSites& sites = {});

}  // namespace heddle
