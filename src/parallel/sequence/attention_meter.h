#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "parallel/sequence/context_program.h"
#include "tensor/stream_time.h"

namespace heddle {

/// What the attention of a layer took on this rank. Seconds are by ContextPassKind.
struct AttentionTimes {
  std::array<double, 2> seconds = {};
  /// Of these: waiting for messages that computation did not hide, whether they were on their way
  /// or their senders late.
  std::array<double, 2> exposed = {};
  std::int64_t head_pairs = 0;  ///< of forward; backward has the same
};

/// Times the attention that ranks share, layer by layer. It takes two looks at the clock for a
/// message, or two events of a GPU's stream, and changes nothing.
class AttentionMeter {
 public:
  /// From here to take() attention is timed.
  void start() { is_on_ = true; }
  bool is_on() const { return is_on_; }

  enum class What : std::uint8_t { all, waiting };  ///< the second is within the first
  void add(int layer, ContextPassKind pass, What what, const StreamTime& begin,
           const StreamTime& end);
  void add_pairs(int layer, std::int64_t head_pairs) { by_layer_[layer].head_pairs += head_pairs; }

  /// By layer; those that had no attention here are left out. Waits for the stream.
  std::map<int, AttentionTimes> take();

 private:
  struct Stretch {
    int layer;
    ContextPassKind pass;
    What what;
    StreamTime begin, end;
  };
  bool is_on_ = false;
  std::vector<Stretch> stretches_;  // whose end a GPU may not have come to
  std::map<int, AttentionTimes> by_layer_;
};

}  // namespace heddle
