#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "parallel/sequence_testing.h"

// Walks plans as an executor would, one number per head and row, in double precision: out, dQ, dK
// and dV must be those of the whole sequence on one rank. Messages carry what their content says
// and nothing else.

namespace heddle {
namespace {

using TokenHead = std::pair<std::int64_t, int>;

struct Partial {
  double out = 0.0, lse = -std::numeric_limits<double>::infinity();
};

/// Two partial outputs of different keys.
Partial merged(const Partial& a, const Partial& b) {
  const double top = std::max(a.lse, b.lse);
  if (std::isinf(top)) return a;
  const double lse = top + std::log(std::exp(a.lse - top) + std::exp(b.lse - top));
  return {std::exp(a.lse - lse) * a.out + std::exp(b.lse - lse) * b.out, lse};
}

struct KeyValue {
  double k = 0.0, v = 0.0;
};

/// What backward needs of a query.
struct QueryGrad {
  double out_grad = 0.0, lse = 0.0, delta = 0.0;
};

double input(const char* name, std::int64_t token, int head) {
  return random_normal(rng_key(1, name), static_cast<std::uint64_t>(token * 64 + head));
}

/// Values of a rank by token and head, and sums of gradients that it has.
struct RankState {
  std::map<TokenHead, double> q, out_grad, q_grad;
  std::map<TokenHead, KeyValue> kv, kv_grad;
  std::map<TokenHead, Partial> out;
  std::map<TokenHead, QueryGrad> grads;
};

template <class Visit>
void for_each(const TokenRuns& runs, HeadRange heads, const Visit& visit) {
  for (const TokenRun& run : runs) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      for (int head = 0; head < heads.count; ++head) {
        visit(TokenHead{run.at(i), heads.first + head});
      }
    }
  }
}

