#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "parallel/sequence/checks.h"

namespace heddle {
namespace {

bool are_in_range(const TokenRun& run, std::int64_t tokens) {
  return run.count >= 1 && run.stride >= 1 && run.first >= 0 && run.last() < tokens;
}

bool are_in_range(const HeadRange& heads, int all) {
  return heads.count >= 1 && heads.first >= 0 && heads.first + heads.count <= all;
}

bool is_of_keys(Content content) { return content == Content::kv || content == Content::kv_grad; }

bool is_same(const Message& a, const Message& b) {
  return a.content == b.content && a.is_partial == b.is_partial && a.heads == b.heads &&
         a.tokens == b.tokens;
}

/// Ranks wait for each other at the end of a round only. So when the sends of every round are its
/// receives, in the same order between each two ranks, all ranks come to the end.
class MessageCheck {
 public:
  MessageCheck(const ContextPlan& plan, const ContextPass& pass, std::string_view name,
               std::vector<Diagnostic>& found)
      : plan_(plan), pass_(pass), name_(name), found_(found) {}

  void run() {
    const auto rounds = static_cast<std::size_t>(pass_.rounds());
    for (int rank = 0; rank < pass_.ranks(); ++rank) {
      const auto& list = pass_.by_rank[static_cast<std::size_t>(rank)];
      if (list.size() != rounds) {
        add(rank, fmt::format("has {} rounds, rank 0 has {}", list.size(), rounds));
      }
    }
    if (!found_.empty()) return;
    for (round_ = 0; round_ < rounds; ++round_) {
      for (int rank = 0; rank < pass_.ranks(); ++rank) check_values(rank);
      match();
    }
  }

 private:
  using Messages = std::vector<const Message*>;

  void add(int rank, const std::string& message) {
    found_.push_back({rank, fmt::format("{}, round {}: {}", name_, round_, message)});
  }

  const Round& round_of(int rank) const {
    return pass_.by_rank[static_cast<std::size_t>(rank)][round_];
  }

  void check_values(int rank) {
    const Round& round = round_of(rank);
    const auto check = [&](const Message& message) {
      const ContextShape& shape = plan_.shape;
      if (message.peer < 0 || message.peer >= pass_.ranks() || message.peer == rank) {
        add(rank, fmt::format("there is no rank {} to exchange with", message.peer));
      }
      const bool has_tokens = std::ranges::all_of(
          message.tokens, [&](const TokenRun& run) { return are_in_range(run, shape.tokens); });
      if (!has_tokens || message.tokens.empty() ||
          !are_in_range(message.heads,
                        is_of_keys(message.content) ? shape.key_heads : shape.heads)) {
        add(rank, fmt::format("a message with {} has tokens or heads that do not exist",
                              name_of(message.content)));
      }
    };
    for (const Message& message : round.sends) check(message);
    for (const Message& message : round.receives) check(message);
    for (const Tile& tile : round.tiles) {
      if (!are_in_range(tile.queries, plan_.shape.tokens) ||
          !are_in_range(tile.keys, plan_.shape.tokens) ||
          !are_in_range(tile.heads, plan_.shape.heads)) {
        add(rank, "a tile has tokens or heads that do not exist");
      }
    }
  }

  void match() {
    std::map<std::pair<int, int>, std::pair<Messages, Messages>> by_ranks;  // sender, receiver
    for (int rank = 0; rank < pass_.ranks(); ++rank) {
      for (const Message& message : round_of(rank).sends) {
        by_ranks[{rank, message.peer}].first.push_back(&message);
      }
      for (const Message& message : round_of(rank).receives) {
        by_ranks[{message.peer, rank}].second.push_back(&message);
      }
    }
    for (const auto& [ranks, messages] : by_ranks) {
      compare(ranks.first, ranks.second, messages.first, messages.second);
    }
  }

  void compare(int from, int to, const Messages& sends, const Messages& receives) {
    for (std::size_t i = 0; i < std::max(sends.size(), receives.size()); ++i) {
      if (i >= sends.size()) {
        add(to,
            fmt::format("waits for ever for {} ({}) from rank {}, which does not send it",
                        name_of(receives[i]->content), to_text(receives[i]->tokens.front()), from));
      } else if (i >= receives.size()) {
        add(from, fmt::format("sends {} ({}) to rank {}, which does not receive it",
                              name_of(sends[i]->content), to_text(sends[i]->tokens.front()), to));
      } else if (!is_same(*sends[i], *receives[i])) {
        add(to, fmt::format("receives {} from rank {}, which sends {} of other tokens or heads",
                            name_of(receives[i]->content), from, name_of(sends[i]->content)));
      }
    }
  }

  const ContextPlan& plan_;
  const ContextPass& pass_;
  std::string_view name_;
  std::vector<Diagnostic>& found_;
  std::size_t round_ = 0;
};

}  // namespace

void check_messages(const ContextPlan& plan, const ContextPass& pass, std::string_view name,
                    std::vector<Diagnostic>& found) {
  std::vector<Diagnostic> own;
  MessageCheck(plan, pass, name, own).run();
  found.insert(found.end(), own.begin(), own.end());
}

}  // namespace heddle
