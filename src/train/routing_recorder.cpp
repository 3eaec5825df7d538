#include "train/routing_recorder.h"

#include <algorithm>

#include "base/check.h"
#include "data/packing.h"

namespace heddle {
namespace {

std::int64_t replicas(const Mesh& mesh) { return mesh.shape().size({Axis::site, Axis::dp}); }

std::int64_t own_replica(const Mesh& mesh) {
  return mesh.coord(Axis::site) * mesh.size(Axis::dp) + mesh.coord(Axis::dp);
}

}  // namespace

RoutingRecorder::RoutingRecorder(const Model& model, std::int64_t tokens, Memory& host,
                                 RoutingTrace& trace)
    : mesh_(model.mesh()),
      trace_(trace),
      tokens_(tokens),
      taken_TLK_(host.alloc(
          {tokens * replicas(mesh_), model.spec().expert_layers(), model.spec().experts->choices()},
          DType::i32, MemoryTag::workspace)) {
  trace_ = {.experts = static_cast<int>(model.spec().experts->count),
            .layers = static_cast<int>(taken_TLK_.size(1)),
            .choices = static_cast<int>(taken_TLK_.size(2)),
            .taken = {}};
}

OnChoices RoutingRecorder::begin_round() {
  std::ranges::fill(taken_TLK_.host<std::int32_t>(), 0);
  const std::int64_t first = own_replica(mesh_) * tokens_;
  return [own = taken_TLK_.slice(0, first, first + tokens_)](const Choices& choices) {
    if (!choices.are_counted) return;
    const std::int64_t K = own.size(2);
    HEDDLE_CHECK(choices.experts_TK.size(1) == K, "{} choices where {} are",
                 choices.experts_TK.size(1), K);
    const auto experts = choices.experts_TK.host<std::int32_t>();
    for (std::size_t t = 0; t < choices.numbers.size(); ++t) {
      const auto chosen =
          experts.subspan(t * static_cast<std::size_t>(K)).first(static_cast<std::size_t>(K));
      const auto token = static_cast<std::int64_t>(choices.numbers[t]);
      std::ranges::transform(chosen,
                             own.data<std::int32_t>() + (token * own.size(1) + choices.layer) * K,
                             [](std::int32_t expert) { return std::max(expert, -1) + 1; });
    }
  };
}

void RoutingRecorder::end_round(const Tensor& targets, Stream& stream) {
  const auto all = taken_TLK_.host<std::int32_t>();
  const auto row = static_cast<std::size_t>(taken_TLK_.size(1) * taken_TLK_.size(2));
  const auto counted = targets.defined() ? targets.host<std::int32_t>() : std::span<std::int32_t>();
  const auto first = static_cast<std::size_t>(own_replica(mesh_) * tokens_);
  for (std::size_t token = 0; token < static_cast<std::size_t>(tokens_); ++token) {
    const bool counts = token < counted.size() && counted[token] != kIgnoredTarget;
    if (!counts) std::ranges::fill(all.subspan((first + token) * row, row), 0);
  }
  mesh_.sum(taken_TLK_, kDataAxes, stream);
  mesh_.sum(taken_TLK_, kStepAxes.without(kTokenAxes), stream);
  for (std::size_t begin = 0; begin < all.size(); begin += row) {
    const auto taken = all.subspan(begin, row);
    // Who took nothing anywhere tells nothing.
    if (std::ranges::all_of(taken, [](std::int32_t expert) { return expert == 0; })) continue;
    for (const std::int32_t expert : taken) trace_.taken.push_back(expert - 1);
  }
}

}  // namespace heddle
