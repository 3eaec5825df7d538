// Prints a line for every model and mesh of the grid: hashes of the losses and norms, of the
// gradients, and of the trained weights of a few steps. Equal lines mean equal bits.
// scripts/mesh_bits.sh compares the lines of two commits.
#include <fmt/format.h>

#include <array>
#include <bit>
#include <iostream>
#include <span>

#include "base/sha256.h"
#include "comm/threads/thread_world.h"
#include "parity/rank_training.h"
#include "parity/whole_tensors.h"

namespace heddle {
namespace {

constexpr BatchShape kBatch{.sequences = 2, .seq_len = 13, .microbatches = 4};
constexpr std::size_t kShownDigits = 16;

std::string hash_of(const WholeTensors& tensors) {
  Sha256 hash;
  for (const auto& [name, values] : tensors.by_name()) {
    hash.update(std::as_bytes(std::span(name)));
    const std::vector<float> floats(values.begin(), values.end());
    hash.update(std::as_bytes(std::span(floats)));
  }
  return hash.finish().substr(0, kShownDigits);
}

std::string hash_of(const std::vector<StepResult>& results) {
  Sha256 hash;
  for (const StepResult& result : results) {
    const std::array<std::uint64_t, 2> bits = {std::bit_cast<std::uint64_t>(result.loss),
                                               std::bit_cast<std::uint64_t>(result.grad_norm)};
    hash.update(std::as_bytes(std::span(bits)));
  }
  return hash.finish().substr(0, kShownDigits);
}

std::string line_of(const ModelSpec& spec, const MeshCase& mesh) {
  WholeTensors gradients, trained;
  std::vector<StepResult> results;
  run_ranks(mesh.ranks(), [&](World& world) {
    RankTraining training(spec, mesh, kBatch, world);
    std::vector<StepResult> own = {training.gradients()};
    gradients.gather(training.model().store().grad_pieces(), world);
    for (const int step : {1, 2, 3}) own.push_back(training.run(step));
    trained.gather(training.model().store().value_pieces(), world);
    if (world.rank() == 0) results = own;
  });
  return fmt::format("{} {} losses {} gradients {} weights {}", spec.family, name_of(mesh),
                     hash_of(results), hash_of(gradients), hash_of(trained));
}

}  // namespace
}  // namespace heddle

int main() {
  using namespace heddle;
  for (const ModelSpec& spec : grid_specs()) {
    std::cout << line_of(spec, {{.dp = 1}}) << "\n";
    for (const MeshCase& mesh : mesh_cases()) {
      if (fits(spec, mesh.request)) std::cout << line_of(spec, mesh) << "\n" << std::flush;
    }
  }
}
