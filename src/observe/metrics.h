#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "observe/expert_load.h"

namespace heddle::observe {

/// One optimizer step, already reduced over ranks.
struct StepMetrics {
  std::int64_t step = 0;  ///< counts from 1
  std::int64_t steps_total = 0;
  std::int64_t tokens = 0;  ///< seen since the beginning of the run, resumed parts included
  double loss = 0;          ///< nats per token; may be non-finite
  int site = -1;            ///< whose loss and norm they are, where there are several
  double grad_norm = 0;     ///< before clipping
  double lr = 0;
  double step_seconds = 0;
  double tokens_per_second = 0;
  std::optional<double> mfu;  ///< fraction of the dense peak; absent when the peak is unknown
  double data_wait_seconds = 0;
  std::uint64_t memory_bytes = 0;
  std::uint64_t memory_limit_bytes = 0;  ///< 0: no limit known
  double eta_seconds = 0;                ///< StepPace gives it
  /// What encoding has lost of the first rank's gradients and not yet sent, as a share of the
  /// gradient's norm. At steps that get a line on the console, where residuals are kept.
  std::optional<double> residual = {};
  /// Of models with experts, at such steps and the first: all layers that have them.
  std::vector<ExpertLoad> expert_load = {};
  /// At such steps, of a run of several ranks that are timed: what a micro-batch took on one block,
  /// by rank; 0 of one that has none.
  std::vector<double> block_seconds = {};
};

/// Held-out loss of what came from one source of a mixture.
struct SourceLoss {
  std::string name;  ///< as the run file calls the source
  double loss = 0;   ///< nats per token; NaN where none of its tokens was predicted
};
struct EvalMetrics {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  double loss = 0;
  double perplexity = 0;
  std::vector<SourceLoss> sources = {};  ///< where there are several
};

struct CheckpointRequested {
  std::int64_t step = 0;
};
struct CheckpointDurable {
  std::int64_t step = 0;
  double seconds = 0;  ///< from the request until it was on stable storage
  std::uint64_t bytes = 0;
  std::string path;
};
struct UpdateSkipped {
  std::int64_t step = 0;
  std::string reason;
};
struct SampleText {
  std::int64_t step = 0;
  std::string prompt;
  std::string text;  ///< the continuation, without the prompt
};
/// Sites that train apart have brought weights together.
struct SitesMet {
  std::int64_t step = 0;
  double loss = 0;             ///< mean over sites, and over their steps since they sent before
  std::vector<int> sites;      ///< their numbers
  std::vector<double> losses;  ///< of each
  std::vector<double> waited;  ///< seconds in all exchanges until it sent this one, of each
};
/// One of them kept others waiting for much of the time since they met before.
struct SiteWasSlow {
  std::int64_t step = 0;
  int site = 0;
  double seconds = 0;  ///< that the one waited which waited most
  double window = 0;   ///< seconds since they met before
};
/// A rank beside those that do equal work.
struct RankPace {
  int rank = 0;
  double seconds = 0;  ///< that a micro-batch takes it on one block, in the median of late steps
  double usual = 0;    ///< the median of the others
  int others = 0;

  double ratio() const { return seconds / usual; }
};
/// Ranks that have become slower than others that do equal work, and those that no longer are.
struct PacesChanged {
  std::int64_t step = 0;
  std::vector<RankPace> slow = {}, recovered = {};

  bool empty() const { return slow.empty() && recovered.empty(); }
};
using RunEvent = std::variant<CheckpointRequested, CheckpointDurable, UpdateSkipped, SampleText,
                              SitesMet, SiteWasSlow, PacesChanged>;

/// Turns a run's numbers into something people or programs read. Called by one thread of rank 0, in
/// the order of steps. Any call may throw; nothing follows a throw or close().
class Sink {
 public:
  virtual ~Sink() = default;
  virtual std::string_view name() const = 0;
  virtual void on_step(const StepMetrics& metrics) = 0;
  virtual void on_eval(const EvalMetrics& metrics) = 0;
  virtual void on_event(const RunEvent& event) = 0;
  virtual void close() = 0;
};

/// All sinks of a run as one. None of its calls throws: a sink that fails is named once in the log
/// and dropped, and training and the other sinks go on.
class SinkSet : public Sink {
 public:
  void add(std::unique_ptr<Sink> sink);
  std::size_t size() const { return sinks_.size(); }

  std::string_view name() const override { return "all"; }
  void on_step(const StepMetrics& metrics) override;
  void on_eval(const EvalMetrics& metrics) override;
  void on_event(const RunEvent& event) override;
  void close() override;

 private:
  template <class Call>
  void for_each(const Call& call);

  std::vector<std::unique_ptr<Sink>> sinks_;
};

/// Predicts the time that is left from recent wall times per step: the mean of the middle half of
/// the last 64, so that neither a slow first step nor a pause moves it. It needs no history, so it
/// survives resuming.
class StepPace {
 public:
  void add(double seconds);
  /// 0 before the first step.
  double seconds_per_step() const;
  double eta_seconds(std::int64_t steps_left) const;  ///< infinite: no step was timed yet

 private:
  std::vector<double> recent_;
  std::size_t next_ = 0;
};

}  // namespace heddle::observe
