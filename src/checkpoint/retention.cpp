#include "checkpoint/retention.h"

#include <unistd.h>

#include <algorithm>
#include <limits>

#include "checkpoint/catalog.h"

namespace heddle {
namespace fs = std::filesystem;

std::vector<fs::path> expired_checkpoints(const fs::path& root, const RetentionPolicy& policy) {
  struct Judged {
    fs::path path;
    std::int64_t step;
    double eval_loss;
    bool is_whole;
  };
  std::vector<Judged> all;  // newest first
  double best = std::numeric_limits<double>::infinity();
  for (const CheckpointFolder& folder : list_checkpoints(root)) {
    const Result<Manifest> manifest = check_checkpoint(folder.path, Verify::sizes);
    double loss = std::numeric_limits<double>::infinity();
    if (manifest && folder.step <= policy.run_step) loss = manifest->eval_loss.value_or(loss);
    best = std::min(best, loss);
    all.push_back({folder.path, folder.step, loss, manifest.has_value()});
  }
  std::vector<fs::path> expired;
  int kept_last = 0;
  const int keep_last = std::max(1, policy.keep_last);
  for (const Judged& one : all) {
    if (!one.is_whole) {
      if (kept_last > 0 && is_own_checkpoint(one.path)) expired.push_back(one.path);
      continue;
    }
    if (one.step > policy.run_step) {
      expired.push_back(one.path);
      continue;
    }
    const bool is_recent = kept_last < keep_last;
    const bool is_milestone = policy.keep_every > 0 && one.step % policy.keep_every == 0;
    const bool is_best =
        policy.keep_best && one.eval_loss == best && best < std::numeric_limits<double>::infinity();
    if (is_recent) ++kept_last;
    const bool is_asked_for = one.step == policy.keep_step;
    if (!is_recent && !is_milestone && !is_best && !is_asked_for) expired.push_back(one.path);
  }
  std::reverse(expired.begin(), expired.end());
  return expired;
}

void apply_retention(FileSystem& files, const fs::path& root, const RetentionPolicy& policy) {
  for (const fs::path& path : expired_checkpoints(root, policy)) {
    const fs::path nameless = fmt::format("{}.tmp-{}", path.string(), ::getpid());
    files.rename(path, nameless);
    files.sync_directory(root);
    files.remove_all(nameless);
  }
}

}  // namespace heddle
