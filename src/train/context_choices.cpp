#include "train/context_choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/strings.h"
#include "parallel/sequence/context_plan.h"
#include "train/model_setup.h"

namespace heddle {
namespace {

/// In all layers, whose windows may differ.
void count(const ModelSpec& spec, const ElementBytes& sizes, ContextChoice& choice) {
  std::map<std::optional<std::int64_t>, std::int64_t> kinds;  // layers by window
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) ++kinds[spec.block(layer).window];
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(choice.shape.ranks)), pairs(bytes);
  for (const auto& [window, layers] : kinds) {
    ContextShape shape = choice.shape;
    shape.window = window;
    const ContextPlan plan = make_context_plan(shape);
    const auto forward = count_by_rank(plan.forward, plan.shape);
    const auto backward = count_by_rank(plan.backward, plan.shape);
    for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
      bytes[rank] +=
          layers * (bytes_of(forward[rank].sent, sizes) + bytes_of(backward[rank].sent, sizes));
      pairs[rank] += layers * forward[rank].head_pairs;
    }
  }
  choice.bytes = std::ranges::max(bytes) / spec.layers;
  const std::int64_t all_pairs = std::accumulate(pairs.begin(), pairs.end(), std::int64_t{0});
  choice.imbalance = static_cast<double>(std::ranges::max(pairs)) *
                     static_cast<double>(pairs.size()) / static_cast<double>(all_pairs);
}

}  // namespace

ContextShape microbatch_shape(const config::RunConfig& config, const ModelSpec& spec,
                              const ParallelPlan& plan) {
  ContextShape shape = resolved(plan.context_shape(spec));
  shape.tokens = config.train.microbatch * config.data.seq_len;
  shape.documents.assign(static_cast<std::size_t>(config.train.microbatch), config.data.seq_len);
  return shape;
}

std::vector<ContextChoice> context_choices(const config::RunConfig& config, const ModelSpec& spec,
                                           const ParallelPlan& plan) {
  std::vector<ContextChoice> choices;
  if (plan.cp == 1) return choices;
  const ContextShape taken = microbatch_shape(config, spec, plan);
  const auto value = static_cast<int>(size_of(compute_dtype(config)));
  for (std::size_t i = 1; i < context_method_names().size(); ++i) {
    ContextShape shape = taken;
    shape.method = static_cast<ContextMethod>(i);
    const bool is_taken = shape.method == taken.method;
    if (!is_taken) {
      shape.order = ContextOrder::automatic;
      shape.context_heads = 0;
    }
    ContextChoice& choice =
        choices.emplace_back(ContextChoice{.shape = shape, .is_taken = is_taken});
    if (const auto problems = problems_of(shape, {.are_run_file = true, .tp = plan.tp});
        !problems.empty()) {
      choice.problem = problems.front();
      continue;
    }
    choice.shape = resolved(shape);
    count(spec, {.value = value, .partial = std::max(value, 4)}, choice);
  }
  return choices;
}

std::vector<std::string> describe_context(const std::vector<ContextChoice>& choices) {
  std::vector<std::string> lines;
  for (const ContextChoice& choice : choices) {
    const std::string_view name = name_of(choice.shape.method);
    if (!choice.problem.empty()) {
      lines.push_back(fmt::format("{}: {}", name, choice.problem));
      continue;
    }
    lines.push_back(fmt::format(
        "{}, {}: a rank sends at most {} a layer and micro-batch; balance {:.2f}{}", name,
        name_of(choice.shape.order), format_bytes(static_cast<double>(choice.bytes)),
        choice.imbalance, choice.is_taken ? "; taken" : ""));
  }
  return lines;
}

JsonValue to_json(const std::vector<ContextChoice>& choices) {
  JsonValue all = JsonValue::array();
  for (const ContextChoice& choice : choices) {
    JsonValue json = {{"method", name_of(choice.shape.method)}, {"taken", choice.is_taken}};
    if (choice.problem.empty()) {
      json["order"] = name_of(choice.shape.order);
      json["context_heads"] = choice.shape.context_heads;
      json["bytes_per_layer_and_microbatch"] = choice.bytes;
      json["balance"] = choice.imbalance;
    } else {
      json["problem"] = choice.problem;
    }
    all.push_back(json);
  }
  return all;
}

}  // namespace heddle
