#include "base/error.h"
#include "ops/backend.h"

namespace heddle::ops::cuda {
namespace {

[[noreturn]] void refuse_blocks() {
  throw Error(ErrorCode::resources, "attention on blocks of a sequence is not there for a GPU yet",
              "keep sequences whole (parallel.cp = 1), or use run.device = \"cpu\"");
}

}  // namespace

void attention_block_forward(const Tensor&, const Tensor&, const Tensor&, const AttentionMask&,
                             double, KeyBlock, const Tensor&, const Tensor&, Stream&) {
  refuse_blocks();
}

void attention_merge(const Tensor&, const Tensor&, const Tensor&, const Tensor&, Stream&) {
  refuse_blocks();
}

void attention_delta(const Tensor&, const Tensor&, const Tensor&, Stream&) { refuse_blocks(); }

void attention_block_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, const Tensor&, const AttentionMask&, double,
                              const Tensor&, const Tensor&, const Tensor&, Stream&) {
  refuse_blocks();
}

}  // namespace heddle::ops::cuda
