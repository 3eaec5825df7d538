#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codec/codec.h"

namespace heddle {

/// What travels as a codec's bytes: the section `compress` of the run file, which a request, a plan
/// and a store carry (docs/design/035-compressed-exchanges.md). One that says nothing compresses
/// nothing, and then no call, bit or byte differs from a run without it.
struct Compression {
  enum class Kind : std::uint8_t {
    gradients,  ///< their sums over the ranks that see other tokens
    weights,    ///< ZeRO's gathers
    tensor,     ///< activations and their gradients between the ranks of tp
    pipeline,   ///< the same between stages
    experts     ///< rows on their way to experts and back, and their gradients
  };
  static constexpr std::size_t kKinds = 5;
  /// "none", or as codec::make_codec reads it; absent: what the preset says, or none.
  std::optional<std::string> gradients = {}, weights = {}, tensor = {}, pipeline = {}, experts = {};
  std::string preset = {};                  ///< of compression_presets(); "": none
  std::int64_t min_bytes = 1 << 16;         ///< calls of a smaller payload go plainly
  std::optional<bool> error_feedback = {};  ///< as given; absent: as feeds_back() says
  bool operator==(const Compression&) const = default;

  const std::optional<std::string>& as_given(Kind kind) const;
  /// As make_codec names it, with all parameters; "none" for none.
  std::string codec_name(Kind kind) const;
  /// Null for none.
  std::shared_ptr<const codec::Codec> codec(Kind kind) const;
  bool is_none() const;
  /// What gradients lose is added to the next ones: unless it is said otherwise, but not with the
  /// preset "naive".
  bool feeds_back() const;
  /// "gradients int8:128, pipeline zfp:16:4", or "" for none.
  std::string text() const;
};

/// As the run file spells them, in the order of Compression::Kind.
std::span<const std::string_view> compression_kinds();
std::string_view name_of(Compression::Kind kind);
inline constexpr std::array kCompressionKinds = {
    Compression::Kind::gradients, Compression::Kind::weights, Compression::Kind::tensor,
    Compression::Kind::pipeline, Compression::Kind::experts};

/// The schemes of the paper on hybrid compression: "mzhybrid", "zhybrid", "naive".
std::vector<std::string> compression_presets();

/// A key of the section and what is wrong with its value.
std::vector<std::pair<std::string, std::string>> problems_of(const Compression& compression);

}  // namespace heddle
