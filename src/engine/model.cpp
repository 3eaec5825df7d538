#include "engine/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "nn/redistribute.h"
#include "ops/elementwise.h"
#include "ops/softmax_xent.h"
#include "tensor/transfer.h"

namespace heddle {
namespace {

void refuse_on_gpu_if(bool is_asked, const std::string& what) {
  if (!is_asked) return;
  throw Error(ErrorCode::usage, what + " on a GPU yet", "use the CPU");
}

/// The spec, where the device has what it needs.
ModelSpec supported(ModelSpec spec, Device device) {
  if (!spec.experts || device.kind != Device::Kind::cuda) return spec;
  using Choice = GateRule::Choice;
  const GateRule& gate = spec.experts->gating;
  refuse_on_gpu_if(gate.choice == Choice::sinkhorn, "a router by transport plans does not run");
  refuse_on_gpu_if(gate.choice == Choice::expert_choice, "experts do not choose tokens");
  refuse_on_gpu_if(spec.experts->cosine_width > 0, "a router by cosines does not run");
  refuse_on_gpu_if(gate.noise != ops::Noise::none, "noise on the choice of experts does not run");
  refuse_on_gpu_if(gate.capacity.limits() && gate.capacity.victims == ops::Victims::random,
                   "choices of experts are not dropped at random");
  return spec;
}

}  // namespace

Model::Model(ModelSpec spec, const BuildOptions& options, ParamStore::Purpose purpose,
             Memory& memory)
    : Model(spec, options, single_rank_plan(spec), std::make_unique<Mesh>(), nullptr, purpose,
            memory) {}

Model::Model(ModelSpec spec, const BuildOptions& options, const ParallelPlan& plan,
             const Mesh& mesh, ParamStore::Purpose purpose, Memory& memory)
    : Model(std::move(spec), options, plan, nullptr, &mesh, purpose, memory) {}

Model::Model(ModelSpec spec, const BuildOptions& options, const ParallelPlan& plan,
             std::unique_ptr<Mesh> own_mesh, const Mesh* mesh, ParamStore::Purpose purpose,
             Memory& memory)
    : spec_(supported(std::move(spec), memory.device())),
      dtype_(options.dtype),
      positions_(options.positions),
      plan_(plan),
      own_mesh_(std::move(own_mesh)),
      mesh_(mesh != nullptr ? *mesh : *own_mesh_),
      division_(mesh_.size(Axis::cp) == 1
                    ? nullptr
                    : std::make_unique<ContextDivision>(plan.context_shape(spec_),
                                                        mesh_.coord(Axis::cp), spec_.windows())),
      rank_(build_rank_model(spec_, options, plan_, mesh_, purpose, memory)) {
  for (const UnitLabel& label : rank_.labels) {
    labels_.push_back(std::make_shared<std::string>(label.text()));
  }
}

Model::Vocabulary Model::vocabulary() const {
  return {*rank_.decoder.vocabulary.front(), *rank_.decoder.split_head};
}

Shape Model::head_input_shape(std::int64_t tokens) const {
  return {tokens_per_rank(tokens, mesh_.size(Axis::tp)), spec_.hidden};
}

Shape Model::boundary_shape(std::int64_t tokens) const {
  return {plan_.sequence ? tokens_per_rank(tokens, mesh_.size(Axis::tp)) : tokens, spec_.hidden};
}

Tensor Model::trunk(bool into_head, Ctx& ctx) const {
  Communicator& pipeline = mesh_.comm(Axis::pp);
  const bool is_divided = plan_.divides_vocabulary_over_pp();
  Tensor x = is_divided ? look_up(ctx) : Tensor();
  for (int index = 0; index < plan_.stages(); ++index) {
    const auto rank_of = [&](int stage) {
      return plan_.rank_of_stage[static_cast<std::size_t>(stage)];
    };
    if (rank_of(index) != pipeline.rank()) continue;
    if (index > 0 && rank_of(index - 1) != pipeline.rank()) {
      x = ctx.activation(boundary_shape(ctx.batch.tokens()), dtype_);
      pipeline.recv(x, rank_of(index - 1), ctx.stream).wait(ctx.stream);
    }
    tell_forward(rank_.units, units_on_the_way(index, into_head), [&](const StepOp& op) {
      if (op.kind != StepOp::Kind::compute) return rank_.store->perform(op, ctx.stream);
      Saved nothing;
      x = unit(op.what).forward(x, nothing, ctx);
    });
    if (index + 1 < plan_.stages() && rank_of(index + 1) != pipeline.rank()) {
      pipeline.send(x, rank_of(index + 1), ctx.stream).wait(ctx.stream);
    }
  }
  if (!is_divided) return has_head() ? x : Tensor();
  const int source = plan_.rank_of_stage.back();
  if (pipeline.rank() != source) {
    const std::int64_t tokens = ctx.batch.tokens();
    x = ctx.activation(into_head ? head_input_shape(tokens) : boundary_shape(tokens), dtype_);
  }
  pipeline.broadcast(x, source, ctx.stream).wait(ctx.stream);
  return x;
}

std::vector<int> Model::units_on_the_way(int stage, bool into_head) const {
  const auto [first, count] = rank_.units.stages[static_cast<std::size_t>(stage)];
  std::vector<int> order;
  std::map<int, int> by_block;
  std::size_t place = 0;  // of blocks in `order`
  for (int unit = first; unit < first + count; ++unit) {
    if (is_left_out(unit)) continue;
    const int block = rank_.units.units[static_cast<std::size_t>(unit)].block;
    const bool is_of_head =
        is_head(unit) || (!into_head && &this->unit(unit) == rank_.decoder.head_entry);
    if (blocks_ && block >= 0) {
      if (by_block.empty()) place = order.size();
      by_block[block] = unit;
    } else if (!is_of_head) {
      order.push_back(unit);
    }
  }
  if (!blocks_) return order;
  std::vector<int> chosen;
  for (const int block : *blocks_) {
    if (const auto found = by_block.find(block); found != by_block.end()) {
      chosen.push_back(found->second);
    }
  }
  order.insert(order.begin() + static_cast<std::ptrdiff_t>(place), chosen.begin(), chosen.end());
  return order;
}

bool Model::is_left_out(int unit) const {
  const int block = rank_.units.units[static_cast<std::size_t>(unit)].block;
  return std::ranges::find(left_out_, block) != left_out_.end();
}

void Model::go_through(std::vector<int> blocks) {
  std::vector<int> sorted = blocks;
  std::ranges::sort(sorted);
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
    throw Error(ErrorCode::usage, fmt::format("layer {} is named twice", *twice),
                "name a layer once");
  }
  if (!sorted.empty() && (sorted.front() < 0 || sorted.back() >= spec_.layers)) {
    throw Error(ErrorCode::usage,
                fmt::format("there is no layer {} in a model of {}",
                            sorted.front() < 0 ? sorted.front() : sorted.back(), spec_.layers),
                fmt::format("layers count from 0 to {}", spec_.layers - 1));
  }
  if (plan_.stages() > 1 && blocks != sorted) {
    throw Error(ErrorCode::usage, "a pipeline goes through layers in ascending order",
                "name them so, or leave parallel.pp = 1");
  }
  blocks_ = std::move(blocks);
}

