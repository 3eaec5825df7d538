#include "planner/gradient_windows.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace heddle::planner {
namespace {

/// Against rounding where a layer's gradients are a whole number of pieces.
constexpr double kSlack = 1e-9;

/// Something under which a sum may go on: what it takes with 0, 1, 2, ... pieces, of which
/// `existing` of all exist when it begins.
struct Window {
  std::vector<double> seconds = {};
  int existing = 0;
};

/// The least time of all windows, by pieces that have been sent.
class Division {
 public:
  explicit Division(int pieces) : pieces_(pieces), best_{0.0} {
    best_.resize(size(), std::numeric_limits<double>::infinity());
  }

  void add(const Window& window) {
    std::vector<double> next(size(), std::numeric_limits<double>::infinity());
    std::vector<int> from(size(), 0);
    for (int before = 0; before <= pieces_; ++before) {
      if (!std::isfinite(best_[at(before)])) continue;
      const int most = std::max(before, window.existing);
      for (int after = before; after <= most; ++after) {
        const auto count = at(after - before);
        if (count >= window.seconds.size()) break;
        const double seconds = best_[at(before)] + window.seconds[count];
        // Of equal ones the last: it has sent most before.
        if (seconds > next[at(after)]) continue;
        next[at(after)] = seconds;
        from[at(after)] = before;
      }
    }
    best_ = std::move(next);
    from_.push_back(std::move(from));
  }

  /// Pieces by window, where all are sent; and the time.
  std::pair<std::vector<int>, double> result() const {
    std::vector<int> counts(from_.size());
    int sent = pieces_;
    for (std::size_t i = from_.size(); i-- > 0;) {
      counts[i] = sent - from_[i][at(sent)];
      sent -= counts[i];
    }
    return {counts, best_.back()};
  }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  std::size_t size() const { return at(pieces_) + 1; }

  int pieces_;
  std::vector<double> best_;
  std::vector<std::vector<int>> from_;  // by window and pieces sent behind it
};

}  // namespace

GradientSlices place_gradients(const std::vector<BackwardLayer>& layers, const LinearTime& sum,
                               double carried, GradientWindows windows, int pieces) {
  if (pieces == 0) {
    pieces =
        std::max(kLeastGradientPieces, kGradientPiecesOfALayer * static_cast<int>(layers.size()));
  }
  double total = carried;
  for (const BackwardLayer& layer : layers) total += layer.gradients;
  const double piece = total / pieces;
  const auto sum_seconds = [&](int count) { return sum(count * piece); };
  const auto existing = [&](double elements) {
    return total > 0.0 ? static_cast<int>(std::floor(elements / piece + kSlack)) : 0;
  };
  const auto window = [&](bool is_open, int exist, const std::function<double(int)>& seconds) {
    Window made{.seconds = {}, .existing = is_open ? exist : 0};
    for (int count = 0; count <= made.existing; ++count) made.seconds.push_back(seconds(count));
    return made;
  };

  Division division(pieces);
  double exist = carried;
  for (const BackwardLayer& layer : layers) {
    const int there = existing(exist);
    division.add(window(windows == GradientWindows::all, there,
                        [&](int count) { return layer.experts(sum_seconds(count)).seconds; }));
    division.add(window(windows != GradientWindows::none, there, [&](int count) {
      return std::max(layer.dense_seconds, sum_seconds(count));
    }));
    exist += layer.gradients;
  }
  division.add(window(true, pieces, sum_seconds));

  const auto [counts, seconds] = division.result();
  GradientSlices slices{.layers = {}, .behind = counts.back() * piece, .seconds = seconds};
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const int with_experts = counts[2 * i], with_dense = counts[2 * i + 1];
    slices.layers.push_back(
        {.experts = layers[i].experts(sum_seconds(with_experts)),
         .with_experts = with_experts * piece,
         .with_dense = with_dense * piece,
         .dense_seconds = std::max(layers[i].dense_seconds, sum_seconds(with_dense))});
  }
  return slices;
}

}  // namespace heddle::planner
