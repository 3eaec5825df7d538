#pragma once

#include "parallel/schedule/make_schedule.h"

/// One function per schedule, called by make_schedule, which has checked the shape. gpipe, 1f1b and
/// interleaved emit f and bw; the others f, b and w.
namespace heddle::generators {

/// All forwards, then all backwards (Huang et al. 2019), these in ascending order.
Schedule gpipe(const PipeShape& shape);

/// One forward, one backward: at most ranks - rank micro-batches in flight (Narayanan et al. 2021).
Schedule one_f_one_b(const PipeShape& shape);

/// 1F1B over `chunks` stages per rank, stage s on rank s % ranks (Narayanan et al. 2021): the
/// bubble is divided by the chunks, at the price of more micro-batches in flight and more messages.
Schedule interleaved(const PipeShape& shape);

/// Weight gradients fill the bubble of 1F1B in its memory (Qi et al. 2024).
Schedule zb_h1(const PipeShape& shape);
/// The same with twice the micro-batches in flight, which leaves no bubble when f = b = w.
Schedule zb_h2(const PipeShape& shape);

/// V-shaped placement, no bubble when f = b = w, in the memory of 1F1B (Qi et al. 2024).
Schedule zb_v(const PipeShape& shape);
/// V-shaped placement with about a third of the memory of 1F1B (Qi et al. 2024b).
Schedule v_min(const PipeShape& shape);
/// V-shaped placement with about half the memory of 1F1B (Qi et al. 2024b).
Schedule v_half(const PipeShape& shape);

}  // namespace heddle::generators