void Model::with_values(int unit, Stream& stream, const std::function<void()>& compute) const {
  tell_forward(rank_.units, std::array{unit}, [&](const StepOp& op) {
    op.kind == StepOp::Kind::compute ? compute() : rank_.store->perform(op, stream);
  });
}

Tensor Model::look_up(Ctx& ctx) const {
  Tensor rows;
  with_values(rank_.units.embedding, ctx.stream, [&] {
    Saved nothing;
    rows = vocabulary().embedding.forward({}, nothing, ctx);
  });
  mesh_.comm(Axis::pp).all_reduce(rows, ReduceOp::sum, ctx.stream).wait(ctx.stream);
  return rows;
}

MicroBatch Model::share(const MicroBatch& whole, Memory& host) const {
  return division_ ? division_->share(whole, host) : whole;
}

MicroBatch Model::upload(const MicroBatch& batch, Stream& stream, Memory& memory) const {
  if (batch.ids.device() == memory.device()) return batch;
  // One document a sequence needs no mask but the causal one.
  const auto divides = [](const Tensor& first_key) {
    return first_key.defined() &&
           std::ranges::any_of(first_key.host<std::int32_t>(), [](auto key) { return key != 0; });
  };
  const auto place = [&](const Tensor& host, std::int64_t limit, const char* what) {
    if (!host.defined()) return Tensor();
    for (const std::int32_t value : host.host<std::int32_t>()) {
      HEDDLE_CHECK((value >= 0 && value < limit) || value == ops::kIgnoreTarget, "{} {} of {}",
                   what, value, limit);
    }
    return to_device(host, memory, MemoryTag::data, stream);
  };
  return {.ids = place(batch.ids, spec_.vocab, "token id"),
          .targets = place(batch.targets, spec_.vocab, "target"),
          .positions = place(batch.positions, positions_, "position"),
          .first_key = divides(batch.first_key)
                           ? place(batch.first_key, batch.seq_len(), "start of a document")
                           : Tensor(),
          .context = batch.context,
          .places = batch.places,
          .number = batch.number};
}