class Walker {
 public:
  explicit Walker(const ContextPlan& plan) : plan_(plan), ranks_(plan.held.size()) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      for_each(plan.held[rank], {0, plan.shape.heads}, [&](const TokenHead& at) {
        ranks_[rank].q[at] = input("q", at.first, at.second);
        ranks_[rank].out_grad[at] = input("dO", at.first, at.second);
      });
      for_each(plan.held[rank], {0, plan.shape.key_heads}, [&](const TokenHead& at) {
        ranks_[rank].kv[at] = {input("k", at.first, at.second), input("v", at.first, at.second)};
      });
    }
  }

  void forward() {
    walk(plan_.forward, [&](RankState& state, TokenHead query, TokenHead key) {
      const auto [k, v] = state.kv.at(key);
      Partial& out = state.out[query];
      out = merged(out, {v, state.q.at(query) * k});
    });
  }

  /// Keeps of forward what a plan says that ranks keep.
  void backward() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) keep(rank);
    walk(plan_.backward, [&](RankState& state, TokenHead query, TokenHead key) {
      const auto [k, v] = state.kv.at(key);
      const auto [out_grad, lse, delta] = query_grad(state, query);
      const double q = state.q.at(query), p = std::exp(q * k - lse);
      const double ds = p * (out_grad * v - delta);
      state.q_grad[query] += ds * k;
      KeyValue& sum = state.kv_grad[key];
      sum.k += ds * q;
      sum.v += p * out_grad;
    });
  }

  const RankState& state(std::size_t rank) const { return ranks_[rank]; }

 private:
  /// A rank that attends to its own share has out and lse of it, and makes delta itself.
  static QueryGrad query_grad(const RankState& state, const TokenHead& query) {
    if (const auto got = state.grads.find(query); got != state.grads.end()) return got->second;
    const double out_grad = state.out_grad.at(query);
    const Partial& out = state.out.at(query);
    return {out_grad, out.lse, out_grad * out.out};
  }

  void keep(std::size_t rank) {
    RankState kept;
    const RankState& had = ranks_[rank];
    const AttentionShare& share = plan_.shares[rank];
    for_each(share.tokens, share.heads, [&](const TokenHead& at) {
      kept.q[at] = had.q.at(at);
      kept.out[at] = had.out.at(at);
    });
    for_each(share.tokens, share.key_heads,
             [&](const TokenHead& at) { kept.kv[at] = had.kv.at(at); });
    kept.out_grad = had.out_grad;
    ranks_[rank] = kept;
  }

  template <class Compute>
  void walk(const ContextPass& pass, const Compute& compute) {
    const int group = plan_.shape.group();
    for (std::size_t round = 0; round < static_cast<std::size_t>(pass.rounds()); ++round) {
      std::vector<std::pair<int, RankState>> packets;  // receiver and what it gets, by message
      std::vector<Message> messages;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        for (const Message& message : pass.by_rank[rank][round].sends) {
          packets.emplace_back(message.peer, pack(ranks_[rank], message));
          messages.push_back(message);
        }
      }
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        for (const Tile& tile : pass.by_rank[rank][round].tiles) {
          for_each({tile.queries}, tile.heads, [&](const TokenHead& query) {
            const auto [token, head] = query;
            const auto [begin, end] = met_keys(tile, token);
            for (std::int64_t i = begin; i < end; ++i) {
              compute(ranks_[rank], query, TokenHead{tile.keys.at(i), head / group});
            }
          });
        }
      }
      for (std::size_t i = 0; i < packets.size(); ++i) {
        unpack(ranks_[static_cast<std::size_t>(packets[i].first)], packets[i].second, messages[i]);
      }
    }
  }

  /// Results leave the rank that sends them. Where none of its keys is seen by a query, or none of
  /// its queries sees a key, they are those of nothing.
  static RankState pack(RankState& from, const Message& message) {
    RankState packet;
    const auto take = [](auto& results, const TokenHead& at) {
      const auto value = results[at];
      results.erase(at);
      return value;
    };
    for_each(message.tokens, message.heads, [&](const TokenHead& at) {
      switch (message.content) {
        case Content::q: packet.q[at] = from.q.at(at); break;
        case Content::kv: packet.kv[at] = from.kv.at(at); break;
        case Content::out_grad: packet.out_grad[at] = from.out_grad.at(at); break;
        case Content::q_with_grad:
          packet.q[at] = from.q.at(at);
          packet.grads[at] = query_grad(from, at);
          break;
        // A complete output is also kept for the backward.
        case Content::out:
          packet.out[at] = message.is_partial ? take(from.out, at) : from.out.at(at);
          break;
        case Content::q_grad: packet.q_grad[at] = take(from.q_grad, at); break;
        case Content::kv_grad: packet.kv_grad[at] = take(from.kv_grad, at); break;
      }
    });
    return packet;
  }

  /// Partial results are merged with what is there; complete ones must be the first.
  static void unpack(RankState& to, const RankState& packet, const Message& message) {
    const auto check_first = [&](const auto& results, const TokenHead& at) {
      EXPECT_TRUE(message.is_partial || !results.contains(at)) << "is not the whole";
    };
    for (const auto& [at, value] : packet.q) to.q[at] = value;
    for (const auto& [at, value] : packet.kv) to.kv[at] = value;
    for (const auto& [at, value] : packet.out_grad) to.out_grad[at] = value;
    for (const auto& [at, value] : packet.grads) to.grads[at] = value;
    for (const auto& [at, value] : packet.out) {
      check_first(to.out, at);
      to.out[at] = merged(to.out[at], value);
    }
    for (const auto& [at, value] : packet.q_grad) {
      check_first(to.q_grad, at);
      to.q_grad[at] += value;
    }
    for (const auto& [at, value] : packet.kv_grad) {
      check_first(to.kv_grad, at);
      KeyValue& sum = to.kv_grad[at];
      sum.k += value.k;
      sum.v += value.v;
    }
  }

  const ContextPlan& plan_;
  std::vector<RankState> ranks_;
};

