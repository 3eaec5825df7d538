#include "parallel/compression.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/error.h"
#include "codec/registry.h"

namespace heddle {
namespace {

constexpr const char* kNone = "none";
constexpr std::array<std::string_view, Compression::kKinds> kKindNames = {
    "gradients", "weights", "tensor", "pipeline", "experts"};

/// Codecs in the order of Compression::Kind.
struct CompressionPreset {
  const char* name;
  std::array<const char*, Compression::kKinds> codecs;
};

// Gradients are averaged over ranks and bear a low rate; errors of activations and weights add up
// over the depth, so these keep every bit, or twice the rate. "naive" is what a library of
// collectives does that compresses every message: it sees no rows and no steps, only values in a
// line, so nothing is kept for the next time. The paper knows no experts, whose rows need a size
// that is known beforehand.
constexpr const char* kNaive = "naive";
constexpr const char* kFlat = "zfp:8:1:truncate";
constexpr std::array<CompressionPreset, 3> kPresets = {
    CompressionPreset{"mzhybrid", {"zfp:8", "lossless", "lossless", "lossless", "none"}},
    CompressionPreset{"zhybrid", {"zfp:8", "zfp:16", "zfp:16", "zfp:16", "zfp:16"}},
    CompressionPreset{kNaive, {kFlat, kFlat, kFlat, kFlat, kFlat}}};

std::string chosen(const Compression& compression, Compression::Kind kind) {
  if (const auto& given = compression.as_given(kind)) return *given;
  const auto preset = std::ranges::find_if(
      kPresets, [&](const CompressionPreset& known) { return known.name == compression.preset; });
  return preset == kPresets.end() ? kNone : preset->codecs[static_cast<std::size_t>(kind)];
}

/// What of a codec does not suit the traffic; empty when it does.
std::string unsuited(const codec::Codec& codec, Compression::Kind kind) {
  if (kind == Compression::Kind::gradients) {
    return codec.is_lossless() ? "sums travel as bytes whose number is known beforehand, and that "
                                 "of lossless is not; use \"none\", or a codec such as int8:128"
                               : "";
  }
  if (kind == Compression::Kind::experts && codec.is_lossless()) {
    return "rows travel as bytes whose number is known beforehand, and that of lossless is not; "
           "use \"none\", or a codec such as fp8:128";
  }
  const std::string name = codec.name();
  if (!name.starts_with("sign") && !name.starts_with("topk")) return "";
  return fmt::format(
      "{} leaves most of a value to later steps, which only gradients have; use bf16, int8:128, "
      "zfp:16 or lossless",
      name.substr(0, name.find(':')));
}

}  // namespace

std::span<const std::string_view> compression_kinds() { return kKindNames; }

std::string_view name_of(Compression::Kind kind) {
  return kKindNames[static_cast<std::size_t>(kind)];
}

std::vector<std::string> compression_presets() {
  std::vector<std::string> names;
  for (const CompressionPreset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

const std::optional<std::string>& Compression::as_given(Kind kind) const {
  switch (kind) {
    case Kind::gradients: return gradients;
    case Kind::weights: return weights;
    case Kind::tensor: return tensor;
    case Kind::pipeline: return pipeline;
    case Kind::experts: break;
  }
  return experts;
}

std::shared_ptr<const codec::Codec> Compression::codec(Kind kind) const {
  const std::string name = chosen(*this, kind);
  if (name == kNone) return nullptr;
  return codec::make_codec(name);
}

std::string Compression::codec_name(Kind kind) const {
  const auto made = codec(kind);
  return made == nullptr ? kNone : made->name();
}

bool Compression::is_none() const {
  if (!gradients && !weights && !tensor && !pipeline && !experts && preset.empty()) return true;
  return std::ranges::all_of(kCompressionKinds,
                             [&](Kind kind) { return chosen(*this, kind) == kNone; });
}

bool Compression::feeds_back() const { return error_feedback.value_or(preset != kNaive); }

std::string Compression::text() const {
  std::string all;
  for (const Kind kind : kCompressionKinds) {
    const std::string name = codec_name(kind);
    if (name == kNone) continue;
    all += fmt::format("{}{} {}", all.empty() ? "" : ", ", name_of(kind), name);
  }
  return all;
}

std::vector<std::pair<std::string, std::string>> problems_of(const Compression& compression) {
  std::vector<std::pair<std::string, std::string>> problems;
  for (const Compression::Kind kind : kCompressionKinds) {
    const std::string key = fmt::format("compress.{}", name_of(kind));
    const std::string name = chosen(compression, kind);
    if (name == kNone) continue;
    const auto refuse = [&](const std::string& why) {
      problems.emplace_back(key, fmt::format("{} = \"{}\": {}", key, name, why));
    };
    try {
      const std::string why = unsuited(*codec::make_codec(name), kind);
      if (!why.empty()) refuse(why);
    } catch (const Error& error) {
      refuse(fmt::format("{}; {}", error.message(), error.hint()));
    }
  }
  return problems;
}

}  // namespace heddle
