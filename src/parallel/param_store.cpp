#include "parallel/param_store.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/check.h"
#include "base/rng.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "parallel/box.h"
#include "parallel/padding.h"

namespace heddle {
namespace {

Tensor view_of(const Parameter& parameter, const Tensor& flat, std::int64_t at) {
  return flat.slice(0, at, at + parameter.shape.count()).view(parameter.shape);
}

}  // namespace

Shape ParamPiece::end() const {
  Shape corner = begin;
  for (int dim = 0; dim < corner.dims(); ++dim) corner.set(dim, corner[dim] + data.size(dim));
  return corner;
}

ParamStore::ParamStore(std::span<Layer* const> units, const Options& options, const Mesh& mesh,
                       Memory& memory)
    : ParamStore(units, options, nullptr, &mesh, memory) {}

ParamStore::ParamStore(std::span<Layer* const> units, DType dtype, Purpose purpose, Memory& memory)
    : ParamStore(units, {.dtype = dtype, .purpose = purpose}, std::make_unique<Mesh>(), nullptr,
                 memory) {}

ParamStore::ParamStore(std::span<Layer* const> units, const Options& options,
                       std::unique_ptr<Mesh> own_mesh, const Mesh* mesh, Memory& memory)
    : own_mesh_(std::move(own_mesh)),
      mesh_(mesh != nullptr ? *mesh : *own_mesh_),
      memory_(memory),
      options_(options),
      notes_(options.notes) {
  gradient_codec_ = options_.compress.codec(Compression::Kind::gradients);
  weight_codec_ = options_.compress.codec(Compression::Kind::weights);
  if (notes_ == nullptr && (gradient_codec_ != nullptr || weight_codec_ != nullptr)) {
    notes_ = std::make_shared<BadNotes>(memory_);
  }
  constexpr int kOwn = -1;
  std::map<const Parameter*, int> homes;  // the bucket of each
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    // By the ranks that divide them.
    std::map<Kind, std::vector<Parameter*>> own;
    std::set<int> needed;
    units[unit]->visit([&](Parameter& parameter) {
      const auto [home, is_new] = homes.try_emplace(&parameter, kOwn);
      if (is_new) {
        own[{divides(parameter), !parameter.trains, may_be_coded(parameter)}].push_back(&parameter);
      } else if (home->second != kOwn) {
        needed.insert(home->second);
      }
    });
    for (const auto& [kind, parameters] : own) {
      const int bucket = static_cast<int>(buckets_.size());
      place(static_cast<int>(unit), kind, parameters);
      for (const Parameter* parameter : parameters) homes[parameter] = bucket;
      needed.insert(bucket);
    }
    units_.push_back({.buckets = {needed.begin(), needed.end()},
                      .adds_gradients_in_forward = units[unit]->adds_gradients_in_forward()});
  }
}

AxisSet ParamStore::divides(const Parameter& parameter) const {
  const auto regions = parameter.regions();
  const AxisSet axes = ownership(parameter.layout).divides;
  for (const Parameter::Region& region : regions) {
    const std::string name = parameter.parts.empty() ? "a parameter" : parameter.parts[0].name;
    const std::string unsaid = unsaid_axis(region.layout, mesh_.shape());
    HEDDLE_CHECK(unsaid.empty(), "the layout of {} says nothing of axis {}, which has {} ranks",
                 name, unsaid, mesh_.ranks());
    HEDDLE_CHECK(ownership(region.layout).divides == axes,
                 "parts of {} are divided over different ranks", name);
  }
  return axes;
}

