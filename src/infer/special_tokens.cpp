#include "infer/special_tokens.h"

#include <algorithm>
#include <limits>

#include "base/json.h"
#include "base/strings.h"
#include "data/encode.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

std::optional<std::int32_t> first_special(const Tokenizer& tokenizer,
                                          std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    const auto id = tokenizer.id_of(name);
    if (id && tokenizer.is_special(*id)) return id;
  }
  return std::nullopt;
}

std::optional<std::int32_t> begin_token(const Tokenizer& tokenizer,
                                        std::optional<std::int32_t> end) {
  if (const auto named = tokenizer.token_of("bos_token")) return named;
  const auto around = tokenizer.encode("", {.add_special = true});
  if (!around.empty() && tokenizer.is_special(around.front()) && around.front() != end) {
    return around.front();
  }
  if (const auto named = first_special(
          tokenizer, {"<|begin_of_text|>", "<s>", "<bos>", "<｜begin▁of▁sentence｜>"})) {
    return named;
  }
  const bool is_both = end && tokenizer.token_bytes(*end) == "<|endoftext|>";
  return is_both ? end : std::nullopt;
}

/// What the file's eos_token_id names; empty where it does not say.
std::vector<std::int32_t> eos_ids(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error)) return {};
  const Json json = read_json_file(file);
  if (!json.is_object()) fail(ErrorCode::data, "{}: not a JSON object", file.string());
  const auto at = json.find("eos_token_id");
  if (at == json.end() || at->is_null()) return {};
  std::vector<std::int32_t> ids;
  for (const Json& id : at->is_array() ? *at : Json::array({*at})) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<std::int32_t>::max()) {
      fail(ErrorCode::data, "{}: eos_token_id = {} is neither a token's number nor a list of them",
           file.string(), shortened(at->dump()));
    }
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

}  // namespace

SpecialTokens special_tokens(const Tokenizer& tokenizer, std::string_view end_token) {
  SpecialTokens found;
  found.eos = find_end_token(tokenizer, end_token);
  found.bos = begin_token(tokenizer, found.eos);
  found.pad = tokenizer.token_of("pad_token");
  if (!found.pad)
    found.pad = first_special(tokenizer, {"<|pad|>", "<pad>", "[PAD]", "<|padding|>",
                                          "<|finetune_right_pad_id|>", "<｜▁pad▁｜>"});
  return found;
}

std::vector<std::int32_t> end_tokens(const fs::path& folder, const Tokenizer& tokenizer) {
  std::vector<std::int32_t> all;
  for (const char* name : {"generation_config.json", "config.json"}) {
    for (const std::int32_t id : eos_ids(folder / name)) {
      if (std::ranges::count(all, id) == 0) all.push_back(id);
    }
  }
  if (!all.empty()) return all;
  const auto own = find_end_token(tokenizer, "auto");
  return own ? std::vector{*own} : std::vector<std::int32_t>{};
}

}  // namespace heddle
