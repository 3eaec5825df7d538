#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/box_writer.h"
#include "checkpoint/staging.h"
#include "checkpoint/state_source.h"

namespace heddle::testing_support {

/// A box of a named tensor: all of a tensor of `whole`, or a part that begins at `begin`.
struct Entry {
  std::string kind, name;
  Shape whole, begin;
  Tensor data;  ///< contiguous
};

inline Entry whole_entry(const std::string& kind, const std::string& name, const Tensor& data) {
  Shape origin = data.shape();
  for (int dim = 0; dim < origin.dims(); ++dim) origin.set(dim, 0);
  return {kind, name, data.shape(), origin, data};
}

struct CheckpointContent {
  std::int64_t step = 0, tokens = 0;
  std::optional<double> eval_loss = {};
  std::string mesh = {};
  std::vector<Entry> entries = {};
  std::vector<TextFile> companions = {};
  std::shared_ptr<const Json> trainer = {};
  std::uint64_t max_shard_bytes = kDefaultMaxShardBytes;
  int writers = 2;  ///< that take the entries in turn
};

inline CheckpointLayout layout_of(const CheckpointContent& content) {
  std::vector<KeptTensor> tensors;
  for (const Entry& entry : content.entries) {
    const bool is_known = std::ranges::any_of(tensors, [&](const KeptTensor& tensor) {
      return tensor.kind == entry.kind && tensor.name == entry.name;
    });
    if (!is_known) tensors.push_back({entry.kind, entry.name, entry.data.dtype(), entry.whole});
  }
  return CheckpointLayout(tensors, content.max_shard_bytes);
}

/// What the ranks of a run do together, one after another; what fails is cleaned up as they do.
inline std::filesystem::path write_checkpoint(FileSystem& files, const std::filesystem::path& root,
                                              const CheckpointContent& content) {
  const CheckpointLayout layout = layout_of(content);
  std::vector<TextFile> texts = content.companions;
  if (!layout.index().empty()) texts.push_back({kShardIndexFile, layout.index()});
  const auto staged = stage_checkpoint(files, root, content.step, layout, 0);
  try {
    for (int writer = 0; writer < content.writers; ++writer) {
      BoxWriter boxes(files, staged, layout);
      if (writer == 0) boxes.write_headers();
      for (std::size_t i = 0; i < content.entries.size(); ++i) {
        if (static_cast<int>(i) % content.writers != writer) continue;
        const Entry& entry = content.entries[i];
        boxes.write(entry.kind, entry.name, entry.begin, entry.data);
      }
      leave_records(files, staged, writer, boxes.finish());
    }
    return commit_checkpoint(files, staged,
                             {.step = content.step,
                              .tokens = content.tokens,
                              .eval_loss = content.eval_loss,
                              .mesh = content.mesh,
                              .trainer = content.trainer,
                              .files = {}},
                             texts, content.writers);
  } catch (const Error&) {
    abandon_checkpoint(files, staged);
    throw;
  }
}

}  // namespace heddle::testing_support
