#include "train/step_timeline.h"

#include <algorithm>
#include <map>

#include "parallel/schedule/draw.h"
#include "simulator/play.h"

namespace heddle {
namespace {

using Times = std::vector<std::vector<std::pair<double, double>>>;  // by rank and action

/// When every action of every rank began and ended. A schedule is known to all, so the times are
/// all that travels.
Times gather_times(const StepRecorder& recorder, const Schedule& schedule, Communicator& pipeline,
                   const Memory& memory, Stream& stream) {
  Memory host = memory.for_host();
  std::size_t most = 0;
  for (const auto& actions : schedule.by_rank) most = std::max(most, actions.size());
  const auto row = static_cast<std::int64_t>(2 * most);
  const Tensor own = host.zeros({row}, DType::f64, MemoryTag::communication);
  auto to = own.host<double>().begin();
  for (const auto& [action, begin, end] : recorder.actions()) {
    *to++ = begin;
    *to++ = end;
  }
  const Tensor all = host.alloc({pipeline.size(), row}, DType::f64, MemoryTag::communication);
  pipeline.all_gather(own, all, stream).wait(stream);
  Times times(schedule.by_rank.size());
  for (std::size_t rank = 0; rank < times.size(); ++rank) {
    const double* from = all.data<double>() + static_cast<std::int64_t>(rank) * row;
    for (std::size_t i = 0; i < schedule.by_rank[rank].size(); ++i, from += 2) {
      times[rank].emplace_back(from[0], from[1]);
    }
  }
  return times;
}

/// Mean times of the computations. Where B and W are one action, half of it each.
struct MeanTimes {
  std::vector<StageTimes> stages;
  VocabularyTimes vocabulary;
};

MeanTimes mean_times(const Schedule& schedule, const Times& times) {
  struct Sum {
    double seconds = 0.0;
    int count = 0;
    double mean() const { return count == 0 ? 0.0 : seconds / count; }
  };
  std::map<std::pair<Act, int>, Sum> sums;  // by stage
  for (std::size_t rank = 0; rank < times.size(); ++rank) {
    for (std::size_t i = 0; i < times[rank].size(); ++i) {
      const Action& action = schedule.by_rank[rank][i];
      if (!is_computation(action.act)) continue;
      Sum& sum = sums[{action.act, action.stage}];
      sum.seconds += times[rank][i].second - times[rank][i].first;
      ++sum.count;
    }
  }
  MeanTimes means;
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const auto mean = [&](Act act) { return sums[{act, stage}].mean(); };
    const double half = mean(Act::bw) / 2;
    means.stages.push_back(
        {.f = mean(Act::f), .b = mean(Act::b) + half, .w = mean(Act::w) + half, .hop = 0.0});
  }
  const int last = schedule.stages() - 1;
  means.vocabulary = {.s = sums[{Act::vocab_s, last}].mean(),
                      .t = sums[{Act::vocab_t, last}].mean()};
  return means;
}

observe::Timeline draw(
    const Schedule& schedule, const std::string& description,
    const std::function<std::pair<double, double>(std::size_t, std::size_t)>& at) {
  constexpr double kMilliseconds = 1e3;
  observe::Timeline timeline{.description = description, .unit = "ms"};
  for (std::size_t rank = 0; rank < schedule.by_rank.size(); ++rank) {
    for (std::size_t i = 0; i < schedule.by_rank[rank].size(); ++i) {
      const auto [begin, end] = at(rank, i);
      if (auto bar = timeline_bar(schedule, static_cast<int>(rank), schedule.by_rank[rank][i],
                                  kMilliseconds * begin, kMilliseconds * end)) {
        timeline.until = std::max(timeline.until, bar->end);
        timeline.bars.push_back(std::move(*bar));
      }
    }
  }
  return timeline;
}

}  // namespace

std::vector<observe::TimelineFigure> step_timelines(const StepRecorder& recorder,
                                                    const Schedule& schedule,
                                                    Communicator& pipeline, Memory& memory,
                                                    Stream& stream) {
  const auto own = static_cast<std::size_t>(pipeline.rank());
  const bool is_whole = recorder.actions().size() == schedule.by_rank[own].size();
  const Times times =
      gather_times(is_whole ? recorder : StepRecorder(), schedule, pipeline, memory, stream);
  const MeanTimes means = mean_times(schedule, times);
  const Played played = play(schedule, means.stages, means.vocabulary);
  auto measured = draw(schedule, "the last step as it was measured",
                       [&](std::size_t rank, std::size_t i) { return times[rank][i]; });
  auto simulated = draw(schedule, "the same schedule played with the mean times",
                        [&](std::size_t rank, std::size_t i) {
                          const PlayedAction& action = played.by_rank[rank][i];
                          return std::pair(action.begin, action.end);
                        });
  measured.until = simulated.until = std::max(measured.until, simulated.until);
  return {{"Measured", std::move(measured)}, {"Simulated", std::move(simulated)}};
}

}  // namespace heddle
