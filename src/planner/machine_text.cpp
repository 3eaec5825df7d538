#include "planner/machine_text.h"

#include <fmt/format.h>

#include "base/strings.h"

namespace heddle::planner {
namespace {

/// Writes sections one behind the other.
class Text {
 public:
  void comment(const std::string& line) { text_ += "# " + line + "\n"; }
  void section(const std::string& header) { text_ += "\n" + header + "\n"; }
  void put(const char* key, double value) { text_ += fmt::format("{} = {:.6g}\n", key, value); }
  void put(const char* key, const std::string& value) {
    text_ += fmt::format("{} = {}\n", key, quoted(value));
  }
  void put_list(const char* key, const std::vector<std::string>& items) {
    text_ += fmt::format("{} = [{}]\n", key, fmt::join(items, ", "));
  }

  const std::string& text() const { return text_; }

 private:
  static std::string quoted(const std::string& value) {
    std::string text = "\"";
    for (const char c : value) {
      if (c == '"' || c == '\\') text += '\\';
      text += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
    return text + "\"";
  }

  std::string text_;
};

void write_device(Text& text, const std::string& path, const Device& device) {
  text.section("[" + path + "]");
  text.put("name", device.name);
  text.put("memory_gib", device.memory_bytes / kGib);
  text.put("memory_gb_per_s", device.memory_bytes_per_s * 1e-9);
  text.put("processors", device.processors);
  text.put("kernel_us", device.kernel_s * 1e6);
  text.put("host_us", device.host_s * 1e6);
  text.put("host_collective_us", device.host_collective_s * 1e6);
  text.section("[" + path + ".matrix_tflops]");
  if (device.matrix_f32 > 0) text.put("f32", device.matrix_f32 * 1e-12);
  if (device.matrix_f16 > 0) text.put("f16", device.matrix_f16 * 1e-12);
  if (device.matrix_bf16 > 0) text.put("bf16", device.matrix_bf16 * 1e-12);
  text.section("[" + path + ".vector_tflops]");
  text.put("f32", device.vector_f32 * 1e-12);
  const GemmModel& gemm = device.gemm;
  text.section("[" + path + ".gemm]");
  text.put("efficiency", gemm.efficiency);
  text.put("half_depth", gemm.half_depth);
  text.put("half_rows", gemm.half_rows);
  text.put("half_columns", gemm.half_columns);
  text.put("tail", gemm.tail);
  text.put("batched", gemm.batched);
  std::vector<std::string> tiles, alignment;
  for (int i = 0; i < gemm.tiles; ++i) {
    const GemmModel::Tile& tile = gemm.tile[static_cast<std::size_t>(i)];
    tiles.push_back(fmt::format("[{:g}, {:g}, {:.6g}]", tile.rows, tile.cols, tile.efficiency));
  }
  for (const GemmModel::ByPower& row : {gemm.alignment, gemm.input_alignment}) {
    std::vector<std::string> fractions;
    for (const double fraction : row) fractions.push_back(fmt::format("{:.6g}", fraction));
    alignment.push_back(fmt::format("[{}]", fmt::join(fractions, ", ")));
  }
  text.put_list("tiles", tiles);
  text.put_list("alignment", alignment);
}

void write_software(Text& text, const std::string& path, const Software& software) {
  text.section("[" + path + "]");
  text.put("step_ms", software.step_s * 1e3);
  text.put("optimizer_bytes_per_parameter", software.optimizer_bytes);
  text.put("loss_bytes_per_logit", software.loss_bytes);
  text.put("variation", software.variation);
  text.put("fused_attention", software.fused_attention);
  if (!software.attention_by_head.empty()) {
    std::vector<std::string> rows;
    for (const auto& [head_dim, fraction] : software.attention_by_head) {
      rows.push_back(fmt::format("[{:g}, {:.6g}]", head_dim, fraction));
    }
    text.put_list("attention_by_head", rows);
  }
  text.put("contention", software.contention);
  text.put("reserved_gib", software.reserved_bytes / kGib);
}

void write_links(Text& text, const Machine& machine) {
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    const Link& link = machine.links[i];
    text.section("[[link]]");
    text.put("name", link.name);
    if (i + 1 < machine.links.size()) text.put("reach", link.reach);
    text.put("gb_per_s", link.bytes_per_s * 1e-9);
    text.put("latency_us", link.latency_s * 1e6);
    text.put("collective", link.collective);
    text.put("message", link.message);
    text.put("crowded", link.crowded);
    text.put("gather", link.gather);
    if (link.is_direct) text.put("rounds", std::string("direct"));
    if (link.message_s > 0.0) text.put("message_us", link.message_s * 1e6);
  }
  for (const CollectiveTable& table : machine.collectives) {
    std::vector<std::string> points;
    for (const auto& [bytes, seconds] : table.points) {
      points.push_back(fmt::format("[{:.6g}, {:.6g}]", bytes / kMib, seconds * 1e6));
    }
    text.section("[[collective]]");
    text.put("operation", std::string(name_of(table.op)));
    text.put("ranks", table.ranks);
    text.put_list("mib_us", points);
  }
}

void write_codecs(Text& text, const std::string& path, const std::vector<CodecRate>& codecs) {
  for (const CodecRate& rate : codecs) {
    text.section("[[" + path + "]]");
    text.put("name", rate.codec);
    text.put("encode_gb_per_s", rate.encode * 1e-9);
    text.put("encode_with_residual_gb_per_s", rate.encode_with_residual * 1e-9);
    text.put("decode_gb_per_s", rate.decode * 1e-9);
  }
}

}  // namespace

std::string machine_text(const Machine& machine, const std::vector<std::string>& comments) {
  Text text;
  for (const std::string& line : comments) text.comment(line);
  text.put("name", machine.name);
  write_device(text, "device", machine.device);
  write_links(text, machine);
  write_codecs(text, "codec", machine.codecs);
  write_software(text, "software", machine.software);
  for (const SharedDevice& shared : machine.shared) {
    text.section("[[shared]]");
    text.put("ranks", shared.ranks);
    write_device(text, "shared.device", shared.device);
    write_software(text, "shared.software", shared.software);
    write_codecs(text, "shared.codec", shared.codecs);
  }
  if (!machine.pairs.empty()) {
    std::vector<std::string> rows;
    for (const auto& row : machine.pairs) {
      std::vector<std::string> cells;
      for (const double cell : row) cells.push_back(fmt::format("{:.6g}", cell * 1e-9));
      rows.push_back(fmt::format("[{}]", fmt::join(cells, ", ")));
    }
    text.section("[pairs]");
    text.put_list("gb_per_s", rows);
  }
  return text.text();
}

}  // namespace heddle::planner
