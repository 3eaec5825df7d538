#pragma once

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "comm/mpi/mpi_world.h"
#include "comm/threads/thread_world.h"

namespace heddle {

/// Measures cases that need so many ranks each, round by round, so that what else the machine does
/// falls on all of them alike: a case has `runs` and `ranks()`. Ranks are threads; under mpirun
/// they are processes, and only the cases for as many as it started are measured. `measure(case,
/// world)` is called by every rank and gives all the same; `print` gets the cases with their runs.
template <class Case, class Measure, class Print>
void measure_in_turns(const char* program, std::vector<Case> cases, int rounds,
                      const Measure& measure, const Print& print) {
  const auto in_turns = [&](const auto& measure_case) {
    for (int round = 0; round < rounds; ++round) {
      for (Case& each : cases) each.runs.push_back(measure_case(each));
    }
  };
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) {
    in_turns([&](const Case& each) {
      decltype(measure(each, std::declval<World&>())) measured;
      run_ranks(each.ranks(), [&](World& world) {
        const auto same = measure(each, world);
        if (world.rank() == 0) measured = same;
      });
      return measured;
    });
    return print(cases);
  }
  run_mpi_rank(
      mpi_library_beside(std::filesystem::absolute(program).parent_path().parent_path() / "heddle"),
      [&](World& world) {
        std::erase_if(cases, [&](const Case& each) { return each.ranks() != world.size(); });
        in_turns([&](const Case& each) { return measure(each, world); });
        if (world.rank() == 0) print(cases);
      });
}

}  // namespace heddle
