#include "planner/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/file_system.h"
#include "base/strings.h"
#include "base/toml.h"
#include "codec/registry.h"

namespace heddle::planner {
namespace {

constexpr double kGiga = 1e9, kTera = 1e12, kMicro = 1e-6, kMilli = 1e-3;

/// What a number may be: `low` < value <= `high`, in the unit of its key, times `scale`.
struct Range {
  double low = 0.0, high = 1.0, scale = 1.0;
  const char* unit = "";
};

// The upper ends are far above any machine, and below what the same machine has in the next smaller
// unit: 300 GB/s written as 3e11.
constexpr Range kBandwidth{0.0, 1e5, kGiga, "GB/s"};
constexpr Range kRate{0.0, 1e6, kTera, "TFLOP/s"};
constexpr Range kTime{-1e-300, 1e6, kMicro, "microseconds"};
constexpr Range kFraction{0.0, 1.0, 1.0, "a fraction of at most 1"};
constexpr Range kCount{0.0, 1e7, 1.0, "a number"};
constexpr Range kNotNegative{-1e-300, 1e7, 1.0, "a number"};

/// One table of the file. Remembers what was asked for, so that the rest can be refused.
class Section {
 public:
  Section(const toml::table& table, std::string path, const std::string& file)
      : table_(table), path_(std::move(path)), file_(file) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& problem,
                           const std::string& hint = {}) const {
    throw Error(ErrorCode::usage, fmt::format("{}: {} {}", file_, full(key), problem), hint);
  }

  double number(const std::string& key, const Range& range,
                std::optional<double> otherwise = std::nullopt) {
    const toml::node* node = get(key);
    if (node == nullptr) {
      if (otherwise) return *otherwise * range.scale;
      refuse(key, "is missing", fmt::format("add it, in {}", range.unit));
    }
    return check(key, *node, range) * range.scale;
  }

  std::string text_or(const std::string& key, const std::string& otherwise) {
    return get(key) == nullptr ? otherwise : text(key);
  }

  std::string text(const std::string& key) {
    const toml::node* node = get(key);
    if (node == nullptr) refuse(key, "is missing", "add it, as text in quotes");
    const auto value = node->value<std::string>();
    if (!value) refuse(key, "is not text", "write it in quotes");
    return *value;
  }

  /// A list of lists of `columns` numbers each; of any number where `columns` is 0.
  std::vector<std::vector<double>> rows(const std::string& key, std::size_t columns) {
    const toml::node* node = get(key);
    if (node == nullptr) refuse(key, "is missing", "add a list of lists of numbers");
    std::vector<std::vector<double>> rows;
    const toml::array* lines = node->as_array();
    if (lines == nullptr) refuse(key, "is not a list", "write [[1, 2], [3, 4]]");
    for (const toml::node& line : *lines) {
      const toml::array* cells = line.as_array();
      if (cells == nullptr || (columns > 0 && cells->size() != columns)) {
        refuse(key, fmt::format("has an entry that is not a list of {} numbers", columns));
      }
      rows.emplace_back();
      for (const toml::node& cell : *cells)
        rows.back().push_back(check(key, cell, {-1e300, 1e300}));
    }
    if (rows.empty()) refuse(key, "is empty", "give at least one entry");
    return rows;
  }

  std::vector<std::vector<double>> rows_if_given(const std::string& key, std::size_t columns) {
    return get(key) == nullptr ? std::vector<std::vector<double>>() : rows(key, columns);
  }

  std::optional<Section> section(const std::string& key) {
    const toml::node* node = get(key);
    if (node == nullptr) return std::nullopt;
    if (!node->is_table()) refuse(key, "is not a section", fmt::format("write [{}]", full(key)));
    return Section(*node->as_table(), full(key), file_);
  }
  Section required(const std::string& key) {
    auto found = section(key);
    if (!found) refuse(fmt::format("[{}]", key), "is missing", "a machine file needs this section");
    return *found;
  }

  std::vector<Section> sections(const std::string& key) {
    std::vector<Section> all;
    const toml::node* node = get(key);
    if (node == nullptr) return all;
    const toml::array* list = node->as_array();
    if (list == nullptr) refuse(key, "is not a list", fmt::format("write [[{}]]", full(key)));
    for (const toml::node& item : *list) {
      if (!item.is_table()) refuse(key, "has an entry that is not a section");
      all.emplace_back(*item.as_table(), fmt::format("{}[{}]", full(key), all.size()), file_);
    }
    return all;
  }

