#include <algorithm>
#include <cmath>

#include "nn/experts/experts.h"
#include "nn/redistribute.h"

namespace heddle {

Cost Experts::cost(const CostShape& whole) const {
  // Of own tokens. With experts on other ranks, as many rows come as go, and more where each goes
  // to several.
  CostShape shape = whole;
  if (division_.tokens.count > 1) {
    const std::int64_t own = tokens_per_rank(whole.tokens(), division_.tokens.count);
    shape.context = nullptr;
    shape.sequences = 1;
    shape.seq_len = std::clamp<std::int64_t>(whole.tokens() - own * division_.tokens.index, 0, own);
  }
  const std::int64_t own_rows = shape.tokens() * router_->slots();
  std::int64_t rows = own_rows, width = this->width(), experts = this->experts();
  if (division_.exchange) {
    const ExchangePlan plan = division_.exchange->ranks().choice->usual();
    const ShardedWeights shards(division_.exchange->ranks(), plan);
    rows *= std::max(1, plan.r);
    if (plan.r > 0) rows = planned_rows(rows);
    width *= shards.shards();
    if (plan.r == 0) experts = router_->experts();
  }
  const auto D = static_cast<double>(in()), F = static_cast<double>(width);
  const auto T = static_cast<double>(shape.tokens()), R = static_cast<double>(rows),
             E = static_cast<double>(experts);
  const WeightProduct up{.rows = R, .in = D, .out = 2.0 * F, .groups = E},
      down{.rows = R, .in = F, .out = D, .groups = E};
  const double flops = 2.0 * R * (up.in * up.out + down.in * down.out);
  const auto element = size_of(shape.dtype), index = size_of(DType::i32);
  const auto count = [](std::int64_t size) { return static_cast<std::size_t>(size); };
  Cost cost{flops, flops, flops};
  cost.products = {up, down};
  cost.kept_input_bytes = shape.bytes(in());
  cost.saved_bytes = cost.kept_input_bytes + count(rows) * 2 * count(width) * element +
                     count(own_rows) * 2 * index + count(router_->experts() + 1) * index;
  // Rows are gathered, and summed up again; SwiGLU.
  const auto bytes = static_cast<double>(element);
  cost.touched_bytes_f = bytes * (R * (3.0 * D + 3.0 * F) + T * D);
  cost.touched_bytes_b = bytes * (R * (7.0 * D + 8.0 * F) + 2.0 * T * D);
  cost += router_->cost(shape);
  if (shared_) {
    const Cost shared = shared_->cost(shape);
    cost += shared;
    cost.saved_bytes -= shared.kept_input_bytes;  // one x
  }
  cost.output_products = {down};
  cost.row_bytes = count(rows_here(shape)) * element;
  if (division_.exchange) add_exchange(own_rows, shape, cost);
  return cost;
}

std::int64_t Experts::rows_here(const CostShape& shape) const {
  const std::int64_t tokens = shape.tokens(), slots = router_->slots();
  // In bf16 on GPUs only.
  if (shape.dtype == DType::bf16) return ShortRooms(tokens, slots, in(), width()).elements();
  // y and its gradient, and the rows of a stretch.
  return 2 * tokens * slots * width() + tokens * in();
}

std::int64_t Experts::planned_rows(std::int64_t even) const {
  return static_cast<std::int64_t>(
      std::ceil(division_.exchange->ranks().planned_rows * static_cast<double>(even)));
}

void Experts::add_exchange(std::int64_t rows, const CostShape& shape, Cost& cost) const {
  using Content = ExpertExchange::Content;
  const ExpertExchange& exchange = *division_.exchange;
  const ExchangePlan plan = exchange.ranks().choice->usual();
  const ShardedWeights shards(exchange.ranks(), plan);
  const DType dtype = shape.dtype, wide = statistics_of(dtype);
  const auto bytes_of = [&](const Parameter& parameter) {
    return parameter.shape.count() * static_cast<std::int64_t>(size_of(dtype));
  };
  const auto add = [](std::vector<LayerCall>& to, std::vector<LayerCall> calls, bool are_dear) {
    for (LayerCall& call : calls) {
      call.is_dear |= are_dear;
      to.push_back(call);
    }
  };
  const auto counts = exchange.counts_calls();
  const auto kept = static_cast<std::size_t>(counts.back().bytes) + ExpertExchange::kPlanBytes;
  cost.saved_bytes += kept;
  cost.dear_bytes += kept;
  add(cost.calls_f, counts, true);
  const bool spares_outputs = division_.ends_branch;  // a second forward does not want them
  add(cost.calls_f, shards.gather_calls(bytes_of(*weights_.up)), false);
  if (plan.r > 0) {
    add(cost.calls_f,
        exchange.calls_there(plan, plan.degree_forward, rows, in(), dtype, Content::rows), false);
  }
  add(cost.calls_f, shards.gather_calls(bytes_of(*weights_.down)), spares_outputs);
  if (plan.r > 0) {
    const std::int64_t came = planned_rows(rows * plan.r);
    const std::size_t came_bytes = static_cast<std::size_t>(came * in()) * size_of(dtype);
    const std::size_t left_bytes = static_cast<std::size_t>(rows * in()) * size_of(dtype),
                      inside_bytes = static_cast<std::size_t>(came * width() * shards.shards()) *
                                     size_of(dtype);
    // Going backward in one piece: rows as they leave, arrive, are made and go home, beside the
    // inside of the experts once more or, with few rows, twice.
    if (plan.sends_again) {
      cost.row_bytes = 3 * came_bytes + 3 * left_bytes + inside_bytes;
    } else {
      cost.saved_bytes += came_bytes;
      cost.row_bytes =
          std::max({2 * came_bytes + 2 * left_bytes, 2 * came_bytes + left_bytes + inside_bytes,
                    came_bytes + 2 * inside_bytes});
    }
    add(cost.calls_f,
        exchange.calls_back(plan, plan.degree_forward, rows, in(), dtype, Content::rows),
        spares_outputs);
    const int degree = plan.degree_backward;
    add(cost.calls_b, exchange.calls_there(plan, degree, rows, 1, wide, Content::numbers), false);
    for (int load = 0; load < (plan.sends_again ? 2 : 1); ++load) {
      add(cost.calls_b, exchange.calls_there(plan, degree, rows, in(), dtype, Content::rows),
          false);
    }
    add(cost.calls_b, exchange.calls_back(plan, degree, rows, 1, wide, Content::numbers), false);
    add(cost.calls_b, exchange.calls_back(plan, degree, rows, in(), dtype, Content::rows), false);
  }
  for (const Parameter* const parameter : {weights_.down.get(), weights_.up.get()}) {
    add(cost.calls_b, shards.gather_calls(bytes_of(*parameter)), false);
    const std::int64_t grad_bytes =
        parameter->shape.count() * static_cast<std::int64_t>(size_of(wide));
    add(cost.calls_b, shards.scatter_calls(grad_bytes), false);
  }
}

}  // namespace heddle