/// Inner matrices, others that decay and the rest apart, so that the optimizer sees few and long
/// stretches per unit, and among them those apart that are summed over more than the bucket's
/// ranks.
void ParamStore::place(int unit, const Kind& kind, std::vector<Parameter*> own) {
  constexpr int kDividesValues = 3;
  Bucket& bucket = buckets_.emplace_back();
  bucket.owner = unit;
  bucket.over = mesh_.shape().occupied(kind.divides);
  bucket.others = &mesh_.group(kind.divides);
  bucket.zero = bucket.others->size() == 1 ? 0 : options_.zero;
  bucket.trains = !kind.is_frozen;
  if (kind.is_frozen && bucket.zero < kDividesValues) bucket.zero = 0;
  const auto rank_of = [&](const Parameter* p) {
    return std::tuple(!p->is_inner_matrix(), !p->is_matrix(), !other_sums(p->layout).empty());
  };
  std::stable_sort(own.begin(), own.end(),
                   [&](const Parameter* a, const Parameter* b) { return rank_of(a) < rank_of(b); });
  for (Parameter* parameter : own) {
    bucket.placed.push_back({parameter, bucket.size});
    bucket.size += padded(parameter->shape.count());
    if (parameter->is_inner_matrix()) bucket.inner = bucket.size;
    if (parameter->is_matrix()) bucket.matrices = bucket.size;
    parameters_.push_back(parameter);
    parameter_count_ += parameter->shape.count();
  }
  const int ranks = bucket.others->size(), rank = bucket.others->rank();
  bucket.size = padded(bucket.size, kParameterAlignment * ranks);
  const std::int64_t shard = bucket.size / ranks;
  bucket.held = bucket.zero == 0 ? Range{0, bucket.size} : Range{shard * rank, shard * (rank + 1)};
  if (bucket.trains) {
    bucket.rest = rest_of(bucket, bucket.held);
    cut_joint(bucket);
    if (kind.may_be_coded) choose_codecs(bucket);
  }
  allocate(bucket);
}

/// Everything starts at zero: padding is never written but read by the norm and the optimizer.
void ParamStore::allocate(Bucket& bucket) {
  const std::int64_t held = bucket.held.end - bucket.held.begin;
  const auto zeros = [&](bool is_whole, DType dtype, MemoryTag tag) {
    return memory_.zeros({is_whole ? bucket.size : held}, dtype, tag);
  };
  bucket.values = zeros(bucket.keeps_whole_values(), options_.dtype, MemoryTag::parameters);
  if (trains(bucket)) {
    bucket.grads = zeros(bucket.keeps_whole_grads(), grad_dtype(), MemoryTag::gradients);
    if (needs_masters(bucket)) bucket.masters = zeros(false, grad_dtype(), MemoryTag::optimizer);
  }
  for (const auto& [parameter, at] : bucket.placed) {
    if (bucket.keeps_whole_values()) parameter->value = view_of(*parameter, bucket.values, at);
    if (trains(bucket) && bucket.keeps_whole_grads())
      parameter->grad = view_of(*parameter, bucket.grads, at);
  }
}

void ParamStore::declare(std::vector<OptimizerState> states) {
  HEDDLE_CHECK(options_.purpose == Purpose::training && shards_.empty(),
               "an optimizer's states in a store that has {}", shards_.empty() ? "none" : "others");
  states_ = std::move(states);
  for (Bucket& bucket : buckets_) {
    for (const OptimizerState& state : states_) {
      const std::int64_t elements = bucket.trains ? state_elements(bucket, state) : 0;
      bucket.states.push_back(
          elements == 0 ? Tensor() : memory_.zeros({elements}, grad_dtype(), MemoryTag::optimizer));
      const bool is_exchanged = state.lies != OptimizerState::Lies::as_gradients;
      bucket.states_before.push_back(options_.retakes_steps && is_exchanged && elements > 0
                                         ? Earlier(bucket.states.back(), memory_)
                                         : Earlier());
    }
    if (bucket.trains) add_shards(bucket);
  }
}

void ParamStore::keep(std::vector<OptimizerState> states) {
  for (OptimizerState& state : states) {
    for (Bucket& bucket : buckets_) {
      bucket.states.push_back(
          memory_.zeros({bucket.held.end - bucket.held.begin}, grad_dtype(), MemoryTag::optimizer));
    }
    states_.push_back(std::move(state));
  }
}

ParamStore::Range ParamStore::held_of(const Bucket& bucket, const Placed& placed) {
  return {std::max(placed.at, bucket.held.begin),
          std::min(placed.at + placed.parameter->shape.count(), bucket.held.end)};
}

