#include "engine/weights.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "model/decoder.h"
#include "observe/progress.h"
#include "ops/reduce.h"
#include "parallel/box.h"

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

std::uint64_t bytes_of(const ParamStore& store) {
  std::uint64_t bytes = 0;
  for (const ParamPiece& piece : store.value_pieces()) bytes += piece.data.size_bytes();
  return bytes;
}

/// Reads a rank's box of the tensor to `to` in host memory.
void read_piece(const HfFolder& folder, const std::string& name, const ParamPiece& piece,
                const Tensor& to, Stream& host) {
  const auto& entry = folder.entry(name);
  if (entry.shape() != piece.part->whole) {
    throw Error(ErrorCode::data,
                fmt::format("{}: tensor {} has shape {}, but config.json makes it {}",
                            folder.file_of(name).path().string(), name, entry.shape().text(),
                            piece.part->whole.text()),
                "use the config.json that belongs to these weights");
  }
  folder.read_slice(name, piece.begin.sizes(), piece.end().sizes(), to);
  for_each_stretch(
      to, piece.begin, piece.part->whole, [&](const Tensor& stretch, std::int64_t first) {
        if (const auto bad = ops::first_non_finite(stretch, host); bad >= 0) {
          throw Error(ErrorCode::data,
                      fmt::format("{}: tensor {} holds NaN or infinity at element {}",
                                  folder.file_of(name).path().string(), name, first + bad),
                      "the file is damaged or the model diverged; use an earlier checkpoint");
        }
      });
}

}  // namespace

void load_weights(const HfFolder& folder, const ModelSpec& spec, ParamStore& store, Stream& stream,
                  const observe::Terminal& terminal) {
  observe::Progress progress(
      {.label = "loading weights", .total = bytes_of(store), .terminal = terminal});
  Stream host(stream.threads());
  for (const ParamPiece& piece : store.value_pieces()) {
    fill_from_host(piece, stream, [&](const Tensor& to) {
      read_piece(folder, stored_name(folder, piece.part->name), piece, to, host);
    });
    progress.add(piece.data.size_bytes());
  }
  store.values_changed(stream);
  std::set<std::string> known;
  for (const std::string& name : tensor_names(spec)) known.insert(stored_name(folder, name));
  for (const std::string& name : folder.names()) {
    if (known.contains(name) || is_leftover(name, spec)) continue;
    throw Error(ErrorCode::data,
                fmt::format("{}: tensor {} is not part of a {} model with this config.json",
                            folder.file_of(name).path().string(), name, spec.family),
                "use the config.json that belongs to these weights");
  }
  progress.finish();
}

}  // namespace heddle
