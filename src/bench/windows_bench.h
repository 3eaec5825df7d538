#pragma once

namespace heddle {

class OpsBench;

/// Attention with windows and caps beside the plain causal one; of pairs, those count that see each
/// other. On a GPU only.
void bench_windows(OpsBench& bench);

}  // namespace heddle