std::vector<ParamStore::HeldStretch> ParamStore::held() const {
  std::vector<HeldStretch> all;
  for (const Bucket& bucket : buckets_) {
    for (const Placed& placed : bucket.placed) {
      const Range range = held_of(bucket, placed);
      if (range.empty()) continue;
      HeldStretch& held = all.emplace_back();
      held.parameter = placed.parameter;
      held.unit = bucket.owner;
      held.begin = range.begin - placed.at;
      held.value = cut(bucket, exact_values(bucket), range);
      if (dtype() != grad_dtype()) held.low = cut(bucket, bucket.values, range);
      for (std::size_t i = 0; i < states_.size(); ++i) {
        const Range of = held_of(bucket, states_[i].of);
        const bool is_of = states_[i].lies == OptimizerState::Lies::as_gradients &&
                           bucket.states[i].defined() && of.begin <= range.begin &&
                           range.end <= of.end;
        held.states.push_back(
            is_of ? bucket.states[i].slice(0, range.begin - of.begin, range.end - of.begin)
                  : Tensor());
      }
    }
  }
  return all;
}

void ParamStore::held_changed(Stream& stream) {
  for (Bucket& bucket : buckets_) held_changed(bucket, stream);
}

void ParamStore::held_changed(Bucket& bucket, Stream& stream) {
  if (bucket.masters.defined()) {
    const Tensor own = cut(bucket, bucket.values, bucket.held);
    if (own.dtype() != bucket.masters.dtype()) ops::cast(bucket.masters, own, stream);
  }
  if (bucket.zero != 1 && bucket.zero != 2) return;
  gather(bucket, stream);
  end_gather(bucket, stream);
}

ParamStore::Range ParamStore::held_of(const Bucket& bucket, OptimizerState::Of of) {
  const std::int64_t begin = of == OptimizerState::Of::others ? bucket.inner : 0;
  const std::int64_t end = of == OptimizerState::Of::inner_matrices ? bucket.inner : bucket.size;
  return {std::max(begin, bucket.held.begin), std::min(end, bucket.held.end)};
}

void ParamStore::add_shards(const Bucket& bucket) {
  struct Kind {
    Range range;
    bool decays, is_inner;
  };
  for (const Kind& kind :
       {Kind{{0, bucket.inner}, true, true}, Kind{{bucket.inner, bucket.matrices}, true, false},
        Kind{{bucket.matrices, bucket.size}, false, false}}) {
    const Range range{std::max(kind.range.begin, bucket.held.begin),
                      std::min(kind.range.end, bucket.held.end)};
    if (range.empty()) continue;
    OptShard& shard = shards_.emplace_back();
    shard.value = cut(bucket, exact_values(bucket), range);
    shard.grad = cut(bucket, bucket.grads, range);
    if (options_.dtype != grad_dtype()) shard.low = cut(bucket, bucket.values, range);
    shard.decays = kind.decays;
    shard.is_inner = kind.is_inner;
    shard.unit = bucket.owner;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const Range all = held_of(bucket, states_[i].of);
      const bool is_of = states_[i].lies == OptimizerState::Lies::as_gradients &&
                         all.begin <= range.begin && range.end <= all.end;
      shard.states.push_back(
          is_of ? bucket.states[i].slice(0, range.begin - all.begin, range.end - all.begin)
                : Tensor());
    }
  }
}

Tensor ParamStore::cut(const Bucket& bucket, const Tensor& flat, Range range) {
  const std::int64_t from = flat.count() == bucket.size ? 0 : bucket.held.begin;
  return flat.slice(0, range.begin - from, range.end - from);
}

void ParamStore::run_in_background(bool on) {
  for (const Bucket& bucket : buckets_) bucket.others->run_in_background(on);
}

