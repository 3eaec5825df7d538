#pragma once

#include <cstdint>
#include <memory>

#include "codec/codec.h"
#include "parallel/step/rank_units.h"

namespace heddle {

/// How sites that train apart bring their weights together: the section `outer` of the run file,
/// resolved (docs/design/036-local-training.md). Steps are inner steps of the run, from 1 on.
///
/// At a step at which fragment p begins, every site sends Q(outer - own) of it; `delay` steps
/// later, with D the mean of what all sites sent:
///   velocity = momentum velocity + D;  outer -= lr (D + momentum velocity)
///   own = mix own + (1 - mix) outer
struct OuterPolicy {
  int every = 0;  ///< steps between two exchanges of the same fragment; 0: there are none
  int fragments = 1;
  int delay = 0;     ///< below `every`
  double mix = 0.0;  ///< what own weights keep of themselves
  double lr = 0.7, momentum = 0.9;
  /// What was not sent comes along the next time, times this; 0: it is forgotten.
  double feedback = 0.0;
  std::shared_ptr<const codec::Codec> codec = {};  ///< absent: float32

  /// When it begins for the first time. Fragments follow each other evenly over `every` steps.
  std::int64_t first_step(int fragment) const {
    return every + std::int64_t{fragment} * every / fragments;
  }
  bool begins(int fragment, std::int64_t step) const {
    const std::int64_t since = step - first_step(fragment);
    return every > 0 && since >= 0 && since % every == 0;
  }
  bool ends(int fragment, std::int64_t step) const { return begins(fragment, step - delay); }
  /// Whether any fragment begins.
  bool begins(std::int64_t step) const;
  bool ends(std::int64_t step) const { return begins(step - delay); }

  /// Of a block of the model; what is in no block (-1) belongs to the first.
  int fragment_of(int block) const { return block < 0 ? 0 : block % fragments; }
  /// Whether a rank with these units holds something of the fragment.
  bool has(const RankUnits& units, int fragment) const;
  /// What such a rank sends of it.
  std::int64_t sent_bytes(const RankUnits& units, int fragment) const;
  /// Of so many values of one tensor.
  std::int64_t encoded_bytes(std::int64_t values) const;
};

/// What a site tells the others with an exchange. Goes as it lies in memory.
struct SiteNote {
  std::uint64_t hash = 0;  ///< of the outer weights of the fragment, as far as the rank holds them
  double loss = 0.0;       ///< mean of its steps since the note before
  double waited = 0.0;     ///< seconds so far, in all exchanges
  std::int32_t asked = 0;  ///< what the caller makes of it: a wish to stop
  std::int32_t padding = 0;
};

}  // namespace heddle
