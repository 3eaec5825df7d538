#include "data/encode.h"

#include <gtest/gtest.h>

#include "base/file_system.h"
#include "base/json.h"
#include "data/test_files.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

const std::filesystem::path kTokenizer = source_dir() + "/tests/reference/tokenizer/tokenizer.json";

TEST(Encode, TokenFilesHoldTheIdsOfTheTokenizer) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer = Tokenizer::load(kTokenizer);
  const std::string text = "Two foxes sleep <|endoftext|> near the harbor.";
  write_bytes(folder / "a.txt", text);
  for (const bool parse_special : {true, false}) {
    const TokenizeOptions options{.inputs = {folder / "a.txt"},
                                  .out = folder / "a.tok",
                                  .origin = origin_of(tokenizer),
                                  .tokenizer = kTokenizer,
                                  .parse_special = parse_special};
    tokenize(real_file_system(), options, encoders(tokenizer, parse_special));
    const auto expected = tokenizer.encode(text, {.parse_special = parse_special});
    const TokenFile file = TokenFile::open(folder / "a.tok");
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(file.token_count()));
    file.read(0, tokens);
    EXPECT_EQ(tokens, expected);
    EXPECT_EQ(file.header().tokenizer_fingerprint, origin_of(tokenizer).tokenizer_fingerprint);
  }
  EXPECT_EQ(recorded_tokenizer(folder / "a.tok"), kTokenizer);
  EXPECT_FALSE(recorded_tokenizer(folder / "b.tok").has_value());
}

/// More than a block and several parts of text in which every word is another.
std::string long_text(std::size_t bytes) {
  std::string text;
  for (std::uint64_t i = 0; text.size() < bytes; ++i) {
    text += fmt::format("{}{} of the {}th loom,\n", i % 7 == 0 ? "" : " ", i, i * i % 1000);
    text += i % 3 == 0 ? "and its weaver sings" : "a fox sleeps ";
  }
  return text;
}

/// The reference's, without added tokens that are words, beside which no text is cut.
Tokenizer without_word_tokens() {
  Json json = read_json_file(kTokenizer);
  Json kept = Json::array();
  for (const Json& token : json["added_tokens"]) {
    if (token["content"] != "weft" && token["content"] != "<|end|>ing") kept.push_back(token);
  }
  json["added_tokens"] = kept;
  return Tokenizer::from_json(json.dump(), "tokenizer.json");
}

TEST(Encode, LongDocumentsAreReadInPartsAndHaveTheIdsOfTheWhole) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer = without_word_tokens();
  const std::string text = long_text(std::size_t{21} << 20);
  ASSERT_GT(tokenizer.last_cut(text), text.size() - 100);
  write_bytes(folder / "a.txt", text + "\n--- NEXT ONE ---\nshort");
  std::vector<std::int32_t> expected = tokenizer.encode(text + "\n");
  const auto long_size = static_cast<std::int64_t>(expected.size()) + 1;
  expected.push_back(7);
  for (const std::int32_t id : tokenizer.encode("\nshort")) expected.push_back(id);
  expected.push_back(7);
  for (const int threads : {1, 3}) {
    TokenizeOptions options{.inputs = {folder / "a.txt"},
                            .out = folder / fmt::format("{}.tok", threads),
                            .origin = origin_of(tokenizer),
                            .tokenizer = kTokenizer,
                            .end_token = 7,
                            .threads = threads};
    options.format.split = TextSplit::delimiter;
    options.format.delimiter = "--- NEXT ONE ---";
    std::size_t longest = 0;
    options.format.cut = [&, cuts = cuts_of(tokenizer)](std::string_view seen) {
      longest = std::max(longest, seen.size());
      return cuts(seen);
    };
    const TokenizeResult result = tokenize(real_file_system(), options, encoders(tokenizer, true));
    EXPECT_EQ(result.documents, 2);
    EXPECT_GT(result.parts, 3);
    EXPECT_LT(longest, std::size_t{9} << 20) << "more was held than a part";
    const TokenFile file = TokenFile::open(options.out, TokenFile::Check::content);
    ASSERT_EQ(file.document_count(), 2);
    EXPECT_EQ(file.document_start(1), long_size);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(file.token_count()));
    file.read(0, tokens);
    EXPECT_TRUE(tokens == expected) << "other ids than those of the whole";
  }
}

TEST(Encode, FindsTheEndTokenByNameOrRefuses) {
  const Tokenizer tokenizer = Tokenizer::load(kTokenizer);
  EXPECT_EQ(find_end_token(tokenizer, "auto"), tokenizer.id_of("<|endoftext|>"));
  EXPECT_TRUE(find_end_token(tokenizer, "auto").has_value());
  EXPECT_EQ(find_end_token(tokenizer, "none"), std::nullopt);
  EXPECT_EQ(find_end_token(tokenizer, "a"), tokenizer.id_of("a"));
  const Error error = error_of([&] { find_end_token(tokenizer, "<no such token>"); });
  EXPECT_EQ(error.code(), ErrorCode::usage);
  EXPECT_TRUE(contains(error.what(), "<no such token>"));
}

}  // namespace
}  // namespace heddle
