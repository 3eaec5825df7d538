#pragma once

#include "parallel/sequence/context_program.h"

namespace heddle {

/// What comes first to rows of results is written there, not added: outputs that a call makes, and
/// gradients of own keys that were put together with others'. A piece all of whose rows are written
/// need not be cleared.
void mark_first_results(ContextProgram& program, ContextPassKind pass);

/// Which calls are the last that add to a piece of dQ, and at which rows calls begin and end: what
/// one has to know to keep sums of dQ from call to call (ops/query_sums.h).
void mark_last_calls(ContextProgram& backward);

/// Results that come for the rank's own rows in one round after the other wait for each other, a
/// few of them: what they are added to is then read and written once.
void mark_waiting(ContextProgram& program);

}  // namespace heddle
