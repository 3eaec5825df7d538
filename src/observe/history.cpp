#include "observe/history.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/file_system.h"
#include "base/json.h"

namespace heddle::observe {
namespace {

// A metrics line as an object with an integer step, or nothing when it is something else.
std::optional<Json> parse_line(std::string_view line) {
  Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::nullopt;
  const auto step = object.find("step");
  if (step == object.end() || !step->is_number_integer()) return std::nullopt;
  return object;
}

template <class Visit>
void for_each_line(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const auto end = text.find('\n');
    // Without its newline the line was torn, even if what is left parses ("step":12 of "step":120).
    if (end == std::string_view::npos) return;
    visit(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
}

double number(const Json& object, const char* key) {
  const auto value = object.find(key);
  return value != object.end() && value->is_number() ? value->get<double>()
                                                     : std::numeric_limits<double>::quiet_NaN();
}

void add_waited(std::map<int, Curve>& curves, const Json& object, std::int64_t step,
                std::int64_t tokens) {
  const Json& waited = object.at("sites_waited");
  if (!waited.is_array()) return;
  const Json sites = object.value("sites", Json::array());
  for (std::size_t i = 0; i < waited.size(); ++i) {
    if (!waited[i].is_number()) continue;
    const int site = i < sites.size() && sites[i].is_number_integer() ? sites[i].get<int>()
                                                                      : static_cast<int>(i);
    curves[site].push_back({step, tokens, waited[i].get<double>()});
  }
}

void add_sources(std::map<std::string, Curve>& curves, const Json& sources, std::int64_t step,
                 std::int64_t tokens) {
  if (!sources.is_object()) return;
  for (const auto& [name, loss] : sources.items()) {
    curves[name].push_back({step, tokens, number(sources, name.c_str())});
  }
}

void add_block_seconds(std::map<int, Curve>& curves, const Json& seconds, std::int64_t step,
                       std::int64_t tokens) {
  for (std::size_t rank = 0; seconds.is_array() && rank < seconds.size(); ++rank) {
    if (!seconds[rank].is_number() || seconds[rank].get<double>() <= 0) continue;
    curves[static_cast<int>(rank)].push_back({step, tokens, seconds[rank].get<double>()});
  }
}

/// Nothing where it is not as JsonlSink writes it, or not of as many layers as before.
void add_load(std::vector<ExpertLoadPoint>& points, const Json& object, std::int64_t step) {
  ExpertLoadPoint point{.step = step, .layers = {}};
  try {
    for (const Json& layer : object.at("expert_load")) {
      point.layers.push_back({.layer = layer.at("layer").get<std::int64_t>(),
                              .counts = layer.at("counts").get<std::vector<std::int64_t>>(),
                              .dropped = layer.at("dropped").get<std::int64_t>(),
                              .lost_tokens = layer.at("lost_tokens").get<std::int64_t>()});
      if (point.layers.back().counts.empty()) return;
    }
  } catch (const Json::exception&) {
    return;
  }
  const bool fits = points.empty() || points.back().layers.size() == point.layers.size();
  if (fits && !point.layers.empty()) points.push_back(std::move(point));
}

}  // namespace

History read_history(const std::filesystem::path& metrics_file) {
  History history;
  std::int64_t tokens = 0;
  for_each_line(read_text_file(metrics_file), [&](std::string_view line) {
    const auto object = parse_line(line);
    if (!object) return;
    const auto step = (*object)["step"].get<std::int64_t>();
    const auto add = [&](Curve& curve, const char* key) {
      curve.push_back({step, tokens, number(*object, key)});
    };
    if (object->contains("eval_loss")) {
      add(history.eval_loss, "eval_loss");
      if (object->contains("eval_sources")) {
        add_sources(history.eval_sources, (*object)["eval_sources"], step, tokens);
      }
    } else if (object->contains("loss")) {
      const double seen = number(*object, "tokens");
      if (std::isfinite(seen) && std::abs(seen) < 9e18) tokens = static_cast<std::int64_t>(seen);
      add(history.loss, "loss");
      add(history.grad_norm, "grad_norm");
      add(history.lr, "lr");
      add(history.tokens_per_second, "tokens_per_second");
      add(history.step_seconds, "step_seconds");
      if (object->contains("residual")) add(history.residual, "residual");
      if (object->contains("expert_load")) add_load(history.expert_load, *object, step);
      if (object->contains("block_seconds")) {
        add_block_seconds(history.block_seconds, (*object)["block_seconds"], step, tokens);
      }
    } else if (object->contains("sites_waited")) {
      add_waited(history.site_waited, *object, step, tokens);
    }
  });
  return history;
}

std::string metrics_lines_until(std::string_view text, std::int64_t step) {
  std::string kept;
  for_each_line(text, [&](std::string_view line) {
    const auto object = parse_line(line);
    if (object && (*object)["step"].get<std::int64_t>() <= step) {
      kept.append(line);
      kept.push_back('\n');
    }
  });
  return kept;
}

Curve downsample(const Curve& curve, std::size_t max_points) {
  if (curve.size() <= max_points) return curve;
  const std::size_t inner = curve.size() - 2;
  const std::size_t buckets = (max_points - 2) / 2;
  Curve kept = {curve.front()};
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
    const std::size_t begin = 1 + inner * bucket / buckets;
    const std::size_t end = 1 + inner * (bucket + 1) / buckets;
    std::size_t low = begin, high = begin;
    bool found = false;  // a stretch without a finite value keeps its first point, as a gap
    for (std::size_t i = begin; i < end; ++i) {
      const double value = curve[i].value;
      if (!std::isfinite(value)) continue;
      if (!found || value < curve[low].value) low = i;
      if (!found || value > curve[high].value) high = i;
      found = true;
    }
    kept.push_back(curve[std::min(low, high)]);
    if (low != high) kept.push_back(curve[std::max(low, high)]);
  }
  kept.push_back(curve.back());
  return kept;
}

Curve smooth(const Curve& curve, std::size_t reach) {
  // Sums and counts of everything before a place, so that each window costs the same.
  std::vector<double> sum(curve.size() + 1, 0.0);
  std::vector<std::int64_t> count(curve.size() + 1, 0);
  for (std::size_t i = 0; i < curve.size(); ++i) {
    const bool finite = std::isfinite(curve[i].value);
    sum[i + 1] = sum[i] + (finite ? curve[i].value : 0.0);
    count[i + 1] = count[i] + (finite ? 1 : 0);
  }
  Curve result = curve;
  for (std::size_t i = 0; i < curve.size(); ++i) {
    const std::size_t span = std::min(reach, i);
    const std::size_t begin = i - span, end = std::min(i + span + 1, curve.size());
    const auto n = count[end] - count[begin];
    result[i].value = n > 0 ? (sum[end] - sum[begin]) / static_cast<double>(n)
                            : std::numeric_limits<double>::quiet_NaN();
  }
  return result;
}

Curve running_median(const Curve& curve, std::size_t reach, std::size_t max_points) {
  const std::size_t places = std::min(curve.size(), max_points);
  Curve result;
  std::vector<double> window;
  for (std::size_t place = 0; place < places; ++place) {
    const std::size_t i = places > 1 ? (curve.size() - 1) * place / (places - 1) : 0;
    const std::size_t end = std::min(i + reach + 1, curve.size());
    window.clear();
    for (std::size_t k = i - std::min(reach, i); k < end; ++k) {
      if (std::isfinite(curve[k].value)) window.push_back(curve[k].value);
    }
    CurvePoint point = curve[i];
    point.value = std::numeric_limits<double>::quiet_NaN();
    if (!window.empty()) {
      const auto middle = window.begin() + static_cast<std::ptrdiff_t>(window.size() / 2);
      std::nth_element(window.begin(), middle, window.end());
      point.value = *middle;
    }
    result.push_back(point);
  }
  return result;
}

}  // namespace heddle::observe