/// Of all tokens and heads, on one rank and without blocks.
RankState whole_attention(const ContextShape& shape) {
  RankState whole;
  std::int64_t begin = 0;
  for (const std::int64_t length : shape.documents) {
    for (std::int64_t i = begin; i < begin + length; ++i) {
      for (int head = 0; head < shape.heads; ++head) {
        const int key_head = head / shape.group();
        const double q = input("q", i, head), out_grad = input("dO", i, head);
        double sum = 0.0, out = 0.0;
        const std::int64_t first = std::max(begin, i + 1 - shape.window.value_or(shape.tokens));
        for (std::int64_t j = first; j <= i; ++j) {
          const double p = std::exp(q * input("k", j, key_head));
          sum += p;
          out += p * input("v", j, key_head);
        }
        out /= sum;
        whole.out[{i, head}] = {out, std::log(sum)};
        for (std::int64_t j = first; j <= i; ++j) {
          const double k = input("k", j, key_head), v = input("v", j, key_head);
          const double p = std::exp(q * k) / sum, ds = p * out_grad * (v - out);
          whole.q_grad[{i, head}] += ds * k;
          KeyValue& grad = whole.kv_grad[{j, key_head}];
          grad.k += ds * q;
          grad.v += p * out_grad;
        }
      }
    }
    begin += length;
  }
  return whole;
}

void expect_same_as_whole(const ContextShape& shape) {
  SCOPED_TRACE(to_text(shape));
  const ContextPlan plan = make_context_plan(shape);
  const RankState whole = whole_attention(plan.shape);
  Walker walker(plan);
  walker.forward();
  for (std::size_t rank = 0; rank < plan.held.size(); ++rank) {
    for_each(plan.held[rank], {0, shape.heads}, [&](const TokenHead& at) {
      ASSERT_NEAR(walker.state(rank).out.at(at).out, whole.out.at(at).out, 1e-12);
    });
  }
  walker.backward();
  for (std::size_t rank = 0; rank < plan.held.size(); ++rank) {
    for_each(plan.held[rank], {0, shape.heads}, [&](const TokenHead& at) {
      ASSERT_NEAR(walker.state(rank).q_grad.at(at), whole.q_grad.at(at), 1e-12);
    });
    for_each(plan.held[rank], {0, shape.key_heads}, [&](const TokenHead& at) {
      ASSERT_NEAR(walker.state(rank).kv_grad.at(at).k, whole.kv_grad.at(at).k, 1e-12);
      ASSERT_NEAR(walker.state(rank).kv_grad.at(at).v, whole.kv_grad.at(at).v, 1e-12);
    });
  }
}

class WalkedPlans : public testing::TestWithParam<ContextMethod> {};

TEST_P(WalkedPlans, GiveOutputAndGradientsOfTheWholeSequence) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CaseRandom random(1000 + seed);
    const auto orders = orders_of(GetParam());
    ContextShape shape{.method = GetParam(),
                       .order = orders[seed % orders.size()],
                       .ranks = static_cast<int>(random.between(1, 9)),
                       .tokens = random.between(1, 70)};
    if (seed % 4 != 0) shape.documents = random_documents(shape.tokens, shape.ranks, random);
    if (seed % 2 != 0) shape.window = random_window(shape, random);
    expect_same_as_whole(with_heads(shape, static_cast<int>(random.between(1, 3)), 2));
  }
}

INSTANTIATE_TEST_SUITE_P(All, WalkedPlans, testing::ValuesIn(kContextMethodsTested),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(WalkedHeads, GiveTheSameWhereKeyHeadsAreSharedByRanks) {
  for (const int key_heads : {1, 2, 4}) {
    expect_same_as_whole({.method = ContextMethod::ulysses,
                          .ranks = 8,
                          .tokens = 41,
                          .documents = {11, 30},
                          .heads = 8,
                          .key_heads = key_heads});
    expect_same_as_whole({.method = ContextMethod::usp,
                          .ranks = 8,
                          .tokens = 41,
                          .documents = {11, 30},
                          .heads = 8,
                          .key_heads = key_heads,
                          .context_heads = 4});
  }
}

}  // namespace
}  // namespace heddle
