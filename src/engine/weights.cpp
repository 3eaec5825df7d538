#include "engine/weights.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "observe/progress.h"
#include "ops/reduce.h"

namespace heddle {
namespace {

/// GPT-2's first published files lack the prefix of all names.
std::string stored_name(const HfFolder& folder, const std::string& name) {
  constexpr std::string_view kPrefix = "transformer.";
  if (!folder.contains(name) && name.starts_with(kPrefix)) {
    const std::string bare = name.substr(kPrefix.size());
    if (folder.contains(bare)) return bare;
  }
  return name;
}

bool is_leftover(std::string_view name, const ModelSpec& spec) {
  static constexpr std::array<std::string_view, 4> kBuffers = {
      ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias"};
  return std::ranges::any_of(kBuffers, [&](auto suffix) { return name.ends_with(suffix); }) ||
         name.ends_with("rotary_emb.inv_freq") ||
         (spec.tied_embeddings && name == spec.names.head + ".weight");
}

void read_part(const HfFolder& folder, const std::string& name, const Tensor& out, Stream& stream) {
  const auto& entry = folder.entry(name);
  if (entry.shape() != out.shape()) {
    throw Error(ErrorCode::data,
                fmt::format("{}: tensor {} has shape {}, but config.json makes it {}",
                            folder.file_of(name).path().string(), name, entry.shape().text(),
                            out.shape().text()),
                "use the config.json that belongs to these weights");
  }
  folder.read(name, out);
  if (const auto bad = ops::first_non_finite(out, stream); bad >= 0) {
    throw Error(ErrorCode::data,
                fmt::format("{}: tensor {} holds NaN or infinity at element {}",
                            folder.file_of(name).path().string(), name, bad),
                "the file is damaged or the model diverged; use an earlier checkpoint");
  }
}

}  // namespace

void load_weights(const HfFolder& folder, const ModelSpec& spec, ParamStore& store, Stream& stream,
                  const observe::Terminal& terminal) {
  observe::Progress progress(
      {.label = "loading weights", .total = folder.total_bytes(), .terminal = terminal});
  std::set<std::string> used;
  for (const Parameter* parameter : store.parameters()) {
    for (std::size_t part = 0; part < parameter->parts.size(); ++part) {
      const std::string name = stored_name(folder, parameter->parts[part].name);
      read_part(folder, name, parameter->part_of(parameter->value, part), stream);
      progress.add(folder.entry(name).size_bytes());
      used.insert(name);
    }
  }
  for (const std::string& name : folder.names()) {
    if (used.contains(name) || is_leftover(name, spec)) continue;
    throw Error(ErrorCode::data,
                fmt::format("{}: tensor {} is not part of a {} model with this config.json",
                            folder.file_of(name).path().string(), name, spec.family),
                "use the config.json that belongs to these weights");
  }
  progress.finish();
}

}  // namespace heddle