Tensor Model::losses(const MicroBatch& on_host, Stream& stream, Memory& memory,
                     const OnChoices& on_choices) const {
  Memory host = memory.for_host();
  const MicroBatch batch = upload(share(on_host, host), stream, memory);
  Ctx ctx{.stream = stream,
          .memory = memory,
          .batch = batch,
          .keep = Keep::nothing,
          .on_choices = on_choices ? &on_choices : nullptr};
  const Tensor x = trunk(true, ctx);
  if (!has_head()) return {};
  Tensor losses;
  with_values(head_unit(), stream, [&] {
    Saved nothing;
    losses = rank_.decoder.head->forward(x, nothing, ctx);
  });
  return losses;
}

Tensor Model::logits(const MicroBatch& on_host, bool last_only, KvCache* cache, Stream& stream,
                     Memory& memory) const {
  Memory host = memory.for_host();
  const MicroBatch batch = upload(share_to_decode(on_host, cache, host), stream, memory);
  Ctx ctx{
      .stream = stream, .memory = memory, .batch = batch, .keep = Keep::nothing, .kv_cache = cache};
  Tensor x_TD = trunk(false, ctx);
  const std::int64_t B = on_host.sequences(), S = on_host.seq_len();
  if (cache != nullptr) cache->advance(S);
  const bool selects = last_only && S > 1;
  Tensor logits;
  if (has_head()) {
    x_TD = all_tokens(x_TD, ctx);
    if (batch.context) {
      HEDDLE_CHECK(last_only, "all logits of a divided prompt");
      x_TD = last_token(x_TD, ctx);
    } else if (selects) {
      const std::int64_t D = x_TD.size(1);
      const Tensor last_BD = ctx.workspace({B, D}, x_TD.dtype());
      ops::copy(x_TD.view({B, S, D}).select(1, S - 1), last_BD, stream);
      x_TD = last_BD;
    }
    with_values(head_unit(), stream, [&] { logits = rank_.decoder.head->logits(x_TD, ctx); });
  }
  if (plan_.divides_vocabulary_over_pp()) return logits;  // every rank has them
  return from_head(logits, {selects ? B : B * S, spec_.vocab}, ctx);
}

Tensor Model::next_logits(DecodedRows& rows, Stream& stream, Memory& memory) const {
  HEDDLE_CHECK(!division_, "sequences of different lengths on axis cp");
  const MicroBatch uploaded = rows.stays() ? MicroBatch() : upload(rows.batch(), stream, memory);
  Ctx ctx{.stream = stream,
          .memory = memory,
          .batch = rows.stays() ? rows.batch() : uploaded,
          .keep = Keep::nothing,
          .rows = &rows};
  const Tensor x_TD = trunk(false, ctx);
  Tensor logits;
  if (has_head()) {
    with_values(head_unit(), stream,
                [&] { logits = rank_.decoder.head->logits(all_tokens(x_TD, ctx), ctx); });
  }
  if (plan_.divides_vocabulary_over_pp()) return logits;
  return from_head(logits, {std::ssize(rows.here()), spec_.vocab}, ctx);
}

