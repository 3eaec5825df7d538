#include "parallel/param_store.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "base/rng.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/reduce.h"

namespace heddle {
namespace {

/// Parameters start on cache lines, so that no two share one and vector loads are aligned.
constexpr std::int64_t kAlignment = 16;

std::int64_t padded(std::int64_t count, std::int64_t to = kAlignment) {
  return (count + to - 1) / to * to;
}

/// Sums of gradients that may be under way at a time: a bound on the memory they hold.
constexpr std::size_t kReductionsUnderWay = 2;

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
      options_(options) {
  std::map<const Parameter*, Bucket*> homes;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    std::map<AxisSet, std::vector<Parameter*>> own;  // by the ranks that divide them
    std::set<Bucket*> needed;
    units[unit]->visit([&](Parameter& parameter) {
      const auto [home, is_new] = homes.try_emplace(&parameter, nullptr);
      if (is_new) {
        own[divides(parameter)].push_back(&parameter);
      } else if (home->second != nullptr) {
        needed.insert(home->second);
      }
    });
    for (const auto& [axes, parameters] : own) {
      Bucket& bucket = place(static_cast<int>(unit), axes, parameters);
      for (const Parameter* parameter : parameters) homes[parameter] = &bucket;
      needed.insert(&bucket);
    }
    needs_.emplace_back(needed.begin(), needed.end());
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

/// Decaying and other parameters apart, so that the optimizer sees two long stretches per unit, and
/// among them those apart that are summed over more than the bucket's ranks.
ParamStore::Bucket& ParamStore::place(int unit, AxisSet divides, std::vector<Parameter*> own) {
  Bucket& bucket = buckets_.emplace_back();
  bucket.owner = unit;
  bucket.others = &mesh_.group(divides);
  bucket.zero = bucket.others->size() == 1 ? 0 : options_.zero;
  const auto rank_of = [&](const Parameter* p) {
    return std::pair(!p->is_matrix(), !other_sums(p->layout).empty());
  };
  std::stable_sort(own.begin(), own.end(),
                   [&](const Parameter* a, const Parameter* b) { return rank_of(a) < rank_of(b); });
  for (Parameter* parameter : own) {
    bucket.placed.push_back({parameter, bucket.size});
    bucket.size += padded(parameter->shape.count());
    if (parameter->is_matrix()) bucket.matrices = bucket.size;
    parameters_.push_back(parameter);
    parameter_count_ += parameter->shape.count();
  }
  const int ranks = bucket.others->size(), rank = bucket.others->rank();
  bucket.size = padded(bucket.size, kAlignment * ranks);
  const std::int64_t shard = bucket.size / ranks;
  bucket.held = bucket.zero == 0 ? Range{0, bucket.size} : Range{shard * rank, shard * (rank + 1)};
  allocate(bucket);
  return bucket;
}

/// Everything starts at zero: padding is never written but read by the norm and the optimizer.
void ParamStore::allocate(Bucket& bucket) {
  const std::int64_t held = bucket.held.end - bucket.held.begin;
  const auto zeros = [&](bool is_whole, DType dtype, MemoryTag tag) {
    return memory_.zeros({is_whole ? bucket.size : held}, dtype, tag);
  };
  bucket.values = zeros(bucket.keeps_whole_values(), options_.dtype, MemoryTag::parameters);
  const bool trains = options_.purpose == Purpose::training;
  if (trains) {
    bucket.grads = zeros(bucket.keeps_whole_grads(), grad_dtype(), MemoryTag::gradients);
    bucket.moment1 = zeros(false, grad_dtype(), MemoryTag::optimizer);
    bucket.moment2 = zeros(false, grad_dtype(), MemoryTag::optimizer);
    if (has_masters()) bucket.masters = zeros(false, grad_dtype(), MemoryTag::optimizer);
    add_shards(bucket);
  }
  for (const auto& [parameter, at] : bucket.placed) {
    if (bucket.keeps_whole_values()) parameter->value = view_of(*parameter, bucket.values, at);
    if (trains && bucket.keeps_whole_grads())
      parameter->grad = view_of(*parameter, bucket.grads, at);
  }
}

void ParamStore::add_shards(const Bucket& bucket) {
  for (const Range kind : {Range{0, bucket.matrices}, Range{bucket.matrices, bucket.size}}) {
    const Range range{std::max(kind.begin, bucket.held.begin), std::min(kind.end, bucket.held.end)};
    if (range.empty()) continue;
    shards_.push_back({.value = cut(bucket, has_masters() ? bucket.masters : bucket.values, range),
                       .grad = cut(bucket, bucket.grads, range),
                       .moment1 = cut(bucket, bucket.moment1, range),
                       .moment2 = cut(bucket, bucket.moment2, range),
                       .low = has_masters() ? cut(bucket, bucket.values, range) : Tensor(),
                       .decays = kind.begin == 0 && bucket.matrices > 0});
  }
}

Tensor ParamStore::cut(const Bucket& bucket, const Tensor& flat, Range range) {
  const std::int64_t from = flat.count() == bucket.size ? 0 : bucket.held.begin;
  return flat.slice(0, range.begin - from, range.end - from);
}

void ParamStore::run_in_background(bool on) {
  for (const Bucket& bucket : buckets_) bucket.others->run_in_background(on);
}

void ParamStore::acquire(int unit, int next, Stream& stream) {
  for (Bucket* bucket : needs_[static_cast<std::size_t>(unit)]) {
    if (bucket->keeps_whole_values()) continue;
    fetch(*bucket, stream);
    bucket->gathering->wait(stream);
    for (const auto& [parameter, at] : bucket->placed) {
      parameter->value = view_of(*parameter, bucket->gathered, at);
    }
  }
  if (next < 0) return;
  for (Bucket* bucket : needs_[static_cast<std::size_t>(next)]) fetch(*bucket, stream);
}

void ParamStore::fetch(Bucket& bucket, Stream& stream) {
  if (bucket.keeps_whole_values() || bucket.gathered.defined()) return;
  bucket.gathered = memory_.alloc({bucket.size}, options_.dtype, MemoryTag::communication);
  bucket.gathering = bucket.others->all_gather(bucket.values, bucket.gathered, stream);
}

void ParamStore::release(int unit) {
  for (Bucket* bucket : needs_[static_cast<std::size_t>(unit)]) {
    if (bucket->keeps_whole_values()) continue;
    for (const auto& [parameter, at] : bucket->placed) parameter->value = {};
    bucket->gathered = {};
    bucket->gathering.reset();
  }
}

void ParamStore::begin_grads(int unit, Stream& stream) {
  for (Bucket* bucket : needs_[static_cast<std::size_t>(unit)]) {
    if (bucket->keeps_whole_grads() || bucket->whole_grads.defined()) continue;
    const Tensor whole = memory_.alloc({bucket->size}, grad_dtype(), MemoryTag::communication);
    std::int64_t written = 0;
    for (const auto& [parameter, at] : bucket->placed) {
      ops::fill(whole.slice(0, written, at), 0.0, stream);
      written = at + parameter->shape.count();
      parameter->grad = view_of(*parameter, whole, at);
      parameter->retire_grad();
    }
    ops::fill(whole.slice(0, written, bucket->size), 0.0, stream);
    bucket->whole_grads = whole;
  }
}

void ParamStore::end_grads(int unit, bool is_last, Stream& stream) {
  for (Bucket* bucket : needs_[static_cast<std::size_t>(unit)]) {
    if (bucket->keeps_whole_grads() && !is_last) continue;
    if (bucket->owner == unit) reduce(*bucket, stream);
  }
}

void ParamStore::reduce(Bucket& bucket, Stream& stream) {
  for (const auto& [parameter, at] : bucket.placed) parameter->clear_stale_grad(stream);
  Communicator& others = *bucket.others;
  if (others.size() == 1) return;
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
    while (reductions_.size() > kReductionsUnderWay) finish_oldest_reduction(stream);
  }
}

void ParamStore::finish_oldest_reduction(Stream& stream) {
  const Reduction reduction = std::move(reductions_.front());
  reductions_.pop_front();
  reduction.work.wait(stream);
  if (!reduction.shard.defined()) return;
  Bucket& bucket = *reduction.bucket;
  if (std::exchange(bucket.has_grads, true)) {
    ops::accumulate(reduction.shard, bucket.grads, stream);
  } else {
    ops::copy(reduction.shard, bucket.grads, stream);
  }
}

void ParamStore::finish_grads(Stream& stream) {
  while (!reductions_.empty()) finish_oldest_reduction(stream);
  for (const Bucket& bucket : buckets_) sum_over_others(bucket, stream);
  sum_tied(stream);
}

AxisSet ParamStore::other_sums(const Layout& layout) const {
  return mesh_.shape().occupied(ownership(layout).sums);
}

void ParamStore::sum_over_others(const Bucket& bucket, Stream& stream) const {
  Range pending;  // neighbours are summed together
  AxisSet over;
  const auto sum = [&] {
    const Range range{std::max(pending.begin, bucket.held.begin),
                      std::min(pending.end, bucket.held.end)};
    if (!range.empty()) mesh_.sum(cut(bucket, bucket.grads, range), over, stream);
  };
  for (const auto& [parameter, at] : bucket.placed) {
    for (const Parameter::Region& region : parameter->regions()) {
      const AxisSet axes = other_sums(region.layout);
      if (axes.empty()) continue;
      if (axes != over || padded(pending.end) != at + region.begin) {
        sum();
        pending.begin = at + region.begin;
      }
      over = axes;
      pending.end = at + region.end;
    }
  }
  sum();
}

const ParamStore::Bucket* ParamStore::tied_bucket(Parameter::Tie end) const {
  const auto found = std::find_if(buckets_.begin(), buckets_.end(), [&](const Bucket& bucket) {
    return bucket.placed.front().parameter->tie == end;
  });
  if (found == buckets_.end()) return nullptr;
  HEDDLE_CHECK(found->placed.size() == 1, "a tied parameter shares its unit with others");
  return &*found;
}

void ParamStore::sum_tied(Stream& stream) const {
  const Bucket* const first = tied_bucket(Parameter::Tie::first);
  const Bucket* const last = tied_bucket(Parameter::Tie::last);
  const auto grads = [](const Bucket& bucket) { return cut(bucket, bucket.grads, bucket.held); };
  if (first != nullptr && last != nullptr) {
    ops::add(grads(*first), grads(*last), grads(*first), stream);
    ops::copy(grads(*first), grads(*last), stream);
  } else if (first != nullptr || last != nullptr) {
    const Tensor here = grads(first != nullptr ? *first : *last);
    mesh_.ends().all_reduce(here, ReduceOp::sum, stream).wait(stream);
  }
}

std::vector<ParamStore::Range> ParamStore::counted(const Bucket& bucket) const {
  std::vector<Range> ranges;
  for (const auto& [parameter, at] : bucket.placed) {
    if (parameter->tie == Parameter::Tie::last) continue;
    for (const Parameter::Region& region : parameter->regions()) {
      if (!counts(ownership(region.layout), mesh_.shape(), mesh_.rank(), bucket.zero > 0)) continue;
      const Range range{std::max(at + region.begin, bucket.held.begin),
                        std::min(at + region.end, bucket.held.end)};
      if (range.empty()) continue;
      // Over padding, which is zero, so that the sum has few and long terms.
      if (!ranges.empty() && padded(ranges.back().end) >= range.begin) {
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
    for (const Range& range : counted(bucket)) {
      ops::add_sum_of_squares(cut(bucket, bucket.grads, range), sum, stream);
    }
  }
}

void ParamStore::finish_step(Stream& stream) {
  std::vector<Work> works;
  for (const Bucket& bucket : buckets_) {
    if (bucket.zero != 1 && bucket.zero != 2) continue;
    const Tensor own = cut(bucket, bucket.values, bucket.held);
    works.push_back(bucket.others->all_gather(own, bucket.values, stream));
  }
  for (const Work& work : works) work.wait(stream);
}

void ParamStore::values_changed(Stream& stream) {
  if (!has_masters()) return;
  for (const Bucket& bucket : buckets_) {
    ops::cast(bucket.masters, cut(bucket, bucket.values, bucket.held), stream);
  }
  finish_step(stream);
}

void ParamStore::retire_grads() {
  for (Parameter* parameter : parameters_) parameter->retire_grad();
  for (Bucket& bucket : buckets_) bucket.has_grads = false;
}

/// `range` of the bucket, as far as it lies in the parameter, as boxes of its parts.
void ParamStore::add_pieces(const Bucket& bucket, const Placed& placed, const Tensor& flat,
                            Range range, std::vector<ParamPiece>& pieces) const {
  const Parameter& parameter = *placed.parameter;
  const bool is_divided = flat.count() != bucket.size;
  const auto share = [&](const Parameter::Part& part) {
    const bool is_tail = parameter.tail && part.at[0] >= parameter.tail->first_row;
    const Layout& layout = is_tail ? parameter.tail->layout : parameter.layout;
    if (parameter.tie == Parameter::Tie::last) return WriteShare{};
    return write_share(ownership(layout), mesh_.shape(), mesh_.rank(), is_divided);
  };
  range = {std::max(range.begin, placed.at),
           std::min(range.end, placed.at + parameter.shape.count())};
  if (range.empty()) return;
  const bool is_matrix = parameter.shape.dims() == 2;
  HEDDLE_CHECK(is_matrix || parameter.shape.dims() == 1, "a parameter of shape {}",
               parameter.shape.text());
  const std::int64_t width = is_matrix ? parameter.shape[1] : 1;
  // A stretch of a matrix is the end of a row, whole rows, and the beginning of a row.
  for (std::int64_t at = range.begin - placed.at; at < range.end - placed.at;) {
    const std::int64_t left = range.end - placed.at - at, column = at % width;
    const std::int64_t rows = column == 0 ? std::max<std::int64_t>(1, left / width) : 1;
    const std::int64_t columns = rows > 1 ? width : std::min(width - column, left);
    const Tensor box = cut(bucket, flat, {placed.at + at, placed.at + at + rows * columns})
                           .view(is_matrix ? Shape{rows, columns} : Shape{rows});
    const Shape corner = is_matrix ? Shape{at / width, column} : Shape{at};
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
    at += rows * columns;
  }
}

void ParamStore::add_pieces(const Bucket& bucket, const Tensor& flat,
                            std::vector<ParamPiece>& pieces) const {
  const Range range = flat.count() == bucket.size ? Range{0, bucket.size} : bucket.held;
  for (const Placed& placed : bucket.placed) add_pieces(bucket, placed, flat, range, pieces);
}

std::vector<ParamPiece> ParamStore::value_pieces() const {
  std::vector<ParamPiece> pieces;
  for (const Bucket& bucket : buckets_) {
    add_pieces(bucket, has_masters() ? bucket.masters : bucket.values, pieces);
  }
  return pieces;
}

std::vector<ParamPiece> ParamStore::held_pieces(Tensor Bucket::*flat) const {
  std::vector<ParamPiece> pieces;
  for (const Bucket& bucket : buckets_) {
    add_pieces(bucket, cut(bucket, bucket.*flat, bucket.held), pieces);
  }
  return pieces;
}

std::vector<ParamPiece> ParamStore::grad_pieces() const { return held_pieces(&Bucket::grads); }

std::vector<ParamPiece> ParamStore::moment_pieces(int moment) const {
  return held_pieces(moment == 1 ? &Bucket::moment1 : &Bucket::moment2);
}

void initialize(ParamStore& store, std::uint64_t seed, Stream& stream) {
  for (const ParamPiece& piece : store.value_pieces()) {
    const Init& init = piece.parameter->init;
    if (init.kind != Init::Kind::normal) {
      ops::fill(piece.data, init.kind == Init::Kind::ones ? 1.0 : 0.0, stream);
      continue;
    }
    const std::uint64_t key = rng_key(seed, piece.part->name);
    const std::int64_t width = piece.data.dims() == 2 ? piece.part->whole[1] : 1;
    const std::int64_t column = piece.data.dims() == 2 ? piece.begin[1] : 0;
    const auto fill = [&](const Tensor& stretch, std::int64_t row) {
      ops::fill_normal(stretch, key, static_cast<std::uint64_t>(row * width + column), init.stddev,
                       stream);
    };
    if (piece.data.is_contiguous() && (piece.data.dims() == 1 || piece.data.size(1) == width)) {
      fill(piece.data, piece.begin[0]);
      continue;
    }
    for (std::int64_t row = 0; row < piece.data.size(0); ++row) {
      fill(piece.data.select(0, row), piece.begin[0] + row);
    }
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
