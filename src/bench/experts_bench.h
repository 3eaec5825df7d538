#pragma once

namespace heddle {

class OpsBench;

/// Operations of a mixture of experts, some of which have four times the rows of others and two
/// none: products beside one dense product of as much arithmetic, the rest beside a copy.
void bench_experts(OpsBench& bench);

}  // namespace heddle
