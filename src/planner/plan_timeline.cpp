#include "planner/plan_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "parallel/schedule/draw.h"

namespace heddle::planner {
namespace {

constexpr std::size_t kMostBars = 80'000;  // of a page, about 1.5 MB
constexpr double kLong = 10.0;             // seconds from which they are the unit

/// The line of every stream that has spans; the two ends of a pipeline share that of dp.
std::map<int, int> lines_of(const std::vector<observe::Span>& spans) {
  const auto own = [](int stream) {
    return stream == 1 + static_cast<int>(Traffic::ends) ? 2 : stream;
  };
  std::map<int, int> lines = {{0, 0}};
  for (const auto& span : spans) lines[own(span.stream)] = 0;
  int next = 0;
  for (auto& [stream, line] : lines) line = next++;
  lines[1 + static_cast<int>(Traffic::ends)] = lines[own(1 + static_cast<int>(Traffic::ends))];
  return lines;
}

class Drawing {
 public:
  Drawing(const Schedule& schedule, const SimulatedStep& step)
      : schedule_(schedule), step_(step), lines_(lines_of(step.spans)) {
    const int replica = step.ranks.front().replica;
    for (const auto& rank : step.ranks) {
      if (rank.replica == replica) row_of_device_[rank.device] = rank.pp_rank;
    }
    timeline_.unit = step.seconds >= kLong ? "s" : "ms";
    scale_ = step.seconds >= kLong ? 1.0 : 1e3;
    timeline_.until = scale_ * step.seconds;
  }

  observe::Timeline run() {
    std::map<int, std::size_t> done;  // actions, by rank
    for (const auto& span : step_.spans) {
      const auto row = row_of_device_.find(span.rank);
      if (row == row_of_device_.end()) continue;
      const int rank = row->second;
      if (span.stream == 0) {
        // The spans of a rank's own stream are its actions, in order.
        add_action(rank, schedule_.by_rank[static_cast<std::size_t>(rank)][done[rank]++], span);
      } else {
        add_transfer(rank, span);
      }
    }
    leave_out_ranks();
    return std::move(timeline_);
  }

 private:
  void add_action(int rank, const Action& action, const observe::Span& span) {
    auto bar = timeline_bar(schedule_, rank, action, scale_ * span.begin_seconds,
                            scale_ * (span.begin_seconds + span.duration_seconds));
    if (bar) timeline_.bars.push_back(std::move(*bar));
  }

  void add_transfer(int rank, const observe::Span& span) {
    const int line = lines_.at(span.stream);
    // Messages to both neighbours may overlap: the later one is drawn behind the earlier.
    double& free_from = free_from_[{rank, line}];
    const double begin = std::max(free_from, scale_ * span.begin_seconds);
    const double end = scale_ * (span.begin_seconds + span.duration_seconds);
    if (end <= begin) return;
    free_from = end;
    timeline_.bars.push_back(
        {.rank = rank,
         .label =
             fmt::format("{} {}", kStepStreams[static_cast<std::size_t>(span.stream)], span.name),
         .kind = observe::TimelineKind::communication,
         .begin = begin,
         .end = end,
         .line = line,
         .bytes = static_cast<double>(span.bytes)});
  }

  void leave_out_ranks() {
    auto& bars = timeline_.bars;
    timeline_.every = static_cast<int>(bars.size() / kMostBars) + 1;
    if (timeline_.every == 1) return;
    std::erase_if(bars, [&](const auto& bar) { return bar.rank % timeline_.every != 0; });
    for (auto& bar : bars) bar.rank /= timeline_.every;
  }

  const Schedule& schedule_;
  const SimulatedStep& step_;
  const std::map<int, int> lines_;
  std::map<int, int> row_of_device_;
  std::map<std::pair<int, int>, double> free_from_;
  double scale_ = 1.0;
  observe::Timeline timeline_;
};

}  // namespace

observe::Timeline plan_timeline(const Schedule& schedule, const SimulatedStep& step) {
  return Drawing(schedule, step).run();
}

}  // namespace heddle::planner
