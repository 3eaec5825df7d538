#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "observe/expert_load.h"

namespace heddle::observe {

/// One point of a curve over a run. The value may be non-finite: charts show a gap there.
struct CurvePoint {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  double value = 0;
};
using Curve = std::vector<CurvePoint>;

/// The curves of a run from its first step, resumed parts included.
struct History {
  Curve loss, grad_norm, lr, tokens_per_second, step_seconds, eval_loss, residual;
  std::map<std::string, Curve> eval_sources;  ///< held-out loss by source, where there are several
  std::map<int, Curve> site_waited;           ///< seconds in exchanges so far, by site
  std::map<int, Curve> block_seconds;  ///< StepMetrics::block_seconds, by rank that has blocks
  std::vector<ExpertLoadPoint> expert_load;
};

/// Rebuilds the curves from metrics.jsonl. Lines that are no metrics (a line torn by a kill) are
/// left out; null values read as NaN. Throws Error(data) when the file cannot be read.
History read_history(const std::filesystem::path& metrics_file);

/// The lines of a metrics.jsonl text up to and including `step`.
std::string metrics_lines_until(std::string_view text, std::int64_t step);

/// At most `max_points` (>= 4) points: the first, the last, and of each stretch between them the
/// lowest and the highest, so that no spike disappears.
Curve downsample(const Curve& curve, std::size_t max_points);

/// The mean of the points within `reach` places on either side. Towards the first point, where
/// curves are steep, the window shrinks on both sides; towards the last it loses its later side.
/// Non-finite points are left out.
Curve smooth(const Curve& curve, std::size_t reach);

/// The median of the points within `reach` places on either side, at no more than `max_points`
/// (>= 2) evenly spread points with the first and the last among them: a typical value that single
/// spikes and pauses do not move.
Curve running_median(const Curve& curve, std::size_t reach, std::size_t max_points);

}  // namespace heddle::observe
