#include "engine/vocabulary_passes.h"

#include "base/check.h"
#include "ops/elementwise.h"

namespace heddle {

VocabularyPasses::VocabularyPasses(Model& model) : model_(model) {
  for (int lane = 0; lane < kExchanges; ++lane) model.mesh().lane(lane).run_in_background(true);
}

Communicator& VocabularyPasses::lane(Exchange exchange) const {
  return model_.mesh().lane(static_cast<int>(exchange) - 1);
}

Work& VocabularyPasses::work(Batch& batch, Exchange exchange) const {
  return batch.works[static_cast<std::size_t>(exchange) - 1];
}

bool VocabularyPasses::is_here(int stage) const {
  return model_.plan().rank_of_stage[static_cast<std::size_t>(stage)] ==
         model_.mesh().coord(Axis::pp);
}

Tensor VocabularyPasses::pass(Act act, int microbatch, Ctx& ctx) {
  Batch& batch = batches_[microbatch];
  Tensor losses;
  switch (act) {
    case Act::vocab_s: start_pass(batch, ctx); break;
    case Act::vocab_t: losses = finish_pass(batch, ctx); break;
    case Act::embed_f: look_up(batch, ctx); break;
    case Act::embed_b: add_gradients(batch, ctx); break;
    default: HEDDLE_CHECK(false, "{} is no pass of a vocabulary", static_cast<int>(act));
  }
  note_done(microbatch);
  return losses;
}

void VocabularyPasses::note_done(int microbatch) {
  Batch& batch = batches_.at(microbatch);
  constexpr int kPasses = 4;
  const bool sums_in_t = model_.vocabulary().head.needs_weights_to_finish();
  if (++batch.done == kPasses + (sums_in_t ? kExchanges : kExchanges - 1)) {
    batches_.erase(microbatch);
  }
}

void VocabularyPasses::start_pass(Batch& batch, Ctx& ctx) {
  const auto vocabulary = model_.vocabulary();
  batch.outgoing = vocabulary.head.begin(std::exchange(batch.x, {}), batch.saved, ctx);
}

Tensor VocabularyPasses::finish_pass(Batch& batch, Ctx& ctx) {
  const auto vocabulary = model_.vocabulary();
  batch.output_grad = vocabulary.head.finish(batch.merged.divisor_T, batch.saved, ctx);
  const SplitHead::Merged merged = std::exchange(batch.merged, {});
  HEDDLE_CHECK(batch.saved.empty(), "a vocabulary pass left something saved");
  // All ranks of the pipeline know the losses; the last stage's counts them.
  return is_here(model_.plan().stages() - 1) ? merged.loss_T : Tensor();
}

void VocabularyPasses::look_up(Batch& batch, Ctx& ctx) {
  const auto vocabulary = model_.vocabulary();
  Saved nothing;
  batch.looked_up = vocabulary.embedding.forward({}, nothing, ctx);
}

void VocabularyPasses::add_gradients(Batch& batch, Ctx& ctx) {
  const auto vocabulary = model_.vocabulary();
  Saved saved;
  vocabulary.embedding.backward(std::exchange(batch.input_grad, {}), saved, ctx);
}

void VocabularyPasses::begin(Exchange exchange, int microbatch, const Tensor& given, Ctx& ctx) {
  Batch& batch = batches_[microbatch];
  switch (exchange) {
    case Exchange::output:
      batch.x = spread(exchange, model_.plan().stages() - 1, given, batch, ctx);
      return;
    case Exchange::softmax: return exchange_statistics(batch, ctx);
    case Exchange::output_grad:
      work(batch, exchange) =
          lane(exchange).all_reduce(batch.output_grad, ReduceOp::sum, ctx.stream);
      return;
    case Exchange::embedding:
      work(batch, exchange) = lane(exchange).all_reduce(batch.looked_up, ReduceOp::sum, ctx.stream);
      return;
    case Exchange::embedding_grad:
      batch.input_grad = spread(exchange, 0, given, batch, ctx);
      return;
    case Exchange::none: break;
  }
  HEDDLE_CHECK(false, "nothing to exchange");
}

Tensor VocabularyPasses::spread(Exchange exchange, int stage, const Tensor& given, Batch& batch,
                                Ctx& ctx) {
  const Tensor data =
      given.defined() ? given
                      : ctx.activation(model_.head_input_shape(ctx.batch.tokens()), model_.dtype());
  const int source = model_.plan().rank_of_stage[static_cast<std::size_t>(stage)];
  work(batch, exchange) = lane(exchange).broadcast(data, source, ctx.stream);
  return data;
}

void VocabularyPasses::exchange_statistics(Batch& batch, Ctx& ctx) {
  SplitHead& head = model_.vocabulary().head;
  Communicator& others = lane(Exchange::softmax);
  const Tensor& own = batch.outgoing.statistics_3T;
  batch.statistics = ctx.memory.alloc({head.rows().holders, 3, own.size(1)}, own.dtype(),
                                      MemoryTag::communication);
  batch.merged = SplitHead::allocate_merged(own, ctx);
  batch.targets = head.targets(ctx);
  work(batch, Exchange::softmax) = others.all_gather(own, batch.statistics, ctx.stream);
  const Tensor& product = batch.outgoing.product_TD;
  if (!product.defined()) return;
  others.then(
      [rows = head.rows(), all = batch.statistics, targets = batch.targets, merged = batch.merged,
       outgoing = batch.outgoing](Stream& stream) {
        SplitHead::merge(rows, all, targets, merged, stream);
        SplitHead::finish_product(outgoing, merged, stream);
      },
      ctx.stream);
  work(batch, Exchange::softmax) = others.all_reduce(product, ReduceOp::sum, ctx.stream);
}

Tensor VocabularyPasses::end(Exchange exchange, int microbatch, Ctx& ctx) {
  Batch& batch = batches_.at(microbatch);
  std::exchange(work(batch, exchange), {}).wait(ctx.stream);
  Tensor taken;
  const int last = model_.plan().stages() - 1;
  switch (exchange) {
    case Exchange::softmax: {
      const SplitHead::Outgoing outgoing = std::exchange(batch.outgoing, {});
      if (!outgoing.product_TD.defined()) {
        SplitHead::merge(model_.vocabulary().head.rows(), batch.statistics, batch.targets,
                         batch.merged, ctx.stream);
      } else if (is_here(last)) {
        taken = outgoing.product_TD;
        ops::scale(taken, ctx.loss_scale, ctx.stream);
      }
      batch.statistics = batch.targets = {};
      break;
    }
    case Exchange::output_grad: {
      const Tensor sum = std::exchange(batch.output_grad, {});
      if (is_here(last)) taken = sum;
      break;
    }
    case Exchange::embedding: {
      const Tensor sum = std::exchange(batch.looked_up, {});
      if (is_here(0)) taken = sum;
      break;
    }
    default: break;
  }
  note_done(microbatch);
  return taken;
}

}  // namespace heddle
