#pragma once

#include <functional>
#include <span>
#include <vector>

#include "parallel/param_store.h"

namespace heddle {

/// Brings the inner matrices of a store together, each on one rank of those that hold slices of it
/// (ParamStore::InnerMatrix), and what is made of them back: for optimizers that work on whole
/// matrices. The work is spread over the ranks (owners_of).
///
/// Matrices travel in rounds of as many units as there are ranks: every rank then has the matrices
/// of about one unit, so buffers are of that size, whatever the model.
class WholeMatrices {
 public:
  /// The store outlives this.
  explicit WholeMatrices(const ParamStore& store);

  /// What `transform` makes of a matrix [A, B], contiguous and in the dtype of gradients, as one of
  /// the same shape and dtype.
  using Transform = std::function<Tensor(const Tensor& matrix)>;
  /// Replaces the gradients of all inner matrices, as far as they are held here, by `transform` of
  /// the whole ones. All ranks of a stage call it at the same time.
  void replace_grads(const Transform& transform, Stream& stream) const;

 private:
  struct Matrix {
    ParamStore::InnerMatrix is;
    int owner = 0;                  ///< in the group
    std::vector<bool> is_repeated;  ///< by slice: another one before it is of the same elements
  };
  /// Of one group, exchanged together.
  struct Round {
    Communicator* group = nullptr;
    std::vector<Matrix> matrices;
  };
  /// A tensor for slices that travel: first those to or from rank 0, then rank 1, ...
  struct Buffer {
    Tensor data;
    std::vector<std::int64_t> counts;  ///< elements, by rank
    std::vector<std::int64_t> next;    ///< by rank: where the next slice lies

    /// The next so many elements of a rank's.
    Tensor take(int rank, const Shape& shape);
  };

  void run(const Round& round, const Transform& transform, Stream& stream) const;
  /// `rank_of` says of a matrix and its i-th slice which rank this one exchanges it with; -1: none.
  template <class RankOf>
  Buffer measured(const Round& round, const RankOf& rank_of) const;
  void allocate(Buffer& buffer) const;
  /// Gives up `from`.
  void exchange(const Round& round, Buffer& from, Buffer& to, Stream& stream) const;

  const ParamStore& store_;
  std::vector<Round> rounds_;
};

/// For every one of these costs a rank, so that the ranks' sums are about equal: the largest first,
/// each for the rank that has least so far. A function of the costs alone.
std::vector<int> owners_of(std::span<const double> costs, int ranks);

/// About what a step of an iteration with the smaller of the two Gram matrices costs: operations.
double gram_cost(const Shape& matrix);

}  // namespace heddle
