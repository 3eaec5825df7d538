#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>

#include "parallel/sequence/context_program.h"

namespace heddle {

/// What the attention of a layer took on this rank. Seconds are by ContextPassKind.
struct AttentionTimes {
  std::array<double, 2> seconds = {};
  /// Of these: waiting for messages that computation did not hide, whether they were on their way
  /// or their senders late.
  std::array<double, 2> exposed = {};
  std::int64_t head_pairs = 0;  ///< of forward; backward has the same
};

/// Times the attention that ranks share, layer by layer, where streams work inline: a GPU's work is
/// done behind the host's back, and only its pairs are counted. It changes nothing.
class AttentionMeter {
 public:
  /// From here to take() attention is timed.
  void start() { is_on_ = true; }
  bool is_on() const { return is_on_; }

  AttentionTimes& of(int layer) { return by_layer_[layer]; }

  /// By layer; those that had no attention here are left out.
  std::map<int, AttentionTimes> take() {
    is_on_ = false;
    return std::exchange(by_layer_, {});
  }

 private:
  bool is_on_ = false;
  std::map<int, AttentionTimes> by_layer_;
};

}  // namespace heddle
