#include "planner/matrix_work.h"

#include <algorithm>
#include <vector>

#include "parallel/whole_matrices.h"
#include "planner/collectives.h"
#include "planner/gemm.h"
#include "planner/volumes.h"

namespace heddle::planner {
namespace {

constexpr int kIterations = 5;

/// A matrix of a block, as the Hugging Face model has it.
struct Matrix {
  Shape shape;
  std::int64_t holders = 1;  ///< of each of its elements
};

std::vector<Matrix> matrices_of_block(const ModelSpec& spec, std::int64_t copies) {
  const std::int64_t q = spec.heads * spec.head_dim, kv = spec.kv_heads * spec.head_dim;
  std::vector<Matrix> all;
  if (spec.names.fused_qkv.empty()) {
    all = {{{q, spec.hidden}}, {{kv, spec.hidden}, copies}, {{kv, spec.hidden}, copies}};
  } else {
    all = {{{q + 2 * kv, spec.hidden}}};
  }
  all.push_back({{spec.hidden, q}});
  if (spec.mlp == ModelSpec::Mlp::swiglu) all.push_back({{spec.ffn, spec.hidden}});
  all.push_back({{spec.ffn, spec.hidden}});
  all.push_back({{spec.hidden, spec.ffn}});
  return all;
}

double iteration_seconds(const Machine& machine, const Job& job, const Shape& matrix) {
  const auto less = static_cast<double>(std::min(matrix[0], matrix[1]));
  const auto more = static_cast<double>(std::max(matrix[0], matrix[1]));
  const auto product = [&](double m, double n, double k) {
    return gemm_seconds(machine.device, machine.device.matrix_rate(job.stack.compute),
                        job.stack.element_bytes(), {m, n, k});
  };
  return product(less, less, more) + product(less, less, less) + product(less, more, less);
}

}  // namespace

MatrixWork matrix_work(const Machine& machine, const Job& job, const Candidate& candidate,
                       std::int64_t blocks, const StagePlace& place) {
  const int dp = candidate.zero > 0 ? candidate.dp : 1, tp = candidate.tp;
  const int copies = std::max(1, tp / static_cast<int>(job.spec.kv_heads));
  MatrixWork work{.ranks = dp * tp, .traffic = {}, .flops = 0, .seconds = 0};
  const int own = (dp > 1 ? place.dp_rank : 0) * tp + place.tp_rank;
  const auto of_block = matrices_of_block(job.spec, copies);
  std::int64_t returned = 0;  // elements of this rank's matrices, for all that hold them
  std::int64_t rounds = 0;
  for (std::int64_t first = 0; first < blocks; first += work.ranks, ++rounds) {
    std::vector<double> costs;
    for (std::int64_t i = first; i < std::min(blocks, first + work.ranks); ++i) {
      for (const Matrix& matrix : of_block) costs.push_back(gram_cost(matrix.shape));
    }
    const auto owners = owners_of(costs, work.ranks);
    for (std::size_t i = 0; i < owners.size(); ++i) {
      if (owners[i] != own) continue;
      const Matrix& matrix = of_block[i % of_block.size()];
      returned += matrix.shape.count() * matrix.holders;
      work.flops += kIterations * 2.0 * costs[i];
      work.seconds += kIterations * iteration_seconds(machine, job, matrix.shape);
    }
  }
  if (work.ranks == 1 || blocks == 0) return work;
  const StepShape step{.seq_len = job.seq_len};
  const Volumes volumes(job.spec, candidate, step, {.blocks = blocks}, 0, place.dp_rank);
  const std::int64_t sent = volumes.inner_elements(place.tp_rank % copies == 0);
  auto& counts = work.traffic.by_op[static_cast<std::size_t>(CommOp::all_to_all)];
  counts.calls = 2 * rounds;
  counts.payload_bytes = static_cast<std::int64_t>(job.stack.gradient_bytes) * (sent + returned);
  const GroupShape group = group_shape(machine, work.ranks, dp == 1 || tp > 1 ? 1 : candidate.tp);
  const auto calls = static_cast<double>(counts.calls);
  work.seconds += calls * collective_seconds(machine, CommOp::all_to_all, group,
                                             static_cast<double>(counts.payload_bytes) / calls);
  return work;
}

}  // namespace heddle::planner
