#pragma once

#include <functional>
#include <vector>

#include "planner/experts_schedule.h"

namespace heddle::planner {

/// A layer of experts and the dense part between it and the layer below, as backward meets them:
/// first the experts, then the dense part, whose gradients exist when it has ended.
struct BackwardLayer {
  /// The pass over the experts with a slice of gradients that takes so many seconds.
  std::function<ChosenPass(double)> experts = {};
  double dense_seconds = 0.0;
  double gradients = 0.0;  ///< elements that are summed over ranks
};

/// Where sums of gradients may go beside what is computed.
enum class GradientWindows {
  none,   ///< all behind the last layer
  dense,  ///< beside dense parts
  all     ///< also behind the last dispatch of experts
};

struct GradientSlices {
  struct Layer {
    ChosenPass experts = {};
    double with_experts = 0.0, with_dense = 0.0;  ///< elements that are summed meanwhile
    double dense_seconds = 0.0;                   ///< with the sum, if that is longer
  };
  std::vector<Layer> layers = {};
  double behind = 0.0;  ///< elements that are summed behind the last layer
  double seconds = 0.0;
};

/// Pieces that gradients are cut into: this many of all, or of each layer where that is more.
inline constexpr int kLeastGradientPieces = 256, kGradientPiecesOfALayer = 16;

/// Divides all gradients, in the order in which they come to be, among the windows of the layers
/// (in the order of backward) so that backward and sums take the least time; a piece goes when all
/// of it exists. The best division into whole pieces; of equal ones that which sends earlier.
/// `carried` exist when the first layer begins. `pieces`: of all gradients; 0 for as above.
GradientSlices place_gradients(const std::vector<BackwardLayer>& layers, const LinearTime& sum,
                               double carried = 0.0, GradientWindows windows = GradientWindows::all,
                               int pieces = 0);

}  // namespace heddle::planner
