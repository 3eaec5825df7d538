#include "train/resume_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "config/load.h"
#include "train/model_setup.h"

namespace heddle {
namespace {

using Differences = std::vector<RunIdentity::Difference>;
using config::Scope;

constexpr const char *kSteps = "train.steps", *kOptimizer = "optim.name";

/// The learning rates of the recorded run; nothing when they were not recorded.
std::optional<LrSchedule> recorded_schedule(const Json& then) {
  std::vector<std::string> settings;
  for (const char* key : {"optim.lr", "optim.min_lr", "optim.schedule", "optim.warmup_steps",
                          "optim.decay_steps", kSteps}) {
    const auto at = then.find(key);
    if (at == then.end() || !at->is_string()) return std::nullopt;
    settings.push_back(fmt::format("{}={}", key, at->get<std::string>()));
  }
  return lr_schedule(config::parse_settings(settings));
}

bool are_equal(const LrSchedule& a, const LrSchedule& b, std::int64_t steps) {
  for (std::int64_t step = 1; step <= steps; ++step) {
    if (a.at(step) != b.at(step)) return false;
  }
  return true;
}

std::string table(const Differences& changes) {
  constexpr const char* kName = "setting";
  std::size_t name = std::string_view(kName).size(), value = std::string_view("then").size();
  for (const auto& change : changes) {
    name = std::max(name, change.name.size());
    value = std::max(value, shown(change.theirs, change.ours).first.size());
  }
  std::string text = fmt::format("  {:<{}}  {:<{}}  now\n", kName, name, "then", value);
  for (const auto& change : changes) {
    const auto [then, now] = shown(change.theirs, change.ours);
    text += fmt::format("  {:<{}}  {:<{}}  {}\n", change.name, name, then, value, now);
  }
  return text;
}

/// "  the learning rate of step 401 goes from 1.0e-04 to 3.2e-04", or "".
std::string rate_line(const LrSchedule& then, const LrSchedule& now, std::int64_t step) {
  const double before = then.at(step), after = now.at(step);
  if (before == after) return "";
  return fmt::format("  the learning rate of step {} goes from {:.3g} to {:.3g}\n", step, before,
                     after);
}

/// "  the states of adamw ... in its place", or "".
std::string optimizer_line(const Differences& changes) {
  const auto name = std::ranges::find(changes, kOptimizer, &RunIdentity::Difference::name);
  if (name == changes.end()) return "";
  return fmt::format(
      "  the optimizer's states in it are those of {} and mean nothing to {}: they would be left "
      "behind, and those of {} start at zero\n",
      name->theirs, name->ours, name->ours);
}

}  // namespace

std::optional<RunIdentity::Difference> changed_since(const Manifest& manifest,
                                                     const RunIdentity& now,
                                                     const std::string& name) {
  const Json then = manifest.trainer->value("identity", Json::object());
  for (const auto& difference : now.differences_from(then)) {
    if (difference.name == name) return difference;
  }
  return std::nullopt;
}

bool was_other_optimizer(const Manifest& manifest, const RunIdentity& now) {
  return changed_since(manifest, now, kOptimizer).has_value();
}

bool longer_run_changes_rate(const config::RunConfig& config, std::int64_t step) {
  LrSchedule longer = lr_schedule(config);
  longer.total_steps += 1;
  return !are_equal(lr_schedule(config), longer, step);
}

void check_resumable(const std::filesystem::path& checkpoint, const Manifest& manifest,
                     const RunIdentity& now, const config::RunConfig& config,
                     bool changes_are_accepted) {
  const Json then = manifest.trainer->value("identity", Json::object());
  if (!then.is_object() || then.empty()) {
    log_info("{} does not say with which settings it was made: nothing could be compared",
             checkpoint.string());
    return;
  }
  Differences impossible, changes;
  for (const auto& difference : now.differences_from(then)) {
    // One that was not known, or is not any more, only means that no text is shown.
    const bool is_unknown = difference.name == "tokenizer" &&
                            (difference.ours == kNoTokenizer || difference.theirs == kNoTokenizer);
    if (is_unknown || difference.scope == Scope::launch) continue;
    (difference.scope == Scope::weights ? impossible : changes).push_back(difference);
  }
  if (!impossible.empty()) {
    throw Error(ErrorCode::usage,
                fmt::format("{} is of another model or tokenizer:\n{}its weights mean nothing "
                            "there",
                            checkpoint.string(), table(impossible)),
                "undo the change, start over with --fresh, or set another run.dir");
  }
  const auto rate_then = recorded_schedule(then);
  const LrSchedule rate_now = lr_schedule(config);
  const auto steps = std::ranges::find(changes, kSteps, &RunIdentity::Difference::name);
  if (steps != changes.end() && rate_then && are_equal(*rate_then, rate_now, manifest.step)) {
    log_info("train.steps was {} and is {}; the steps so far would have been the same",
             steps->theirs, steps->ours);
    changes.erase(steps);
  }
  if (changes.empty()) return;
  std::string text = table(changes);
  if (rate_then) text += rate_line(*rate_then, rate_now, manifest.step + 1);
  text += optimizer_line(changes);
  if (changes_are_accepted) {
    log_warn("{} was made with other settings, and goes on with changed ones:\n{}",
             checkpoint.string(), text.substr(0, text.size() - 1));
    return;
  }
  throw Error(ErrorCode::usage,
              fmt::format("{} was made with other settings:\n{}going on makes another run of it",
                          checkpoint.string(), text),
              "--accept-changes does so, --fresh starts over, another run.dir keeps both");
}

}  // namespace heddle
