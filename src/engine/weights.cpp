#include "engine/weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "checkpoint/tensor_stats.h"
#include "model/decoder.h"
#include "observe/progress.h"
#include "ops/reduce.h"
#include "parallel/box.h"

namespace heddle {
namespace {

/// A tensor of the model in a folder: a whole tensor, or one expert's matrix in a tensor that holds
/// those of all.
struct Stored {
  std::string name;
  std::optional<std::int64_t> expert = {};  ///< in the first dimension
  std::int64_t first_row = 0;
  Shape stacked = {};  ///< what the whole tensor must be then
};

/// Where a folder has the model's tensors, in whichever form it was written.
class StoredNames {
 public:
  StoredNames(const HfFolder& folder, const ModelSpec& spec)
      : folder_(folder), head_(spec.names.head + ".weight") {
    const std::string& embedding = spec.names.token_embedding;
    prefix_ = embedding.substr(0, embedding.find('.') + 1);
    if (!spec.experts) return;
    for (std::int64_t layer = 0; layer < spec.layers; ++layer) add_stacked(spec, layer);
  }

  Stored find(const std::string& name) const {
    if (folder_.contains(name)) return {name};
    if (const auto at = stacked_.find(name); at != stacked_.end()) return at->second;
    // transformers 5 calls every head so.
    if (name == head_ && folder_.contains("lm_head.weight")) return {"lm_head.weight"};
    // Models that were saved without a head lack the prefix of all names, as GPT-2's first
    // published files do.
    if (!name.starts_with(prefix_)) return {name};
    const std::string bare = name.substr(prefix_.size());
    return {folder_.contains(bare) ? bare : name};
  }

 private:
  /// As transformers 5 holds a layer's experts, where the folder has them so.
  void add_stacked(const ModelSpec& spec, std::int64_t layer) {
    const ExpertsSpec& experts = *spec.experts;
    const auto named = [&](const std::string& pattern) {
      return fmt::format(fmt::runtime(pattern), layer);
    };
    if (const std::string router = named(experts.stacked_router); folder_.contains(router)) {
      stacked_[named(experts.router) + ".weight"] = {router};
    }
    const auto add = [&](const std::string& pattern, const std::string& stacked,
                         std::int64_t first_row, const Shape& shape) {
      if (!folder_.contains(stacked)) return;
      for (std::int64_t expert = 0; expert < experts.count; ++expert) {
        stacked_[fmt::format(fmt::runtime(pattern), layer, expert) + ".weight"] = {
            stacked, expert, first_row, shape};
      }
    };
    const Shape ups{experts.count, 2 * experts.width, spec.hidden};
    add(experts.gate, named(experts.stacked_up), 0, ups);
    add(experts.up, named(experts.stacked_up), experts.width, ups);
    add(experts.down, named(experts.stacked_down), 0, {experts.count, spec.hidden, experts.width});
  }

