#include "planner/matrix_work.h"

#include <algorithm>
#include <vector>

#include "parallel/whole_matrices.h"
#include "planner/collectives.h"
#include "planner/gemm.h"
#include "planner/rank_sizes.h"

namespace heddle::planner {
namespace {

using InnerMatrix = DryBlocks::InnerMatrix;

/// The matrices of block `index`, counted from the first of the rank.
std::vector<InnerMatrix> matrices_of(const DryBlocks& dry, std::int64_t index) {
  std::vector<InnerMatrix> own;
  for (const InnerMatrix& matrix : dry.inner_matrices) {
    if (matrix.kind == index % dry.kinds) own.push_back(matrix);
  }
  return own;
}

/// Elements of a block's inner matrices that ZeRO leaves this rank; those that ranks of tp hold
/// several times count where `counts_copies`.
std::int64_t inner_elements_of(const DryBlocks& dry, std::int64_t index, std::int64_t begin,
                               std::int64_t end, bool counts_copies) {
  std::int64_t elements = 0;
  for (const auto& [kind, at, count, copied] : dry.inner_parameters) {
    if (kind != index % dry.kinds) continue;
    const std::int64_t last = at + count - (counts_copies ? 0 : copied);
    elements += std::max<std::int64_t>(0, std::min(end, last) - std::max(begin, at));
  }
  return elements;
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
                       const DryBlocks& dry, std::int64_t blocks, const StagePlace& place) {
  const int dp = candidate.zero > 0 ? candidate.token_ranks() : 1, tp = candidate.tp;
  MatrixWork work{.ranks = dp * tp, .traffic = {}, .flops = 0, .seconds = 0};
  const int own = (dp > 1 ? place.dp_rank : 0) * tp + place.tp_rank;
  std::int64_t returned = 0;  // elements of this rank's matrices, for all that hold them
  std::int64_t rounds = 0;
  for (std::int64_t first = 0; first < blocks; first += work.ranks, ++rounds) {
    std::vector<InnerMatrix> matrices;
    std::vector<double> costs;
    for (std::int64_t i = first; i < std::min(blocks, first + work.ranks); ++i) {
      for (const InnerMatrix& matrix : matrices_of(dry, i)) {
        matrices.push_back(matrix);
        costs.push_back(gram_cost(matrix.shape));
      }
    }
    const auto owners = owners_of(costs, work.ranks);
    for (std::size_t i = 0; i < owners.size(); ++i) {
      if (owners[i] != own) continue;
      returned += matrices[i].shape.count() * matrices[i].holders;
      work.flops += job.stack.newton_schulz_steps * 2.0 * costs[i];
      work.seconds +=
          job.stack.newton_schulz_steps * iteration_seconds(machine, job, matrices[i].shape);
    }
  }
  if (work.ranks == 1 || blocks == 0) return work;
  std::int64_t sent = 0;
  const RankSizes sizes(job.spec, candidate, {dry.block_elements()}, {.blocks = 1});
  const auto held = static_cast<std::int64_t>(sizes.held_elements(1));
  const std::int64_t begin = dp > 1 ? held * place.dp_rank : 0;
  for (std::int64_t i = 0; i < blocks; ++i) {
    sent += inner_elements_of(dry, i, begin, begin + held, place.tp_rank % dry.copies == 0);
  }
  auto& counts = work.traffic.by_op[static_cast<std::size_t>(CommOp::all_to_all)];
  counts.calls = 2 * rounds;
  counts.payload_bytes = static_cast<std::int64_t>(job.stack.gradient_bytes) * (sent + returned);
  counts.wire_bytes = counts.payload_bytes;
  const GroupShape group = group_shape(machine, work.ranks, dp == 1 || tp > 1 ? 1 : candidate.tp);
  const auto calls = static_cast<double>(counts.calls);
  work.seconds += calls * collective_seconds(machine, CommOp::all_to_all, group,
                                             static_cast<double>(counts.payload_bytes) / calls);
  return work;
}

}  // namespace heddle::planner
