// Processes that compute together over TCP lose one of them at a random moment, in every way there
// is, again and again: how long it takes until the others notice and until they have done the next
// step, and whether anything was computed twice or wrongly.
//
//   faults_bench [trials of each kind, 100] [kind ...]

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "recover/company_processes.h"

namespace {

using heddle::recover::CompanyProcesses;
using Clock = CompanyProcesses::Clock;
using Seconds = CompanyProcesses::Seconds;

constexpr int kRanks = 4;

struct Kind {
  const char* name;
  bool has_relay;
  /// Whom it may cost: of a bad link one of the two.
  std::function<std::vector<int>(CompanyProcesses&, int victim, int other)> strike;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"kill -9", false,
       [](CompanyProcesses& processes, int victim, int) {
         processes.send_signal(victim, SIGKILL);
         return std::vector<int>{victim};
       }},
      {"SIGSTOP", false,
       [](CompanyProcesses& processes, int victim, int) {
         processes.send_signal(victim, SIGSTOP);
         return std::vector<int>{victim};
       }},
      {"hang", false,
       [](CompanyProcesses& processes, int victim, int) {
         processes.hang(victim);
         return std::vector<int>{victim};
       }},
      {"silent link", true,
       [](CompanyProcesses& processes, int victim, int other) {
         processes.hold_both(victim, other);
         return std::vector<int>{victim, other};
       }},
      {"flipped bit", true,
       [](CompanyProcesses& processes, int victim, int other) {
         processes.flip(victim, other);
         return std::vector<int>{victim, other};
       }},
  };
  return all;
}

struct Tally {
  std::vector<double> found, next;
  int lost = 0;  // trials in which the others did not go on
  std::vector<std::string> faults;
};

void try_once(const Kind& kind, std::mt19937_64& random, Tally& tally) {
  CompanyProcesses processes({.ranks = kRanks, .has_relay = kind.has_relay});
  const std::int64_t begin = kind.has_relay ? 1 : 0;
  if (!processes.go_on({0, 1, 2, 3}, begin, kRanks)) {
    ++tally.lost;
    return;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 200'000));
  const int victim = static_cast<int>(random() % kRanks);
  const int other = (victim + 1 + static_cast<int>(random() % (kRanks - 1))) % kRanks;
  const auto fault = Clock::now();
  const std::vector<int> costs = kind.strike(processes, victim, other);
  std::vector<int> left;
  const auto goes_on = [&] {
    for (const int cost : costs) {
      left.clear();
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank != cost) left.push_back(rank);
      }
      if (processes.go_on(left, begin + 1, kRanks - 1, Seconds(0.5))) return true;
    }
    return false;
  };
  if (!CompanyProcesses::wait(goes_on, Seconds(30))) {
    ++tally.lost;
    tally.faults.push_back(processes.text(left[0]));
    return;
  }
  Seconds found{0}, next{0};
  for (const int rank : left) {
    found = std::max<Seconds>(found, processes.noticed(rank) - fault);
    next = std::max<Seconds>(next, processes.first_step_of_epoch(rank) - fault);
  }
  tally.found.push_back(found.count());
  tally.next.push_back(next.count());
  processes.stop();
  for (const int rank : left) {
    if (processes.status(rank) != 0) tally.faults.push_back(processes.text(rank));
  }
  for (const std::string& one : processes.faults()) tally.faults.push_back(one);
}

double at(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[std::min(values.size() - 1,
                         static_cast<std::size_t>(part * static_cast<double>(values.size())))];
}

}  // namespace

int main(int argc, char** argv) {
  const int trials = argc > 1 ? std::atoi(argv[1]) : 100;
  std::mt19937_64 random(20261117);
  fmt::print("{:12} {:>6} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>5} {:>6}\n", "fault", "trials",
             "found", "", "", "next", "step", "", "lost", "wrong");
  fmt::print("{:12} {:>6} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}\n", "", "", "median", "95 %", "max",
             "median", "95 %", "max");
  bool is_good = true;
  for (const Kind& kind : kinds()) {
    const std::vector<std::string> chosen(argv + std::min(argc, 2), argv + argc);
    if (!chosen.empty() && std::ranges::count(chosen, kind.name) == 0) continue;
    Tally tally;
    for (int trial = 0; trial < trials; ++trial) try_once(kind, random, tally);
    fmt::print("{:12} {:6} {:7.2f} {:7.2f} {:7.2f} {:7.2f} {:7.2f} {:7.2f} {:5} {:6}\n", kind.name,
               trials, at(tally.found, 0.5), at(tally.found, 0.95), at(tally.found, 1.0),
               at(tally.next, 0.5), at(tally.next, 0.95), at(tally.next, 1.0), tally.lost,
               tally.faults.size());
    std::fflush(stdout);
    for (const std::string& fault : tally.faults) fmt::print(stderr, "{}: {}\n", kind.name, fault);
    is_good = is_good && tally.lost == 0 && tally.faults.empty();
  }
  return is_good ? 0 : 1;
}
