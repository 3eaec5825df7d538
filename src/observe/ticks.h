#pragma once

#include <string>
#include <vector>

namespace heddle::observe {

/// Round numbers (1, 2 or 5 times a power of ten apart) inside [low, high], about `wanted` of them.
std::vector<double> nice_ticks(double low, double high, int wanted);

/// Round numbers inside [low, high], both positive, for a logarithmic axis: as many as there is
/// room for when neighbours are at least `closest` (a fraction of the axis) apart.
std::vector<double> log_ticks(double low, double high, double closest);

/// The labels of one axis, in one notation: "0.5" beside "1.0", "5k" beside "12k", "0.5e-3" beside
/// "1.0e-3". Zero is "0". Ticks that span orders of magnitude have only the digits each needs.
std::vector<std::string> tick_labels(const std::vector<double>& ticks);

}  // namespace heddle::observe
