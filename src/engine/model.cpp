#include "engine/model.h"

#include "ops/elementwise.h"

namespace heddle {

Model::Model(ModelSpec spec, const BuildOptions& options, ParamStore::Purpose purpose,
             Memory& memory)
    : spec_(std::move(spec)),
      dtype_(options.dtype),
      decoder_(build_decoder(spec_, options, memory)),
      store_(
          std::make_unique<ParamStore>(decoder_.unit_pointers(), options.dtype, purpose, memory)) {}

Tensor Model::trunk(Ctx& ctx) const {
  Saved nothing;
  Tensor x = ctx.batch.ids;
  for (std::size_t unit = 0; unit + 1 < decoder_.units.size(); ++unit) {
    x = decoder_.units[unit]->forward(x, nothing.child(static_cast<int>(unit)), ctx);
  }
  return x;
}

Tensor Model::losses(const MicroBatch& batch, Stream& stream, Memory& memory) const {
  Ctx ctx{.stream = stream, .memory = memory, .batch = batch, .keeps_saved = false};
  Saved nothing;
  return decoder_.head->forward(trunk(ctx), nothing, ctx);
}

Tensor Model::logits(const MicroBatch& batch, bool last_only, KvCache* cache, Stream& stream,
                     Memory& memory) const {
  Ctx ctx{
      .stream = stream, .memory = memory, .batch = batch, .keeps_saved = false, .kv_cache = cache};
  Tensor x_TD = trunk(ctx);
  if (cache != nullptr) cache->advance(batch.seq_len());
  if (last_only && batch.seq_len() > 1) {
    const std::int64_t B = batch.sequences(), S = batch.seq_len(), D = x_TD.size(1);
    const Tensor last_BD = ctx.workspace({B, D}, x_TD.dtype());
    ops::copy(x_TD.view({B, S, D}).select(1, S - 1), last_BD, stream);
    x_TD = last_BD;
  }
  return decoder_.head->logits(x_TD, ctx);
}

KvCache::Shape Model::cache_shape(std::int64_t sequences, std::int64_t capacity) const {
  return {.layers = static_cast<int>(spec_.layers),
          .sequences = sequences,
          .capacity = capacity,
          .kv_heads = spec_.kv_heads,
          .head_dim = spec_.head_dim,
          .dtype = dtype_};
}

Cost Model::cost(const CostShape& shape) const {
  Cost sum;
  for (const auto& unit : decoder_.units) sum += unit->cost(shape);
  return sum;
}

MicroBatch plain_batch(const Tensor& ids_BS, const Tensor& targets_BS, std::int64_t first_position,
                       Memory& memory) {
  MicroBatch batch{.ids = ids_BS,
                   .targets = targets_BS,
                   .positions = memory.alloc(ids_BS.shape(), DType::i32, MemoryTag::data),
                   .first_key = {}};
  const auto positions = batch.positions.host<std::int32_t>();
  const auto S = static_cast<std::size_t>(batch.seq_len());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    positions[i] = static_cast<std::int32_t>(first_position + static_cast<std::int64_t>(i % S));
  }
  return batch;
}

}  // namespace heddle
