#include "links/router.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "base/strings.h"

namespace heddle::links {
namespace {

/// "2" is {2, 2}, "0-3" is {0, 3}; nothing for other texts.
std::optional<std::pair<int, int>> range_of(const std::string& text) {
  std::pair<int, int> range;
  const char* end = text.data() + text.size();
  auto first = std::from_chars(text.data(), end, range.first);
  if (first.ec != std::errc()) return std::nullopt;
  range.second = range.first;
  if (first.ptr != end) {
    if (*first.ptr != '-') return std::nullopt;
    const auto last = std::from_chars(first.ptr + 1, end, range.second);
    if (last.ec != std::errc() || last.ptr != end) return std::nullopt;
  }
  return range;
}

}  // namespace

Router::Router(int ranks, std::uint64_t seed, Deliver deliver)
    : ranks_(ranks), seed_(seed), deliver_(std::move(deliver)), is_cut_(ranks * ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    out_.emplace_back(rng_key(rng_key(seed, "out"), rank));
    in_.emplace_back(rng_key(rng_key(seed, "in"), rank));
  }
  links_.resize(ranks * ranks);
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      link(from, to) = std::make_shared<Pipe>(rng_key(rng_key(seed, "pair"), from * ranks + to));
    }
  }
}

std::vector<int> Router::ranks_in(const std::string& set) const {
  std::vector<int> ranks;
  for (const std::string& part : split(set, '+')) {
    const auto range = range_of(part);
    if (!range || range->first > range->second) {
      fail(ErrorCode::usage,
           "'{}' names no ranks: use a rank (2), a range (0-3) or several (0+2-3)", set);
    }
    if (range->first < 0 || range->second >= ranks_) {
      fail(ErrorCode::usage, "'{}' names a rank that is not there: ranks are 0 to {}", set,
           ranks_ - 1);
    }
    for (int rank = range->first; rank <= range->second; ++rank) ranks.push_back(rank);
  }
  return ranks;
}

Router::Pairs Router::pairs_of(const std::string& place) const {
  const auto sides = split(place, ',');
  if (sides.size() != 2) {
    fail(ErrorCode::usage,
         "'{}' is not a pair: use two ranks or two sets of ranks (0,1 or 0-1,2-3)", place);
  }
  Pairs pairs;
  for (const int from : ranks_in(sides[0])) {
    for (const int to : ranks_in(sides[1])) {
      if (from == to) fail(ErrorCode::usage, "'{}' has rank {} on both sides", place, from);
      pairs.emplace_back(from, to);
    }
  }
  return pairs;
}

Pipe& Router::link_of(const Pairs& pairs) {
  const auto first = link(pairs[0].first, pairs[0].second);
  const auto is_first = [&](const auto& pipe) { return pipe == first; };
  const bool is_theirs =
      std::all_of(pairs.begin(), pairs.end(),
                  [&](const auto& pair) { return is_first(link(pair.first, pair.second)); }) &&
      std::count_if(links_.begin(), links_.end(), is_first) ==
          static_cast<std::ptrdiff_t>(pairs.size());
  if (is_theirs) return *first;
  const auto made =
      std::make_shared<Pipe>(rng_key(rng_key(seed_, "link"), links_made_++), first->settings);
  for (const auto& [from, to] : pairs) link(from, to) = made;
  return *made;
}

void Router::cut(const std::string& place, bool is_cut) {
  Pairs pairs;
  if (place.find(',') != std::string::npos) {
    pairs = pairs_of(place);
  } else {
    for (const int rank :
         place.empty() ? ranks_in(fmt::format("0-{}", ranks_ - 1)) : ranks_in(place)) {
      for (int other = 0; other < ranks_; ++other) pairs.emplace_back(rank, other);
    }
  }
  for (const auto& [a, b] : pairs) {
    is_cut_[a * ranks_ + b] = is_cut_[b * ranks_ + a] = static_cast<char>(is_cut);
  }
}

void Router::apply(const std::string& statement) {
  std::istringstream words(statement);
  std::string verb, place, word;
  std::vector<std::string> assignments;
  words >> verb;
  while (words >> word) {
    if (word.find('=') != std::string::npos) {
      assignments.push_back(word);
    } else if (place.empty() && assignments.empty()) {
      place = word;
    } else {
      fail(ErrorCode::usage, "'{}': '{}' is not a setting (key=value)", statement, word);
    }
  }
  if (verb == "cut" || verb == "restore") {
    if (!assignments.empty()) fail(ErrorCode::usage, "'{}': {} takes no settings", statement, verb);
    return cut(place, verb == "cut");
  }
  if (assignments.empty()) fail(ErrorCode::usage, "'{}' sets nothing (key=value)", statement);
  PipeSettings trial;
  for (const auto& assignment : assignments) trial.change(assignment);

  const auto change = [&](Pipe& pipe) {
    for (const auto& assignment : assignments) pipe.settings.change(assignment);
  };
  if (verb == "node" || verb == "out" || verb == "in") {
    for (const int rank :
         place.empty() ? ranks_in(fmt::format("0-{}", ranks_ - 1)) : ranks_in(place)) {
      if (verb != "in") change(out_[rank]);
      if (verb != "out") change(in_[rank]);
    }
  } else if (verb == "link" && place.empty()) {
    for (const auto& pipe : links_) change(*pipe);
  } else if (verb == "link" || verb == "oneway") {
    Pairs pairs = pairs_of(place);
    change(link_of(pairs));
    for (auto& [from, to] : pairs) std::swap(from, to);
    if (verb == "link") change(link_of(pairs));
  } else {
    fail(ErrorCode::usage, "'{}': use node, out, in, link, oneway, cut or restore", statement);
  }
}

void Router::send(Packet packet, Time now) { move_on({std::move(packet)}, now); }

void Router::advance(Time now) {
  while (!under_way_.empty() && under_way_.begin()->first <= now) {
    auto due = under_way_.extract(under_way_.begin());
    move_on(std::move(due.mapped()), due.key());
  }
}

std::optional<Time> Router::next() const {
  return under_way_.empty() ? std::nullopt : std::optional(under_way_.begin()->first);
}

void Router::move_on(UnderWay under_way, Time now) {
  const Packet& packet = under_way.packet;
  if (is_cut_[packet.from * ranks_ + packet.to] != 0) return;
  while (under_way.hops_done < 3) {
    Pipe& pipe = under_way.hops_done == 0   ? out_[packet.from]
                 : under_way.hops_done == 1 ? *link(packet.from, packet.to)
                                            : in_[packet.to];
    const auto arrival = pipe.pass(packet.bytes.size(), now);
    if (!arrival) return;
    ++under_way.hops_done;
    if (*arrival > now) {
      under_way_.emplace(*arrival, std::move(under_way));
      return;
    }
  }
  deliver_(packet);
}

}  // namespace heddle::links
