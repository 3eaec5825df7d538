// What of a store's traffic goes through codecs (docs/design/035-compressed-exchanges.md).

#include <algorithm>

#include "base/check.h"
#include "ops/reduce.h"
#include "parallel/param_store.h"

namespace heddle {

/// Vectors are few bytes and bear errors badly. Of a matrix of whose gradient ranks beside those
/// that see other tokens have a part, or the other end of a pipeline, each of them would have a
/// residual of its own.
bool ParamStore::may_be_coded(const Parameter& parameter) const {
  const bool is_lossy =
      gradient_codec_ != nullptr || (weight_codec_ != nullptr && !weight_codec_->is_lossless());
  if (!is_lossy) return true;  // and in one buffer with the others, as without codecs
  const auto regions = parameter.regions();
  return parameter.is_matrix() && parameter.tie == Parameter::Tie::none &&
         std::ranges::all_of(regions, [this](const Parameter::Region& region) {
           return other_sums(region.layout).empty();
         });
}

void ParamStore::choose_codecs(Bucket& bucket) {
  Communicator& others = *bucket.others;
  if (others.size() == 1 || notes_ == nullptr) return;
  HEDDLE_CHECK(grad_dtype() == DType::f32, "codecs for gradients of {}", name_of(grad_dtype()));
  const auto is_large = [&](DType dtype) {
    return bucket.size * static_cast<std::int64_t>(size_of(dtype)) >= options_.compress.min_bytes;
  };
  if (gradient_codec_ != nullptr && is_large(grad_dtype())) {
    bucket.coded_sum = std::make_unique<CompressedSum>(gradient_codec_, others, memory_);
    bucket.books.bad = notes_->own();
    if (bucket.zero == 0) bucket.books_of_sum.bad = notes_->add();
    if (options_.compress.feeds_back() && trains(bucket)) {
      const auto zeros = [&](std::int64_t count) {
        return memory_.zeros({count}, DType::f32, MemoryTag::optimizer);
      };
      bucket.books.residual = zeros(bucket.size);
      if (bucket.zero == 0) bucket.books_of_sum.residual = zeros(bucket.size / others.size());
      if (options_.retakes_steps) {
        bucket.residual_before = Earlier(bucket.books.residual, memory_);
        if (bucket.zero == 0) {
          bucket.residual_of_sum_before = Earlier(bucket.books_of_sum.residual, memory_);
        }
      }
    }
  }
  if (weight_codec_ != nullptr && bucket.zero > 0 && is_large(options_.dtype)) {
    bucket.coded_gather = std::make_unique<CodedGather>(
        *weight_codec_, others, memory_, static_cast<std::int64_t>(size_of(options_.dtype)));
  }
}

bool ParamStore::needs_masters(const Bucket& bucket) const {
  if (options_.dtype != grad_dtype()) return true;
  // With ZeRO-3, values that nobody computes with are exact themselves.
  return bucket.coded_gather != nullptr && !weight_codec_->is_lossless() && bucket.zero < 3;
}

void ParamStore::reduce_coded(Bucket& bucket, Stream& stream) {
  const CompressedSum& sum = *bucket.coded_sum;
  bucket.residual_before.keep(bucket.books.residual, stream);
  bucket.residual_of_sum_before.keep(bucket.books_of_sum.residual, stream);
  Reduction begun{.bucket = &bucket, .whole = {}, .shard = {}, .work = {}};
  if (bucket.zero == 0) {
    begun.coded = sum.sum(bucket.grads, bucket.books, bucket.books_of_sum, stream);
  } else if (bucket.zero == 1) {
    const Tensor own = cut(bucket, bucket.grads, bucket.held);
    begun.coded = sum.scatter(bucket.grads, own, bucket.books, stream);
  } else {
    begun.shard = memory_.alloc(bucket.grads.shape(), grad_dtype(), MemoryTag::communication);
    begun.coded = sum.scatter(bucket.whole_grads, begun.shard, bucket.books, stream);
    for (const auto& [parameter, at] : bucket.placed) parameter->grad = {};
    bucket.whole_grads = {};
  }
  reductions_.push_back(std::move(begun));
}

std::optional<ParamStore::Residuals> ParamStore::residuals() const {
  std::optional<Residuals> all;
  for (const Bucket& bucket : buckets_) {
    if (!bucket.books.residual.defined()) continue;
    const int rank = bucket.others->rank(), ranks = bucket.others->size();
    if (!all) all = Residuals{gradient_codec_->name(), rank, ranks, {}, {}};
    HEDDLE_CHECK(all->ranks == ranks, "gradients that are summed over {} ranks, and over {}",
                 all->ranks, ranks);
    const std::int64_t part = bucket.size / ranks;
    for (const Placed& placed : bucket.placed) {
      add_pieces(placed, bucket.residual_before.decided(bucket.books.residual), 0, {0, bucket.size},
                 true, false, all->own);
      if (!bucket.books_of_sum.residual.defined()) continue;
      add_pieces(placed, bucket.residual_of_sum_before.decided(bucket.books_of_sum.residual),
                 part * rank, {part * rank, part * (rank + 1)}, true, false, all->of_the_sum);
    }
  }
  return all;
}

bool ParamStore::can_retake_steps() const {
  const bool changes_early =
      keeps_residuals() || std::ranges::any_of(states_, [](const OptimizerState& state) {
        return state.lies != OptimizerState::Lies::as_gradients;
      });
  return options_.retakes_steps || !changes_early;
}

void ParamStore::settle() {
  for (Bucket& bucket : buckets_) {
    bucket.residual_before.settle();
    bucket.residual_of_sum_before.settle();
    for (Earlier& before : bucket.states_before) before.settle();
  }
}

void ParamStore::add_residual_squares(const Tensor& sum, Stream& stream) const {
  for (const Bucket& bucket : buckets_) {
    for (const Tensor& residual : {bucket.books.residual, bucket.books_of_sum.residual}) {
      if (residual.defined()) ops::add_sum_of_squares(residual, sum, stream);
    }
  }
}

}  // namespace heddle