RankUnits ParamStore::units() const {
  RankUnits units;
  units.units = units_;
  for (const Bucket& bucket : buckets_) {
    auto& described = units.buckets.emplace_back();
    described.owner = bucket.owner;
    described.over = bucket.over;
    described.zero = bucket.zero;
    described.trains = bucket.trains;
    described.elements = bucket.size;
    described.held = bucket.held.end - bucket.held.begin;
    for (const auto& [over, range] : bucket.rest) {
      described.sums.push_back({over, range.end - range.begin});
    }
    for (const Placed& placed : bucket.placed) {
      const Range range = held_of(bucket, placed);
      if (bucket.trains && !range.empty()) described.parts.push_back(range.end - range.begin);
    }
    const std::int64_t part = bucket.size / bucket.others->size();
    const auto coded = [&](const codec::Codec& codec) {
      return static_cast<std::int64_t>(codec.encoded_bytes(part));
    };
    if (bucket.coded_sum) described.coded_gradients = coded(*gradient_codec_);
    if (bucket.coded_gather) {
      described.coded_values = coded(*weight_codec_);
      described.agrees_on_values = weight_codec_->is_lossless();
    }
  }
  const Bucket* const first = tied_bucket(Parameter::Tie::first);
  const Bucket* const last = tied_bucket(Parameter::Tie::last);
  if (const Bucket* const end = first != nullptr ? first : last; end != nullptr) {
    units.tie = first != nullptr && last != nullptr ? RankUnits::Tie::here : RankUnits::Tie::ends;
    units.tied_elements = end->held.end - end->held.begin;
    units.tied_whole_elements = end->size;
  }
  units.joint = describe_joint();
  return units;
}

void ParamStore::perform(const StepOp& op, Stream& stream) {
  switch (op.kind) {
    case StepOp::Kind::tie: return sum_tied(Grads::held, stream);
    case StepOp::Kind::local_tie: return sum_tied(Grads::whole, stream);
    case StepOp::Kind::vectors: return sum_vectors(stream);
    default: break;
  }
  Bucket& bucket = buckets_[static_cast<std::size_t>(op.what)];
  switch (op.kind) {
    case StepOp::Kind::fetch: return fetch(bucket, stream);
    case StepOp::Kind::values: return bind_values(bucket, stream);
    case StepOp::Kind::drop: return drop_values(bucket);
    case StepOp::Kind::open: return open_grads(bucket, stream);
    case StepOp::Kind::reduce:
      return op.slice.is_all()
                 ? reduce(bucket, stream)
                 : static_cast<void>(slice_sum(bucket, op.slice, stream).begin(stream));
    case StepOp::Kind::beside_experts:
      return offered_.offer_beside_experts(slice_sum(bucket, op.slice, stream));
    case StepOp::Kind::beside_rest:
      return offered_.offer_beside_rest(slice_sum(bucket, op.slice, stream));
    case StepOp::Kind::reduced: return end_reduction(bucket, stream);
    case StepOp::Kind::rest: return sum_rest(bucket, bucket.rest, stream);
    case StepOp::Kind::local: return keep_local(bucket, stream);
    case StepOp::Kind::gather: return gather(bucket, stream);
    case StepOp::Kind::gathered: return end_gather(bucket, stream);
    default: HEDDLE_CHECK(false, "op {} is none of a store's", static_cast<int>(op.kind));
  }
}

void ParamStore::fetch(Bucket& bucket, Stream& stream) {
  if (bucket.coded_gather) {
    bucket.coded_gathering =
        bucket.coded_gather->begin(exact_values(bucket), notes_->own(), stream);
    return;
  }
  bucket.gathered = memory_.alloc({bucket.size}, options_.dtype, MemoryTag::communication);
  bucket.gathering = bucket.others->all_gather(bucket.values, bucket.gathered, stream);
}

void ParamStore::bind_values(Bucket& bucket, Stream& stream) {
  if (bucket.coded_gather) {
    bucket.gathered = memory_.alloc({bucket.size}, options_.dtype, MemoryTag::communication);
    bucket.coded_gathering->end(bucket.gathered, stream);
    bucket.coded_gathering.reset();
  } else {
    bucket.gathering->wait(stream);
  }
  for (const auto& [parameter, at] : bucket.placed) {
    parameter->value = view_of(*parameter, bucket.gathered, at);
  }
}

void ParamStore::drop_values(Bucket& bucket) {
  for (const auto& [parameter, at] : bucket.placed) parameter->value = {};
  bucket.gathered = {};
  bucket.gathering.reset();
}

