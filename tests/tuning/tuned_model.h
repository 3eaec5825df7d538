#pragma once

#include <string>
#include <vector>

#include "comm/threads/thread_world.h"
#include "data/token_file.h"
#include "support/temporary_folder.h"
#include "verify/mesh.h"
#include "verify/shared_files.h"

namespace heddle {

/// A small llama with two key heads for four heads, from the files of a recipe.
inline std::filesystem::path small_llama() { return reference_folder() / "recipes" / "lora-llama"; }

/// A run of three steps of four sequences, on made-up tokens.
inline config::RunConfig small_run(const std::filesystem::path& folder) {
  constexpr std::int64_t kVocab = 53, kTokens = 2000, kDocument = 37;
  const std::filesystem::path tokens = folder / "data.tokens";
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> starts;
  for (std::int64_t i = 0; i < kTokens; ++i) {
    if (i % kDocument == 0) starts.push_back(i);
    ids.push_back(static_cast<std::int32_t>((i * i + 7 * i) % kVocab));
  }
  write_token_file(real_file_system(), tokens, {.vocab_size = kVocab}, ids, starts);
  config::RunConfig config;
  config.model.path = small_llama();
  config.data.train = tokens;
  config.data.seq_len = 16;
  config.train.steps = 3;
  config.train.microbatch = 1;
  config.train.tokens_per_step = 4 * 16;
  config.optim.lr = 1e-2;
  return config;
}

/// Compares the first steps of the run on a mesh with those on one rank.
inline MeshReport compare_mesh(config::RunConfig config, const ParallelRequest& mesh) {
  const TemporaryFolder work;
  config.parallel = mesh;
  MeshReport report;
  run_ranks(static_cast<int>(mesh.ranks()), [&](World& world) {
    const auto own = verify_mesh(config, {.work_folder = work.path()}, world);
    if (world.rank() == 0) report = own;
  });
  return report;
}

}  // namespace heddle
