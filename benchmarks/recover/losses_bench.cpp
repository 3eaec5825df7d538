// A run of training whose ranks are threads of this process and are lost by a plan: each time
// somebody new takes the place. All else is the trainer's own, which writes the run folder.
//
//   losses_bench RUN.toml RANKS "LOSSES" [key=value ...]
//
// LOSSES: "12:3 40:2,5": behind 12 finished steps the member at place 3 of the mesh, behind 40 two
// at once. Steps that are taken again count again.

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "train/model_setup.h"
#include "train/planned_losses.h"

namespace {

std::map<std::int64_t, std::set<int>> losses_in(const std::string& text) {
  std::map<std::int64_t, std::set<int>> losses;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    std::istringstream parts(word);
    std::string steps, place;
    std::getline(parts, steps, ':');
    std::set<int>& places = losses[std::stoll(steps)];
    while (std::getline(parts, place, ',')) places.insert(std::stoi(place));
  }
  return losses;
}

int run(int count, char** words) {
  const int ranks = std::atoi(words[2]);
  const std::vector<std::string> settings(words + 4, words + count);
  const auto loaded = heddle::load_run(words[1], settings, ranks);
  heddle::TrainOptions options;
  options.terminal.is_silent = true;
  const auto seen = heddle::train_with_losses(loaded.config, options, ranks, losses_in(words[3]));
  for (const std::string& failure : seen.failures) fmt::print(stderr, "{}\n", failure);
  fmt::print("{} epochs\n", seen.epochs);
  return seen.failures.empty() ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  if (count < 4) {
    fmt::print(stderr, "losses_bench RUN.toml RANKS \"STEPS:PLACE[,PLACE] ...\" [key=value ...]\n");
    return 2;
  }
  try {
    return run(count, words);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
