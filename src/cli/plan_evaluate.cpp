#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/json_value.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "planner/calibrate.h"
#include "planner/evaluate.h"

namespace heddle::cli {
namespace {

using planner::Accuracy;
using planner::Evaluation;
using planner::Prediction;

struct PlanEvaluateOptions {
  std::vector<std::string> rows;
  std::filesystem::path system;
  bool calibrate = false, all = false, json = false;
};

const Prediction& worst_of(const Evaluation& evaluation) {
  return *std::max_element(evaluation.predictions.begin(), evaluation.predictions.end(),
                           [](const Prediction& a, const Prediction& b) {
                             return std::abs(a.error_percent()) < std::abs(b.error_percent());
                           });
}

std::string text_of(const planner::MeasuredRow& row) {
  const auto& plan = row.candidate;
  return fmt::format("{}: tp {} dp {} pp {}, micro-batch {}", row.model, plan.tp, plan.dp, plan.pp,
                     plan.sequences);
}

JsonValue accuracy_json(const Accuracy& accuracy) {
  return {{"rows", accuracy.rows},
          {"mape_percent", accuracy.mape},
          {"median_percent", accuracy.median},
          {"bias_percent", accuracy.bias},
          {"worst_percent", accuracy.worst},
          {"spearman", accuracy.spearman}};
}

JsonValue report_of(const Evaluation& evaluation, const planner::Calibration& fit, bool fitted) {
  JsonValue report = accuracy_json(evaluation.held_out);
  report["rows"] = evaluation.all.rows;
  report["held_out_rows"] = evaluation.held_out.rows;
  report["calibration_rows"] = evaluation.calibration.rows;
  report["split"] =
      "rows by a hash of their configuration; the figures above are of the rows that constants "
      "were "
      "not fitted to, regret_percent and all_rows of all";
  report["recompute"] = name_of(evaluation.predictions.front().row->candidate.recompute);
  report["regret_percent"] = evaluation.regret_percent;
  report["all_rows"] = accuracy_json(evaluation.all);
  report["calibration"] = accuracy_json(evaluation.calibration);
  report["worst_row"] = text_of(*worst_of(evaluation).row);
  if (fitted) {
    for (const auto& [name, value] : fit.constants) report["constants"][name] = value;
  }
  return report;
}

void print_table(const Evaluation& evaluation, const planner::Calibration& fit,
                 const PlanEvaluateOptions& options) {
  if (options.all) {
    for (const Prediction& item : evaluation.predictions) {
      fmt::print("{} {:<56} measured {:8.3f} s, predicted {:8.3f} s, {:+6.1f} %\n",
                 item.row->is_for_calibration ? "c" : " ", text_of(*item.row), item.row->seconds,
                 item.time.total, item.error_percent());
    }
    fmt::print("\n");
  }
  const auto line = [](const char* name, const Accuracy& of) {
    fmt::print("{:<12} {:>5} {:>8.2f} {:>8.2f} {:>+8.2f} {:>8.2f} {:>9.3f}\n", name, of.rows,
               of.mape, of.median, of.bias, of.worst, of.spearman);
  };
  fmt::print("{:<12} {:>5} {:>8} {:>8} {:>8} {:>8} {:>9}\n", "rows", "", "MAPE %", "median %",
             "bias %", "worst %", "Spearman");
  line("held out", evaluation.held_out);
  line("calibration", evaluation.calibration);
  line("all", evaluation.all);
  fmt::print("\nrecomputation of these rows: {}\nworst row: {}\n",
             name_of(evaluation.predictions.front().row->candidate.recompute),
             text_of(*worst_of(evaluation).row));
  double worst = 0.0;
  for (const auto& [model, regret] : evaluation.regret_percent) worst = std::max(worst, regret);
  fmt::print("regret of the plan that would be taken: at most {:.2f} % over {} models\n", worst,
             evaluation.regret_percent.size());
  if (!options.calibrate) return;
  fmt::print("\nconstants fitted to {} rows:\n", fit.rows);
  for (const auto& [name, value] : fit.constants) fmt::print("  {} = {:.4g}\n", name, value);
}

void run(const PlanEvaluateOptions& options) {
  planner::Calibration fit{
      .machine = planner::read_machine(options.system), .constants = {}, .rows = 0};
  std::vector<std::vector<planner::MeasuredRow>> tables;
  std::vector<planner::MeasuredRow> rows;
  for (const std::string& file : options.rows) {
    tables.push_back(planner::read_rows(file, fit.machine));
    rows.insert(rows.end(), tables.back().begin(), tables.back().end());
  }
  if (options.calibrate) fit = planner::calibrate(fit.machine, tables);
  const Evaluation evaluation = planner::evaluate(fit.machine, rows);
  if (options.json) {
    fmt::print("{}\n", report_of(evaluation, fit, options.calibrate).dump(2));
  } else {
    print_table(evaluation, fit, options);
  }
}

}  // namespace

void add_plan_evaluate(Verb plan) {
  const auto options = std::make_shared<PlanEvaluateOptions>();
  Verb verb =
      plan.add_verb("evaluate", "predict measured steps and say how far off the predictions are");
  verb.add_option("rows", options->rows,
                  "CSV files of measured iterations, each with a line of column names")
      .required();
  verb.add_option("--system", options->system, "machine file the rows were measured on").required();
  verb.add_flag("--calibrate", options->calibrate,
                "first fit the machine's constants to half of the rows, and print them");
  verb.add_flag("--all", options->all, "print every row");
  verb.add_flag("--json", options->json, "print one JSON object");
  verb.callback([options] { run(*options); });
}

}  // namespace heddle::cli
