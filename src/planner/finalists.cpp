#include "planner/finalists.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "planner/evaluate.h"

namespace heddle::planner {
namespace {

/// As much as is played in less than a second.
constexpr double kMostPassesOfAFinalist = 2e5;

auto shape_of(const Candidate& c) {
  return std::tuple(c.tp, c.cp, c.pp, c.dp, static_cast<int>(c.schedule), c.chunks, c.sequences,
                    c.divides_vocabulary_over_pp(), c.ep, c.etp, c.ep_exchange.text());
}

}  // namespace

Finalist simulate_plan(const Machine& machine, const Job& job, const Found& found) {
  const Candidate& plan = found.candidate;
  Finalist finalist{.found = found};
  finalist.seconds = found.time.total;
  if (simulated_passes(machine, job, plan) > kMostPassesOfAFinalist) return finalist;
  const SimulatedStep step = simulate_step(machine, job, plan, {.keeps_spans = false});
  finalist.is_simulated = true;
  finalist.makespan = step.makespan;
  finalist.bubble_fraction = step.bubble_fraction;
  finalist.times = step.mean;
  finalist.seconds = step.seconds + found.time.stragglers;
  return finalist;
}

std::vector<Finalist> choose_finalists(const Machine& machine, const Job& job,
                                       const SearchResult& result, int count) {
  std::vector<Finalist> finalists;
  std::set<decltype(shape_of(Candidate{}))> seen;
  const auto add = [&](const Found& found) {
    if (static_cast<int>(finalists.size()) == count) return;
    if (!seen.insert(shape_of(found.candidate)).second) return;
    finalists.push_back(simulate_plan(machine, job, found));
  };
  // One of every mesh that is near, so that the closed form's order of schedules does not decide.
  for (const Found& found : result.by_mesh) {
    if (found.time.total <= 1.05 * result.best.front().time.total) add(found);
  }
  // And one without a pipeline: what messages share of slow links only the simulation knows.
  const auto whole = std::ranges::find_if(result.by_mesh, [](const Found& found) {
    return found.candidate.pp == 1 && found.candidate.cp == 1;
  });
  if (whole != result.by_mesh.end()) add(*whole);
  for (const Found& found : result.best) add(found);
  std::sort(finalists.begin(), finalists.end(),
            [](const Finalist& a, const Finalist& b) { return a.seconds < b.seconds; });
  auto chosen = finalists.begin();
  for (auto one = finalists.begin(); one != finalists.end(); ++one) {
    if (one->seconds > finalists.front().seconds * (1.0 + kTie)) break;
    if (is_simpler(one->found.candidate, chosen->found.candidate)) chosen = one;
  }
  std::rotate(finalists.begin(), chosen, chosen + 1);
  return finalists;
}

std::string why_taken(const std::vector<Finalist>& finalists) {
  const Finalist& taken = finalists.front();
  double least = taken.seconds;
  int faster = 0;
  for (const Finalist& other : finalists) {
    if (other.seconds >= taken.seconds) continue;
    ++faster;
    least = std::min(least, other.seconds);
  }
  if (faster == 0) return "";
  return fmt::format(
      "{} faster by up to {:.1f} %: times within {:.0f} % of the fastest are taken as equal, and "
      "of those plans the one with the fewest pipeline ranks, then without cp, then with the "
      "smallest micro-batch, is best",
      faster == 1 ? "one plan below is" : fmt::format("{} plans below are", faster),
      100 * (taken.seconds / least - 1), 100 * kTie);
}

std::string why_not_taken(const Finalist& other, const Finalist& taken) {
  if (other.seconds >= taken.seconds) return "";
  const Candidate &loser = other.found.candidate, &winner = taken.found.candidate;
  const double percent = 100 * (taken.seconds / other.seconds - 1);
  const auto but = [&](const char* what, int own, int other_one) {
    return fmt::format("{:.1f} % faster, but {} {} instead of {}", percent, what, own, other_one);
  };
  if (loser.pp != winner.pp) return but("pp", loser.pp, winner.pp);
  if (loser.cp > 1 && winner.cp == 1) return but("cp", loser.cp, winner.cp);
  return but("micro-batch", loser.sequences, winner.sequences);
}

std::string why_slower(const TimeEstimate& loser, const TimeEstimate& winner) {
  struct Part {
    const char* name;
    double more;
  };
  std::array parts = {Part{"computation", loser.compute - winner.compute},
                      Part{"collectives over tp", loser.tp - winner.tp},
                      Part{"bubble", loser.bubble - winner.bubble},
                      Part{"waiting in attention over cp", loser.cp - winner.cp},
                      Part{"exchange of experts' rows", loser.ep - winner.ep},
                      Part{"messages between stages", loser.pp - winner.pp},
                      Part{"exchange over dp", loser.dp - winner.dp},
                      Part{"optimizer step", loser.step - winner.step},
                      Part{"waiting for the slowest", loser.stragglers - winner.stragglers}};
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.more > b.more; });
  std::string text;
  for (const Part& part : parts) {
    if (part.more < 0.2 * parts.front().more || part.more <= 0.0) break;
    text += fmt::format("{}{} +{:.3g} s", text.empty() ? "" : ", ", part.name, part.more);
  }
  return text.empty() ? "as fast, within the model's error" : text;
}

namespace {

/// "ep 8 x etp 2 (r=1 degree=2/4)".
std::string experts_text(const Candidate& plan) {
  std::string text = fmt::format("ep {}", plan.ep);
  if (plan.etp > 1) text += fmt::format(" x etp {}", plan.etp);
  const ExchangePlan exchange = plan.ep_exchange.plan(plan.etp);
  const std::string named = ExchangeRequest(exchange, plan.etp).text();
  return named.empty() ? text : fmt::format("{} ({})", text, named);
}

std::string context_text(const Candidate& plan) {
  return describe(ContextCost{.method = plan.context, .context_heads = plan.context_heads});
}

}  // namespace

std::string describe(const Candidate& plan) {
  std::string text = plan.sites > 1 ? fmt::format("{} sites of ", plan.sites) : "";
  text += fmt::format("tp {}, ", plan.tp);
  if (plan.cp > 1) text += fmt::format("cp {} by {}, ", plan.cp, context_text(plan));
  text += fmt::format("pp {}, dp {}", plan.pp, plan.dp);
  if (plan.divides_experts()) text += fmt::format(", {}", experts_text(plan));
  if (plan.pp > 1) text += fmt::format(", {}", name_of(plan.schedule));
  if (plan.chunks > 1) text += fmt::format(" x {}", plan.chunks);
  text += fmt::format(", micro-batch {}", plan.sequences);
  if (plan.token_ranks() > 1) text += fmt::format(", ZeRO {}", plan.zero);
  if (plan.sequence) text += ", sequence";
  if (plan.tp > 1 && plan.vocabulary == VocabularyPlacement::replicated)
    text += ", whole vocabulary";
  if (plan.divides_vocabulary_over_pp()) text += ", vocabulary over the pipeline";
  if (plan.recompute != Recompute::none) text += ", recompute";
  return text;
}

}  // namespace heddle::planner
