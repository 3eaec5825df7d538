#include "parallel/param_store.h"

#include <algorithm>
#include <set>

#include "base/rng.h"
#include "ops/elementwise.h"
#include "ops/random.h"

namespace heddle {
namespace {

/// Parameters start on cache lines, so that no two share one and vector loads are aligned.
std::int64_t padded(std::int64_t count) { return (count + 15) / 16 * 16; }

}  // namespace

ParamStore::ParamStore(std::span<Layer* const> units, DType dtype, Purpose purpose,
                       Memory& memory) {
  std::set<const Parameter*> seen;
  for (Layer* unit : units) {
    std::vector<Parameter*> own;
    unit->visit([&](Parameter& parameter) {
      if (seen.insert(&parameter).second) own.push_back(&parameter);
    });
    if (!own.empty()) bind_unit(own, dtype, purpose, memory);
  }
}

void ParamStore::bind_unit(const std::vector<Parameter*>& unit, DType dtype, Purpose purpose,
                           Memory& memory) {
  // Decaying and other parameters apart, so that the optimizer sees two long stretches per unit.
  std::vector<Parameter*> ordered = unit;
  // Not std::ranges: clang 14, which builds the fuzz targets, cannot parse its subranges.
  std::stable_partition(ordered.begin(), ordered.end(),
                        [](const Parameter* p) { return p->is_matrix(); });
  std::int64_t matrices = 0, all = 0;
  for (const Parameter* p : ordered) {
    all += padded(p->shape.count());
    if (p->is_matrix()) matrices = all;
  }
  const bool trains = purpose == Purpose::training;
  const Tensor values = memory.alloc({all}, dtype, MemoryTag::parameters);
  Tensor grads, first, second;
  if (trains) {
    // Zeroed, because the padding between parameters is never written but is read by norm and
    // optimizer.
    grads = memory.zeros({all}, dtype, MemoryTag::gradients);
    first = memory.zeros({all}, dtype, MemoryTag::optimizer);
    second = memory.zeros({all}, dtype, MemoryTag::optimizer);
  }
  std::int64_t at = 0;
  for (Parameter* p : ordered) {
    const auto view = [&](const Tensor& flat) {
      return flat.slice(0, at, at + p->shape.count()).view(p->shape);
    };
    p->value = view(values);
    if (trains) {
      p->grad = view(grads);
      moment1_.push_back(view(first));
      moment2_.push_back(view(second));
    }
    parameters_.push_back(p);
    parameter_count_ += p->shape.count();
    at += padded(p->shape.count());
  }
  if (!trains) return;
  for (const auto& [begin, end] :
       {std::pair{std::int64_t{0}, matrices}, std::pair{matrices, all}}) {
    if (begin == end) continue;
    const auto cut = [b = begin, e = end](const Tensor& flat) { return flat.slice(0, b, e); };
    shards_.push_back(
        {cut(values), cut(grads), cut(first), cut(second), begin == 0 && matrices > 0});
  }
}

void ParamStore::retire_grads() {
  for (Parameter* p : parameters_) p->retire_grad();
}

void ParamStore::finish_grads(Stream& stream) {
  for (Parameter* p : parameters_) p->clear_stale_grad(stream);
}

void initialize(const ParamStore& store, std::uint64_t seed, Stream& stream) {
  for (const Parameter* p : store.parameters()) {
    for (std::size_t i = 0; i < p->parts.size(); ++i) {
      const Tensor part = p->part_of(p->value, i);
      switch (p->init.kind) {
        case Init::Kind::zeros: ops::fill(part, 0.0, stream); break;
        case Init::Kind::ones: ops::fill(part, 1.0, stream); break;
        case Init::Kind::normal:
          ops::fill_normal(part, rng_key(seed, p->parts[i].name), 0, p->init.stddev, stream);
          break;
      }
    }
  }
}

}  // namespace heddle
