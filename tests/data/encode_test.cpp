#include "data/encode.h"

#include <gtest/gtest.h>

#include "data/test_files.h"

namespace heddle {
namespace {

const std::filesystem::path kTokenizer =
    HEDDLE_SOURCE_DIR "/tests/reference/tokenizer/tokenizer.json";

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
