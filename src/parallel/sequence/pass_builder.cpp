#include "parallel/sequence/pass_builder.h"

#include <algorithm>
#include <utility>

namespace heddle {
namespace {

/// The message of this kind among the last ones, if there is one. Those that can be joined follow
/// each other closely, and many ranks make long lists.
Message* find_recent(std::vector<Message>& messages, int peer, const Parcel& parcel,
                     std::size_t most) {
  const std::size_t end = messages.size() - std::min(messages.size(), most);
  for (std::size_t i = messages.size(); i-- > end;) {
    Message& message = messages[i];
    if (message.peer == peer && message.content == parcel.content &&
        message.heads == parcel.heads && message.is_partial == parcel.is_partial) {
      return &message;
    }
  }
  return nullptr;
}

bool is_empty(const Round& round) {
  return round.sends.empty() && round.receives.empty() && round.tiles.empty();
}

}  // namespace

Round& PassBuilder::at(int rank, int round) {
  auto& rounds = by_rank_[static_cast<std::size_t>(rank)];
  const auto index = static_cast<std::size_t>(round);
  rounds_ = std::max(rounds_, index + 1);
  if (rounds.size() <= index) rounds.resize(index + 1);
  return rounds[index];
}

void PassBuilder::compute(int round, int rank, const DocumentPart& queries,
                          const DocumentPart& keys, HeadRange heads) {
  for (const TokenRun& query_run : queries.tokens) {
    for (const TokenRun& key_run : keys.tokens) {
      std::optional<Tile> tile = tile_of(query_run, key_run, window_);
      if (!tile) continue;
      tile->heads = heads;
      at(rank, round).tiles.push_back(*tile);
    }
  }
}

void PassBuilder::compute_own(int round, int rank, const DocumentParts& parts, HeadRange heads) {
  for (const DocumentPart& part : parts) compute(round, rank, part, part, heads);
}

void PassBuilder::send(int round, int from, int to, const Parcel& parcel, const TokenRuns& tokens) {
  if (tokens.empty()) return;
  auto& sends = at(from, round).sends;
  auto& receives = at(to, round).receives;
  constexpr std::size_t kLookedAt = 8;
  if (Message* sent = find_recent(sends, to, parcel, kLookedAt)) {
    append(sent->tokens, tokens);
    append(find_recent(receives, from, parcel, receives.size())->tokens, tokens);
  } else {
    sends.push_back({to, parcel.content, parcel.is_partial, parcel.heads, tokens});
    receives.push_back({from, parcel.content, parcel.is_partial, parcel.heads, tokens});
  }
}

ContextPass PassBuilder::finish() {
  ContextPass pass{.by_rank = std::move(by_rank_)};
  for (auto& rounds : pass.by_rank) rounds.resize(rounds_);
  for (std::size_t round = rounds_; round-- > 0;) {
    const bool is_idle = std::ranges::all_of(
        pass.by_rank, [&](const auto& rounds) { return is_empty(rounds[round]); });
    if (!is_idle) continue;
    for (auto& rounds : pass.by_rank) rounds.erase(rounds.begin() + static_cast<long>(round));
  }
  return pass;
}

}  // namespace heddle
