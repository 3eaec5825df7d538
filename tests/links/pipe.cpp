#include "links/pipe.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace heddle::links {
namespace {

using Units = std::vector<std::pair<std::string, double>>;

const Units kRates = {{"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};
const Units kTimes = {{"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
const Units kSizes = {{"b", 1}, {"kb", 1e3}, {"mb", 1e6}};
const Units kShares = {{"", 1}, {"%", 0.01}};

/// The number times the factor of its unit; nothing when the text is no such number.
std::optional<double> quantity(const std::string& text, const Units& units) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number >= 0 && number < 1e12)) return std::nullopt;
  for (const auto& [unit, factor] : units) {
    if (unit == std::string(end, text.data() + text.size())) return number * factor;
  }
  return std::nullopt;
}

Time time_of(double nanoseconds) { return Time(static_cast<Time::rep>(nanoseconds)); }

}  // namespace

void PipeSettings::change(const std::string& assignment) {
  const auto equals = assignment.find('=');
  const std::string key = assignment.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : assignment.substr(equals + 1);
  const auto require = [&](std::optional<double> found, const char* expected) {
    if (!found) fail(ErrorCode::usage, "'{}' is not a setting: use {}", assignment, expected);
    return *found;
  };
  if (key == "rate") {
    bits_per_second = value == "none" ? 0
                                      : require(quantity(value, kRates),
                                                "rate=100mbit (bit, kbit, mbit, gbit)"
                                                " or rate=none");
  } else if (key == "delay") {
    delay = time_of(require(quantity(value, kTimes), "delay=25ms (us, ms, s)"));
  } else if (key == "jitter") {
    jitter = time_of(require(quantity(value, kTimes), "jitter=2ms (us, ms, s)"));
  } else if (key == "loss") {
    const auto share = quantity(value, kShares);
    loss = require(share && *share <= 1 ? share : std::nullopt, "loss=0.01 or loss=1%");
  } else if (key == "queue") {
    const auto bytes = quantity(value, kSizes);
    queue_bytes = bytes.value_or(0);
    if (!bytes) {
      queue = time_of(require(quantity(value, kTimes), "queue=50ms or queue=1mb (b, kb, mb)"));
    }
  } else if (key == "reorder" && (value == "yes" || value == "no")) {
    may_reorder = value == "yes";
  } else {
    require(std::nullopt, "rate=, delay=, jitter=, loss=, queue= or reorder=yes|no");
  }
}

Time Pipe::longest_wait() const {
  return settings.queue_bytes > 0 ? time_of(settings.queue_bytes * 8e9 / settings.bits_per_second)
                                  : settings.queue;
}

std::optional<Time> Pipe::pass(std::size_t packet_bytes, Time now) {
  Time left_at = now;
  if (settings.bits_per_second > 0) {
    const Time starts_at = std::max(now, free_at_);
    if (starts_at - now > longest_wait()) return std::nullopt;
    left_at =
        starts_at + time_of(static_cast<double>(packet_bytes) * 8e9 / settings.bits_per_second);
    free_at_ = left_at;
  }
  // Two draws for every packet: its loss does not depend on whether there is jitter.
  const bool is_lost = random_uniform(key_, draws_++) < settings.loss;
  const double late = random_uniform(key_, draws_++);
  if (is_lost) return std::nullopt;
  Time arrival =
      left_at + settings.delay + time_of(late * static_cast<double>(settings.jitter.count()));
  if (!settings.may_reorder) arrival = std::max(arrival, last_arrival_);
  last_arrival_ = std::max(arrival, last_arrival_);
  return arrival;
}

}  // namespace heddle::links