void ParamStore::open_grads(Bucket& bucket, Stream& stream) {
  const Tensor whole = memory_.alloc({bucket.size}, grad_dtype(), MemoryTag::communication);
  std::int64_t written = 0;
  for (const auto& [parameter, at] : bucket.placed) {
    ops::fill(whole.slice(0, written, at), 0.0, stream);
    written = at + parameter->shape.count();
    parameter->grad = view_of(*parameter, whole, at);
    parameter->retire_grad();
  }
  ops::fill(whole.slice(0, written, bucket.size), 0.0, stream);
  bucket.whole_grads = whole;
}

void ParamStore::reduce(Bucket& bucket, Stream& stream) {
  for (const auto& [parameter, at] : bucket.placed) parameter->clear_stale_grad(stream);
  Communicator& others = *bucket.others;
  if (others.size() == 1) return;
  if (bucket.coded_sum) return reduce_coded(bucket, stream);
  if (bucket.zero == 0) {
    reductions_.push_back(
        {&bucket, {}, {}, others.all_reduce(bucket.grads, ReduceOp::sum, stream)});
  } else if (bucket.zero == 1) {
    const Tensor own = cut(bucket, bucket.grads, bucket.held);
    reductions_.push_back(
        {&bucket, {}, {}, others.reduce_scatter(bucket.grads, own, ReduceOp::sum, stream)});
  } else {
    const Tensor shard =
        memory_.alloc(bucket.grads.shape(), grad_dtype(), MemoryTag::communication);
    Work work = others.reduce_scatter(bucket.whole_grads, shard, ReduceOp::sum, stream);
    for (const auto& [parameter, at] : bucket.placed) parameter->grad = {};
    reductions_.push_back({&bucket, std::exchange(bucket.whole_grads, {}), shard, std::move(work)});
  }
}

/// With ZeRO the slices of all parts are brought together, so that they travel as one tensor.
OfferedSums::Sum ParamStore::slice_sum(Bucket& bucket, const StepOp::Slice& slice, Stream& stream) {
  for (const auto& [parameter, at] : bucket.placed) parameter->clear_stale_grad(stream);
  Communicator& others = *bucket.others;
  if (bucket.zero == 0) {
    const Tensor sum = bucket.grads.slice(0, slice.begin, slice.end);
    return {&others, [this, &bucket, &others, sum](Stream& after) {
              Work work = others.all_reduce(sum, ReduceOp::sum, after);
              reductions_.push_back({&bucket, {}, {}, work});
              return work;
            }};
  }
  const Tensor whole =
      memory_.alloc({others.size() * slice.count()}, grad_dtype(), MemoryTag::communication);
  const std::int64_t part = bucket.size / others.size();
  for (int of = 0; of < others.size(); ++of) {
    ops::copy(bucket.grads.slice(0, of * part + slice.begin, of * part + slice.end),
              whole.slice(0, of * slice.count(), (of + 1) * slice.count()), stream);
  }
  const Tensor own = cut(bucket, bucket.grads, bucket.held).slice(0, slice.begin, slice.end);
  return {&others, [this, &bucket, &others, whole, own](Stream& after) {
            Work work = others.reduce_scatter(whole, own, ReduceOp::sum, after);
            reductions_.push_back({&bucket, whole, {}, work});
            return work;
          }};
}

void ParamStore::end_reduction(Bucket& bucket, Stream& stream) {
  HEDDLE_CHECK(!reductions_.empty() && reductions_.front().bucket == &bucket,
               "sums of gradients end in the order in which they began");
  const Reduction reduction = std::move(reductions_.front());
  reductions_.pop_front();
  if (reduction.coded) {
    reduction.coded->end(stream);
  } else {
    reduction.work.wait(stream);
  }
  if (!reduction.shard.defined()) return;
  if (std::exchange(bucket.has_grads, true)) {
    ops::accumulate(reduction.shard, bucket.grads, stream);
  } else {
    ops::copy(reduction.shard, bucket.grads, stream);
  }
}

