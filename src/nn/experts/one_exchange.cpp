#include "nn/experts/one_exchange.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "comm/gather_rows.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"

namespace heddle {
namespace {

/// What routers chose for the rows of all ranks, by sequence.
struct Chosen {
  std::vector<std::int64_t> expert;
  std::vector<double> weight;
};

template <class T>
Chosen chosen_by_all(const Routing& routing, Communicator& ep, const DecodedRows& rows, Ctx& ctx) {
  const std::int64_t own = std::ssize(rows.here());
  const Tensor choice_T2 = ctx.activation({own, 2}, routing.weights_TK.dtype());
  const auto choice = choice_T2.host<T>();
  for (std::size_t row = 0; row < static_cast<std::size_t>(own); ++row) {
    const std::int32_t expert = routing.experts_TK.host<std::int32_t>()[row];
    HEDDLE_CHECK(expert >= 0, "a row without an expert");
    choice[2 * row] = static_cast<T>(expert);
    choice[2 * row + 1] = routing.weights_TK.host<T>()[row];
  }
  std::vector<std::int64_t> counts;
  for (const auto& here : rows.places()) counts.push_back(std::ssize(here));
  const Tensor all = gather_rows(choice_T2, counts, ep, ctx.memory, ctx.stream);
  Chosen chosen{.expert = std::vector<std::int64_t>(static_cast<std::size_t>(all.size(0))),
                .weight = std::vector<double>(static_cast<std::size_t>(all.size(0)))};
  std::size_t at = 0;
  for (const auto& here : rows.places()) {
    for (const int sequence : here) {
      chosen.expert[static_cast<std::size_t>(sequence)] =
          static_cast<std::int64_t>(all.host<T>()[at++]);
      chosen.weight[static_cast<std::size_t>(sequence)] = static_cast<double>(all.host<T>()[at++]);
    }
  }
  return chosen;
}

/// By rank, its experts' rows in their order.
DecodedRows::Places places_by(const Chosen& chosen, std::int64_t experts, int ranks) {
  std::vector<int> order(chosen.expert.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {},
                           [&](int i) { return chosen.expert[static_cast<std::size_t>(i)]; });
  DecodedRows::Places places(static_cast<std::size_t>(ranks));
  for (const int sequence : order) {
    const std::int64_t rank = chosen.expert[static_cast<std::size_t>(sequence)] * ranks / experts;
    places[static_cast<std::size_t>(rank)].push_back(sequence);
  }
  return places;
}

Tensor indices(const std::vector<std::int32_t>& values, Ctx& ctx) {
  const Tensor tensor = ctx.activation({std::ssize(values)}, DType::i32);
  std::ranges::copy(values, tensor.host<std::int32_t>().begin());
  return tensor;
}

/// Rows as `next` has them here, from where `last` has them.
Tensor moved(const Tensor& x_TD, const DecodedRows::Places& last, const DecodedRows::Places& next,
             Communicator& ep, Ctx& ctx) {
  const auto ranks = static_cast<std::size_t>(ep.size()), own = static_cast<std::size_t>(ep.rank());
  // By sequence: the rank that has it, and its row there.
  std::vector<std::pair<std::size_t, std::int32_t>> where;
  for (const auto& here : last) where.resize(where.size() + here.size());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t row = 0; row < last[rank].size(); ++row) {
      where[static_cast<std::size_t>(last[rank][row])] = {rank, static_cast<std::int32_t>(row)};
    }
  }
  std::vector<std::int64_t> sent(ranks, 0), received(ranks, 0);
  std::vector<std::int32_t> leaving;
  for (std::size_t to = 0; to < ranks; ++to) {
    for (const int sequence : next[to]) {
      const auto [from, row] = where[static_cast<std::size_t>(sequence)];
      if (from == to) continue;
      if (from == own) {
        leaving.push_back(row);
        ++sent[to];
      }
      if (to == own) ++received[from];
    }
  }
  // Own rows, and behind them those that come, rank by rank.
  std::vector<std::int32_t> arrived(ranks, static_cast<std::int32_t>(x_TD.size(0))), staying;
  for (std::size_t from = 1; from < ranks; ++from) {
    arrived[from] = arrived[from - 1] + static_cast<std::int32_t>(received[from - 1]);
  }
  for (const int sequence : next[own]) {
    const auto [from, row] = where[static_cast<std::size_t>(sequence)];
    staying.push_back(from == own ? row : arrived[from]++);
  }
  const std::int64_t D = x_TD.size(1), T = x_TD.size(0);
  const Tensor leaving_ND = ctx.activation({std::ssize(leaving), D}, x_TD.dtype());
  ops::embedding_forward(indices(leaving, ctx), x_TD, leaving_ND, ctx.stream);
  const std::int64_t come = std::accumulate(received.begin(), received.end(), std::int64_t{0});
  const Tensor all_ND = ctx.activation({T + come, D}, x_TD.dtype());
  ops::copy(x_TD, all_ND.slice(0, 0, T), ctx.stream);
  ep.all_to_all(leaving_ND, all_ND.slice(0, T, T + come), sent, received, ctx.stream)
      .wait(ctx.stream);
  const Tensor here_ND = ctx.activation({std::ssize(staying), D}, x_TD.dtype());
  ops::embedding_forward(indices(staying, ctx), all_ND, here_ND, ctx.stream);
  return here_ND;
}

template <class T>
StayedRows stay(const Tensor& x_TD, const Routing& routing, std::int64_t experts, Communicator& ep,
                DecodedRows& rows, Ctx& ctx) {
  const Chosen chosen = chosen_by_all<T>(routing, ep, rows, ctx);
  DecodedRows::Places next = places_by(chosen, experts, ep.size());
  StayedRows stayed;
  stayed.x_ND = moved(x_TD, rows.places(), next, ep, ctx);
  rows.move_to(std::move(next));
  const std::vector<int>& here = rows.here();
  const std::int64_t own = experts / ep.size(), first = own * ep.rank(), count = std::ssize(here);
  stayed.offsets_O1 = ctx.activation({own + 1}, DType::i32);
  stayed.weights_N1 = ctx.activation({count, 1}, routing.weights_TK.dtype());
  stayed.each_N1 = ctx.activation({count, 1}, DType::i32);
  std::ranges::fill(stayed.offsets_O1.host<std::int32_t>(), 0);
  for (std::size_t row = 0; row < here.size(); ++row) {
    const auto sequence = static_cast<std::size_t>(here[row]);
    stayed.weights_N1.host<T>()[row] = static_cast<T>(chosen.weight[sequence]);
    stayed.each_N1.host<std::int32_t>()[row] = static_cast<std::int32_t>(row);
    ++stayed.offsets_O1
          .host<std::int32_t>()[static_cast<std::size_t>(chosen.expert[sequence] - first + 1)];
  }
  const auto offsets = stayed.offsets_O1.host<std::int32_t>();
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  return stayed;
}

}  // namespace

StayedRows stay_with_experts(const Tensor& x_TD, const Routing& routing, std::int64_t experts,
                             Communicator& ep, DecodedRows& rows, Ctx& ctx) {
  return routing.weights_TK.dtype() == DType::f64
             ? stay<double>(x_TD, routing, experts, ep, rows, ctx)
             : stay<float>(x_TD, routing, experts, ep, rows, ctx);
}

}  // namespace heddle
