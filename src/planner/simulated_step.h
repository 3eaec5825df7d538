#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "observe/trace.h"
#include "parallel/schedule/schedule.h"
#include "planner/candidate.h"
#include "planner/machine.h"
#include "planner/message_sizes.h"
#include "simulator/network/routing.h"
#include "simulator/step_program.h"

namespace heddle::planner {

struct StepOptions {
  /// By device: how many times as long its computations take. Devices count tp fastest, then cp,
  /// dp and pp.
  std::map<int, double> stragglers = {};
  /// Relative standard deviation of every computation, drawn for every group of tp and cp of its
  /// own; 0: none.
  double variation = 0.0;
  std::uint64_t seed = 0;
  /// Which server of Machine::pairs stands at each place; empty: in order.
  std::vector<int> servers = {};
  /// What connects servers, instead of the machine's outer tiers: host i is device i. Outlives the
  /// call.
  const network::Topology* topology = nullptr;
  network::RoutingOptions routing = {};
  StepPolicy policy = {};  ///< whether gradients are summed at the end follows from the stack
  /// A lowered schedule to play instead of the candidate's own.
  const Schedule* schedule = nullptr;
  bool keeps_spans = true;
  /// Called with (instructions done, all) now and then; the last time they are equal.
  std::function<void(std::uint64_t, std::uint64_t)> progress = {};
};

/// Seconds of one rank, or the mean of several; they add up to the step.
struct StepTimes {
  double compute = 0;  ///< kernels and launches
  double tp = 0;       ///< collectives over tp, which nothing hides
  double cp = 0;       ///< what attention waits for other ranks of its sequence
  double ep = 0;       ///< what experts wait for the ranks that they are divided over
  double bubble = 0;   ///< waiting for ranks that are not there yet, and at the end
  double optimizer = 0;
  std::array<double, kTraffics> exposed = {};  ///< transfers that are waited for, by Traffic
  std::array<double, kTraffics> hidden = {};   ///< no part of the sum: under computation

  double exposed_on(Traffic traffic) const { return exposed[static_cast<std::size_t>(traffic)]; }
  double hidden_on(Traffic traffic) const { return hidden[static_cast<std::size_t>(traffic)]; }
  double sum() const;
};

/// What became of one optimizer step.
struct SimulatedStep {
  /// A rank that was played: the first device of its group of tp and cp.
  struct Rank {
    int device = 0;
    int pp_rank = 0, replica = 0;
    StepTimes times;
  };

  double seconds = 0;
  double makespan = 0;  ///< until the last computation of a micro-batch ends
  // Of the schedule; as in simulator/play.h.
  double bubble_fraction = 0, bubble_over_ideal = 0, bubble_cost_rate = 0;

  StepTimes mean;                       ///< over all devices
  std::vector<Rank> ranks;              ///< of every replica that was played, by pp rank
  std::vector<TrafficBySize> messages;  ///< by pp rank: what a device of replica 0 counts in a step

  /// Stream 0 has the actions as the executor names them, the others transfers, with bytes:
  /// kStepStreams.
  std::vector<observe::Span> spans;

  std::uint64_t transfers = 0;  ///< that were played
};

inline constexpr std::array kStepStreams = {"actions", "pp", "dp", "ends", "vocabulary"};

/// Plays one optimizer step of a plan (docs/design/015-simulated-step.md). Error(usage) names
/// options that do not fit the plan (a straggler that is no device, a topology with too few hosts)
/// and a step that is too long to play; Error(data) an operation of the schedule that never ends,
/// and what it waits for.
SimulatedStep simulate_step(const Machine& machine, const Job& job, const Candidate& plan,
                            const StepOptions& options = {});

/// How much there is to play: passes over stages, or over units where ZeRO cuts them, of all ranks
/// that are played. simulate_step refuses more than kMostPasses.
double simulated_passes(const Machine& machine, const Job& job, const Candidate& plan,
                        const StepOptions& options = {});
inline constexpr double kMostPasses = 3e6;

observe::Trace trace_of(const SimulatedStep& step);

}  // namespace heddle::planner
