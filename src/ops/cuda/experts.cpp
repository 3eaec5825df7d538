#include "base/error.h"
#include "ops/backend.h"

namespace heddle::ops::cuda {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::usage, "experts do not run on a GPU yet", "use the CPU");
}

}  // namespace

void route(const Tensor&, const RouterRule&, const Tensor&, const Tensor&, const Tensor&, Stream&) {
  refuse();
}

void route_backward(const Tensor&, const Tensor&, const RouterRule&, const Tensor&, const Tensor&,
                    Stream&) {
  refuse();
}

void count_choices(const Tensor&, const Tensor&, Stream&) { refuse(); }

void router_loss_backward(const Tensor&, const RouterRule&, const Tensor&, const RouterLoss&,
                          const Tensor&, Stream&) {
  refuse();
}

void order_by_expert(const Tensor&, const Tensor&, const Tensor&, const Tensor&, Stream&) {
  refuse();
}

void combine_rows(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                  Stream&) {
  refuse();
}

void expert_swiglu_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                            const Tensor&, const Tensor&, const Tensor&, Stream&) {
  refuse();
}

void grouped_gemm(const Tensor&, const Tensor&, Transpose, const Tensor&, const Tensor&, Stream&) {
  refuse();
}

void grouped_gemm_weight(const Tensor&, const Tensor&, const Tensor&, double, const Tensor&,
                         Stream&) {
  refuse();
}

}  // namespace heddle::ops::cuda
