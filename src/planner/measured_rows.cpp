#include "planner/measured_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/file_system.h"
#include "base/strings.h"
#include "planner/memory.h"

namespace heddle::planner {
namespace {

constexpr const char* kColumns[] = {"# GPUs",
                                    "global batch",
                                    "micro batch",
                                    "hidden size",
                                    "attention heads",
                                    "# layers",
                                    "sequence length",
                                    "tensor parallelism",
                                    "data parallelism",
                                    "pipeline parallelism",
                                    "iteration time (ms)"};

std::vector<std::string> cells_of(std::string_view line) {
  auto cells = split(line, ',');
  for (std::string& cell : cells) cell = std::string(trim(cell));
  return cells;
}

/// One line of the file, by the names of the columns.
class Line {
 public:
  Line(const std::vector<std::string>& header, std::vector<std::string> cells, std::string where)
      : header_(header), cells_(std::move(cells)), where_(std::move(where)) {
    if (cells_.size() != header_.size()) {
      fail(ErrorCode::data, "{}: {} values for {} columns", where_, cells_.size(), header_.size());
    }
  }

  std::optional<std::string> text(const std::string& column) const {
    const auto at = std::find(header_.begin(), header_.end(), column);
    if (at == header_.end()) return std::nullopt;
    return cells_[static_cast<std::size_t>(at - header_.begin())];
  }

  double number(const std::string& column) const {
    const std::string word = text(column).value_or("");
    double value = 0.0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc{} || end != word.data() + word.size() || !std::isfinite(value) ||
        value <= 0.0) {
      throw Error(
          ErrorCode::data,
          fmt::format("{}: \"{}\" in column \"{}\" is not a number above 0", where_, word, column),
          "correct the file");
    }
    return value;
  }
  std::int64_t whole(const std::string& column) const {
    const double value = number(column);
    if (value != std::floor(value) || value > 1e9) {
      fail(ErrorCode::data, "{}: {} in column \"{}\" is not a whole number", where_, value, column);
    }
    return static_cast<std::int64_t>(value);
  }
  const std::string& where() const { return where_; }

 private:
  const std::vector<std::string>& header_;
  const std::vector<std::string> cells_;
  const std::string where_;
};

void read_options(const Line& line, MeasuredRow& row) {
  Candidate& plan = row.candidate;
  const auto flag = [&](const char* column) { return line.text(column).value_or("0") == "1"; };
  if (const auto word = line.text("recompute")) {
    const auto known = {Recompute::none, Recompute::selective, Recompute::full};
    const auto found = std::find_if(known.begin(), known.end(),
                                    [&](Recompute value) { return *word == name_of(value); });
    if (found == known.end()) {
      fail(ErrorCode::data, "{}: recompute is \"{}\", not none, selective or full", line.where(),
           *word);
    }
    plan.recompute = *found;
  }
  if (line.text("virtual stages")) plan.chunks = static_cast<int>(line.whole("virtual stages"));
  if (plan.chunks > 1) plan.schedule = Pipeline::interleaved;
  if (const auto word = line.text("zero"); word && *word != "0") {
    plan.zero = static_cast<int>(line.whole("zero"));
  }
  plan.sequence = flag("sequence parallelism");
}

MeasuredRow read_row(const Line& line) {
  MeasuredRow row;
  row.job.seq_len = line.whole("sequence length");
  row.job.spec = gpt_spec(line.whole("hidden size"), line.whole("attention heads"),
                          line.whole("# layers"), row.job.seq_len);
  row.job.batch = line.whole("global batch");
  row.job.stack = Stack::megatron();
  Candidate& plan = row.candidate;
  plan.tp = static_cast<int>(line.whole("tensor parallelism"));
  plan.dp = static_cast<int>(line.whole("data parallelism"));
  plan.pp = static_cast<int>(line.whole("pipeline parallelism"));
  plan.sequences = static_cast<int>(line.whole("micro batch"));
  if (plan.gpus() != line.whole("# GPUs")) {
    fail(ErrorCode::data, "{}: {} x {} x {} is not {} GPUs", line.where(), plan.tp, plan.dp,
         plan.pp, line.whole("# GPUs"));
  }
  if (row.job.batch % (plan.dp * plan.sequences) != 0) {
    fail(ErrorCode::data, "{}: micro-batches of {} on {} ranks do not divide a batch of {}",
         line.where(), plan.sequences, plan.dp, row.job.batch);
  }
  row.seconds = line.number("iteration time (ms)") * 1e-3;
  if (const auto billions = line.text("Parameters (billion)")) row.model = *billions + "B";
  read_options(line, row);
  finish_row(row);
  return row;
}

bool fits(const MeasuredRow& row, const Machine& machine) {
  const Candidate& plan = row.candidate;
  const Split split = split_blocks(row.job, plan.schedule, plan.pp, plan.chunks);
  const auto kept = activations(row.job, plan);
  return estimate_memory(machine, row.job, plan, split, kept).total() <=
         machine.device.memory_bytes;
}

/// Where a file does not say what was recomputed, it is taken to be one choice for all its rows:
/// everything, when some row would not fit without it, otherwise nothing.
void assume_recompute(std::vector<MeasuredRow>& rows, const Machine& machine) {
  const bool all_fit = std::all_of(rows.begin(), rows.end(),
                                   [&](const MeasuredRow& row) { return fits(row, machine); });
  for (MeasuredRow& row : rows) {
    row.candidate.recompute = all_fit ? Recompute::none : Recompute::full;
  }
}

/// However the hashes fall, at most half of a table is fitted to.
void keep_half_out(std::vector<MeasuredRow>& rows) {
  auto marked = static_cast<std::size_t>(std::count_if(
      rows.begin(), rows.end(), [](const auto& row) { return row.is_for_calibration; }));
  for (auto row = rows.rbegin(); 2 * marked > rows.size(); ++row) {
    if (row->is_for_calibration) --marked;
    row->is_for_calibration = false;
  }
}

std::uint64_t hash(std::string_view text) {
  std::uint64_t value = 14695981039346656037ull;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  value ^= value >> 29;
  value *= 0xbf58476d1ce4e5b9ull;
  return value ^ (value >> 32);
}

}  // namespace

