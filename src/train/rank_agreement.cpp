#include "train/rank_agreement.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "comm/agree.h"

namespace heddle {
namespace {

/// What some ranks have in common that rank 0 has not.
struct Deviation {
  std::string name, own, first;
  std::vector<int> ranks;
};

/// "rank 3", "ranks 1, 4-7".
std::string text_of(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[i]);
    if (last > i) text += fmt::format("-{}", ranks[last]);
    i = last + 1;
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", text);
}

std::vector<Deviation> deviations(const std::vector<std::string>& by_rank) {
  std::vector<Deviation> all;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank].empty()) continue;
    for (const Json& one : parse_json(by_rank[rank], fmt::format("rank {}", rank))) {
      const auto name = one.at(0).get<std::string>(), own = one.at(1).get<std::string>();
      auto at = std::ranges::find_if(
          all, [&](const Deviation& known) { return known.name == name && known.own == own; });
      if (at == all.end()) {
        at = all.insert(all.end(), {name, own, one.at(2).get<std::string>(), {}});
      }
      at->ranks.push_back(static_cast<int>(rank));
    }
  }
  return all;
}

/// Of all ranks, on every rank.
std::vector<Deviation> deviations(World& world, const RunIdentity& own) {
  const Json first =
      parse_json(text_of_first(world, own.to_json().dump()), "what rank 0 says of its run");
  Json differing = Json::array();
  for (const auto& difference : own.differences_from(first)) {
    differing.push_back(Json::array({difference.name, difference.ours, difference.theirs}));
  }
  return deviations(texts_of_all(world, differing.empty() ? "" : differing.dump()));
}

std::string text_of(const std::vector<Deviation>& all) {
  constexpr std::size_t kShown = 12;
  std::string message;
  for (std::size_t i = 0; i < std::min(all.size(), kShown); ++i) {
    const auto [values, firsts] = shown(all[i].own, all[i].first);
    message +=
        fmt::format("{}{} {} {} = {}, rank 0 has {}", i == 0 ? "" : "\n  ", text_of(all[i].ranks),
                    all[i].ranks.size() == 1 ? "has" : "have", all[i].name, values, firsts);
  }
  if (all.size() > kShown) message += fmt::format("\n  and {} more", all.size() - kShown);
  return message;
}

}  // namespace

void require_same_on_all_ranks(World& world, const RunIdentity& own) {
  if (world.size() == 1) return;
  const auto all = deviations(world, own);
  if (all.empty()) return;
  throw_on_all(world, Error(ErrorCode::usage, text_of(all),
                            "start all ranks with the same run file, the same files and the same "
                            "program"));
}

void require_same_as_run(World& world, const RunIdentity& own) {
  if (world.size() == 1) return;
  const auto all = deviations(world, own);
  if (all.empty()) return;
  const std::string text = text_of(all);
  const bool is_other = std::ranges::any_of(
      all, [&](const Deviation& one) { return std::ranges::count(one.ranks, world.rank()) > 0; });
  if (is_other) {
    throw Error(ErrorCode::usage, text,
                "come to a run with its run file, its files and its program");
  }
  if (world.rank() == 0) log_warn("{}: who has come with that is not let in", text);
  throw Error(ErrorCode::peer, text);
}

}  // namespace heddle
