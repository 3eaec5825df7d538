#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/machine_fit.h"

namespace heddle {

/// A machine measured once.
struct MeasuredPass {
  RankRates rates;
  LinkRates links = {};
  double others = 0;  ///< share of the cores that other processes had meanwhile, 0 to 1
};

/// Passes agree when no figure of one is further from the other's; a quiet virtual machine stays
/// within it.
inline constexpr double kAgreement = 0.25;
/// More than this for others, and what was measured is not the machine.
inline constexpr double kMostForOthers = 0.1;

/// The answer of the first two passes that agree and were left alone, each figure as the faster of
/// them found it: what disturbs only slows down. None while there are no such two.
std::optional<MeasuredPass> steady_pass(const std::vector<MeasuredPass>& passes);

/// What is in the way of an answer: "copies between 0.48 and 15.5 GB/s; other processes had up to
/// 63 % of the cores".
std::string unsteadiness(const std::vector<MeasuredPass>& passes);

/// Figures that cannot all be true of one machine, one sentence each; empty when they can.
std::vector<std::string> contradictions(const MachineSamples& samples);

}  // namespace heddle
