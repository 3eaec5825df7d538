#pragma once

#include <string>
#include <vector>

#include "comm/world.h"
#include "engine/memory_plan.h"
#include "engine/train_step.h"
#include "parity/mesh_cases.h"

namespace heddle {

/// One of the project's reference models, with another number of layers: deep enough for any
/// pipeline of the grid.
ModelSpec deep_spec(const std::string& name, std::int64_t layers);

/// The models that traffic and memory are shown for. Together they have everything that a formula
/// must know of: one and several key heads, biases, norms with and without, tied and untied
/// embeddings, learned positions, vocabularies that do not divide.
std::vector<ModelSpec> grid_specs();

/// Lengths of documents that fill two sequences of 13 tokens, for micro-batches in turn.
inline const std::vector<std::int64_t> kPackedDocuments[] = {
    {5, 8, 13}, {1, 1, 11, 2, 10, 1}, {13, 6, 7}};

/// A model of random weights on one rank of a mesh, with all that a step needs. The weights and
/// the step's data do not depend on the mesh: data-parallel rank r has the micro-batches
/// [r * m, (r + 1) * m) of one sequence of them.
class RankTraining {
 public:
  RankTraining(const ModelSpec& spec, const MeshCase& mesh, const BatchShape& batch, World& world,
               const OptimizerConfig& optimizer = {}, const StepPolicy& policy = {});

  static BuildOptions build_options(const MeshCase& mesh, const BatchShape& batch);

  Model& model() { return model_; }
  const Mesh& mesh() const { return mesh_; }
  const ParallelPlan& plan() const { return plan_; }
  Memory& memory() { return memory_; }
  World& world() { return world_; }
  TrainStep& step() { return step_; }
  const std::vector<MicroBatch>& batches() const { return batches_; }

  /// Makes a micro-batch one of packed documents, whose lengths fill its sequences one by one.
  void pack(int microbatch, const std::vector<std::int64_t>& documents);

  StepResult run(std::int64_t step, double lr = 1e-3) {
    return step_.run(batches_, {.lr = lr, .step = step}, 1.0);
  }
  StepResult gradients() { return step_.gradients(batches_); }

 private:
  MicroBatch batch(const BatchShape& shape, std::uint64_t index);

  World& world_;
  Memory memory_;
  Stream stream_{1};
  const ParallelPlan plan_;
  const Mesh mesh_;
  Model model_;
  const std::unique_ptr<Optimizer> optimizer_;
  TrainStep step_;
  std::vector<MicroBatch> batches_;
};

}  // namespace heddle