  /// Call when everything was read.
  void refuse_others() const {
    for (const auto& [key, node] : table_) {
      const std::string name(key.str());
      if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
      const std::string near = nearest_word(name, known_);
      refuse(name, "is not a key of a machine file",
             near.empty() ? "remove it" : fmt::format("did you mean {}?", near));
    }
  }

 private:
  std::string full(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

  const toml::node* get(const std::string& key) {
    known_.push_back(key);
    return table_.get(key);
  }

  double check(const std::string& key, const toml::node& node, const Range& range) const {
    const auto value = node.value<double>();
    if (!value || !std::isfinite(*value)) refuse(key, "is not a number");
    if (*value > range.low && *value <= range.high) return *value;
    const std::string found = fmt::format("= {:g}", *value);
    if (*value > range.high) {
      refuse(key, found + fmt::format(" is more than any machine has in {}", range.unit),
             fmt::format("give it in {}", range.unit));
    }
    refuse(key, found + " is not positive", fmt::format("give it in {}", range.unit));
  }

  const toml::table& table_;
  const std::string path_;
  const std::string& file_;
  std::vector<std::string> known_;
};

GemmModel read_gemm(Section in) {
  GemmModel gemm;
  gemm.efficiency = in.number("efficiency", kFraction);
  gemm.half_depth = in.number("half_depth", kNotNegative, 0.0);
  gemm.half_rows = in.number("half_rows", kNotNegative, 0.0);
  gemm.half_columns = in.number("half_columns", kNotNegative, 0.0);
  gemm.tail = in.number("tail", kFraction, 1.0);
  gemm.batched = in.number("batched", kFraction, 1.0);
  for (const auto& row : in.rows("tiles", 3)) {
    if (gemm.tiles == GemmModel::kMostTiles) {
      in.refuse("tiles", fmt::format("has more than {} entries", GemmModel::kMostTiles));
    }
    if (row[0] < 1 || row[1] < 1 || row[2] <= 0 || row[2] > 1) {
      in.refuse("tiles", "has an entry that is not [rows, columns, efficiency of at most 1]");
    }
    gemm.tile[static_cast<std::size_t>(gemm.tiles++)] = {row[0], row[1], row[2]};
  }
  // The second row is of a layer's inputs; as the first where there is none.
  const auto alignment = in.rows("alignment", GemmModel::kAlignments);
  if (alignment.size() > 2) in.refuse("alignment", "has more than two rows");
  for (std::size_t i = 0; i < gemm.alignment.size(); ++i) {
    gemm.alignment[i] = alignment.front()[i];
    gemm.input_alignment[i] = alignment.back()[i];
    for (const double fraction : {gemm.alignment[i], gemm.input_alignment[i]}) {
      if (fraction > 0.0 && fraction <= 1.0) continue;
      in.refuse("alignment", "has an entry that is not a fraction of at most 1");
    }
  }
  in.refuse_others();
  return gemm;
}

Device read_device(Section in) {
  Device device;
  device.name = in.text("name");
  device.memory_bytes = in.number("memory_gib", {0.0, 1e5, kGib, "GiB"});
  const double peak = in.number("memory_gb_per_s", kBandwidth);
  device.memory_bytes_per_s = peak * in.number("memory_efficiency", kFraction, 1.0);
  device.processors = static_cast<int>(in.number("processors", kCount));
  device.kernel_s = in.number("kernel_us", kTime, 0.0);
  device.host_s = in.number("host_us", kTime, 0.0);
  device.host_collective_s = in.number("host_collective_us", kTime, 0.0);
  Section matrix = in.required("matrix_tflops");
  device.matrix_f32 = matrix.number("f32", kRate, 0.0);
  device.matrix_f16 = matrix.number("f16", kRate, 0.0);
  device.matrix_bf16 = matrix.number("bf16", kRate, 0.0);
  matrix.refuse_others();
  if (device.matrix_f32 + device.matrix_f16 + device.matrix_bf16 <= 0.0) {
    in.refuse("matrix_tflops", "has no rate", "give f32, f16 or bf16");
  }
  Section vector = in.required("vector_tflops");
  device.vector_f32 = vector.number("f32", kRate);
  vector.refuse_others();
  device.gemm = read_gemm(in.required("gemm"));
  in.refuse_others();
  return device;
}

Link read_link(Section in) {
  Link link;
  link.name = in.text("name");
  link.reach = static_cast<int>(in.number("reach", kCount, 0.0));
  link.bytes_per_s = in.number("gb_per_s", kBandwidth);
  link.latency_s = in.number("latency_us", kTime);
  link.message_s = in.number("message_us", kTime, 0.0);
  link.collective = in.number("collective", kFraction, 1.0);
  link.message = in.number("message", kFraction, 1.0);
  link.crowded = in.number("crowded", kFraction, 1.0);
  link.gather = in.number("gather", kFraction, 1.0);
  const std::string rounds = in.text_or("rounds", "ring");
  link.is_direct = rounds == "direct";
  if (!link.is_direct && rounds != "ring") {
    in.refuse("rounds", fmt::format("\"{}\" is unknown", rounds),
              "use ring, or direct where every rank of a collective sends to every other at once, "
              "as Heddle does over TCP");
  }
  in.refuse_others();
  return link;
}

std::vector<Link> read_links(Section& root) {
  std::vector<Link> links;
  for (Section& section : root.sections("link")) links.push_back(read_link(section));
  if (links.empty()) {
    root.refuse("[[link]]", "is missing",
                "give the tiers of the network from the inside out: inside a server, between them");
  }
  for (std::size_t i = 0; i < links.size(); ++i) {
    const std::string key = fmt::format("link[{}].reach", i);
    if (i + 1 == links.size() && links[i].reach != 0) {
      root.refuse(key, fmt::format("= {}, but no tier reaches further", links[i].reach),
                  "leave reach out of the last [[link]]: it reaches all; or add the missing tier");
    }
    if (i + 1 < links.size() && links[i].reach <= (i == 0 ? 0 : links[i - 1].reach)) {
      root.refuse(key, fmt::format("= {} is not more than the tier before it", links[i].reach),
                  "give the number of devices that each tier connects, ascending");
    }
  }
  // A single tier reaches all: every device is its own server.
  if (links.size() == 1) links.front().reach = std::numeric_limits<int>::max();
  return links;
}

CollectiveTable read_collective(Section in) {
  CollectiveTable table;
  const std::string operation = in.text("operation");
  bool is_known = false;
  for (const CommOp op :
       {CommOp::all_reduce, CommOp::all_gather, CommOp::reduce_scatter, CommOp::all_to_all}) {
    if (operation != name_of(op)) continue;
    table.op = op;
    is_known = true;
  }
  if (!is_known) {
    in.refuse("operation", fmt::format("\"{}\" is unknown", operation),
              "use all_reduce, all_gather, reduce_scatter or all_to_all");
  }
  table.ranks = static_cast<int>(in.number("ranks", {1.0, 1e7, 1.0, "a number of 2 or more"}));
  for (const auto& row : in.rows("mib_us", 2)) {
    if (row[0] <= 0.0 || row[1] <= 0.0 ||
        (!table.points.empty() && row[0] * kMib <= table.points.back()[0])) {
      in.refuse("mib_us", fmt::format("has [{:g}, {:g}] out of place", row[0], row[1]),
                "give [MiB, microseconds] above 0, sizes ascending");
    }
    table.points.push_back({row[0] * kMib, row[1] * kMicro});
  }
  in.refuse_others();
  return table;
}

CodecRate read_codec(Section in) {
  CodecRate rate;
  try {
    rate.codec = codec::make_codec(in.text("name"))->name();
  } catch (const Error& error) {
    in.refuse("name", error.message(), error.hint());
  }
  rate.encode = in.number("encode_gb_per_s", kBandwidth);
  rate.encode_with_residual =
      in.number("encode_with_residual_gb_per_s", kBandwidth, rate.encode / kGiga);
  rate.decode = in.number("decode_gb_per_s", kBandwidth);
  in.refuse_others();
  return rate;
}

Software read_software(Section in) {
  Software software;
  software.step_s = in.number("step_ms", {-1e-300, 1e6, kMilli, "milliseconds"}, 0.0);
  software.optimizer_bytes = in.number("optimizer_bytes_per_parameter", kCount, 40.0);
  software.variation = in.number("variation", {-1e-300, 1.0, 1.0, "a fraction"}, 0.0);
  software.fused_attention = in.number("fused_attention", kFraction, 0.6);
  for (const auto& row : in.rows_if_given("attention_by_head", 2)) {
    auto& table = software.attention_by_head;
    if (row[0] <= 0.0 || row[1] <= 0.0 || row[1] > 1.0 ||
        (!table.empty() && row[0] <= table.back()[0])) {
      in.refuse("attention_by_head", fmt::format("has [{:g}, {:g}] out of place", row[0], row[1]),
                "give [size of a head, fraction of the matrix rate], sizes ascending");
    }
    table.push_back({row[0], row[1]});
  }
  software.reserved_bytes = in.number("reserved_gib", {-1e-300, 1e5, kGib, "GiB"}, 0.0);
  software.loss_bytes = in.number("loss_bytes_per_logit", kCount, 24.0);
  software.contention = in.number("contention", {-1e-300, 1.0, 1.0, "a fraction"}, 0.1);
  in.refuse_others();
  return software;
}

std::vector<SharedDevice> read_shared(Section& root) {
  std::vector<SharedDevice> all;
  for (Section& in : root.sections("shared")) {
    SharedDevice shared;
    shared.ranks = static_cast<int>(in.number("ranks", {1.0, 1e7, 1.0, "a number of 2 or more"}));
    if (!all.empty() && shared.ranks <= all.back().ranks) {
      in.refuse("ranks", fmt::format("= {} is not more than in the entry before", shared.ranks),
                "give entries with ascending numbers of ranks");
    }
    shared.device = read_device(in.required("device"));
    shared.software = read_software(in.required("software"));
    for (Section& codec : in.sections("codec")) shared.codecs.push_back(read_codec(codec));
    in.refuse_others();
    all.push_back(std::move(shared));
  }
  return all;
}

std::vector<std::vector<double>> read_pairs(Section in) {
  auto pairs = in.rows("gb_per_s", 0);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i].size() != pairs.size()) {
      in.refuse(
          "gb_per_s",
          fmt::format("has {} rows, but row {} has {} numbers", pairs.size(), i, pairs[i].size()),
          "give one row and one column for every server");
    }
    for (double& cell : pairs[i]) {
      if (cell <= 0.0 || cell > kBandwidth.high) {
        in.refuse("gb_per_s", fmt::format("has {:g} in row {}", cell, i),
                  "give bandwidths above 0 in GB/s; on the diagonal that inside a server");
      }
      cell *= kGiga;
    }
  }
  in.refuse_others();
  return pairs;
}

}  // namespace

