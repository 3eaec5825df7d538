#include "nn/experts/two_level.h"

#include <algorithm>

#include "base/check.h"
#include "ops/elementwise.h"

namespace heddle {

TwoLevel::TwoLevel(Communicator& ranks, int node)
    : ranks_(ranks), node_(node), nodes_(ranks.size() / node) {
  HEDDLE_CHECK(ranks.size() % node == 0, "{} ranks in nodes of {}", ranks.size(), node);
}

Tensor TwoLevel::regrouped(const Tensor& rows, const std::vector<Message>& have,
                           const std::vector<Message>& wanted, const Counts& counts,
                           Ctx& ctx) const {
  const auto count = [&](const Message& m) {
    return counts[static_cast<std::size_t>(m.from)][static_cast<std::size_t>(m.to)];
  };
  std::vector<std::int64_t> begins;
  std::int64_t at = 0;
  for (const Message& message : have) {
    begins.push_back(at);
    at += count(message);
  }
  const Tensor made = ctx.activation(rows.shape(), rows.dtype());
  struct Stretch {
    std::int64_t from, rows;
  };
  std::vector<Stretch> stretches;
  for (const Message& message : wanted) {
    const auto found = std::ranges::find(have, message) - have.begin();
    stretches.push_back({begins[static_cast<std::size_t>(found)], count(message)});
  }
  ranks_.then(
      [rows, made, stretches](Stream& stream) {
        std::int64_t to = 0;
        for (const auto& [from, n] : stretches) {
          ops::copy(rows.slice(0, from, from + n), made.slice(0, to, to + n), stream);
          to += n;
        }
      },
      ctx.stream);
  return made;
}

TwoLevel::Arriving TwoLevel::exchange(const Tensor& sent, const Counts& counts,
                                      std::int64_t row_payload, Ctx& ctx) const {
  const int own = ranks_.rank(), first = own / node_ * node_, place = own % node_;
  const auto rank_in = [&](int node, int at) { return node * node_ + at; };
  // Each list in the order in which its rows lie: what is here, what goes to each neighbour, what
  // came from each, what goes to each node, and what came from each, which is the order of ranks.
  std::vector<Message> here, leaving, met, sorted;
  for (int to = 0; to < ranks_.size(); ++to) here.push_back({own, to});
  for (int neighbour = 0; neighbour < node_; ++neighbour) {
    for (int node = 0; node < nodes_; ++node) leaving.push_back({own, rank_in(node, neighbour)});
    for (int node = 0; node < nodes_; ++node) {
      met.push_back({first + neighbour, rank_in(node, place)});
    }
  }
  for (int node = 0; node < nodes_; ++node) {
    for (int neighbour = 0; neighbour < node_; ++neighbour) {
      sorted.push_back({first + neighbour, rank_in(node, place)});
    }
  }
  const auto count = [&](int from, int to) {
    return counts[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  };
  using Rows = std::vector<std::int64_t>;
  const auto sum = [](const Rows& rows) {
    std::int64_t all = 0;
    for (const std::int64_t n : rows) all += n;
    return all;
  };
  Arriving arriving;
  const auto move = [&](const Tensor& rows, const Rows& out, const Rows& in) {
    Shape shape = rows.shape();
    shape.set(0, sum(in));
    arriving.held.insert(arriving.held.end(), {rows, arriving.rows});
    arriving.rows = ctx.activation(shape, rows.dtype());
    arriving.work =
        ranks_.all_to_all(rows, arriving.rows, out, in, ctx.stream, row_payload * rows.size(0));
  };
  const auto all = static_cast<std::size_t>(ranks_.size());
  Rows out(all, 0), in(all, 0);
  for (int neighbour = 0; neighbour < node_; ++neighbour) {
    const auto peer = static_cast<std::size_t>(first + neighbour);
    for (int node = 0; node < nodes_; ++node) {
      out[peer] += count(own, rank_in(node, neighbour));
      in[peer] += count(first + neighbour, rank_in(node, place));
    }
  }
  move(regrouped(sent, here, leaving, counts, ctx), out, in);
  out.assign(all, 0);
  in.assign(all, 0);
  for (int node = 0; node < nodes_; ++node) {
    const auto peer = static_cast<std::size_t>(rank_in(node, place));
    for (int neighbour = 0; neighbour < node_; ++neighbour) {
      out[peer] += count(first + neighbour, rank_in(node, place));
      in[peer] += count(rank_in(node, neighbour), own);
    }
  }
  move(regrouped(arriving.rows, met, sorted, counts, ctx), out, in);
  return arriving;
}

}  // namespace heddle