AxisSet ParamStore::other_sums(const Layout& layout) const {
  return mesh_.shape().occupied(ownership(layout).sums);
}

/// Neighbours are summed together.
std::vector<ParamStore::RestSum> ParamStore::rest_of(const Bucket& bucket, Range of) const {
  std::vector<RestSum> sums;
  std::int64_t behind = 0;  // the last region, summed or not; padding is all that follows it
  for (const auto& [parameter, at] : bucket.placed) {
    for (const Parameter::Region& region : parameter->regions()) {
      const std::int64_t before = std::exchange(behind, at + region.end);
      const AxisSet axes = other_sums(region.layout);
      if (axes.empty()) continue;
      if (sums.empty() || axes != sums.back().over || sums.back().range.end != before) {
        sums.push_back({axes, {at + region.begin, 0}});
      }
      sums.back().range.end = at + region.end;
    }
  }
  for (auto& [over, range] : sums) {
    range = {std::max(range.begin, of.begin), std::min(range.end, of.end)};
  }
  std::erase_if(sums, [](const RestSum& sum) { return sum.range.empty(); });
  return sums;
}

void ParamStore::sum_rest(const Bucket& bucket, const std::vector<RestSum>& rest,
                          Stream& stream) const {
  for (const auto& [over, range] : rest) {
    mesh_.sum(cut(bucket, bucket.grads, range), over, stream);
  }
}

const ParamStore::Bucket* ParamStore::tied_bucket(Parameter::Tie end) const {
  const auto found = std::find_if(buckets_.begin(), buckets_.end(), [&](const Bucket& bucket) {
    return bucket.trains && bucket.placed.front().parameter->tie == end;
  });
  if (found == buckets_.end()) return nullptr;
  HEDDLE_CHECK(found->placed.size() == 1, "a tied parameter shares its unit with others");
  return &*found;
}

void ParamStore::sum_tied(Grads grads_of, Stream& stream) const {
  const Bucket* const first = tied_bucket(Parameter::Tie::first);
  const Bucket* const last = tied_bucket(Parameter::Tie::last);
  const auto grads = [&](const Bucket& bucket) {
    return grads_of == Grads::whole ? bucket.grads : cut(bucket, bucket.grads, bucket.held);
  };
  if (first != nullptr && last != nullptr) {
    ops::add(grads(*first), grads(*last), grads(*first), stream);
    ops::copy(grads(*first), grads(*last), stream);
  } else if (first != nullptr || last != nullptr) {
    const Tensor here = grads(first != nullptr ? *first : *last);
    mesh_.ends().all_reduce(here, ReduceOp::sum, stream).wait(stream);
  }
}

std::vector<ParamStore::Range> ParamStore::counted(const Bucket& bucket, Range of,
                                                   bool is_divided) const {
  std::vector<Range> ranges;
  if (!bucket.trains) return ranges;
  std::int64_t behind = 0;  // the last region, counted or not; padding is all that follows it
  for (const auto& [parameter, at] : bucket.placed) {
    if (parameter->tie == Parameter::Tie::last) continue;
    for (const Parameter::Region& region : parameter->regions()) {
      const std::int64_t before = std::exchange(behind, at + region.end);
      if (!counts(ownership(region.layout), mesh_.shape(), mesh_.rank(), is_divided)) continue;
      const Range range{std::max(at + region.begin, of.begin), std::min(at + region.end, of.end)};
      if (range.empty()) continue;
      // Over padding, which is zero, so that the sum has few and long terms.
      if (!ranges.empty() && ranges.back().end == before) {
        ranges.back().end = range.end;
      } else {
        ranges.push_back(range);
      }
    }
  }
  return ranges;
}

void ParamStore::add_counted_squares(const Tensor& sum, Stream& stream) const {
  for (const Bucket& bucket : buckets_) {
    for (const Range& range : counted(bucket, bucket.held, bucket.zero > 0)) {
      ops::add_sum_of_squares(cut(bucket, bucket.grads, range), sum, stream);
    }
  }
}

