#include <fmt/format.h>
#include <gtest/gtest.h>

#include "planner/calibrate.h"
#include "planner/evaluate.h"
#include "planner/published_tables.h"
#include "support/source_dir.h"
#include "verify/shared_files.h"

namespace heddle::planner {
namespace {

Machine system(const std::string& name) {
  return read_machine(source_dir() + "/configs/systems/" + name + ".toml");
}

/// A failure shows every row.
std::string rows_text(const Evaluation& evaluation) {
  std::string text;
  for (const Prediction& item : evaluation.predictions) {
    const Candidate& plan = item.row->candidate;
    text += fmt::format(
        "{}: tp {} dp {} pp {} b {} recompute {}: measured {:.2f} predicted {:.2f} ({:+.1f} %) "
        "compute {:.2f} tp {:.2f} bubble {:.2f} pp {:.2f} dp {:.2f} step {:.2f} stragglers "
        "{:.2f}\n",
        item.row->model, plan.tp, plan.dp, plan.pp, plan.sequences, name_of(plan.recompute),
        item.row->seconds, item.time.total, item.error_percent(), item.time.compute, item.time.tp,
        item.time.bubble, item.time.pp, item.time.dp, item.time.step, item.time.stragglers);
  }
  return text;
}

std::vector<MeasuredRow> shared_rows(const std::string& file, const Machine& machine) {
  const auto path = shared_folder() / "data" / "measured-iterations" / file;
  return std::filesystem::exists(path) ? read_rows(path, machine) : std::vector<MeasuredRow>{};
}

TEST(PublishedTimes, OfSequenceParallelismAreWithinFourPercent) {
  const auto rows = korthikanti_rows();
  const Evaluation evaluation = evaluate(system("a100-dgx-hdr"), rows);
  EXPECT_LE(evaluation.all.mape, 3.6) << rows_text(evaluation);
  EXPECT_LE(evaluation.all.worst, 8.0) << rows_text(evaluation);
}

TEST(PublishedTimes, OfWeakScalingAreWithinSixPercent) {
  const auto rows = ptd_p_table_1();
  const Evaluation evaluation = evaluate(system("a100-dgx-hdr"), rows);
  EXPECT_LE(evaluation.all.mape, 6.0) << rows_text(evaluation);
}

TEST(PublishedTimes, OfZero3AreWithinTwelvePercentAndDoNotFallWithMoreGpus) {
  const auto rows = ptd_p_table_2_zero3();
  const Evaluation evaluation = evaluate(system("a100-dgx-hdr"), rows);
  EXPECT_LE(evaluation.all.mape, 12.0) << rows_text(evaluation);
  // Twice the GPUs, half the micro-batch: measured to take as long.
  const auto& predictions = evaluation.predictions;
  EXPECT_NEAR(predictions[2].time.total / predictions[1].time.total, 1.0, 0.1);
}

TEST(MeasuredTimes, OfManyServersAreWithinTenPercentAndRankPlans) {
  const Machine machine = system("a100-800g");
  const auto rows = shared_rows("a100-multi-node.csv", machine);
  if (rows.empty()) GTEST_SKIP() << "no shared measurements";
  const Evaluation evaluation = evaluate(machine, rows);
  EXPECT_LE(evaluation.held_out.mape, 10.0) << rows_text(evaluation);
  EXPECT_LE(evaluation.all.mape, 10.0);
  EXPECT_GE(evaluation.all.spearman, 0.93);
  EXPECT_GE(evaluation.held_out.spearman, 0.93);
  EXPECT_EQ(evaluation.regret_percent.size(), 4u);
  for (const auto& [model, regret] : evaluation.regret_percent) EXPECT_LE(regret, 3.0) << model;
}

TEST(MeasuredTimes, OfOneServerAreWithinTwelvePercent) {
  const Machine machine = system("a100-800g");
  const auto rows = shared_rows("a100-single-node-half.csv", machine);
  if (rows.empty()) GTEST_SKIP() << "no shared measurements";
  const Evaluation evaluation = evaluate(machine, rows);
  EXPECT_LE(evaluation.held_out.mape, 12.0) << rows_text(evaluation).substr(0, 4000);
}

/// A file's constants are those that its calibration rows give: nothing was tuned by hand, or on
/// the rows that are held out.
void expect_fitted(const Machine& machine, const std::vector<std::vector<MeasuredRow>>& tables) {
  const Calibration fit = calibrate(machine, tables);
  for (const auto& table : tables) {
    EXPECT_LE(2 * evaluate(machine, table).calibration.rows, static_cast<int>(table.size()));
    std::vector<Prediction> shipped, fitted;
    for (const MeasuredRow& row : table) {
      if (!row.is_for_calibration) continue;
      shipped.push_back({&row, predict(machine, row)});
      fitted.push_back({&row, predict(fit.machine, row)});
    }
    EXPECT_LE(accuracy_of(shipped).mape, accuracy_of(fitted).mape + 0.7);
  }
}

TEST(Constants, OfTheHdrClusterAreThoseOfTheCalibrationRows) {
  expect_fitted(system("a100-dgx-hdr"),
                {korthikanti_rows(), ptd_p_table_1(), ptd_p_table_2_zero3()});
}

TEST(Constants, OfThe800GigabitClusterAreThoseOfTheCalibrationRows) {
  const Machine machine = system("a100-800g");
  const auto many = shared_rows("a100-multi-node.csv", machine);
  if (many.empty()) GTEST_SKIP() << "no shared measurements";
  expect_fitted(machine, {many, shared_rows("a100-single-node-half.csv", machine)});
}

}  // namespace
}  // namespace heddle::planner
