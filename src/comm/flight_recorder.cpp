#include "comm/flight_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json_value.h"
#include "base/log.h"

namespace heddle {
namespace {

/// For RankReport::recent.
std::uint64_t kind_of(const CommCall& call) {
  std::uint64_t hash = std::hash<std::string>()(call.group_name);
  const auto add = [&hash](std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 32;
  };
  add(static_cast<std::uint64_t>(call.op));
  add(static_cast<std::uint64_t>(call.dtype));
  for (const std::int64_t size : call.shape.sizes()) add(static_cast<std::uint64_t>(size));
  return hash;
}

int world_peer(const CommCall& call) {
  return is_point_to_point(call.op) ? call.group->ranks[static_cast<std::size_t>(call.peer)] : -1;
}

RankReport::Line line_of(const CommCall& call) {
  return {call.group->id, is_point_to_point(call.op) ? call.op : CommOp::barrier, world_peer(call),
          call.message_tag};
}

double seconds_since(CommCall::Clock::time_point then) {
  return std::chrono::duration<double>(CommCall::Clock::now() - then).count();
}

RankReport::Open open_call(const CommCall& call, bool is_on_device) {
  const bool is_message = is_point_to_point(call.op);
  return {.op = call.op,
          .sequence = call.sequence,
          .group = call.group->id,
          .ranks = call.group->ranks,
          .peer = world_peer(call),
          .message_tag = call.message_tag,
          .text = call.text(),
          .holds_rank = call.is_waited_for,
          .is_on_device = is_on_device,
          .seconds = !is_message          ? seconds_since(call.started)
                     : call.is_waited_for ? seconds_since(std::max(call.started, call.waited))
                                          : 0};
}

}  // namespace

std::string_view name_of(CommCall::State state) {
  switch (state) {
    case CommCall::State::queued: return "queued";
    case CommCall::State::running: return "running";
    case CommCall::State::done: return "done";
    case CommCall::State::failed: return "failed";
  }
  return "?";
}

std::string CommTag::text() const {
  std::string text = what;
  if (unit) text += " of " + *unit;
  if (microbatch >= 0) text += fmt::format(", micro-batch {}", microbatch);
  if (attention_round >= 0) text += fmt::format(", round {} of attention", attention_round);
  return text;
}

std::string CommCall::text() const {
  std::string text = fmt::format("{} #{} of {}", name_of(op), sequence, group_name);
  if (is_point_to_point(op)) {
    text += fmt::format(" {} rank {}", op == CommOp::send ? "to" : "from",
                        group->ranks[static_cast<std::size_t>(peer)]);
    if (message_tag != 0) text += fmt::format(" with tag {}", message_tag);
  }
  std::string detail;
  if (op != CommOp::barrier && op != CommOp::split) {
    detail = fmt::format("{} {}", heddle::name_of(dtype), shape.text());
  }
  const std::string caller = tag.text();
  if (!detail.empty() && !caller.empty()) detail += ", ";
  detail += caller;
  return detail.empty() ? text : fmt::format("{} ({})", text, detail);
}

void FlightRecorder::set_hook(Hook hook) {
  const std::lock_guard lock(mutex_);
  hook_ = std::move(hook);
}

void FlightRecorder::set_observer(Observer observer) {
  const std::lock_guard lock(mutex_);
  observer_ = std::move(observer);
}

void FlightRecorder::set_wait_observer(std::weak_ptr<WaitObserver> observer) {
  const std::lock_guard lock(mutex_);
  wait_observer_ = std::move(observer);
}

std::shared_ptr<WaitObserver> FlightRecorder::wait_observer() const {
  const std::lock_guard lock(mutex_);
  return wait_observer_.lock();
}

void FlightRecorder::begin_wait() const {
  if (const auto observer = wait_observer()) observer->begin_wait();
}

void FlightRecorder::end_wait() const {
  if (const auto observer = wait_observer()) observer->end_wait();
}

void FlightRecorder::set_tag(CommTag tag) {
  const std::lock_guard lock(mutex_);
  tag_ = std::move(tag);
}

void FlightRecorder::set_attention_round(int round) {
  const std::lock_guard lock(mutex_);
  tag_.attention_round = round;
}

bool FlightRecorder::admits(const CommCall& call) const {
  Hook hook;
  CommCall described;
  {
    const std::lock_guard lock(mutex_);
    if (!hook_) return true;
    hook = hook_;
    described = call;
    described.number = made_ + 1;
    described.tag = tag_;
  }
  return hook(described);
}

std::int64_t FlightRecorder::add(CommCall call) {
  const std::lock_guard lock(mutex_);
  call.number = ++made_;
  call.tag = tag_;
  call.queued = CommCall::Clock::now();
  const auto at = static_cast<std::size_t>(call.number - 1) % kCalls;
  if (at == ring_.size()) {
    ring_.push_back(std::move(call));
  } else {
    ring_[at] = std::move(call);
  }
  return made_;
}

CommCall* FlightRecorder::find(std::int64_t number) {
  CommCall& call = ring_[static_cast<std::size_t>(number - 1) % kCalls];
  return call.number == number ? &call : nullptr;
}

void FlightRecorder::start(std::int64_t number) {
  const std::lock_guard lock(mutex_);
  if (CommCall* call = find(number)) {
    call->state = CommCall::State::running;
    call->started = CommCall::Clock::now();
  }
}

void FlightRecorder::wait(std::int64_t number) {
  const std::lock_guard lock(mutex_);
  const auto mark = [](CommCall& call) {
    call.is_waited_for = true;
    call.waited = CommCall::Clock::now();
  };
  CommCall* const call = find(number);
  if (call == nullptr) return;
  mark(*call);
  if (Handed* const handed = find_handed(*call)) mark(handed->call);
}

void FlightRecorder::end(std::int64_t number, bool failed) {
  Observer observer;
  CommCall ended;
  {
    const std::lock_guard lock(mutex_);
    CommCall* call = find(number);
    if (call == nullptr) return;
    if (!call->is_handed_over) {
      call->state = failed ? CommCall::State::failed : CommCall::State::done;
    }
    call->ended = CommCall::Clock::now();
    if (!observer_) return;
    observer = observer_;
    ended = *call;
  }
  observer(ended);
}

FlightRecorder::Handed* FlightRecorder::find_handed(const CommCall& call) {
  if (!call.is_handed_over) return nullptr;
  auto& line = handed_[line_of(call)];
  const auto found = std::find_if(line.rbegin(), line.rend(), [&](const Handed& handed) {
    return handed.call.number == call.number;
  });
  return found == line.rend() ? nullptr : &*found;
}

void FlightRecorder::hand_over(std::int64_t number, DeviceProgress progress) {
  const std::lock_guard lock(mutex_);
  CommCall* const call = find(number);
  if (call == nullptr) return;
  call->is_handed_over = true;
  handed_[line_of(*call)].push_back({*call, std::move(progress)});
  constexpr std::int64_t kLookEvery = 256;  // somebody has to, where no watchdog does
  if (++handed_over_ % kLookEvery == 0) look_at_devices();
}

void FlightRecorder::look_at_devices() {
  for (auto& [line, calls] : handed_) {
    for (; !calls.empty(); calls.pop_front()) {
      Handed& oldest = calls.front();
      if (!oldest.has_begun && oldest.progress.has_begun()) {
        oldest.has_begun = true;
        oldest.call.started = CommCall::Clock::now();
        begun_on_device_[line] = oldest.call.sequence;
      }
      if (!oldest.has_begun || !oldest.progress.has_ended()) break;
      if (CommCall* const call = find(oldest.call.number)) {
        call->is_handed_over = false;
        call->state = CommCall::State::done;
        call->ended = CommCall::Clock::now();
      }
    }
  }
}

void FlightRecorder::set_finished() {
  const std::lock_guard lock(mutex_);
  is_finished_ = true;
}

void FlightRecorder::set_place(std::string place) {
  const std::lock_guard lock(mutex_);
  place_ = std::move(place);
}

RankReport FlightRecorder::report() {
  const std::lock_guard lock(mutex_);
  look_at_devices();
  RankReport report{
      .rank = rank_, .place = place_, .has_ended = is_finished_, .begun = begun_on_device_};
  const CommCall* last = nullptr;
  for (const CommCall& call : ring_) {
    if (call.is_handed_over) continue;
    if (call.state != CommCall::State::queued) {
      auto& begun = report.begun[line_of(call)];
      begun = std::max(begun, call.sequence);
    }
    if (call.state == CommCall::State::running) {
      report.open.push_back(open_call(call, false));
    } else if (call.is_finished() && (!last || call.ended > last->ended)) {
      last = &call;
    }
  }
  for (const auto& [line, calls] : handed_) {
    if (!calls.empty() && calls.front().has_begun) {
      report.open.push_back(open_call(calls.front().call, true));
    }
  }
  report.made = made_;
  for (auto number = std::max<std::int64_t>(1, made_ + 1 - std::int64_t{RankReport::kRecent});
       number <= made_; ++number) {
    report.recent.push_back(kind_of(ring_[static_cast<std::size_t>(number - 1) % kCalls]));
  }
  if (last) {
    report.last_call = last->text();
    report.idle_seconds = seconds_since(last->ended);
  }
  return report;
}

std::vector<CommCall> FlightRecorder::calls() const {
  const std::lock_guard lock(mutex_);
  std::vector<CommCall> calls = ring_;
  const auto oldest = calls.size() < kCalls ? 0 : made_ % static_cast<std::int64_t>(kCalls);
  std::rotate(calls.begin(), calls.begin() + oldest, calls.end());
  return calls;
}

void FlightRecorder::write(const std::filesystem::path& path) const {
  const auto now = CommCall::Clock::now();
  const double unix_now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const auto seconds = [&](CommCall::Clock::time_point at) -> JsonValue {
    if (at == CommCall::Clock::time_point{}) return nullptr;
    return unix_now - std::chrono::duration<double>(now - at).count();
  };
  std::string lines;
  for (const CommCall& call : calls()) {
    JsonValue line = {{"rank", rank_},
                      {"number", call.number},
                      {"group", call.group_name},
                      {"ranks", call.group->ranks},
                      {"op", name_of(call.op)},
                      {"sequence", call.sequence},
                      {"dtype", heddle::name_of(call.dtype)},
                      {"shape", std::vector(call.shape.sizes().begin(), call.shape.sizes().end())},
                      {"bytes", call.bytes},
                      {"tag", call.tag.text()},
                      {"state", name_of(call.state)},
                      {"queued", seconds(call.queued)},
                      {"started", seconds(call.started)},
                      {"ended", seconds(call.ended)}};
    if (is_point_to_point(call.op)) {
      line["peer"] = call.group->ranks[static_cast<std::size_t>(call.peer)];
      line["message_tag"] = call.message_tag;
    }
    lines += line.dump() + "\n";
  }
  write_file_atomically(real_file_system(), path, lines);
}

void write_flight(const FlightRecorder& flight, const std::filesystem::path& folder) {
  if (folder.empty()) return;
  try {
    flight.write(folder / fmt::format("rank-{}.jsonl", flight.rank()));
  } catch (const Error& error) {
    log_warn("the last calls of rank {} are lost: {}", flight.rank(), error.what());
  }
}

}  // namespace heddle
