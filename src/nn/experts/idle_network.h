#pragma once

#include <vector>

#include "comm/work.h"
#include "tensor/stream.h"

namespace heddle {

/// What waits for the network between nodes to be idle while a rank goes backward through experts:
/// sums of other layers' gradients (docs/design/043-experts-schedules-and-places.md). Who goes
/// through them says when. All ranks have the same waiting, and say so at the same places.
class IdleNetwork {
 public:
  virtual ~IdleNetwork() = default;
  /// Whether something waits for the time between dispatches and combines.
  virtual bool has_for_experts() const = 0;
  /// Begins it when `last_dispatch` has ended. What returned has to end before rows come home.
  virtual std::vector<Work> begin_beside_experts(const Work& last_dispatch, Stream& stream) = 0;
  /// Rows are home: begins all that waits.
  virtual void begin_behind_experts(Stream& stream) = 0;
};

}  // namespace heddle
