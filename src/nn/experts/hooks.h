#pragma once

#include <cstdint>

#include "nn/context.h"

namespace heddle {

/// The places of FSMoE's hooks: before and behind the layer, and around the two exchanges between
/// ranks that have other experts. In backward gradients pass the same places in the same order:
/// those of outputs are dispatched, those of inputs are combined.
enum class ExpertPlace : std::uint8_t {
  start,            ///< tokens, before they are routed
  before_dispatch,  ///< rows that leave for their experts
  after_dispatch,   ///< where they have arrived
  before_combine,   ///< what experts made of them
  after_combine,    ///< back where the tokens are
  end               ///< tokens, with what the experts add up to
};

/// Does something with rows at these places. Everything depends on sizes that all ranks know alike.
class ExpertHook {
 public:
  virtual ~ExpertHook() = default;

  /// As many rows in place of these, which stay as they are; between before_ and after_ they are
  /// bytes, `row_bytes` of each. At start and end it may look, and gives back what it got. Rows on
  /// their way may be given by a thread of a communicator, while the rank's own does other things.
  virtual Tensor at(ExpertPlace place, const Tensor& rows, Ctx& ctx) const = 0;
  /// Bytes of a row on its way that was one of `width` elements.
  virtual std::int64_t row_bytes(std::int64_t width, DType dtype) const = 0;
  /// Whether rows travel through the hook at all where those of a rank have so many bytes on
  /// average.
  virtual bool takes(std::int64_t mean_bytes) const = 0;
};

}  // namespace heddle
