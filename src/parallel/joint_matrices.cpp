// What of a ParamStore is for optimizers that let ranks exchange something else than gradients.

#include <algorithm>
#include <map>

#include "base/check.h"
#include "codec/registry.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "parallel/exchange/joint_sum.h"
#include "parallel/padding.h"
#include "parallel/param_store.h"

namespace heddle {
namespace {

struct Stretch {
  std::int64_t begin = 0, end = 0;
};

/// The elements of each tensor of the Hugging Face model in a parameter, in storage order. Where
/// its parts do not lie one behind the other (columns of several tensors), all of them are one.
std::vector<Stretch> tensors_in(const Parameter& parameter) {
  const std::int64_t row = parameter.shape.count() / parameter.shape[0];
  std::vector<const Parameter::Part*> parts;
  for (const Parameter::Part& part : parameter.parts) parts.push_back(&part);
  std::ranges::stable_sort(parts, {}, [](const auto* part) { return part->at[0]; });
  std::vector<Stretch> tensors;
  const std::string* last = nullptr;
  for (const Parameter::Part* part : parts) {
    if (part->extent.count() != part->extent[0] * row) return {{0, parameter.shape.count()}};
    const Stretch own{part->at[0] * row, (part->at[0] + part->extent[0]) * row};
    if (last != nullptr && *last == part->name && tensors.back().end == own.begin) {
      tensors.back().end = own.end;
    } else {
      tensors.push_back(own);
    }
    last = &part->name;
  }
  return tensors;
}

}  // namespace

void ParamStore::cut_joint(Bucket& bucket) const {
  const int ranks = bucket.others->size();
  if (bucket.zero > 1) return;
  std::int64_t at = 0;
  for (const Placed& placed : bucket.placed) {
    if (!placed.parameter->is_matrix()) continue;
    for (const auto& [begin, end] : tensors_in(*placed.parameter)) {
      JointSlice& slice = bucket.joint.emplace_back();
      slice.placed = &placed;
      slice.range = {placed.at + begin, placed.at + end};
      const std::int64_t each = (end - begin + ranks - 1) / ranks;
      const int rank = bucket.others->rank();
      slice.chunk = {std::min(slice.range.end, slice.range.begin + each * rank),
                     std::min(slice.range.end, slice.range.begin + each * (rank + 1))};
      slice.chunk_at = at;
      at += padded(slice.chunk.end - slice.chunk.begin);
    }
  }
}

std::int64_t ParamStore::state_elements(const Bucket& bucket, const OptimizerState& state) {
  using Lies = OptimizerState::Lies;
  if (state.lies == Lies::as_gradients) {
    const Range range = held_of(bucket, state.of);
    return range.empty() ? 0 : range.end - range.begin;
  }
  if (bucket.others->size() == 1 || bucket.joint.empty()) return 0;
  if (state.lies == Lies::by_rank) return bucket.matrices;
  const JointSlice& last = bucket.joint.back();
  return last.chunk_at + padded(last.chunk.end - last.chunk.begin);
}

std::vector<ParamStore::JointMatrix> ParamStore::joint_matrices() const {
  std::vector<JointMatrix> matrices;
  for (std::size_t index = 0; index < buckets_.size(); ++index) {
    const Bucket& bucket = buckets_[index];
    if (!bucket.trains) continue;
    HEDDLE_CHECK(bucket.zero < 2, "whole gradients with ZeRO {}", bucket.zero);
    const Tensor& values = exact_values(bucket);
    for (const JointSlice& slice : bucket.joint) {
      JointMatrix& made = matrices.emplace_back();
      made.ranks = bucket.others;
      made.bucket = static_cast<int>(index);
      made.begin = slice.range.begin;
      made.grad = bucket.grads.slice(0, slice.range.begin, slice.range.end);
      const Range held{std::max(slice.range.begin, bucket.held.begin),
                       std::min(slice.range.end, bucket.held.end)};
      for (std::size_t i = 0; i < states_.size(); ++i) {
        const Tensor& state = bucket.states[i];
        Tensor own;
        if (state.defined() && states_[i].lies == OptimizerState::Lies::by_rank) {
          own = state.slice(0, slice.range.begin, slice.range.end);
        } else if (state.defined() && states_[i].lies == OptimizerState::Lies::by_chunk) {
          own =
              state.slice(0, slice.chunk_at, slice.chunk_at + slice.chunk.end - slice.chunk.begin);
        }
        made.states.push_back(own);
      }
      if (held.empty()) continue;
      made.held_begin = held.begin - slice.range.begin;
      made.held.value = cut(bucket, values, held);
      made.held.grad = cut(bucket, bucket.grads, held);
      if (dtype() != grad_dtype()) made.held.low = cut(bucket, bucket.values, held);
      made.held.decays = true;
      for (std::size_t i = 0; i < states_.size(); ++i) {
        const bool is_held = states_[i].lies == OptimizerState::Lies::as_gradients;
        made.held.states.push_back(is_held ? cut(bucket, bucket.states[i], held) : Tensor());
      }
    }
  }
  return matrices;
}

void ParamStore::gather_state(std::size_t state, int index, const Tensor& whole,
                              Stream& stream) const {
  const Bucket& bucket = buckets_[static_cast<std::size_t>(index)];
  bucket.others->all_gather(bucket.states[state], whole, stream).wait(stream);
}

void ParamStore::keep_earlier(std::size_t state, Stream& stream) {
  for (Bucket& bucket : buckets_) {
    bucket.states_before[state].keep(bucket.states[state], stream);
  }
}

std::vector<ParamPiece> ParamStore::joint_pieces(std::size_t index) const {
  std::vector<ParamPiece> pieces;
  for (const Bucket& bucket : buckets_) {
    if (!bucket.states[index].defined()) continue;
    const Tensor& state = bucket.states_before[index].decided(bucket.states[index]);
    for (const JointSlice& slice : bucket.joint) {
      if (states_[index].lies == OptimizerState::Lies::by_rank) {
        add_pieces(*slice.placed, state, 0, slice.range, true, false, pieces);
      } else {
        add_pieces(*slice.placed, state.slice(0, slice.chunk_at, state.count()), slice.chunk.begin,
                   slice.chunk, true, false, pieces);
      }
    }
  }
  return pieces;
}

std::string ParamStore::state_kind(std::size_t index) const {
  const OptimizerState& state = states_[index];
  if (state.lies != OptimizerState::Lies::by_rank || buckets_.empty()) return state.name;
  return state.name + "_" + std::to_string(buckets_.front().others->rank());
}

void ParamStore::keep_local(Bucket& bucket, Stream& stream) {
  for (const auto& [parameter, at] : bucket.placed) parameter->clear_stale_grad(stream);
  sum_rest(bucket, rest_of(bucket, {0, bucket.size}), stream);
}

void ParamStore::sum_vectors(Stream& stream) const {
  std::map<Communicator*, std::vector<Tensor>> by_group;
  std::vector<Communicator*> order;  // of the first bucket of each: the same on all ranks
  for (const Bucket& bucket : buckets_) {
    if (!bucket.trains || bucket.others->size() == 1 || bucket.matrices == bucket.size) continue;
    auto& own = by_group[bucket.others];
    if (own.empty()) order.push_back(bucket.others);
    own.push_back(bucket.grads.slice(0, bucket.matrices, bucket.size));
  }
  for (Communicator* const ranks : order) {
    std::int64_t count = 0;
    for (const Tensor& vectors : by_group[ranks]) count += vectors.count();
    const Tensor all = memory_.alloc({count}, grad_dtype(), MemoryTag::communication);
    const auto for_parts = [&](const auto& visit) {
      std::int64_t at = 0;
      for (const Tensor& vectors : by_group[ranks]) {
        visit(vectors, all.slice(0, at, at + vectors.count()));
        at += vectors.count();
      }
    };
    for_parts([&](const Tensor& own, const Tensor& sent) { ops::copy(own, sent, stream); });
    ranks->all_reduce(all, ReduceOp::sum, stream).wait(stream);
    for_parts([&](const Tensor& own, const Tensor& sum) { ops::copy(sum, own, stream); });
  }
}

std::vector<RankUnits::Joint> ParamStore::describe_joint() const {
  const auto codec = codec::make_codec("sign");
  std::vector<RankUnits::Joint> groups;
  std::map<AxisSet, std::vector<std::int64_t>> matrices;
  std::map<AxisSet, int> ranks;
  for (std::size_t index = 0; index < buckets_.size(); ++index) {
    const Bucket& bucket = buckets_[index];
    if (!bucket.trains) continue;
    auto found = std::ranges::find(groups, bucket.over, &RankUnits::Joint::over);
    if (found == groups.end()) {
      groups.push_back({.over = bucket.over});
      found = groups.end() - 1;
    }
    ranks[bucket.over] = bucket.others->size();
    found->vectors += bucket.size - bucket.matrices;
    for (const JointSlice& slice : bucket.joint) {
      matrices[bucket.over].push_back(slice.range.end - slice.range.begin);
    }
    for (const auto& [over, range] : rest_of(bucket, {0, bucket.size})) {
      found->sums.push_back({static_cast<int>(index), {over, range.end - range.begin}});
    }
  }
  for (RankUnits::Joint& group : groups) {
    if (group.over.empty()) group.vectors = 0;
    if (group.over.empty() || matrices[group.over].empty()) continue;
    const JointChunks chunks(*codec, matrices[group.over], ranks[group.over]);
    group.dealt = chunks.dealt_bytes();
    group.gathered = chunks.gathered_bytes();
  }
  return groups;
}

void ParamStore::add_local_squares(const Tensor& sum, Stream& stream) const {
  for (const Bucket& bucket : buckets_) {
    for (const Range& range : counted(bucket, {0, bucket.size}, true)) {
      ops::add_sum_of_squares(bucket.grads.slice(0, range.begin, range.end), sum, stream);
    }
  }
}

void ParamStore::add_counted_sum(std::size_t state, const Tensor& sum, Stream& stream) const {
  for (const Bucket& bucket : buckets_) {
    const Range matrices{std::max<std::int64_t>(0, bucket.held.begin),
                         std::min(bucket.matrices, bucket.held.end)};
    if (matrices.empty()) continue;
    for (const Range& range : counted(bucket, matrices, bucket.zero > 0)) {
      ops::add_sum(cut(bucket, bucket.states[state], range), sum, stream);
    }
  }
}

}  // namespace heddle
