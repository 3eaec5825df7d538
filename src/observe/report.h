#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "observe/epochs.h"
#include "observe/history.h"
#include "observe/metrics.h"
#include "observe/starts.h"
#include "observe/timeline.h"

namespace heddle::observe {

/// Bytes held for one purpose: what the cost model said and the largest amount seen.
struct MemoryRow {
  std::string tag;
  std::uint64_t predicted_bytes = 0;
  std::uint64_t measured_bytes = 0;
};

/// Calls and bytes of one operation on one mesh axis over the whole run.
struct CommunicationRow {
  std::string axis, operation;
  std::uint64_t predicted_calls = 0, counted_calls = 0;
  std::uint64_t predicted_bytes = 0, counted_bytes = 0;  ///< on the wire
  /// Predicted: packed documents, or what a lossless codec makes of values, may need less, which
  /// only the data says.
  bool is_at_most = false;
  /// What plain calls would move, where a codec's bytes travel.
  std::uint64_t predicted_payload = 0, counted_payload = 0;
};

/// The memory of one rank at its peak.
struct RankMemoryRow {
  int rank = 0;
  std::uint64_t predicted_bytes = 0, measured_bytes = 0;
};

struct TimelineFigure {
  std::string title;
  Timeline timeline;
};

/// Seconds of a step.
struct StepTimeRow {
  std::optional<double> predicted;  ///< where the run file names a machine
  double measured = 0;              ///< median of this process's steps; 0: it made none
  std::optional<double> mean = {};  ///< of sites, whose steps are not alike

  /// What the prediction is of.
  double compared() const { return mean.value_or(measured); }
};

/// Seconds of a step, by pass.
struct PassSeconds {
  double forward = 0, backward = 0;
  double both() const { return forward + backward; }
};

/// What ranks that share attention (axis cp) waited in the attention of a layer, for messages that
/// their computation did not hide.
struct AttentionLayerRow {
  int layer = 0;
  PassSeconds exposed = {};                   ///< mean of the ranks that have the layer
  double most = 0;                            ///< of one of them, both passes
  std::optional<PassSeconds> predicted = {};  ///< mean; where the run file names a machine
};

/// What one of these ranks did in the attention of all its layers, in a step.
struct AttentionRankRow {
  int rank = 0;
  std::int64_t pairs = 0, predicted_pairs = 0;  ///< of query and key, times heads; of forward
  double computed = 0, exposed = 0;             ///< seconds
  double idle =
      0;  ///< seconds without computing, until the slowest rank that shares with it is done
  struct Predicted {
    double computed = 0, exposed = 0;
  };
  std::optional<Predicted> predicted = {};
};

struct AttentionFigures {
  std::string method, order;  ///< as the run file spells them
  int cp = 1;
  bool has_documents = false;  ///< packed, so that fewer pairs may be computed than are predicted
  bool is_timed = true;        ///< otherwise only pairs and predictions are known, as on a GPU
  std::vector<AttentionLayerRow> layers = {};
  std::vector<AttentionRankRow> ranks = {};

  /// Of the time until the slowest rank is done, what ranks do not compute.
  double idle_fraction() const;
  double exposed_fraction() const;  ///< what of it they wait for messages
};

/// How long exchanges of experts' rows were under way on one rank, in a step.
struct ExpertExchangeRow {
  int rank = 0;
  double exposed = 0;  ///< seconds in which it did nothing but wait for them
  double hidden = 0;   ///< seconds in which it computed meanwhile
};

/// How fast a rank of the run's last mesh was beside those that do equal work; what it took over
/// time is in History::block_seconds.
struct RankSpeedRow {
  int rank = 0, stage = 0;  ///< its place in the pipeline
  int group = 0;            ///< ranks that do equal work have the same
  int blocks = 0;
  double seconds = 0;  ///< that a micro-batch takes it on one block, in the median of the run
  double usual = 0;    ///< the median of the others in its group; 0: it is alone

  double ratio() const { return usual > 0 ? seconds / usual : 1; }
};

struct RunTotals {
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  double seconds = 0;
  double final_loss = 0;
};

/// All that the report of a run shows; plain data, from which both files are written.
struct RunReport {
  std::string title;  ///< the run's name
  std::string model;  ///< one line: family, parameters, shape
  std::vector<std::pair<std::string, std::string>> settings;  ///< "train.steps" -> "2000"
  std::vector<RunStart> starts;  ///< in order; empty when they are not known
  std::string ended;             ///< when the report was written, as in RunStart
  History history;
  std::optional<double> best_possible_loss;  ///< entropy of the source, where it is known
  StepTimeRow step_time = {};
  std::vector<MemoryRow> memory;
  /// Tags peak at different moments, so this is not their sum. Left out when both are 0.
  MemoryRow memory_total = {.tag = "total"};
  std::uint64_t peak_resident_bytes = 0;  ///< of the process
  std::vector<RankMemoryRow> ranks;       ///< of a run of several
  std::vector<TimelineFigure> timelines;  ///< of one step of a pipeline, on one scale
  std::vector<CommunicationRow> communication;
  std::optional<AttentionFigures> attention = {};        ///< where ranks share it
  std::vector<ExpertExchangeRow> expert_exchanges = {};  ///< where ranks divide experts, on CPUs
  std::vector<EpochRow> epochs = {};                     ///< of a run that outlives ranks, in order
  std::vector<RankSpeedRow> speeds = {};  ///< of ranks that are timed and have blocks
  std::vector<SampleText> samples;
  std::vector<std::string> warnings;
  RunTotals totals;
};

/// What is between the loss that a run reached and the best possible one.
struct LossGap {
  double nats = 0;                 ///< per token; negative: the sample is kinder than the source
  std::optional<double> way = {};  ///< share of the way from the first step's loss; below 1
};
/// Of the last held-out loss, or else the smoothed training loss. Nothing where the best possible
/// loss is not known, or no loss is finite.
std::optional<LossGap> loss_gap(const RunReport& report);

/// Curves are thinned to at most this many points in both files.
inline constexpr std::size_t kReportPoints = 2000;

std::string report_json(const RunReport& report);
/// One self-contained page: no network, nothing beside it, readable without scripts. All text of
/// the report is escaped.
std::string report_html(const RunReport& report);

/// Whole or not at all; Error(resources) when the folder cannot be written.
void write_report_json(const std::filesystem::path& path, const RunReport& report);
void write_report_html(const std::filesystem::path& path, const RunReport& report);

}  // namespace heddle::observe
