#pragma once

#include <map>
#include <string>
#include <vector>

#include "planner/cost.h"
#include "planner/measured_rows.h"

namespace heddle::planner {

/// How well times are predicted, in percent of the measured ones.
struct Accuracy {
  int rows = 0;
  double mape = 0, median = 0, bias = 0, worst = 0;
  double spearman = 0;  ///< of predicted and measured order, ties averaged
};

struct Prediction {
  const MeasuredRow* row = nullptr;
  TimeEstimate time;

  double error_percent() const { return 100.0 * (time.total / row->seconds - 1.0); }
};

struct Evaluation {
  std::vector<Prediction> predictions;  ///< in the order of the rows
  Accuracy held_out;                    ///< of rows that no constant was fitted to
  Accuracy calibration, all;
  /// By model: how much slower than the fastest of its rows the one is that the planner takes.
  std::map<std::string, double> regret_percent;
};

/// Predicts one row from scratch.
TimeEstimate predict(const Machine& machine, const MeasuredRow& row);

/// `rows` outlive the result.
Evaluation evaluate(const Machine& machine, const std::vector<MeasuredRow>& rows);

Accuracy accuracy_of(const std::vector<Prediction>& predictions);

/// Predictions closer than this are equal; see `is_simpler`.
inline constexpr double kTie = 0.02;
/// Whether, at equal predicted times, `a` is to be preferred: fewer pipeline stages, then whole
/// sequences on every rank, then smaller micro-batches, then experts on fewer ranks. All depend
/// less on what is not modelled, and the first three hold less memory.
bool is_simpler(const Candidate& a, const Candidate& b);

}  // namespace heddle::planner
