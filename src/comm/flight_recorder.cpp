#include "comm/flight_recorder.h"

#include <fmt/format.h>

#include <algorithm>

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

void FlightRecorder::set_tag(CommTag tag) {
  const std::lock_guard lock(mutex_);
  tag_ = std::move(tag);
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
  if (CommCall* call = find(number)) {
    call->is_waited_for = true;
    call->waited = CommCall::Clock::now();
  }
}

void FlightRecorder::end(std::int64_t number, bool failed) {
  Observer observer;
  CommCall ended;
  {
    const std::lock_guard lock(mutex_);
    CommCall* call = find(number);
    if (call == nullptr) return;
    call->state = failed ? CommCall::State::failed : CommCall::State::done;
    call->ended = CommCall::Clock::now();
    if (!observer_) return;
    observer = observer_;
    ended = *call;
  }
  observer(ended);
}

void FlightRecorder::set_finished() {
  const std::lock_guard lock(mutex_);
  is_finished_ = true;
}

RankReport FlightRecorder::report() const {
  const auto now = CommCall::Clock::now();
  const auto seconds_since = [now](CommCall::Clock::time_point then) {
    return std::chrono::duration<double>(now - then).count();
  };
  const std::lock_guard lock(mutex_);
  RankReport report{.rank = rank_, .has_ended = is_finished_};
  const CommCall* last = nullptr;
  for (const CommCall& call : ring_) {
    const bool is_message = is_point_to_point(call.op);
    const int peer = is_message ? call.group->ranks[static_cast<std::size_t>(call.peer)] : -1;
    if (call.state != CommCall::State::queued) {
      const RankReport::Line line{call.group->id, is_message ? call.op : CommOp::barrier, peer,
                                  call.message_tag};
      auto& begun = report.begun[line];
      begun = std::max(begun, call.sequence);
    }
    if (call.state == CommCall::State::running) {
      report.open.push_back({.op = call.op,
                             .sequence = call.sequence,
                             .group = call.group->id,
                             .ranks = call.group->ranks,
                             .peer = peer,
                             .message_tag = call.message_tag,
                             .text = call.text(),
                             .holds_rank = call.is_waited_for,
                             .seconds = !is_message          ? seconds_since(call.started)
                                        : call.is_waited_for ? seconds_since(call.waited)
                                                             : 0});
    } else if (call.is_finished() && (!last || call.ended > last->ended)) {
      last = &call;
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
  FileSystem& files = real_file_system();
  files.create_directories(path.parent_path());
  write_file_atomically(files, path, lines);
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
