#pragma once

#include "parallel/schedule/schedule.h"

namespace heddle::generators {

/// Adds the w of every b to a schedule of f and b, as late as memory allows: where a rank would
/// wait otherwise (when f = b = w and messages take no time), where it would have more than
/// `capacity` forwards without their w, and at the end. So no rank waits for another's weight
/// gradients, whatever they take.
Schedule with_late_weights(const Schedule& forward_and_backward, int capacity);

}  // namespace heddle::generators
