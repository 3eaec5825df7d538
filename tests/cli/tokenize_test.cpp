#include <gtest/gtest.h>

#include "cli/refusals.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

std::vector<std::string> tokenize(const std::string& input, const std::string& out) {
  return {"tokenize", input, "--tokenizer", reference_tokenizer(), "--out", out};
}

TEST(Tokenize, RefusesWhatIsNoData) {
  const TestFiles files;
  const std::string out = files.at("out.tokens");
  expect_refusal(tokenize(files.write("a.json", "no JSON"), out), 5,
                 {"a.json is named .json", "--as text"});
  expect_refusal(tokenize(files.write("a.csv", "id,body\n1,a\n"), out), 5,
                 {"no column \"text\"; it has id, body", "--field"});
  expect_refusal(tokenize(files.write("a.data", std::string("\5\0\7\0", 4)), out), 5,
                 {"a.data is binary data", "Megatron"});
  expect_refusal(tokenize(files.write("a.txt", std::string("\xFF\xFEh\0", 4)), out), 5,
                 {"a.txt is text in UTF-16", "iconv"});
  expect_refusal(tokenize(files.write("a.parquet", "PAR1 and so on"), out), 5,
                 {"a.parquet: damaged Parquet file: its end is missing", "again"});
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(Tokenize, RefusesADelimiterOfNothing) {
  const TestFiles files;
  auto command = tokenize(files.write("a.txt", "a"), files.at("out.tokens"));
  command.insert(command.end(), {"--delimiter", ""});
  expect_refusal(command, 2, {"--delimiter is empty"});
}

TEST(Tokenize, ReadsRecordsUnderAnyNameAndATableAsTextWhenAsked) {
  const TestFiles files;
  const std::string out = files.at("out.tokens");
  const auto documents = [&](std::vector<std::string> command) {
    command.push_back("--json");
    const Outcome outcome = run_heddle(command);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return parse_json(outcome.out, "out")["documents"].get<int>();
  };
  EXPECT_EQ(
      documents(tokenize(files.write("a.json", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n"), out)), 2);
  EXPECT_EQ(
      documents(tokenize(files.write("b.json", "[{\"text\": \"a\"},\n{\"text\": \"b\"}]"), out)),
      2);
  const std::string table = files.write("a.csv", "id,text\n1,a\n2,b\n3,c\n");
  EXPECT_EQ(documents(tokenize(table, out)), 3);
  auto as_text = tokenize(table, out);
  as_text.insert(as_text.end(), {"--as", "text"});
  EXPECT_EQ(documents(as_text), 1);
  EXPECT_EQ(documents(tokenize(source_dir() + "/tests/reference/data/z*.parquet", out)), 55);
}

TEST(Tokenize, ReadsStandardInput) {
  const TestFiles files;
  const std::string text = files.write("a.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"c\"}\n");
  ASSERT_EQ(run_heddle(tokenize(text, files.at("file.tokens"))).status, 0);
  const std::string command =
      fmt::format("cat {} | {} tokenize - --tokenizer {} --out {}", text, HEDDLE_PROGRAM,
                  reference_tokenizer(), files.at("pipe.tokens"));
  const Outcome outcome = run_heddle({"-c", command}, {.program = "/bin/sh"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(read_text_file(files.at("pipe.tokens")), read_text_file(files.at("file.tokens")));
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
  files.write("in/b.pdf", "%PDF-");
  const Outcome outcome = run_heddle(tokenize(files.at("in"), files.at("out.tokens")));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("b.pdf"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace heddle
