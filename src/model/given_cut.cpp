#include "model/given_cut.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/error.h"
#include "base/strings.h"
#include "model/cut_stages.h"

namespace heddle {

std::vector<int> parse_cut(std::string_view text) {
  std::vector<int> blocks;
  for (const std::string& word : split(std::string(text), ' ')) {
    if (word.empty()) continue;
    int number = 0;
    const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (problem != std::errc() || end != word.data() + word.size() || number < 0) {
      throw Error(
          ErrorCode::usage,
          fmt::format("parallel.cut = \"{}\" has \"{}\", which is no number of blocks", text, word),
          "give the number of blocks of every stage, as \"5 3 4 4\"");
    }
    blocks.push_back(number);
  }
  return blocks;
}

std::string text_of_cut(const std::vector<int>& blocks) {
  return fmt::format("{}", fmt::join(blocks, " "));
}

std::string problem_of_cut(const ModelSpec& spec, const std::vector<int>& blocks,
                           const std::vector<int>& rank_of_stage) {
  const std::string given = fmt::format("parallel.cut = \"{}\"", text_of_cut(blocks));
  if (comes_round(rank_of_stage)) {
    return given +
           " goes with no routes of micro-batches, whose stages are equal; leave it out, "
           "or use another parallel.schedule";
  }
  if (blocks.size() != rank_of_stage.size()) {
    return fmt::format("{} is for {} stages, and the pipeline has {}; give as many numbers", given,
                       blocks.size(), rank_of_stage.size());
  }
  const auto all = std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0});
  if (all != spec.layers) {
    return fmt::format("{} has {} blocks in all, and the model {}", given, all, spec.layers);
  }
  const bool has_enough = std::ssize(blocks) <= unit_count(spec);
  for (std::size_t stage = 1; has_enough && stage + 1 < blocks.size(); ++stage) {
    if (blocks[stage] == 0) {
      return fmt::format("{} leaves stage {} without a block; only the first and the last may be",
                         given, stage);
    }
  }
  return "";
}

std::vector<DecoderPart::Units> units_of_cut(const ModelSpec& spec,
                                             const std::vector<int>& blocks) {
  std::vector<DecoderPart::Units> stages;
  int begin = 0, end = 1;
  for (const int count : blocks) {
    end += count;
    stages.push_back({begin, end});
    begin = end;
  }
  stages.back().end = unit_count(spec);
  return stages;
}

std::vector<int> blocks_of(const ModelSpec& spec, const std::vector<DecoderPart::Units>& stages) {
  std::vector<int> blocks;
  for (const auto& [begin, end] : stages) {
    const int last = std::min(end, static_cast<int>(spec.layers) + 1);
    blocks.push_back(std::max(0, last - std::max(begin, 1)));
  }
  return blocks;
}

}  // namespace heddle
