#include <numeric>

#include "parallel/sequence/methods/methods.h"

namespace heddle::context_methods {
namespace {

/// One ring and what its ranks have.
class RingRounds {
 public:
  RingRounds(const ContextPlan& plan, const RingRanks& ranks, int begin, PassBuilder& rounds)
      : ranks_(ranks),
        size_(static_cast<int>(ranks.size())),
        begin_(begin),
        window_(plan.shape.window),
        rounds_(rounds) {
    const AttentionShare& share = plan.shares[static_cast<std::size_t>(ranks.front())];
    heads_ = share.heads;
    kv_ = {Content::kv, share.key_heads};
    kv_grad_ = {Content::kv_grad, share.key_heads, true};
    for (const int rank : ranks) {
      parts_.push_back(
          parts_of(plan.shares[static_cast<std::size_t>(rank)].tokens, plan.shape.documents));
    }
    keys_ = cut_keys(parts_, window_);
  }

  /// The rank at distance t has K and V of their owner in round t.
  void forward() {
    for (int owner = 0; owner < size_; ++owner) {
      rounds_.compute_own(begin_, rank(owner), parts(owner), heads_);
      std::vector<int> holders(keys(owner).size(), owner);  // of each part: who had it last
      for (int t = 1; t < size_; ++t) {
        const int user = (owner + t) % size_;
        for_each_seen(parts(user), keys(owner), window_,
                      [&](std::size_t part, const DocumentPart& queries, const DocumentPart& keys) {
                        send(begin_ + t - 1, holders[part], user, kv_, keys);
                        rounds_.compute(begin_ + t, rank(user), queries, keys, heads_);
                        holders[part] = user;
                      });
      }
    }
  }

  /// From the farthest to the nearest, and the owner last: there the sum of gradients comes home
  /// while it computes.
  void backward() {
    for (int owner = 0; owner < size_; ++owner) {
      std::vector<int> holders(keys(owner).size(), owner);
      for (int t = size_ - 1; t >= 1; --t) {
        const int user = (owner + t) % size_, round = begin_ + size_ - t;
        for_each_seen(parts(user), keys(owner), window_,
                      [&](std::size_t part, const DocumentPart& queries, const DocumentPart& keys) {
                        const int holder = holders[part];
                        send(round - 1, holder, user, kv_, keys);
                        rounds_.compute(round, rank(user), queries, keys, heads_);
                        if (holder != owner) send(round, holder, user, kv_grad_, keys);
                        holders[part] = user;
                      });
      }
      const int last = begin_ + size_;
      rounds_.compute_own(last, rank(owner), parts(owner), heads_);
      for (std::size_t part = 0; part < holders.size(); ++part) {
        if (holders[part] != owner) {
          send(last, holders[part], owner, kv_grad_, keys(owner)[part]);
        }
      }
    }
  }

 private:
  int rank(int index) const { return ranks_[static_cast<std::size_t>(index)]; }
  const DocumentParts& parts(int index) const { return parts_[static_cast<std::size_t>(index)]; }
  const DocumentParts& keys(int index) const { return keys_[static_cast<std::size_t>(index)]; }
  void send(int round, int from, int to, const Parcel& parcel, const DocumentPart& part) {
    rounds_.send(round, rank(from), rank(to), parcel, part.tokens);
  }

  const RingRanks& ranks_;
  int size_, begin_;
  Window window_;
  PassBuilder& rounds_;
  HeadRange heads_;
  Parcel kv_, kv_grad_;
  std::vector<DocumentParts> parts_;
  std::vector<DocumentParts> keys_;  // the same, in pieces that travel or stay
};

}  // namespace

void ring_forward(const ContextPlan& plan, const RingRanks& ranks, int begin, PassBuilder& rounds) {
  RingRounds(plan, ranks, begin, rounds).forward();
}

void ring_backward(const ContextPlan& plan, const RingRanks& ranks, int begin,
                   PassBuilder& rounds) {
  RingRounds(plan, ranks, begin, rounds).backward();
}

ContextPlan ring(const ContextShape& shape) {
  ContextPlan plan = placed(shape);
  RingRanks all(static_cast<std::size_t>(shape.ranks));
  std::iota(all.begin(), all.end(), 0);
  PassBuilder forward(shape), backward(shape);
  ring_forward(plan, all, 0, forward);
  ring_backward(plan, all, 0, backward);
  plan.forward = forward.finish();
  plan.backward = backward.finish();
  return plan;
}

}  // namespace heddle::context_methods
