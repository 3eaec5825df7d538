#include "parallel/tensor_rules.h"

#include <algorithm>

#include "base/check.h"
#include "nn/redistribute.h"

namespace heddle {

TensorRules::Cut TensorRules::cut(std::int64_t units, std::int64_t unit) const {
  HEDDLE_CHECK(units % ranks() == 0 || ranks() % units == 0, "{} units for {} ranks", units,
               ranks());
  const std::int64_t own = std::max<std::int64_t>(1, units / ranks());
  return {rank() * units / ranks() * unit, own * unit};
}

int TensorRules::copies(std::int64_t units) const {
  return units < ranks() ? static_cast<int>(ranks() / units) : 1;
}

std::int64_t TensorRules::padded_rows(std::int64_t vocab, std::int64_t multiple) const {
  const std::int64_t all = multiple * ranks();
  return (vocab + all - 1) / all * multiple;
}

TensorRules::Cut TensorRules::valid_rows(std::int64_t vocab, std::int64_t multiple) const {
  const std::int64_t rows = padded_rows(vocab, multiple), begin = std::min(vocab, rows * rank());
  return {begin, std::min(vocab, begin + rows) - begin};
}

Layout TensorRules::divided(int dim) const { return whole_on_stage().with(Axis::tp, shard(dim)); }

Layout TensorRules::divided_keys(int dim) const {
  return whole_on_stage(View::keys).with(Axis::kv, shard(dim)).with(Axis::copy, replicate());
}

Layout TensorRules::on_residual() const {
  return whole_on_stage().with(Axis::tp, splits_tokens() ? replicate() : invariant());
}

Layout TensorRules::used_apart() const { return whole_on_stage().with(Axis::tp, replicate()); }

TokenShare TensorRules::token_share() const {
  return splits_tokens() ? TokenShare{rank(), ranks()} : TokenShare{};
}

void TensorRules::enter(Layers& layers, std::int64_t width) const {
  change(layers, residual(), replicate(), width);
}

void TensorRules::leave(Layers& layers, std::int64_t width) const {
  change(layers, partial(), residual(), width);
}

void TensorRules::share_tokens(Layers& layers, std::int64_t width) const {
  if (!splits_tokens()) change(layers, invariant(), shard(0), width);
}

void TensorRules::join_tokens(Layers& layers, std::int64_t width) const {
  if (!splits_tokens()) change(layers, shard(0), invariant(), width);
}

void TensorRules::change(Layers& layers, Placement from, Placement to, std::int64_t width) const {
  if (!divides()) return;
  layers.push_back(std::make_unique<Redistribute>(*tp_, from, to, width, exchange_));
}

}  // namespace heddle
