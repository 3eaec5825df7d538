#include <fmt/format.h>

#include <cmath>

#include "base/file_system.h"
#include "base/json_value.h"
#include "observe/report.h"

namespace heddle::observe {
namespace {

// NaN and infinity become null when written.
JsonValue curve(const Curve& points) {
  JsonValue steps = JsonValue::array(), tokens = JsonValue::array(), values = JsonValue::array();
  for (const auto& point : downsample(points, kReportPoints)) {
    steps.push_back(point.step);
    tokens.push_back(point.tokens);
    values.push_back(point.value);
  }
  return {{"step", std::move(steps)}, {"tokens", std::move(tokens)}, {"value", std::move(values)}};
}

JsonValue curves(const History& history) {
  JsonValue all = {{"loss", curve(history.loss)},
                   {"eval_loss", curve(history.eval_loss)},
                   {"grad_norm", curve(history.grad_norm)},
                   {"lr", curve(history.lr)},
                   {"tokens_per_second", curve(history.tokens_per_second)},
                   {"step_seconds", curve(history.step_seconds)}};
  if (!history.residual.empty()) all["residual"] = curve(history.residual);
  for (const auto& [source, loss] : history.eval_sources) {
    all["eval_sources"][source] = curve(loss);
  }
  for (const auto& [site, waited] : history.site_waited) {
    all[fmt::format("site {} waited", site)] = curve(waited);
  }
  for (const auto& [rank, seconds] : history.block_seconds) {
    all[fmt::format("rank {} block_seconds", rank)] = curve(seconds);
  }
  return all;
}

JsonValue memory_row(const MemoryRow& row) {
  return {{"predicted_bytes", row.predicted_bytes}, {"measured_peak_bytes", row.measured_bytes}};
}

JsonValue memory(const RunReport& report) {
  JsonValue tags = JsonValue::object();
  for (const auto& row : report.memory) tags[row.tag] = memory_row(row);
  return tags;
}

JsonValue ranks(const RunReport& report) {
  JsonValue list = JsonValue::array();
  for (const auto& row : report.ranks) {
    list.push_back({{"rank", row.rank},
                    {"predicted_bytes", row.predicted_bytes},
                    {"measured_peak_bytes", row.measured_bytes}});
  }
  return list;
}

JsonValue communication(const RunReport& report) {
  JsonValue axes = JsonValue::object();
  for (const auto& row : report.communication) {
    axes[row.axis][row.operation] = {{"predicted",
                                      {{"calls", row.predicted_calls},
                                       {"payload_bytes", row.predicted_payload},
                                       {"wire_bytes", row.predicted_bytes}}},
                                     {"counted",
                                      {{"calls", row.counted_calls},
                                       {"payload_bytes", row.counted_payload},
                                       {"wire_bytes", row.counted_bytes}}}};
    if (row.is_at_most) axes[row.axis][row.operation]["predicted"]["is_at_most"] = true;
  }
  return axes;
}

JsonValue attention(const AttentionFigures& figures) {
  const auto passes = [](const PassSeconds& seconds) -> JsonValue {
    return {{"forward", seconds.forward}, {"backward", seconds.backward}};
  };
  const auto measured = [&](JsonValue value) { return figures.is_timed ? value : nullptr; };
  JsonValue by_layer = JsonValue::array(), by_rank = JsonValue::array();
  for (const AttentionLayerRow& row : figures.layers) {
    JsonValue layer = {{"layer", row.layer},
                       {"exposed_seconds", measured(passes(row.exposed))},
                       {"most_exposed_seconds", measured(row.most)},
                       {"predicted_exposed_seconds", nullptr}};
    if (row.predicted) layer["predicted_exposed_seconds"] = passes(*row.predicted);
    by_layer.push_back(std::move(layer));
  }
  for (const AttentionRankRow& row : figures.ranks) {
    JsonValue rank = {{"rank", row.rank},
                      {"pairs", row.pairs},
                      {"predicted_pairs", row.predicted_pairs},
                      {"computed_seconds", measured(row.computed)},
                      {"exposed_seconds", measured(row.exposed)},
                      {"idle_seconds", measured(row.idle)},
                      {"predicted", nullptr}};
    if (row.predicted) {
      rank["predicted"] = {{"computed_seconds", row.predicted->computed},
                           {"exposed_seconds", row.predicted->exposed}};
    }
    by_rank.push_back(std::move(rank));
  }
  return {{"method", figures.method},
          {"order", figures.order},
          {"cp", figures.cp},
          {"idle_fraction", measured(figures.idle_fraction())},
          {"exposed_fraction", measured(figures.exposed_fraction())},
          {"by_layer", std::move(by_layer)},
          {"by_rank", std::move(by_rank)}};
}

/// The last one in full, and of all others what their busiest experts have.
JsonValue experts(const std::vector<ExpertLoadPoint>& points,
                  const std::vector<ExpertExchangeRow>& exchanges) {
  JsonValue steps = JsonValue::array(), by_layer = JsonValue::array();
  const ExpertLoadPoint& last = points.back();
  for (const ExpertLoadPoint& point : points) steps.push_back(point.step);
  for (std::size_t i = 0; i < last.layers.size(); ++i) {
    JsonValue most = JsonValue::array(), dropped = JsonValue::array(), counts = JsonValue::array();
    for (const ExpertLoadPoint& point : points) {
      most.push_back(point.layers[i].most_over_mean());
      dropped.push_back(point.layers[i].dropped);
    }
    for (const std::int64_t count : last.layers[i].counts) counts.push_back(count);
    by_layer.push_back({{"layer", last.layers[i].layer},
                        {"most_over_mean", std::move(most)},
                        {"dropped", std::move(dropped)},
                        {"last_counts", std::move(counts)},
                        {"last_lost_tokens", last.layers[i].lost_tokens}});
  }
  JsonValue by_rank = JsonValue::array();
  for (const ExpertExchangeRow& row : exchanges) {
    by_rank.push_back(
        {{"rank", row.rank}, {"exposed_seconds", row.exposed}, {"hidden_seconds", row.hidden}});
  }
  return {{"step", std::move(steps)},
          {"by_layer", std::move(by_layer)},
          {"exchanges_by_rank", std::move(by_rank)}};
}

JsonValue samples(const RunReport& report) {
  JsonValue list = JsonValue::array();
  for (const auto& sample : report.samples) {
    list.push_back({{"step", sample.step}, {"prompt", sample.prompt}, {"text", sample.text}});
  }
  return list;
}

JsonValue starts(const RunReport& report) {
  JsonValue list = JsonValue::array();
  for (const auto& start : report.starts) {
    list.push_back({{"step", start.step},
                    {"time", start.time},
                    {"host", start.host},
                    {"device", start.device},
                    {"ranks", start.ranks},
                    {"threads", start.threads},
                    {"version", start.version},
                    {"command", start.command}});
  }
  return list;
}

JsonValue epochs(const RunReport& report) {
  JsonValue list = JsonValue::array();
  for (const EpochRow& epoch : report.epochs) list.push_back(to_json(epoch));
  return list;
}

JsonValue speeds(const RunReport& report) {
  JsonValue list = JsonValue::array();
  for (const RankSpeedRow& row : report.speeds) {
    list.push_back({{"rank", row.rank},
                    {"stage", row.stage},
                    {"blocks", row.blocks},
                    {"block_seconds", row.seconds},
                    {"of_peers", row.ratio()}});
  }
  return list;
}

}  // namespace

std::string report_json(const RunReport& report) {
  JsonValue settings = JsonValue::object();
  for (const auto& [key, value] : report.settings) settings[key] = value;
  JsonValue json = {{"title", report.title},
                    {"model", report.model},
                    {"starts", starts(report)},
                    {"epochs", epochs(report)},
                    {"ended", report.ended},
                    {"totals",
                     {{"steps", report.totals.steps},
                      {"tokens", report.totals.tokens},
                      {"seconds", report.totals.seconds},
                      {"final_loss", report.totals.final_loss}}},
                    {"best_possible_loss", report.best_possible_loss},
                    {"above_best_possible", nullptr},
                    {"step_seconds",
                     {{"predicted", report.step_time.predicted},
                      {"measured_median", report.step_time.measured},
                      {"measured_mean", report.step_time.mean}}},
                    {"memory", memory(report)},
                    {"memory_total", memory_row(report.memory_total)},
                    {"peak_resident_bytes", report.peak_resident_bytes},
                    {"memory_by_rank", ranks(report)},
                    {"communication", communication(report)},
                    {"speeds", speeds(report)},
                    {"attention", nullptr},
                    {"experts", nullptr},
                    {"settings", std::move(settings)},
                    {"samples", samples(report)},
                    {"warnings", report.warnings},
                    {"curves", curves(report.history)}};
  if (report.attention) json["attention"] = attention(*report.attention);
  if (!report.history.expert_load.empty()) {
    json["experts"] = experts(report.history.expert_load, report.expert_exchanges);
  }
  if (const auto gap = loss_gap(report)) {
    json["above_best_possible"] = {{"nats_per_token", gap->nats}, {"share_of_the_way", gap->way}};
  }
  // Generated text may end inside a character: replaced, never an exception at the end of a run.
  return json.dump(1) + "\n";
}

void write_report_json(const std::filesystem::path& path, const RunReport& report) {
  write_file_atomically(real_file_system(), path, report_json(report));
}

}  // namespace heddle::observe
