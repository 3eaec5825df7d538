#include "bench/attention_case.h"

#include "ops/random.h"

namespace heddle {

ComputedCase::ComputedCase(const ContextShape& shape, Communicator& ranks, Stream& stream,
                           Memory& memory, DType dtype)
    : AttentionCase(shape, ranks.rank()),
      heads_{.heads = shape.heads, .kv_heads = shape.key_heads, .head_dim = shape.head_dim},
      layer_(heads_, 0.125, 0, ranks),
      stream_(stream),
      memory_(memory) {
  const std::int64_t tokens =
      context_ ? tokens_in(context_->plan.held[static_cast<std::size_t>(ranks.rank())])
               : shape.tokens;
  batch_ = {.ids = memory.for_host().alloc({1, tokens}, DType::i32, MemoryTag::data),
            .targets = {},
            .positions = {},
            .first_key = {},
            .context = context_};
  qkv_ = random({batch_.tokens(), heads_.qkv_width()}, dtype);
  dout_ = random({batch_.tokens(), heads_.out_width()}, dtype);
}

void ComputedCase::forward() {
  Ctx ctx{.stream = stream_, .memory = memory_, .batch = batch_};
  layer_.forward(qkv_, saved_, ctx);
}

void ComputedCase::backward() {
  Ctx ctx{.stream = stream_, .memory = memory_, .batch = batch_};
  layer_.backward_input(dout_, saved_, ctx);
}

Tensor ComputedCase::random(const Shape& shape, DType dtype) {
  const Tensor made = memory_.alloc(shape, dtype, MemoryTag::activations);
  ops::fill_normal(made.view({shape.count()}), 1, 0, 1.0, stream_);
  return made;
}

}  // namespace heddle