namespace {

/// Decoding on axis cp. A prompt is divided where every rank gets at least so many tokens; ranks
/// take new tokens in turns of so many.
constexpr std::int64_t kLeastOfPrompt = 8, kTokensATurn = 64;

}  // namespace

MicroBatch Model::share_to_decode(const MicroBatch& whole, KvCache* cache, Memory& host) const {
  if (!division_ || cache == nullptr) return whole;
  const std::int64_t ranks = mesh_.size(Axis::cp), own = mesh_.coord(Axis::cp);
  const std::int64_t known = cache->length();
  if (known == 0 && whole.sequences() == 1 && whole.tokens() >= ranks * kLeastOfPrompt) {
    MicroBatch share = division_->share(whole, host);
    cache->keep_at(share.places->of_whole);
    return share;
  }
  const bool is_kept = own == known / kTokensATurn % ranks;
  std::vector<std::int64_t> places(static_cast<std::size_t>(is_kept ? whole.seq_len() : 0));
  std::iota(places.begin(), places.end(), known);
  cache->keep_at(places);
  return whole;
}

Tensor Model::last_token(const Tensor& x_TD, Ctx& ctx) const {
  const RankContext& context = *ctx.batch.context;
  const TokenRuns& tokens = context.plan.held[static_cast<std::size_t>(context.rank)];
  const Tensor last = ctx.workspace({1, x_TD.size(1)}, x_TD.dtype());
  ops::fill(last, 0.0, ctx.stream);
  if (!tokens.empty() && tokens.back().last() == context.plan.shape.tokens - 1) {
    ops::copy(x_TD.slice(0, x_TD.size(0) - 1, x_TD.size(0)), last, ctx.stream);
  }
  mesh_.comm(Axis::cp).all_reduce(last, ReduceOp::sum, ctx.stream).wait(ctx.stream);
  return last;
}

Tensor Model::all_tokens(const Tensor& x, Ctx& ctx) const {
  if (!plan_.sequence) return x;
  Redistribute gather(mesh_.comm(Axis::tp), shard(0), invariant(), spec_.hidden);
  Saved nothing;
  return gather.forward(x, nothing, ctx);
}

Tensor Model::from_head(const Tensor& logits, const Shape& shape, Ctx& ctx) const {
  Communicator& pipeline = mesh_.comm(Axis::pp);
  const int source = plan_.rank_of_stage.back();
  if (!has_head()) {
    const Tensor received = ctx.workspace(shape, statistics_of(dtype_));
    pipeline.recv(received, source, ctx.stream).wait(ctx.stream);
    return received;
  }
  for (int peer = 0; peer < pipeline.size(); ++peer) {
    if (peer != source) pipeline.send(logits, peer, ctx.stream).wait(ctx.stream);
  }
  return logits;
}

KvCache::Shape Model::cache_shape(std::int64_t sequences, std::int64_t capacity) const {
  const std::int64_t ranks = mesh_.size(Axis::cp);
  if (ranks > 1 && sequences == 1) {
    capacity = std::min(capacity, capacity / ranks + 2 + 2 * kTokensATurn + ranks * kLeastOfPrompt);
  }
  return {.layers = static_cast<int>(spec_.layers),
          .sequences = sequences,
          .capacity = capacity,
          .kv_heads = std::max<std::int64_t>(1, spec_.kv_heads / mesh_.size(Axis::tp)),
          .head_dim = spec_.head_dim,
          .dtype = dtype_};
}

Cost Model::cost(const CostShape& shape) const {
  Cost sum;
  for (const Layer* unit : rank_.layers) sum += unit->cost(shape);
  return sum;
}

MicroBatch plain_batch(const Tensor& ids_BS, const Tensor& targets_BS, std::int64_t first_position,
                       Memory& memory) {
  MicroBatch batch{
      .ids = ids_BS,
      .targets = targets_BS,
      .positions = memory.for_host().alloc(ids_BS.shape(), DType::i32, MemoryTag::data),
      .first_key = {}};
  const auto positions = batch.positions.host<std::int32_t>();
  const auto S = static_cast<std::size_t>(batch.seq_len());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    positions[i] = static_cast<std::int32_t>(first_position + static_cast<std::int64_t>(i % S));
  }
  return batch;
}

}  // namespace heddle
