#include "codec/registry.h"

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <functional>

#include "base/error.h"
#include "base/strings.h"
#include "codec/bf16.h"
#include "codec/block_int.h"
#include "codec/e3m0.h"
#include "codec/fp8.h"
#include "codec/lossless.h"
#include "codec/sign.h"
#include "codec/top_k.h"
#include "codec/zfp.h"

namespace heddle::codec {
namespace {

/// The parameters behind a name, taken in their order.
class CodecParameters {
 public:
  explicit CodecParameters(std::string_view text) : text_(text), words_(split(text, ':')) {}

  const std::string& name() const { return words_[0]; }

  struct Range {
    std::string_view what;
    std::int64_t least, most, usual, multiple_of = 1;
  };
  std::int64_t number(const Range& range) {
    if (next_ >= words_.size()) return range.usual;
    const std::string& word = words_[next_++];
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    const bool is_number = error == std::errc() && end == word.data() + word.size();
    if (!is_number || value < range.least || value > range.most || value % range.multiple_of != 0) {
      const std::string of =
          range.multiple_of > 1 ? fmt::format("a multiple of {}", range.multiple_of) : "a number";
      refuse(fmt::format("{} \"{}\" is not {} from {} to {}", range.what, word, of, range.least,
                         range.most));
    }
    return value;
  }
  bool flag(std::string_view word) {
    if (next_ >= words_.size() || words_[next_] != word) return false;
    ++next_;
    return true;
  }
  void end() const {
    if (next_ < words_.size()) {
      refuse(fmt::format("nothing is known of \"{}\" here", words_[next_]));
    }
  }
  [[noreturn]] void refuse(const std::string& problem) const {
    std::string hint;
    for (const CodecHelp& help : known_codecs()) {
      if (help.form.substr(0, help.form.find_first_of(":[")) == name()) {
        hint = fmt::format("write {}: {}", help.form, help.does);
      }
    }
    throw Error(ErrorCode::usage, fmt::format("codec \"{}\": {}", text_, problem), hint);
  }

 private:
  std::string text_;
  std::vector<std::string> words_;
  std::size_t next_ = 1;
};

using Made = std::unique_ptr<const Codec>;

struct KnownCodec {
  std::string_view name;
  CodecHelp help;
  std::function<Made(CodecParameters&)> make;
};

CodecParameters::Range block_size(std::int64_t usual) {
  return {.what = "block size", .least = 8, .most = 4096, .usual = usual, .multiple_of = 8};
}

Made make_top_k(CodecParameters& parameters) {
  const std::int64_t kept = parameters.number(
      {.what = "number of kept values", .least = 1, .most = TopK::kMostKept, .usual = 64});
  const std::int64_t chunk = parameters.number(
      {.what = "chunk size", .least = 8, .most = TopK::kLargestChunk, .usual = 4096});
  if (!std::has_single_bit(static_cast<std::uint64_t>(chunk))) {
    parameters.refuse(fmt::format("chunk size {} is not a power of two", chunk));
  }
  if (kept > chunk) parameters.refuse(fmt::format("it keeps {} of {} values", kept, chunk));
  return std::make_unique<TopK>(kept, chunk);
}

Made make_zfp(CodecParameters& parameters) {
  const auto rate = static_cast<int>(
      parameters.number({.what = "rate in bits", .least = 1, .most = 32, .usual = 8}));
  const std::int64_t columns =
      parameters.number({.what = "number of columns", .least = 1, .most = 65536, .usual = 4});
  return std::make_unique<Zfp>(rate, columns, parameters.flag("truncate"));
}

const std::vector<KnownCodec>& codecs() {
  static const std::vector<KnownCodec> known = {
      {"bf16",
       {"bf16", "16 bits, rounded", "bf16"},
       [](CodecParameters&) -> Made { return std::make_unique<Bf16>(); }},
      {"int8",
       {"int8[:BLOCK]", "8-bit integers, a scale for each block of 128", "int8:128"},
       [](CodecParameters& p) -> Made {
         return std::make_unique<BlockInt>(8, p.number(block_size(128)));
       }},
      {"int4",
       {"int4[:BLOCK]", "4-bit integers, a scale for each block of 128", "int4:128"},
       [](CodecParameters& p) -> Made {
         return std::make_unique<BlockInt>(4, p.number(block_size(128)));
       }},
      {"fp8",
       {"fp8[:BLOCK]", "8-bit floats e4m3, a scale for each block of 128", "fp8:128"},
       [](CodecParameters& p) -> Made { return std::make_unique<Fp8>(p.number(block_size(128))); }},
      {"e3m0",
       {"e3m0[:BLOCK]", "4-bit powers of two, a scale for each block of 256", "e3m0:256"},
       [](CodecParameters& p) -> Made {
         return std::make_unique<E3m0>(p.number(block_size(256)));
       }},
      {"sign",
       {"sign", "1 bit, one scale for a tensor; needs error feedback", "sign"},
       [](CodecParameters&) -> Made { return std::make_unique<Sign>(); }},
      {"topk",
       {"topk[:KEPT[:CHUNK]]", "the largest 64 of each 4096; needs error feedback", "topk:64:4096"},
       make_top_k},
      {"zfp",
       {"zfp[:RATE[:COLUMNS[:truncate]]]", "ZFP of 8 bits; in rows of 4 columns, or in lines (1)",
        "zfp:8:4"},
       make_zfp},
      {"lossless",
       {"lossless", "every bit kept; as small as the values allow", "lossless"},
       [](CodecParameters&) -> Made { return std::make_unique<Lossless>(); }},
  };
  return known;
}

}  // namespace

std::unique_ptr<const Codec> make_codec(std::string_view text) {
  CodecParameters parameters(text);
  std::vector<std::string> names;
  for (const KnownCodec& known : codecs()) {
    names.emplace_back(known.name);
    if (known.name != parameters.name()) continue;
    Made codec = known.make(parameters);
    parameters.end();
    return codec;
  }
  const std::string near = nearest_word(parameters.name(), names);
  throw Error(ErrorCode::usage, fmt::format("there is no codec \"{}\"", text),
              near.empty()
                  ? fmt::format("use one of {}", fmt::join(names, ", "))
                  : fmt::format("did you mean {}? There are {}", near, fmt::join(names, ", ")));
}

const std::vector<CodecHelp>& known_codecs() {
  static const std::vector<CodecHelp> list = [] {
    std::vector<CodecHelp> all;
    for (const KnownCodec& known : codecs()) all.push_back(known.help);
    return all;
  }();
  return list;
}

}  // namespace heddle::codec
