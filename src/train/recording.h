#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/train_step.h"
#include "observe/progress.h"
#include "observe/report.h"
#include "observe/trace_parts.h"
#include "train/attention_record.h"
#include "train/evaluate.h"
#include "train/exchange_meter.h"
#include "train/rank_speeds.h"
#include "train/run_report.h"
#include "train/session.h"
#include "train/step_timeline.h"
#include "train/step_trace.h"

namespace heddle {

/// Keeps what a run does for those who look at it: lines, metrics, trace and report. The loop tells
/// it what happened; it decides nothing. Files and lines are those of the first of every folder's
/// keepers, but every rank has one and tells it the same, because the report asks all of them.
class Recording {
 public:
  struct Step {
    StepResult result;
    double lr = 0.0, seconds = 0.0, data_wait_seconds = 0.0;
  };
  /// What outlives an epoch, in which the ranks and all that is made for them are others.
  struct Kept {
    std::vector<double> step_seconds = {};  ///< of this process
    std::vector<observe::SampleText> samples = {};
    std::vector<std::string> warnings = {};
    MeshTraffic expected = {}, counted = {};  ///< of the steps
    MemoryStats largest_step = {};            ///< the ledger of the step that held most
    std::int64_t exchanges = 0;               ///< between sites, of epochs that have ended,
    double waited_seconds = 0.0;              ///< and how long this process has waited for them
  };

  /// `resumed_at`: the step that the run goes on from, where it does. Opens the files.
  Recording(const RunSetup& setup, Session& session, std::optional<std::int64_t> resumed_at);
  /// Of a later epoch of this run, behind the step of `state`. `last`: that step, where this rank
  /// knows it: its line is written if the rank that should have was lost before.
  Recording(const RunSetup& setup, Session& session, const RunState& state, Kept kept,
            const std::optional<Step>& last);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  /// Before the first step: what was kept before.
  void set_kept(Kept kept) { kept_ = std::move(kept); }
  /// When an epoch has ended: it is told nothing more.
  Kept take_kept();

  /// What blocks took the ranks of this site in late steps; the same on all of them.
  const RankSpeeds& speeds() const { return speeds_; }

  /// Takes the times of the step's actions and of its blocks.
  void watch(TrainStep& step);
  void begin_step(std::int64_t step);
  void end_step(const RunState& state, const Step& step);
  void update_skipped(std::int64_t step, const std::string& reason);
  void evaluated(const RunState& state, const EvalResult& result);
  void sampled(observe::SampleText sample);
  /// What sites told each other when they met.
  void sites_met(std::int64_t step, const std::vector<SiteNote>& notes);
  void event(const observe::RunEvent& event);
  /// Writes what the trace has, when a keeper has enough of it. All of them call it.
  void write_full_trace();

  /// The last lines and the report. All ranks call it.
  void finish(const RunState& state);

 private:
  /// A GPU's work is done after the call that began it has ended: its times say nothing.
  bool is_timed() const { return setup_.options.device.kind == Device::Kind::cpu; }
  /// Of a window between two exchanges the site that waited least, where others waited much more.
  void name_slow_site(const observe::SitesMet& met);
  void open_files(std::optional<std::int64_t> resumed_at);
  void open_trace(std::optional<std::int64_t> resumed_at);
  void write_step(const RunState& state, const Step& step);
  void write_trace();
  /// Has the calls of this rank told to whoever wants to know of them.
  void watch_calls();
  void collect_memory();
  void compare_step();
  const MeshTraffic& expected_traffic(const StepResult& result);
  /// Which sites waited for others.
  void compare_sites();
  void compare_traffic() const;
  std::optional<double> mean_between_meetings() const;
  /// StepMetrics::residual.
  std::optional<double> residual(std::int64_t step, double grad_norm);
  /// StepMetrics::expert_load.
  std::vector<observe::ExpertLoad> expert_load(std::int64_t step, const StepResult& result) const;
  /// Whether the step gets a line on the console, where those are not left out.
  bool has_line(std::int64_t step) const;
  void write_report(const RunState& state) const;

  const RunSetup& setup_;
  Session& session_;
  bool has_residuals_ = false;
  observe::SinkSet sinks_;
  observe::StepPace pace_;
  observe::StepTimeRow step_time_;
  Kept kept_;
  Stopwatch since_met_;                // of sites
  std::vector<double> waited_before_;  // by site, until then
  MeshTraffic before_;                 // of the step under way
  bool was_warming_up_ = true;         // so far, since this start
  bool has_said_no_targets_ = false;
  std::vector<observe::RankMemoryRow> ranks_;
  StepRecorder recorder_;
  AttentionRecord attention_record_;
  RankSpeeds speeds_;
  std::shared_ptr<ExchangeMeter> exchanges_;  // where ranks divide experts and are timed
  std::vector<observe::ExpertExchangeRow> expert_exchanges_;
  std::optional<observe::AttentionFigures> attention_;
  std::int64_t newest_step_ = 0;
  std::shared_ptr<StepTrace> trace_;  // where the run file asks for it
  std::optional<observe::TraceParts> trace_parts_;
  bool trace_has_failed_ = false;
  std::vector<observe::TimelineFigure> timelines_;
};

}  // namespace heddle
