#include <fmt/format.h>

#include "parallel/sequence/checks.h"

namespace heddle {
namespace {

/// For every token and head: whether it is there.
class TokenHeads {
 public:
  TokenHeads(std::int64_t tokens, int heads)
      : heads_(heads), is_in_(static_cast<std::size_t>(tokens * heads)) {}

  void set(const TokenRun& run, HeadRange heads, bool value) {
    for_each(run, heads, [&](std::size_t index) {
      is_in_[index] = value;
      return true;
    });
  }
  void set(const TokenRuns& runs, HeadRange heads, bool value) {
    for (const TokenRun& run : runs) set(run, heads, value);
  }
  bool has(const TokenRun& run, HeadRange heads) const {
    return for_each(run, heads, [&](std::size_t index) { return bool{is_in_[index]}; });
  }
  bool has(const TokenRuns& runs, HeadRange heads) const {
    for (const TokenRun& run : runs) {
      if (!has(run, heads)) return false;
    }
    return true;
  }
  /// The first token that has a head here, or -1.
  std::int64_t first() const {
    for (std::size_t i = 0; i < is_in_.size(); ++i) {
      if (is_in_[i]) return static_cast<std::int64_t>(i) / heads_;
    }
    return -1;
  }

 private:
  /// Until `visit` returns false; whether it never did.
  template <class Visit>
  bool for_each(const TokenRun& run, HeadRange heads, const Visit& visit) const {
    for (std::int64_t i = 0; i < run.count; ++i) {
      for (int head = 0; head < heads.count; ++head) {
        if (!visit(static_cast<std::size_t>(run.at(i) * heads_ + heads.first + head))) return false;
      }
    }
    return true;
  }

  int heads_;
  std::vector<bool> is_in_;
};

/// What a rank has. Results are of what it computed or got, until it gives them away.
struct RankData {
  TokenHeads q, kv, out_grad, query_results, key_results;

  explicit RankData(const ContextShape& shape)
      : q(shape.tokens, shape.heads),
        kv(shape.tokens, shape.key_heads),
        out_grad(shape.tokens, shape.heads),
        query_results(shape.tokens, shape.heads),
        key_results(shape.tokens, shape.key_heads) {}
};

/// Lets all ranks go through a pass, round by round.
class DataCheck {
 public:
  DataCheck(const ContextPlan& plan, const ContextPass& pass, bool is_backward,
            std::vector<Diagnostic>& found)
      : plan_(plan), pass_(pass), is_backward_(is_backward), found_(found) {
    for (std::size_t rank = 0; rank < plan.held.size(); ++rank) {
      RankData& data = data_.emplace_back(plan.shape);
      const auto& held = plan.held[rank];
      data.q.set(held, {0, plan.shape.heads}, true);
      data.kv.set(held, {0, plan.shape.key_heads}, true);
      data.out_grad.set(held, {0, plan.shape.heads}, is_backward);
      if (!is_backward) continue;
      const auto& share = plan.shares[rank];
      data.q.set(share.tokens, share.heads, true);
      data.kv.set(share.tokens, share.key_heads, true);
    }
  }

  void run() {
    for (round_ = 0; round_ < pass_.rounds(); ++round_) {
      for (int rank = 0; rank < pass_.ranks(); ++rank) give(rank);
      for (int rank = 0; rank < pass_.ranks(); ++rank) compute(rank);
      for (int rank = 0; rank < pass_.ranks(); ++rank) take(rank);
    }
    check_end();
  }

 private:
  const Round& round_of(int rank) const {
    return pass_.by_rank[static_cast<std::size_t>(rank)][static_cast<std::size_t>(round_)];
  }
  RankData& data_of(int rank) { return data_[static_cast<std::size_t>(rank)]; }

  const char* pass_name() const { return is_backward_ ? "backward" : "forward"; }

  void add(int rank, const std::string& message) {
    found_.push_back({rank, fmt::format("{}, round {}: {}", pass_name(), round_, message)});
  }

