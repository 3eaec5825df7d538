#pragma once

#include "parallel/sequence/context_program.h"

namespace heddle {

/// Outputs that a call makes before anything else is done with them are written, not merged; a
/// piece all of whose rows are need not be cleared.
void mark_first_calls(ContextProgram& forward);

/// Which calls are the last that add to a piece of dQ, and at which rows calls begin and end: what
/// one has to know to keep sums of dQ from call to call (ops/query_sums.h).
void mark_last_calls(ContextProgram& backward);

}  // namespace heddle
