#pragma once

#include "parallel/schedule/make_schedule.h"

/// One function per schedule, called by make_schedule, which has checked the shape. gpipe, 1f1b,
/// interleaved and routes emit f and bw; the others f, b and w.
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

/// Micro-batches with ways of their own (docs/design/051-routes.md): stage r on rank r, and the
/// head as one more stage on rank 0, where every route begins and ends.
Schedule routed(const PipeShape& shape);

/// 1F1B and V-Half with the passes of a vocabulary that is split over all ranks (Yeung et al.
/// 2025), by algorithm `shape.vocabulary`.
Schedule vocabulary_one_f_one_b(const PipeShape& shape);
Schedule vocabulary_v_half(const PipeShape& shape);

/// How far a rank runs ahead with its vocabulary passes in 1F1B.
struct VocabularyOffset {
  int warm_up = 0;  ///< passes before the first backward, beyond the one or two needed
  bool passes_come_first = true;  ///< after a backward: the passes, then the next forward
};
/// By rank, for a backward that takes `b` and a forward that takes `f` <= `b`: they keep the passes
/// of all ranks, which wait for each other, at the same time in the steady state.
std::vector<VocabularyOffset> vocabulary_offsets(int ranks, double f, double b);
/// vocabulary_one_f_one_b with offsets of one's own.
Schedule vocabulary_one_f_one_b(const PipeShape& shape,
                                const std::vector<VocabularyOffset>& offsets);

}  // namespace heddle::generators
