#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace heddle {

/// What a task of a layer of experts keeps busy. Tasks of one lane follow each other; those of
/// different lanes go on at the same time.
enum class ExpertsLane : std::uint8_t { between_nodes, within_node, compute };
inline constexpr int kExpertsLanes = 3;

/// One thing that a rank does in a pass over a layer of experts.
struct ExpertsTask {
  enum class Kind : std::uint8_t {
    dispatch,   ///< all-to-all: rows to the nodes of their experts
    gather,     ///< rows to all ranks that share an expert's width
    expert,     ///< the products
    scatter,    ///< partial sums to the ranks that sent the rows
    combine,    ///< all-to-all: rows back
    gradients,  ///< a slice of other layers' gradients is summed
    weights,    ///< the gradients of the experts' own weights, of all chunks
  };
  Kind kind = Kind::dispatch;
  int chunk = 0;
  ExpertsLane lane = ExpertsLane::between_nodes;
  int after = -1;  ///< the task of the list, an earlier one, that has to end first; -1: none
};

/// In the order of issue.
using ExpertsPass = std::vector<ExpertsTask>;

struct ExpertsPassShape {
  int degree = 1;                ///< chunks that the rows are cut into
  bool sends_gradients = false;  ///< behind the last dispatch
  /// Exchanges within a node wait for those between nodes, as where all are on one stream.
  bool has_one_network = false;
  bool comes_back = true;      ///< what the experts make is wanted: scatter and combine
  bool makes_weights = false;  ///< gradients of weights are made while the last rows travel
};

/// FSMoE's order (docs/design/043-experts-schedules-and-places.md): all dispatches, gradients, all
/// combines between nodes; all gathers, then all scatters within a node. With one network, a
/// chunk's gather follows its dispatch and its combine its scatter. A chunk's scatter and combine
/// stand behind its expert, so that one thread can issue the list while it computes.
ExpertsPass make_experts_pass(const ExpertsPassShape& shape);

/// What one chunk takes; `gradients` is the whole slice, `weights` those of all chunks.
struct ExpertsSeconds {
  double exchange = 0.0;  ///< each of dispatch and combine
  double gather = 0.0, expert = 0.0, scatter = 0.0;
  double gradients = 0.0, weights = 0.0;
  double inputs = 0.0;  ///< of a dispatch beyond a combine: rows that go there only

  double of(ExpertsTask::Kind kind) const;
};

/// When each task ends, from the beginning of the pass: exact where a task begins as soon as its
/// lane is free and what it needs has ended.
std::vector<double> end_times(const ExpertsPass& pass, const ExpertsSeconds& seconds);
/// The end of the last one.
double makespan(const ExpertsPass& pass, const ExpertsSeconds& seconds);

std::string_view name_of(ExpertsTask::Kind kind);
std::string_view name_of(ExpertsLane lane);

}  // namespace heddle
