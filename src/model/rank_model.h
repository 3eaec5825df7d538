#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/decoder.h"
#include "model/parallel_plan.h"
#include "parallel/exchange/coded_messages.h"
#include "parallel/param_store.h"

namespace heddle {

/// The part of a model that one rank of a plan has: its layers, its parameters, and both as steps
/// see them. On a dry memory nothing is allocated: planners look at it without a run.
struct RankModel {
  std::shared_ptr<BadNotes> notes;          ///< of its encodings, where something is compressed
  std::unique_ptr<CodedMessages> messages;  ///< between stages, where those are
  Decoder decoder;
  std::unique_ptr<ParamStore> store;
  RankUnits units;
  // By unit:
  std::vector<Layer*> layers;
  std::vector<UnitLabel> labels;
};

/// `mesh` is the rank's, of the plan's shape, and outlives the result.
RankModel build_rank_model(const ModelSpec& spec, const BuildOptions& options,
                           const ParallelPlan& plan, const Mesh& mesh, ParamStore::Purpose purpose,
                           Memory& memory);

/// Adds the collectives that its layers make for a micro-batch of this shape to the rank's units.
void add_layer_calls(RankModel& rank, const Mesh& mesh, const CostShape& shape);

}  // namespace heddle
