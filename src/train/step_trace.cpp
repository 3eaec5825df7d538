#include "train/step_trace.h"

#include <algorithm>
#include <array>
#include <utility>

#include "comm/agree.h"

namespace heddle {
namespace {

/// Stream 0 has the actions, the others what travels between ranks: by name of the communicator.
/// As planner/simulated_step numbers them, and then those that it does not tell apart.
constexpr std::array kStreams = {"actions", "pp", "dp",        "pp ends",
                                 "pp lane", "tp", "tp copies", "cp"};

int stream_of(const std::string& group) {
  const auto found = std::find(kStreams.begin() + 1, kStreams.end(), group);
  return found == kStreams.end() ? -1 : static_cast<int>(found - kStreams.begin());
}

/// A message as the action that sends it: the executor gives gradients odd tags. Those of shared
/// attention are part of an action.
std::string name_of_call(const CommCall& call) {
  if (call.tag.attention_round >= 0) return "attention";
  if (call.op != CommOp::send) return std::string(name_of(call.op));
  return call.message_tag % 2 == 0 ? "sa" : "sg";
}

CommCall::Clock::time_point started_together(World& world) {
  world.all().barrier();
  return CommCall::Clock::now();
}

}  // namespace

StepTrace::StepTrace(Keepers keepers, int rank, Schedule schedule)
    : keepers_(std::move(keepers)),
      rank_(rank),
      schedule_(std::move(schedule)),
      start_(started_together(keepers_.here())) {}

double StepTrace::seconds_at(CommCall::Clock::time_point time) const {
  return std::chrono::duration<double>(time - start_).count();
}

void StepTrace::begin_step(std::int64_t step) {
  step_ = step;
  step_start_ = seconds_at(CommCall::Clock::now());
}

void StepTrace::add(const Action& action, double begin, double end) {
  const std::lock_guard lock(mutex_);
  trace_.add({.name = to_text(action, schedule_),
              .category = "action",
              .rank = rank_,
              .begin_seconds = step_start_ + begin,
              .duration_seconds = end - begin,
              .step = step_});
}

void StepTrace::add_call(const CommCall& call) {
  const int stream = stream_of(call.group_name);
  if (stream < 0 || call.group->ranks.size() < 2) return;
  if (call.op == CommOp::recv) return;  // a message is one span, its sender's
  const std::lock_guard lock(mutex_);
  trace_.add({.name = name_of_call(call),
              .category = is_point_to_point(call.op) ? "message" : "collective",
              .rank = rank_,
              .stream = stream,
              .begin_seconds = seconds_at(call.started),
              .duration_seconds = std::chrono::duration<double>(call.ended - call.started).count(),
              .bytes = static_cast<std::uint64_t>(call.bytes),
              .step = step_});
}

bool StepTrace::is_part_full() const {
  constexpr std::size_t kSpans = 50'000, kLeast = 500;  // of all ranks, of one
  constexpr double kSeconds = 30;                       // that a kill may cost
  const std::lock_guard lock(mutex_);
  const auto ranks = static_cast<std::size_t>(keepers_.here().size());
  return trace_.spans().size() >= std::max(kSpans / ranks, kLeast) ||
         seconds_at(CommCall::Clock::now()) - part_start_ >= kSeconds;
}

observe::Trace StepTrace::gather() {
  const std::lock_guard lock(mutex_);
  part_start_ = seconds_at(CommCall::Clock::now());
  const std::string own = std::exchange(trace_, {}).json();
  observe::Trace all;
  for (const std::string& text : texts_of_all(keepers_.here(), own)) {
    if (!keepers_.is_first()) break;
    const observe::Trace of_rank = observe::parse_trace(text, "a rank's trace");
    for (const observe::Span& span : of_rank.spans()) {
      all.add(span);
      all.name_stream(span.rank, span.stream, kStreams[static_cast<std::size_t>(span.stream)]);
    }
  }
  return all;
}

}  // namespace heddle
