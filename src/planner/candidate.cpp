#include "planner/candidate.h"

#include <array>

namespace heddle::planner {

const char* name_of(Recompute recompute) {
  static constexpr std::array names = {"none", "selective", "full"};
  return names[static_cast<std::size_t>(recompute)];
}

Stack Stack::heddle(DType compute, Updates updates) {
  Stack stack;
  stack.compute = compute;
  if (compute == DType::f32) stack.parameter_bytes = 4;
  const double master = compute == DType::f32 ? 0 : 4;
  stack.state_bytes = master + (updates == Updates::sgd ? 4 : 8);
  stack.inner_state_bytes = master + (updates == Updates::sgd || updates == Updates::muon ? 4 : 8);
  stack.updates = updates;
  return stack;
}

Stack Stack::megatron() {
  Stack stack;
  stack.compute = DType::f16;
  stack.stores_scores = stack.regathers = stack.splits_messages = true;
  stack.balances_stages = stack.overlaps_gathers = stack.head_in_forward = false;
  stack.sums_targets = false;
  stack.kernels_forward = 14;
  stack.kernels_backward = 28;
  stack.launches_forward = 30;
  stack.launches_backward = 45;
  stack.host_fraction = 1.0;
  return stack;
}

heddle::Device Stack::place() const {
  if (compute != DType::bf16) return {};
  return {heddle::Device::Kind::cuda, 0};
}

}  // namespace heddle::planner