  const HfFolder& folder_;
  std::string prefix_, head_;
  std::map<std::string, Stored> stacked_;  // by the name that the model has
};

bool is_leftover(std::string_view name, const ModelSpec& spec) {
  static constexpr std::array<std::string_view, 4> kBuffers = {
      ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias"};
  return std::ranges::any_of(kBuffers, [&](auto suffix) { return name.ends_with(suffix); }) ||
         name.ends_with("rotary_emb.inv_freq") ||
         (spec.tied_embeddings &&
          (name == spec.names.head + ".weight" || name == "lm_head.weight"));
}

bool have_same_elements(const HfFolder& folder, const std::string& name, const std::string& other) {
  const SafetensorsEntry &a = folder.entry(name), &b = folder.entry(other);
  const auto bytes = folder.file_of(name).bytes(a), others = folder.file_of(other).bytes(b);
  if (a.dtype_name == b.dtype_name) {
    return bytes.size() == others.size() &&
           std::memcmp(bytes.data(), others.data(), bytes.size()) == 0;
  }
  if (!a.dtype() || !b.dtype() || a.count() != b.count()) return false;
  return difference_of(bytes, *a.dtype(), others, *b.dtype()).max_abs == 0.0;
}

/// Files of tied models may have the head all the same: as the embedding is, or another model is
/// meant, which transformers makes of it.
void require_tied_head(const HfFolder& folder, const StoredNames& names, const ModelSpec& spec) {
  const std::string head = names.find(spec.names.head + ".weight").name,
                    embedding = names.find(spec.names.token_embedding + ".weight").name;
  if (!spec.tied_embeddings || !folder.contains(head) || !folder.contains(embedding)) return;
  if (have_same_elements(folder, head, embedding)) return;
  throw Error(ErrorCode::data,
              fmt::format("{}: {} is not {}, but config.json ties them",
                          folder.file_of(head).path().string(), head, embedding),
              "set tie_word_embeddings = false in config.json, or remove the tensor");
}

std::uint64_t bytes_of(const ParamStore& store) {
  std::uint64_t bytes = 0;
  for (const ParamPiece& piece : store.value_pieces()) {
    if (!piece.parameter->is_adapter) bytes += piece.data.size_bytes();
  }
  return bytes;
}

void require_shape(const HfFolder& folder, const Stored& stored, const Shape& whole) {
  const SafetensorsEntry& entry = folder.entry(stored.name);
  const Shape& expected = stored.expert ? stored.stacked : whole;
  if (entry.shape() == expected) return;
  throw Error(ErrorCode::data,
              fmt::format("{}: tensor {} has shape {}, but config.json makes it {}",
                          folder.file_of(stored.name).path().string(), stored.name,
                          entry.shape().text(), expected.text()),
              "use the config.json that belongs to these weights");
}

/// Each layer has tensors of its own.
void require_layers(const HfFolder& folder, const ModelSpec& spec) {
  const auto tensors = static_cast<std::int64_t>(folder.names().size());
  if (spec.layers <= tensors) return;
  throw Error(ErrorCode::data,
              fmt::format("{} has {} tensors, and config.json asks for {} layers",
                          folder.path().string(), tensors, spec.layers),
              "use the config.json that belongs to these weights");
}

/// Reads a rank's box of the tensor to `to` in host memory.
void read_piece(const HfFolder& folder, const Stored& stored, const ParamPiece& piece,
                const Tensor& to, Stream& host) {
  const std::string& name = stored.name;
  if (stored.expert) {
    const Shape begin{*stored.expert, stored.first_row + piece.begin[0], piece.begin[1]};
    const Shape end{*stored.expert + 1, stored.first_row + piece.end()[0], piece.end()[1]};
    folder.read_slice(name, begin.sizes(), end.sizes(), to.view({1, to.size(0), to.size(1)}));
  } else {
    folder.read_slice(name, piece.begin.sizes(), piece.end().sizes(), to);
  }
  require_finite(piece, to, name, folder.file_of(name).path(), host);
}

}  // namespace

void require_finite(const ParamPiece& piece, const Tensor& box, const std::string& name,
                    const std::filesystem::path& file, Stream& host) {
  for_each_stretch(
      box, piece.begin, piece.part->whole, [&](const Tensor& stretch, std::int64_t first) {
        if (const auto bad = ops::first_non_finite(stretch, host); bad >= 0) {
          throw Error(ErrorCode::data,
                      fmt::format("{}: tensor {} holds NaN or infinity at element {}",
                                  file.string(), name, first + bad),
                      "the file is damaged or the model diverged; use an earlier checkpoint");
        }
      });
}

void check_weights(const HfFolder& folder, const ModelSpec& spec) {
  require_layers(folder, spec);
  const StoredNames names(folder, spec);
  std::set<std::string> known;
  visit_tensors(spec, [&](const Parameter& parameter, const Parameter::Part& part) {
    if (parameter.is_adapter) return;
    const Stored stored = names.find(part.name);
    require_shape(folder, stored, part.whole);
    known.insert(stored.name);
  });
  for (const std::string& name : folder.names()) {
    if (known.contains(name) || is_leftover(name, spec)) continue;
    throw Error(ErrorCode::data,
                fmt::format("{}: tensor {} is not part of a {} model with this config.json",
                            folder.file_of(name).path().string(), name, spec.family),
                "use the config.json that belongs to these weights");
  }
}

void load_weights(const HfFolder& folder, const ModelSpec& spec, ParamStore& store, Stream& stream,
                  const observe::Terminal& terminal) {
  check_weights(folder, spec);
  observe::Progress progress(
      {.label = "loading weights", .total = bytes_of(store), .terminal = terminal});
  Stream host(stream.threads());
  const StoredNames names(folder, spec);
  require_tied_head(folder, names, spec);
  for (const ParamPiece& piece : store.value_pieces()) {
    if (piece.parameter->is_adapter) continue;
    fill_from_host(piece, stream, [&](const Tensor& to) {
      read_piece(folder, names.find(piece.part->name), piece, to, host);
    });
    progress.add(piece.data.size_bytes());
  }
  store.values_changed(stream);
  progress.finish();
}

}  // namespace heddle