void ParamStore::gather(Bucket& bucket, Stream& stream) const {
  if (bucket.coded_gather) {
    bucket.coded_gathering = bucket.coded_gather->begin(
        cut(bucket, exact_values(bucket), bucket.held), notes_->own(), stream);
    return;
  }
  const Tensor own = cut(bucket, bucket.values, bucket.held);
  bucket.gathering = bucket.others->all_gather(own, bucket.values, stream);
}

void ParamStore::end_gather(Bucket& bucket, Stream& stream) {
  if (bucket.coded_gather) {
    bucket.coded_gathering->end(bucket.values, stream);
    return bucket.coded_gathering.reset();
  }
  bucket.gathering->wait(stream);
  bucket.gathering.reset();
}

void ParamStore::values_changed(Stream& stream) {
  for (Bucket& bucket : buckets_) {
    if (bucket.masters.defined()) held_changed(bucket, stream);
  }
}

void ParamStore::retire_grads() {
  for (Parameter* parameter : parameters_) parameter->retire_grad();
  for (Bucket& bucket : buckets_) bucket.has_grads = false;
}

/// `range` of the bucket, as far as it lies in the parameter, as boxes of its parts.
void ParamStore::add_pieces(const Placed& placed, const Tensor& flat, std::int64_t from,
                            Range range, bool is_divided, bool is_common,
                            std::vector<ParamPiece>& pieces) const {
  const Parameter& parameter = *placed.parameter;
  const auto share = [&](const Parameter::Part& part) {
    if (parameter.tie == Parameter::Tie::last) return WriteShare{};
    Ownership owners = ownership(parameter.layout_of(part));
    if (!is_common) owners.own = {};
    return write_share(owners, mesh_.shape(), mesh_.rank(), is_divided);
  };
  range = {std::max(range.begin, placed.at),
           std::min(range.end, placed.at + parameter.shape.count())};
  if (range.empty()) return;
  std::int64_t at = range.begin;
  for (const auto& [corner, extent] :
       boxes_in(parameter.shape, range.begin - placed.at, range.end - placed.at)) {
    const Tensor box = flat.slice(0, at - from, at - from + extent.count()).view(extent);
    at += extent.count();
    for (const Parameter::Part& part : parameter.parts) {
      ParamPiece piece{&parameter, &part, part.begin, box, share(part)};
      bool overlaps = true;
      for (int dim = 0; dim < box.dims() && overlaps; ++dim) {
        const std::int64_t begin = std::max(corner[dim], part.at[dim]);
        const std::int64_t end =
            std::min(corner[dim] + box.size(dim), part.at[dim] + part.extent[dim]);
        overlaps = begin < end;
        if (!overlaps) break;
        piece.data = piece.data.slice(dim, begin - corner[dim], end - corner[dim]);
        piece.begin.set(dim, part.begin[dim] + begin - part.at[dim]);
      }
      if (overlaps) pieces.push_back(std::move(piece));
    }
  }
}

void ParamStore::add_pieces(const Bucket& bucket, const Tensor& flat,
                            std::vector<ParamPiece>& pieces) const {
  const bool is_whole = flat.count() == bucket.size;
  const Range range = is_whole ? Range{0, bucket.size} : bucket.held;
  for (const Placed& placed : bucket.placed) {
    add_pieces(placed, flat, range.begin, range, !is_whole, false, pieces);
  }
}

std::vector<ParamPiece> ParamStore::value_pieces() const {
  std::vector<ParamPiece> pieces;
  for (const Bucket& bucket : buckets_) {
    add_pieces(bucket, exact_values(bucket), pieces);
  }
  return pieces;
}

std::vector<ParamPiece> ParamStore::held_value_pieces() const {
  std::vector<ParamPiece> pieces;
  for (const Bucket& bucket : buckets_) {
    add_pieces(bucket, cut(bucket, exact_values(bucket), bucket.held), pieces);
  }
  return pieces;
}

