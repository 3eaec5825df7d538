#include "parallel/whole_matrices.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "ops/elementwise.h"

namespace heddle {

std::vector<int> owners_of(std::span<const double> costs, int ranks) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return costs[i]; });
  std::vector<double> loads(static_cast<std::size_t>(ranks), 0.0);
  std::vector<int> owners(costs.size(), 0);
  for (const std::size_t i : order) {
    const auto least = std::ranges::min_element(loads);
    *least += costs[i];
    owners[i] = static_cast<int>(least - loads.begin());
  }
  return owners;
}

double gram_cost(const Shape& matrix) {
  const auto less = static_cast<double>(std::min(matrix[0], matrix[1]));
  const auto more = static_cast<double>(std::max(matrix[0], matrix[1]));
  return less * less * (2.0 * more + less);
}

WholeMatrices::WholeMatrices(const ParamStore& store) : store_(store) {
  struct Open {
    std::size_t round;
    std::set<int> units;
  };
  std::map<AxisSet, Open> open;  // by group: the round that is being filled
  for (ParamStore::InnerMatrix& matrix : store.inner_matrices()) {
    Communicator& group = store.mesh().group(matrix.group);
    const auto found = open.find(matrix.group);
    const bool is_full =
        found == open.end() || (!found->second.units.contains(matrix.unit) &&
                                static_cast<int>(found->second.units.size()) == group.size());
    if (is_full) {
      open[matrix.group] = {rounds_.size(), {}};
      rounds_.push_back({.group = &group, .matrices = {}});
    }
    Open& filled = open.at(matrix.group);
    filled.units.insert(matrix.unit);
    rounds_[filled.round].matrices.push_back(
        {.is = std::move(matrix), .owner = 0, .is_repeated = {}});
  }
  for (Round& round : rounds_) {
    std::vector<double> costs;
    for (Matrix& matrix : round.matrices) {
      costs.push_back(gram_cost(matrix.is.shape));
      std::set<std::pair<std::int64_t, std::int64_t>>
          seen;  // two slices overlap whole or not at all
      for (const auto& slice : matrix.is.slices) {
        matrix.is_repeated.push_back(!seen.emplace(slice.begin[0], slice.begin[1]).second);
      }
    }
    const auto owners = owners_of(costs, round.group->size());
    for (std::size_t i = 0; i < owners.size(); ++i) round.matrices[i].owner = owners[i];
  }
}

Tensor WholeMatrices::Buffer::take(int rank, const Shape& shape) {
  std::int64_t& at = next[static_cast<std::size_t>(rank)];
  at += shape.count();
  return data.slice(0, at - shape.count(), at).view(shape);
}

template <class RankOf>
WholeMatrices::Buffer WholeMatrices::measured(const Round& round, const RankOf& rank_of) const {
  Buffer buffer;
  buffer.counts.resize(static_cast<std::size_t>(round.group->size()), 0);
  for (const Matrix& matrix : round.matrices) {
    for (std::size_t i = 0; i < matrix.is.slices.size(); ++i) {
      const int rank = rank_of(matrix, i);
      if (rank < 0) continue;
      buffer.counts[static_cast<std::size_t>(rank)] += matrix.is.slices[i].extent.count();
    }
  }
  std::int64_t all = 0;
  for (const std::int64_t count : buffer.counts) {
    buffer.next.push_back(all);
    all += count;
  }
  return buffer;
}

void WholeMatrices::allocate(Buffer& buffer) const {
  const std::int64_t all = std::accumulate(buffer.counts.begin(), buffer.counts.end(), 0LL);
  buffer.data = store_.memory().alloc({all}, store_.grad_dtype(), MemoryTag::communication);
}

/// On a single rank what is received is what was sent.
void WholeMatrices::exchange(const Round& round, Buffer& from, Buffer& to, Stream& stream) const {
  if (round.group->size() == 1) {
    to.data = std::exchange(from.data, {});
    return;
  }
  allocate(to);
  round.group->all_to_all(from.data, to.data, from.counts, to.counts, stream).wait(stream);
  from.data = {};
}

void WholeMatrices::replace_grads(const Transform& transform, Stream& stream) const {
  for (const Round& round : rounds_) run(round, transform, stream);
}

void WholeMatrices::run(const Round& round, const Transform& transform, Stream& stream) const {
  const int own = round.group->rank();
  const auto for_slices = [&](const auto& visit) {
    for (const Matrix& matrix : round.matrices) {
      for (std::size_t i = 0; i < matrix.is.slices.size(); ++i) visit(matrix, i);
    }
  };
  const auto holder = [](const Matrix& matrix, std::size_t i) {
    return matrix.is.slices[i].holder;
  };

  // To the owners: every element once.
  const auto to_owner = [&](const Matrix& matrix, std::size_t i) {
    return holder(matrix, i) == own && !matrix.is_repeated[i] ? matrix.owner : -1;
  };
  const auto from_holder = [&](const Matrix& matrix, std::size_t i) {
    return matrix.owner == own && !matrix.is_repeated[i] ? holder(matrix, i) : -1;
  };
  Buffer sent = measured(round, to_owner);
  allocate(sent);
  for_slices([&](const Matrix& matrix, std::size_t i) {
    const ParamStore::MatrixSlice& slice = matrix.is.slices[i];
    const int owner = to_owner(matrix, i);
    if (owner >= 0) ops::copy(slice.grad, sent.take(owner, slice.extent), stream);
  });
  Buffer received = measured(round, from_holder);
  exchange(round, sent, received, stream);

  // And back: to all that hold them.
  const auto to_holder = [&](const Matrix& matrix, std::size_t i) {
    return matrix.owner == own ? holder(matrix, i) : -1;
  };
  const auto from_owner = [&](const Matrix& matrix, std::size_t i) {
    return holder(matrix, i) == own ? matrix.owner : -1;
  };
  Buffer returned = measured(round, to_holder);
  allocate(returned);
  for (const Matrix& matrix : round.matrices) {
    if (matrix.owner != own) continue;
    Tensor whole =
        store_.memory().alloc(matrix.is.shape, store_.grad_dtype(), MemoryTag::workspace);
    for (std::size_t i = 0; i < matrix.is.slices.size(); ++i) {
      const ParamStore::MatrixSlice& slice = matrix.is.slices[i];
      if (matrix.is_repeated[i]) continue;
      ops::copy(received.take(slice.holder, slice.extent), whole.box(slice.begin, slice.extent),
                stream);
    }
    whole = transform(whole);
    for (const ParamStore::MatrixSlice& slice : matrix.is.slices) {
      ops::copy(whole.box(slice.begin, slice.extent), returned.take(slice.holder, slice.extent),
                stream);
    }
  }
  received.data = {};
  Buffer made = measured(round, from_owner);
  exchange(round, returned, made, stream);
  for_slices([&](const Matrix& matrix, std::size_t i) {
    const ParamStore::MatrixSlice& slice = matrix.is.slices[i];
    const int owner = from_owner(matrix, i);
    if (owner >= 0) ops::copy(made.take(owner, slice.extent), slice.grad, stream);
  });
}

}  // namespace heddle
