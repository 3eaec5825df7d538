#include "simulator/play_experts.h"

#include "base/check.h"
#include "simulator/play_step.h"

namespace heddle {

std::vector<PlayedTask> play_experts(const ExpertsPass& pass, const ExpertsSeconds& seconds) {
  using Kind = StepProgram::Instruction::Kind;
  // Lane l is rank l; the end of task i is transfer i, which takes no time.
  StepProgram program;
  program.by_rank.resize(kExpertsLanes);
  program.transfers.resize(pass.size());
  std::vector<std::size_t> place(pass.size());  // of a task among those of its lane
  std::vector<std::size_t> tasks(kExpertsLanes);
  for (std::size_t i = 0; i < pass.size(); ++i) {
    const auto lane = static_cast<std::size_t>(pass[i].lane);
    auto& instructions = program.by_rank[lane];
    if (pass[i].after >= 0) {
      instructions.push_back({Kind::wait, static_cast<std::uint32_t>(pass[i].after)});
    }
    instructions.push_back({Kind::action});
    instructions.push_back({Kind::work, 0, seconds.of(pass[i].kind)});
    instructions.push_back({Kind::issue, static_cast<std::uint32_t>(i)});
    place[i] = tasks[lane]++;
  }
  const PlayedStep played = play_step(program);
  HEDDLE_CHECK(played.stuck.empty(), "a pass over experts waits for itself");
  std::vector<PlayedTask> result;
  for (std::size_t i = 0; i < pass.size(); ++i) {
    const auto& lane = played.ranks[static_cast<std::size_t>(pass[i].lane)];
    result.push_back({lane.action_begins[place[i]], played.transfers[i].end});
  }
  return result;
}

}  // namespace heddle
