#include "cli/links_option.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json.h"
#include "base/strings.h"

namespace heddle::cli {
namespace {

using planner::GivenLinks;

constexpr const char* kForm =
    "write --links rate=100mbit,delay=50ms (also loss=0.1% and devices=8 that share a link), or "
    "give a file that heddle bench link --json printed";

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::usage, "--links: " + what, kForm);
}

struct Unit {
  std::string_view name;
  double scale;
};
constexpr std::array kRates = {Unit{"kbit", 1e3}, Unit{"mbit", 1e6}, Unit{"gbit", 1e9},
                               Unit{"bit", 1.0}};
constexpr std::array kTimes = {Unit{"us", 1e-6}, Unit{"ms", 1e-3}, Unit{"s", 1.0}};
constexpr std::array kShares = {Unit{"%", 1e-2}, Unit{"", 1.0}};
constexpr std::array kNumbers = {Unit{"", 1.0}};

template <std::size_t N>
double number(std::string_view key, std::string_view text, const std::array<Unit, N>& units) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const auto found = std::ranges::find(units, unit, &Unit::name);
  if (error != std::errc{} || !std::isfinite(value) || found == units.end()) {
    std::vector<std::string_view> names;
    for (const Unit& one : units) {
      if (!one.name.empty()) names.push_back(one.name);
    }
    refuse(names.empty() ? fmt::format("{}={} is not a number", key, text)
                         : fmt::format("{}={} is not a number with a unit of {}", key, text,
                                       fmt::join(names, ", ")));
  }
  return value * found->scale;
}

std::string rate_text(double bytes_per_s) {
  const double bits = 8 * bytes_per_s;
  return bits >= 1e9 ? fmt::format("{:.4g} Gbit/s", 1e-9 * bits)
                     : fmt::format("{:.4g} Mbit/s", 1e-6 * bits);
}

std::string latency_text(double seconds) {
  return seconds >= 1e-3 ? fmt::format("{:.4g} ms", 1e3 * seconds)
                         : fmt::format("{:.4g} us", 1e6 * seconds);
}

GivenLinks parse_words(const std::string& text) {
  GivenLinks links;
  for (const auto& word : split(text, ',')) {
    const auto equals = word.find('=');
    const std::string_view whole = word;
    const std::string_view key = whole.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : whole.substr(equals + 1);
    if (key == "rate") {
      links.bytes_per_s = number(key, value, kRates) / 8;
      if (links.bytes_per_s <= 0) refuse(fmt::format("rate={} carries nothing", value));
    } else if (key == "delay") {
      links.latency_s = number(key, value, kTimes);
      if (*links.latency_s < 0) refuse(fmt::format("delay={} is below 0", value));
      if (*links.latency_s > 10) refuse(fmt::format("delay={} is no delay of a link", value));
    } else if (key == "loss") {
      links.loss = number(key, value, kShares);
      if (links.loss < 0 || links.loss > 0.1) {
        refuse(fmt::format("loss={} is not a share of packets of at most 10%", value));
      }
    } else if (key == "devices") {
      const double devices = number(key, value, kNumbers);
      if (devices < 1 || devices > 1e6 || devices != std::floor(devices)) {
        refuse(fmt::format("devices={} is not a number of devices", value));
      }
      links.devices = static_cast<int>(devices);
    } else {
      const std::string near = nearest_word(std::string(key), {"rate", "delay", "loss", "devices"});
      refuse(fmt::format("there is no \"{}\"{}", key,
                         near.empty() ? "" : fmt::format("; did you mean {}?", near)));
    }
  }
  if (links.bytes_per_s <= 0) refuse("rate is missing");
  links.text = rate_text(links.bytes_per_s);
  if (links.latency_s) links.text += ", " + latency_text(*links.latency_s);
  if (links.loss > 0) links.text += fmt::format(", {:.3g} % lost", 100 * links.loss);
  return links;
}

GivenLinks read_measured(const std::string& file) {
  const Json json = parse_json(read_text_file(file), file);
  const auto wrong = [&](const std::string& what) {
    refuse(fmt::format("{} {}, so heddle bench link --json did not print it", file, what));
  };
  if (!json.is_object() || !json.contains("links") || !json["links"].is_array() ||
      json["links"].empty()) {
    wrong("has no links");
  }
  const Json* slowest = nullptr;
  for (const Json& link : json["links"]) {
    const bool is_whole = link.is_object() && link.contains("from") && link.contains("to") &&
                          link.contains("bytes_per_second") && link["bytes_per_second"].is_number();
    if (!is_whole) wrong("has a link without from, to and bytes_per_second");
    if (link["bytes_per_second"].get<double>() <= 0) wrong("has a link that carried nothing");
    if (slowest == nullptr ||
        link["bytes_per_second"].get<double>() < (*slowest)["bytes_per_second"].get<double>()) {
      slowest = &link;
    }
  }
  GivenLinks links;
  links.bytes_per_s = (*slowest)["bytes_per_second"].get<double>();
  links.is_content = true;
  if (json.contains("exchange")) {
    const Json& exchange = json["exchange"];
    if (!exchange.is_object() || !exchange.contains("bytes_per_second") ||
        !exchange["bytes_per_second"].is_number() ||
        exchange["bytes_per_second"].get<double>() <= 0) {
      wrong("has an exchange that carried nothing");
    }
    links.exchange_bytes_per_s = exchange["bytes_per_second"].get<double>();
  }
  if (slowest->contains("latency_seconds") && (*slowest)["latency_seconds"].is_number()) {
    links.latency_s = (*slowest)["latency_seconds"].get<double>();
  }
  links.text = fmt::format(
      "{}{} of content, the slowest of {} measured links, from rank {} to {}",
      rate_text(links.bytes_per_s), links.latency_s ? ", " + latency_text(*links.latency_s) : "",
      json["links"].size(), (*slowest)["from"].dump(), (*slowest)["to"].dump());
  return links;
}

}  // namespace

GivenLinks parse_links(const std::string& text) {
  return text.find('=') == std::string::npos ? read_measured(text) : parse_words(text);
}

}  // namespace heddle::cli