double attention_efficiency(const Software& software, double head_dim) {
  const auto& table = software.attention_by_head;
  if (table.empty()) return software.fused_attention;
  const auto above =
      std::find_if(table.begin(), table.end(), [&](const auto& row) { return row[0] >= head_dim; });
  if (above == table.end()) return table.back()[1];
  if (above == table.begin()) return table.front()[1];
  const auto& [low, at_low] = *std::prev(above);
  const auto& [high, at_high] = *above;
  return at_low + (at_high - at_low) * (head_dim - low) / (high - low);
}

double Device::matrix_rate(DType dtype) const {
  const double rate = dtype == DType::f16    ? matrix_f16
                      : dtype == DType::bf16 ? matrix_bf16
                                             : matrix_f32;
  if (rate > 0.0) return rate;
  throw Error(ErrorCode::usage,
              fmt::format("{} has no matrix_tflops for {}", name, heddle::name_of(dtype)),
              "add it to the machine file, or plan for another dtype");
}

Machine Machine::at_work(int ranks) const {
  Machine machine = *this;
  machine.shared.clear();
  const int here = std::min(ranks, server_size());
  if (here <= 1 || shared.empty()) return machine;
  const auto fits = std::find_if(shared.begin(), shared.end(),
                                 [&](const SharedDevice& entry) { return entry.ranks >= here; });
  const SharedDevice& entry = fits == shared.end() ? shared.back() : *fits;
  machine.device = entry.device;
  machine.software = entry.software;
  if (!entry.codecs.empty()) machine.codecs = entry.codecs;
  if (fits != shared.end()) return machine;
  const double share = static_cast<double>(entry.ranks) / here;
  for (CodecRate& rate : machine.codecs) {
    for (double* one : {&rate.encode, &rate.encode_with_residual, &rate.decode}) *one *= share;
  }
  for (double* rate :
       {&machine.device.matrix_f32, &machine.device.matrix_f16, &machine.device.matrix_bf16,
        &machine.device.vector_f32, &machine.device.memory_bytes_per_s}) {
    *rate *= share;
  }
  return machine;
}

Machine parse_machine(std::string_view text, const std::string& name) {
  const toml::table table = parse_toml(text, name);
  Section root(table, "", name);
  Machine machine;
  machine.name = root.text("name");
  machine.device = read_device(root.required("device"));
  machine.links = read_links(root);
  for (Section& section : root.sections("collective")) {
    machine.collectives.push_back(read_collective(section));
  }
  for (Section& section : root.sections("codec")) machine.codecs.push_back(read_codec(section));
  if (auto software = root.section("software")) machine.software = read_software(*software);
  machine.shared = read_shared(root);
  if (auto pairs = root.section("pairs")) machine.pairs = read_pairs(*pairs);
  root.refuse_others();
  return machine;
}

Machine read_machine(const std::filesystem::path& file) {
  return parse_machine(read_text_file(file), file.string());
}

}  // namespace heddle::planner
