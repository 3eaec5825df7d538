#include <fmt/format.h>

#include <algorithm>

#include "base/strings.h"
#include "observe/bars.h"
#include "observe/chart.h"
#include "observe/put.h"
#include "observe/report.h"
#include "observe/report_parts.h"

namespace heddle::observe {
namespace {

struct AttentionSums {
  double all = 0, idle = 0, exposed = 0;
};

AttentionSums sums_of(const AttentionFigures& attention) {
  AttentionSums sums;
  for (const AttentionRankRow& row : attention.ranks) {
    sums.all += row.computed + row.idle;
    sums.idle += row.idle;
    sums.exposed += row.exposed;
  }
  return sums;
}

std::string predicted_note(bool is_predicted, double seconds) {
  return is_predicted ? short_time(seconds) + " predicted" : std::string();
}

std::string pairs_note(const AttentionRankRow& row, bool has_documents) {
  const auto count = [](std::int64_t pairs) { return format_count(static_cast<double>(pairs)); };
  if (row.pairs == row.predicted_pairs) return count(row.pairs) + " pairs, as predicted";
  return fmt::format("{} pairs, {}{} predicted", count(row.pairs), has_documents ? "at most " : "",
                     count(row.predicted_pairs));
}

std::string layer_bars(const AttentionFigures& attention) {
  StackedBars bars{.parts = {{"forward", 'a'}, {"backward", 'c'}}, .format = short_time};
  for (const AttentionLayerRow& row : attention.layers) {
    bars.rows.push_back(
        {.name = fmt::format("layer {}", row.layer),
         .parts = {row.exposed.forward, row.exposed.backward},
         .total = short_time(row.exposed.both()),
         .total_note = predicted_note(row.predicted.has_value(),
                                      row.predicted ? row.predicted->both() : 0.0)});
  }
  return render_bars(bars);
}

std::string pair_bars(const AttentionFigures& attention) {
  StackedBars bars{.parts = {{"pairs", 'a'}}, .format = format_count};
  for (const AttentionRankRow& row : attention.ranks) {
    const auto pairs = static_cast<double>(row.pairs);
    bars.rows.push_back({.name = fmt::format("rank {}", row.rank),
                         .note = pairs_note(row, attention.has_documents),
                         .parts = {pairs},
                         .total = format_count(pairs)});
  }
  return render_bars(bars);
}

std::string rank_bars(const AttentionFigures& attention) {
  StackedBars bars{
      .parts = {{"computing", 'a'}, {"waiting for messages", 'c'}, {"done before others", 'g'}},
      .format = short_time};
  for (const AttentionRankRow& row : attention.ranks) {
    bars.rows.push_back(
        {.name = fmt::format("rank {}", row.rank),
         .note = pairs_note(row, attention.has_documents),
         .parts = {row.computed, row.exposed, row.idle - row.exposed},
         .total = short_time(row.computed + row.exposed),
         .total_note = predicted_note(
             row.predicted.has_value(),
             row.predicted ? row.predicted->computed + row.predicted->exposed : 0.0)});
  }
  return render_bars(bars);
}

}  // namespace

double AttentionFigures::idle_fraction() const {
  const AttentionSums sums = sums_of(*this);
  return sums.all > 0 ? sums.idle / sums.all : 0.0;
}

double AttentionFigures::exposed_fraction() const {
  const AttentionSums sums = sums_of(*this);
  return sums.all > 0 ? sums.exposed / sums.all : 0.0;
}

std::string attention_section(const AttentionFigures& attention) {
  std::string html = "<section id=\"attention\"><h2>Attention over cp</h2>";
  put(html, "<p class=\"say\">{} in {} order: {} ranks share each sequence. ",
      escape_html(attention.method), escape_html(attention.order), attention.cp);
  if (!attention.is_timed) {
    put(html,
        "Pairs are of query and key, in all heads, in a step; predicted are those of sequences "
        "without packed documents. Times are measured on CPUs only.</p>{}</section>\n",
        pair_bars(attention));
    return html;
  }
  put(html,
      "They compute {} of the time until the slowest of them is done, and wait for messages "
      "{}.</p>",
      percent(1.0 - attention.idle_fraction()), percent(attention.exposed_fraction()));
  put(html,
      "<h3>Exposed exchange by layer</h3><p class=\"say\">What a rank waits in a step for "
      "messages that computation does not hide; mean of the ranks.</p>{}",
      layer_bars(attention));
  put(html,
      "<h3>Balance by rank</h3><p class=\"say\">The attention of all layers in a step. Pairs are "
      "of query and key, in all heads; predicted are those of sequences without packed "
      "documents.</p>{}",
      rank_bars(attention));
  return html + "</section>\n";
}

}  // namespace heddle::observe
