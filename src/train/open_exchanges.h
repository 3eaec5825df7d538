#pragma once

#include <cstdint>
#include <vector>

#include "comm/world.h"
#include "parallel/exchange/outer_steps.h"

namespace heddle {

/// The outer steps of a member that has the state that counts, from before ranks were lost.
struct OpenExchanges {
  OuterSteps* outer = nullptr;
  int site = 0;                 ///< the number of its own
  std::vector<int> sites = {};  ///< of all that trained then, in their order
  std::int64_t step = 0;        ///< that counts
};

/// Settles exchanges between sites that were under way when an epoch ended, on all who have their
/// state, so that these have the same outer weights, and own weights as they are behind the step
/// (docs/design/055-elastic-sites.md). All members call it; `own`: nothing on those that are new.
/// Error(peer) where one is lost meanwhile: then it is called again in the next epoch.
void settle_exchanges(World& all, const OpenExchanges* own, Stream& stream);

}  // namespace heddle
