// Texts that are cut where the tokenizer says have the ids of the whole.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json.h"
#include "support/source_dir.h"
#include "tokenizer/generated_texts.h"
#include "tokenizer/tokenizer.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

const fs::path kTokenizers = source_dir() + "/tests/reference/tokenizers";

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// As it is in the file, but for added tokens that are words.
Tokenizer without_word_tokens(const std::string& name) {
  Json json = read_json_file(kTokenizers / name / "tokenizer.json");
  Json kept = Json::array();
  for (const Json& token : json["added_tokens"]) {
    const auto content = token["content"].get<std::string>();
    if (!is_letter(content.front()) && !is_letter(content.back())) kept.push_back(token);
  }
  json["added_tokens"] = kept;
  return Tokenizer::from_json(json.dump(), name);
}

std::vector<std::int32_t> encoded_in_parts(const Tokenizer& tokenizer, std::string_view text,
                                           std::size_t longest, std::size_t& parts) {
  std::vector<std::int32_t> ids;
  EncodeCache cache;
  bool continues = false;
  while (!text.empty()) {
    const std::size_t cut =
        text.size() <= longest ? 0 : tokenizer.last_cut(text.substr(0, longest));
    const std::string_view part = cut == 0 ? text : text.substr(0, cut);
    tokenizer.encode(part, {.continues = continues}, cache, ids);
    text.remove_prefix(part.size());
    continues = true;
    ++parts;
  }
  return ids;
}

class Cuts : public testing::TestWithParam<std::string> {};

TEST_P(Cuts, ChangeNoIds) {
  const Tokenizer tokenizer = without_word_tokens(GetParam());
  const TextRecipe recipe = read_text_recipe(kTokenizers / "texts.json");
  std::size_t parts = 0, texts = 0;
  for (std::uint64_t i = 0; i < 600; i += 6) {
    std::string text;
    for (std::uint64_t k = 0; k < 6; ++k) {
      text += generated_text(recipe, i + k);
      text += k % 2 == 0 ? "and so on" : " Loom<|endoftext|> weft a  b\nthe end";
    }
    std::vector<std::int32_t> whole;
    try {
      whole = tokenizer.encode(text);
    } catch (const Error&) {
      continue;  // a character that the vocabulary cannot spell
    }
    ++texts;
    EXPECT_EQ(encoded_in_parts(tokenizer, text, 40 + i % 97, parts), whole) << text;
  }
  ASSERT_GT(texts, 10u);
  // Patterns that only an engine understands may look anywhere: such documents stay whole.
  static const std::set<std::string> kWhole = {"deepseek", "falcon", "gemma",      "gpt4o",
                                               "bloom",    "t5",     "unknown-bpe"};
  if (kWhole.contains(GetParam())) {
    EXPECT_EQ(parts, texts);
  } else {
    EXPECT_GT(parts, 2 * texts);
  }
}

std::vector<std::string> tokenizer_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kTokenizers)) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Kinds, Cuts, testing::ValuesIn(tokenizer_names()), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST(LastCut, IsBeforeASingleSpaceBetweenLetters) {
  const Tokenizer tokenizer = without_word_tokens("gpt2");
  EXPECT_EQ(tokenizer.last_cut("one two three"), 7u);
  EXPECT_EQ(tokenizer.last_cut("one two "), 3u);
  EXPECT_EQ(tokenizer.last_cut("one  two. 3 four"), 0u);
  EXPECT_EQ(tokenizer.last_cut(" a"), 0u);
  EXPECT_EQ(tokenizer.last_cut(""), 0u);
  // A word that is a token of its own may take the space before it.
  EXPECT_EQ(Tokenizer::load(kTokenizers / "gpt2").last_cut("one two three"), 0u);
}

}  // namespace
}  // namespace heddle
