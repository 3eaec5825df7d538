#include "planner/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "base/quantile.h"

namespace heddle::planner {
namespace {

/// Ranks from 0, equal values share the mean of theirs.
std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (std::size_t i = begin; i < end; ++i) {
      ranks[order[i]] = 0.5 * static_cast<double>(begin + end - 1);
    }
    begin = end;
  }
  return ranks;
}

double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const double n = static_cast<double>(a.size());
  const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n,
               mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0.0;
}

/// How much slower than the fastest the row is that the planner would take.
double regret_of(const std::vector<const Prediction*>& group) {
  double least = 1e300, fastest = 1e300;
  for (const Prediction* item : group) {
    least = std::min(least, item->time.total);
    fastest = std::min(fastest, item->row->seconds);
  }
  const Prediction* pick = nullptr;
  for (const Prediction* item : group) {
    if (item->time.total > least * (1.0 + kTie)) continue;
    if (pick == nullptr || is_simpler(item->row->candidate, pick->row->candidate)) pick = item;
  }
  return 100.0 * (pick->row->seconds / fastest - 1.0);
}

}  // namespace

bool is_simpler(const Candidate& a, const Candidate& b) {
  const auto order = [](const Candidate& c) {
    return std::tuple(c.pp, c.cp > 1, c.sequences, c.ep * c.etp);
  };
  return order(a) < order(b);
}

TimeEstimate predict(const Machine& machine, const MeasuredRow& row) {
  const Candidate& plan = row.candidate;
  const Split split = split_blocks(row.job, plan.schedule, plan.pp, plan.chunks);
  const BlockCost block = block_cost(machine, row.job, plan);
  return estimate_time(machine, row.job, plan, split, block);
}

Accuracy accuracy_of(const std::vector<Prediction>& predictions) {
  Accuracy accuracy;
  accuracy.rows = static_cast<int>(predictions.size());
  if (predictions.empty()) return accuracy;
  std::vector<double> sizes, predicted, measured;
  for (const Prediction& item : predictions) {
    const double error = item.error_percent();
    sizes.push_back(std::abs(error));
    accuracy.bias += error / accuracy.rows;
    accuracy.mape += std::abs(error) / accuracy.rows;
    predicted.push_back(item.time.total);
    measured.push_back(item.row->seconds);
  }
  accuracy.median = quantile(sizes, 0.5);
  accuracy.worst = std::ranges::max(sizes);
  accuracy.spearman = correlation(ranks_of(predicted), ranks_of(measured));
  return accuracy;
}

Evaluation evaluate(const Machine& machine, const std::vector<MeasuredRow>& rows) {
  Evaluation result;
  std::vector<Prediction> held_out, calibration;
  for (const MeasuredRow& row : rows) {
    result.predictions.push_back({&row, predict(machine, row)});
    (row.is_for_calibration ? calibration : held_out).push_back(result.predictions.back());
  }
  result.held_out = accuracy_of(held_out);
  result.calibration = accuracy_of(calibration);
  result.all = accuracy_of(result.predictions);
  std::map<std::string, std::vector<const Prediction*>> groups;
  for (const Prediction& item : result.predictions) groups[item.row->model].push_back(&item);
  for (const auto& [model, group] : groups) result.regret_percent[model] = regret_of(group);
  return result;
}

}  // namespace heddle::planner
