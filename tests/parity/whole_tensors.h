#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "comm/world.h"
#include "parallel/param_store.h"

namespace heddle {

/// Whole Hugging Face tensors, put together from the boxes that the ranks of one process hold: f32,
/// or f64 in checks.
class WholeTensors {
 public:
  /// Every rank of `world` gives its boxes at the same time. Boxes that several ranks hold must be
  /// the same everywhere, bit for bit, and every element must come from exactly one writer:
  /// otherwise the test fails.
  void gather(const std::vector<ParamPiece>& pieces, World& world);

  const std::map<std::string, std::vector<double>>& by_name() const { return by_name_; }
  /// The first tensor whose bits differ; empty when there is none.
  std::string first_difference(const WholeTensors& other) const;
  /// The largest norm of a difference over the norm of the other's tensor.
  double largest_relative_difference(const WholeTensors& other) const;

 private:
  void write(const ParamPiece& piece);
  void compare(const ParamPiece& piece) const;

  std::mutex mutex_;
  std::map<std::string, std::vector<double>> by_name_;
  std::map<std::string, std::vector<int>> writers_;  // of every element
};

}  // namespace heddle
