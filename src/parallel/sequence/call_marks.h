#pragma once

#include "parallel/sequence/context_program.h"

namespace heddle {

/// Outputs that a call makes before anything else is done with them are written, not merged; a
/// piece all of whose rows are need not be cleared.
void mark_first_calls(ContextProgram& forward);

}  // namespace heddle
