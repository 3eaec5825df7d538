#include <gtest/gtest.h>

#include "cli/refusals.h"

namespace heddle {
namespace {

std::vector<std::string> tokenize(const std::string& input, const std::string& out) {
  return {"tokenize", input, "--tokenizer", reference_tokenizer(), "--out", out};
}

TEST(Tokenize, RefusesWhatIsNeitherTextNorJsonLines) {
  const TestFiles files;
  const std::string out = files.at("out.tokens");
  expect_refusal(tokenize(files.write("a.json", "[{\"text\": \"a\"}]"), out), 5,
                 {"a.json is a JSON list", "--as text"});
  expect_refusal(tokenize(files.write("a.csv", "id,text\n1,a\n"), out), 5,
                 {"a.csv is a table", "--as text"});
  expect_refusal(tokenize(files.write("a.bin", std::string("\5\0\7\0", 4)), out), 5,
                 {"a.bin is binary data", "Megatron"});
  expect_refusal(tokenize(files.write("a.txt", std::string("\xFF\xFEh\0", 4)), out), 5,
                 {"a.txt is text in UTF-16", "iconv"});
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(Tokenize, ReadsJsonLinesUnderAnyNameAndATableWhenAsked) {
  const TestFiles files;
  const std::string out = files.at("out.tokens");
  auto command = tokenize(files.write("a.json", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n"), out);
  command.push_back("--json");
  const Outcome lines = run_heddle(command);
  ASSERT_EQ(lines.status, 0) << lines.err;
  EXPECT_EQ(parse_json(lines.out, "out")["documents"], 2);
  command = tokenize(files.write("a.csv", "id,text\n1,a\n"), out);
  command.insert(command.end(), {"--as", "text"});
  const Outcome table = run_heddle(command);
  EXPECT_EQ(table.status, 0) << table.err;
}

TEST(Tokenize, AndTokenizerTrainNeverReplaceTheirInput) {
  const TestFiles files;
  const std::string content = "some words, and more words\n";
  const std::string text = files.write("text.txt", content), link = files.at("link");
  std::filesystem::create_symlink(text, link);
  for (const std::string& out : {text, files.at("./text.txt"), link}) {
    expect_refusal(tokenize(text, out), 2, {"would replace", "give another --out"});
    expect_refusal({"tokenizer", "train", text, "--vocab", "260", "--out", out}, 2,
                   {"would replace", "give another --out"});
  }
  expect_refusal(tokenize(files.path().string(), text), 2, {"would replace"});
  EXPECT_EQ(read_text_file(text), content);
}

TEST(Tokenize, NamesWhatItLeavesOutOfAFolder) {
  const TestFiles files;
  files.write("in/a.txt", "words");
  files.write("in/b.parquet", "PAR1");
  const Outcome outcome = run_heddle(tokenize(files.at("in"), files.at("out.tokens")));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("b.parquet"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace heddle