  void give(int rank) {
    RankData& data = data_of(rank);
    for (const Message& message : round_of(rank).sends) {
      const auto& [peer, content, is_partial, heads, tokens] = message;
      bool has = true;
      switch (content) {
        case Content::q: has = data.q.has(tokens, heads); break;
        case Content::kv: has = data.kv.has(tokens, heads); break;
        case Content::out_grad: has = data.out_grad.has(tokens, heads); break;
        case Content::q_with_grad:
          has = data.q.has(tokens, heads) && data.out_grad.has(tokens, heads);
          break;
        case Content::out:
        case Content::q_grad: has = give_away(data.query_results, message); break;
        case Content::kv_grad:
          // Sums of gradients begin as zeros where their k and v are.
          has = data.kv.has(tokens, heads);
          data.key_results.set(tokens, heads, false);
          break;
      }
      if (!has) {
        add(rank, fmt::format("sends {} ({}) to rank {} without having it", name_of(content),
                              to_text(tokens.front()), peer));
      }
    }
  }

  static bool give_away(TokenHeads& results, const Message& message) {
    const bool has = results.has(message.tokens, message.heads);
    results.set(message.tokens, message.heads, false);
    return has;
  }

  void compute(int rank) {
    const RankData& data = data_of(rank);
    for (const Tile& tile : round_of(rank).tiles) {
      const bool has_queries = data.q.has(tile.queries, tile.heads) &&
                               (!is_backward_ || data.out_grad.has(tile.queries, tile.heads));
      if (!has_queries) {
        add(rank,
            fmt::format("computes with queries ({}) without having them", to_text(tile.queries)));
      }
      if (!data.kv.has(tile.keys, key_heads_of(tile.heads, plan_.shape))) {
        add(rank, fmt::format("computes with keys ({}) without having them", to_text(tile.keys)));
      }
    }
  }

  void take(int rank) {
    RankData& data = data_of(rank);
    for (const Message& message : round_of(rank).receives) {
      const auto& [peer, content, is_partial, heads, tokens] = message;
      switch (content) {
        case Content::q: data.q.set(tokens, heads, true); break;
        case Content::kv: data.kv.set(tokens, heads, true); break;
        case Content::out_grad: data.out_grad.set(tokens, heads, true); break;
        case Content::q_with_grad:
          data.q.set(tokens, heads, true);
          data.out_grad.set(tokens, heads, true);
          break;
        case Content::out:
        case Content::q_grad: data.query_results.set(tokens, heads, true); break;
        case Content::kv_grad: data.key_results.set(tokens, heads, true); break;
      }
    }
    for (const Tile& tile : round_of(rank).tiles) {
      data.query_results.set(tile.queries, tile.heads, true);
      if (is_backward_) {
        data.key_results.set(tile.keys, key_heads_of(tile.heads, plan_.shape), true);
      }
    }
  }

  void check_end() {
    for (int rank = 0; rank < pass_.ranks(); ++rank) {
      RankData& data = data_of(rank);
      const auto& share = plan_.shares[static_cast<std::size_t>(rank)];
      if (!data.q.has(share.tokens, share.heads) || !data.kv.has(share.tokens, share.key_heads)) {
        add(rank, "does not have q, k and v of its share, which it is to keep for the backward");
      }
      const auto& held = plan_.held[static_cast<std::size_t>(rank)];
      data.query_results.set(held, {0, plan_.shape.heads}, false);
      data.key_results.set(held, {0, plan_.shape.key_heads}, false);
      report_left(rank, data.query_results, is_backward_ ? Content::q_grad : Content::out);
      report_left(rank, data.key_results, Content::kv_grad);
    }
  }

  void report_left(int rank, const TokenHeads& results, Content content) {
    const std::int64_t token = results.first();
    if (token < 0) return;
    found_.push_back({rank, fmt::format("{}: its {} of token {} never goes to the rank that has "
                                        "this token",
                                        pass_name(), name_of(content), token)});
  }

  const ContextPlan& plan_;
  const ContextPass& pass_;
  bool is_backward_;
  std::vector<Diagnostic>& found_;
  std::vector<RankData> data_;  // by rank
  int round_ = 0;
};

}  // namespace

void check_data(const ContextPlan& plan, std::vector<Diagnostic>& found) {
  std::vector<bool> is_held(static_cast<std::size_t>(plan.shape.tokens));
  for (std::size_t rank = 0; rank < plan.held.size(); ++rank) {
    for (const TokenRun& run : plan.held[rank]) {
      for (std::int64_t i = 0; i < run.count; ++i) {
        auto is_taken = is_held[static_cast<std::size_t>(run.at(i))];
        if (is_taken) {
          found.push_back(
              {static_cast<int>(rank), fmt::format("token {} is held by two ranks", run.at(i))});
        }
        is_taken = true;
      }
    }
  }
  DataCheck(plan, plan.forward, false, found).run();
  DataCheck(plan, plan.backward, true, found).run();
}

}  // namespace heddle