std::vector<ParamPiece> ParamStore::pieces_of(const HeldStretch& stretch,
                                              const Tensor& flat) const {
  std::vector<ParamPiece> pieces;
  for (const Bucket& bucket : buckets_) {
    for (const Placed& placed : bucket.placed) {
      if (placed.parameter != stretch.parameter) continue;
      const std::int64_t begin = placed.at + stretch.begin;
      add_pieces(placed, flat, begin, {begin, begin + flat.count()}, false, false, pieces);
    }
  }
  return pieces;
}

Tensor ParamStore::held_grads(int bucket) const {
  const Bucket& of = buckets_[static_cast<std::size_t>(bucket)];
  return cut(of, of.grads, of.held);
}

std::vector<ParamPiece> ParamStore::grad_pieces() const {
  std::vector<ParamPiece> pieces;
  for (const Bucket& bucket : buckets_) {
    if (bucket.trains) add_pieces(bucket, cut(bucket, bucket.grads, bucket.held), pieces);
  }
  return pieces;
}

std::vector<ParamPiece> ParamStore::state_pieces(std::size_t index, bool by_each_site) const {
  std::vector<ParamPiece> pieces;
  if (states_[index].lies != OptimizerState::Lies::as_gradients) return joint_pieces(index);
  for (const Bucket& bucket : buckets_) {
    if (!bucket.states[index].defined()) continue;
    const Range range = held_of(bucket, states_[index].of);
    for (const Placed& placed : bucket.placed) {
      add_pieces(placed, bucket.states[index], range.begin, range, bucket.zero > 0,
                 states_[index].is_common && !by_each_site, pieces);
    }
  }
  return pieces;
}

namespace {

/// On the host: parameters that start so are small.
void fill_uniform(const ParamPiece& piece, std::uint64_t key, Stream& stream) {
  const double bound = piece.parameter->init.stddev;
  fill_from_host(piece, stream, [&](const Tensor& to) {
    for_each_stretch(
        to, piece.begin, piece.part->whole, [&](const Tensor& stretch, std::int64_t first) {
          Memory host;
          const Tensor exact = host.alloc(stretch.shape(), DType::f64, MemoryTag::workspace);
          auto index = static_cast<std::uint64_t>(first);
          for (double& value : exact.host<double>()) {
            value = bound * (2.0 * random_uniform(key, index++) - 1.0);
          }
          Stream cpu(1);
          ops::cast(exact, stretch, cpu);
        });
  });
}

void initialize(const ParamPiece& piece, std::uint64_t seed, Stream& stream) {
  const Init& init = piece.parameter->init;
  const std::uint64_t key = rng_key(seed, piece.part->name);
  switch (init.kind) {
    case Init::Kind::zeros: return ops::fill(piece.data, 0.0, stream);
    case Init::Kind::ones: return ops::fill(piece.data, 1.0, stream);
    case Init::Kind::uniform: return fill_uniform(piece, key, stream);
    case Init::Kind::normal: break;
  }
  for_each_stretch(
      piece.data, piece.begin, piece.part->whole, [&](const Tensor& stretch, std::int64_t first) {
        ops::fill_normal(stretch, key, static_cast<std::uint64_t>(first), init.stddev, stream);
      });
}

}  // namespace

void initialize(ParamStore& store, std::uint64_t seed, Stream& stream, Initialized which) {
  for (const ParamPiece& piece : store.value_pieces()) {
    if (which == Initialized::all || piece.parameter->is_adapter) initialize(piece, seed, stream);
  }
  store.values_changed(stream);
}

void fill_from_host(const ParamPiece& piece, Stream& stream,
                    const std::function<void(const Tensor&)>& fill) {
  if (piece.data.device().kind == Device::Kind::cpu) return fill(piece.data);
  Memory host;
  const Tensor staging = host.alloc(piece.data.shape(), piece.data.dtype(), MemoryTag::workspace);
  fill(staging);
  ops::copy(staging, piece.data, stream);
}

Tensor on_host(const ParamPiece& piece, Stream& stream) {
  if (piece.data.device().kind == Device::Kind::cpu) return piece.data;
  Memory host;
  const Tensor copy = host.alloc(piece.data.shape(), piece.data.dtype(), MemoryTag::workspace);
  ops::copy(piece.data, copy, stream);
  return copy;
}

}  // namespace heddle
