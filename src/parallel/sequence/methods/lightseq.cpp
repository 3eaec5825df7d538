#include "parallel/sequence/methods/methods.h"

namespace heddle::context_methods {
namespace {

/// One pass, rank by rank of queries and of keys.
class LightSeqRounds {
 public:
  LightSeqRounds(const ContextPlan& plan, bool is_backward)
      : shape_(plan.shape),
        parts_(parts_by_rank(plan)),
        queries_(cut_queries(parts_, plan.shape.window)),
        keys_(cut_keys(parts_, plan.shape.window)),
        is_backward_(is_backward),
        rounds_(plan.shape) {}

  ContextPass make() {
    for (int rank = 0; rank < shape_.ranks; ++rank) {
      rounds_.compute_own(0, rank, parts_[static_cast<std::size_t>(rank)], all_heads(shape_));
    }
    for (int distance = 1; distance < shape_.ranks; ++distance) {
      for (int keys = 0; keys + distance < shape_.ranks; ++keys) add(keys + distance, keys);
    }
    return rounds_.finish();
  }

 private:
  /// What is needed in round t travels in the one before, what comes out of it in the one behind.
  void add(int query_rank, int key_rank) {
    const int distance = query_rank - key_rank;
    const bool is_own = distance <= shape_.ranks / 2;  // the rank of the queries computes it
    const int round = is_own ? distance : shape_.ranks - distance;
    const int computes = is_own ? query_rank : key_rank, other = is_own ? key_rank : query_rank;
    for_each_seen((is_own ? parts_ : queries_)[static_cast<std::size_t>(query_rank)],
                  (is_own ? keys_ : parts_)[static_cast<std::size_t>(key_rank)], shape_.window,
                  [&](std::size_t, const DocumentPart& queries, const DocumentPart& keys) {
                    const TokenRuns& travels = (is_own ? keys : queries).tokens;
                    rounds_.send(round - 1, other, computes, is_own ? kv() : q(), travels);
                    rounds_.compute(round, computes, queries, keys, all_heads(shape_));
                    if (is_own && !is_backward_) return;  // the output is where it belongs
                    rounds_.send(round + 1, computes, other, is_own ? kv_grad() : q_result(),
                                 travels);
                  });
  }

  Parcel kv() const { return {Content::kv, all_key_heads(shape_)}; }
  Parcel kv_grad() const { return {Content::kv_grad, all_key_heads(shape_), true}; }
  Parcel q() const { return {is_backward_ ? Content::q_with_grad : Content::q, all_heads(shape_)}; }
  Parcel q_result() const {
    return {is_backward_ ? Content::q_grad : Content::out, all_heads(shape_), true};
  }

  const ContextShape& shape_;
  std::vector<DocumentParts> parts_;
  std::vector<DocumentParts> queries_, keys_;  // the same, in pieces that travel or stay
  bool is_backward_;
  PassBuilder rounds_;
};

}  // namespace

ContextPlan lightseq(const ContextShape& shape) {
  ContextPlan plan = placed(shape);
  plan.forward = LightSeqRounds(plan, false).make();
  plan.backward = LightSeqRounds(plan, true).make();
  return plan;
}

}  // namespace heddle::context_methods
