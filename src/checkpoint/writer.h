#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/json_fwd.h"
#include "checkpoint/hf_folder_writer.h"
#include "checkpoint/slice.h"

namespace heddle {

/// All that a checkpoint keeps. The tensors are only read.
struct CheckpointContent {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  std::optional<double> eval_loss;
  std::string mesh;
  std::vector<SliceEntry> weights;  ///< under their Hugging Face names
  std::vector<SliceEntry>
      optimizer;                     ///< "exp_avg.NAME", "exp_avg_sq.NAME": one file per first word
  std::vector<TextFile> companions;  ///< config.json and the tokenizer's files
  std::shared_ptr<const Json> trainer;  ///< an object: data cursor and whatever resuming needs
  std::uint64_t max_shard_bytes = kDefaultMaxShardBytes;
};

/// Writes `root/step-NNNNNN` and returns its path once it is durable. At every moment, also when
/// the process is killed or the power fails, find_latest(root) gives a whole checkpoint if there
/// was one before: all is written and synced in a folder beside, then renamed; a checkpoint of the
/// same step stays until the new one has its name. Whole weights make a plain Hugging Face folder.
/// Failure (a full disk, found before writing where possible) throws Error(resources) and leaves
/// what was there. One writer per root: leftovers of crashed ones are removed first.
std::filesystem::path write_checkpoint(FileSystem& files, const std::filesystem::path& root,
                                       const CheckpointContent& content);

}  // namespace heddle