ModelSpec gpt_spec(std::int64_t hidden, std::int64_t heads, std::int64_t layers,
                   std::int64_t seq_len) {
  ModelSpec spec;
  spec.family = "gpt2";
  spec.vocab = 51200;
  spec.hidden = hidden;
  spec.layers = layers;
  spec.heads = spec.kv_heads = heads;
  spec.head_dim = hidden / heads;
  spec.ffn = 4 * hidden;
  spec.max_positions = seq_len;
  spec.norm = ModelSpec::Norm::layer;
  spec.mlp = ModelSpec::Mlp::gelu;
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = true;
  spec.tied_embeddings = true;
  return spec;
}

void finish_row(MeasuredRow& row) {
  const ModelSpec& spec = row.job.spec;
  const Candidate& plan = row.candidate;
  const std::string job = fmt::format("h{} L{} s{} on {} GPUs, batch {}", spec.hidden, spec.layers,
                                      row.job.seq_len, plan.gpus(), row.job.batch);
  const std::string all =
      fmt::format("{} a{} t{} d{} p{} v{} b{} z{} r{}", job, spec.heads, plan.tp, plan.dp, plan.pp,
                  plan.chunks, plan.sequences, plan.zero, plan.sequence);
  if (row.model.empty()) row.model = job;
  row.is_for_calibration = hash(all) % 2 == 0;
}

std::vector<MeasuredRow> parse_rows(std::string_view csv, const std::string& name,
                                    const Machine& machine) {
  std::vector<MeasuredRow> rows;
  std::vector<std::string> header;
  std::size_t number = 0;
  for (const std::string& text : split(csv, '\n')) {
    ++number;
    if (trim(text).empty()) continue;
    if (header.empty()) {
      header = cells_of(text);
      for (const char* column : kColumns) {
        if (std::find(header.begin(), header.end(), column) == header.end()) {
          throw Error(ErrorCode::data, fmt::format("{}: there is no column \"{}\"", name, column),
                      "the first line names the columns, as in the vTrain measurements");
        }
      }
      continue;
    }
    rows.push_back(read_row(Line(header, cells_of(text), fmt::format("{}:{}", name, number))));
  }
  if (rows.empty()) fail(ErrorCode::data, "{}: there are no rows", name);
  const bool says = std::find(header.begin(), header.end(), "recompute") != header.end();
  if (!says) assume_recompute(rows, machine);
  keep_half_out(rows);
  return rows;
}

std::vector<MeasuredRow> read_rows(const std::filesystem::path& file, const Machine& machine) {
  return parse_rows(read_text_file(file), file.string(), machine);
}

}  // namespace heddle::planner
