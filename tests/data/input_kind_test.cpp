#include "data/input_kind.h"

#include <gtest/gtest.h>

#include "data/test_files.h"

namespace heddle {
namespace {

using std::string_literals::operator""s;

class InputKindTest : public testing::Test {
 protected:
  InputKind kind(const std::string& name, const std::string& content) {
    write_bytes(folder_ / name, content);
    return recognise_input(folder_ / name);
  }
  std::string refusal(const std::string& name, const std::string& content,
                      std::optional<InputKind> asked = {}) {
    write_bytes(folder_ / name, content);
    const Error error = error_of([&] { recognise_input(folder_ / name, asked); });
    EXPECT_EQ(error.code(), ErrorCode::data) << name;
    EXPECT_TRUE(contains(error.message(), name)) << error.what();
    EXPECT_FALSE(error.hint().empty()) << name;
    return error.message();
  }
  TemporaryFolder folder_;
};

TEST_F(InputKindTest, ReadsJsonLinesUnderAnyName) {
  const std::string lines = "{\"text\": \"a\"}\n{\"text\": \"b\"}\n";
  for (const char* name : {"x.json", "x.jsonl", "x.ndjson", "x", "x.data"}) {
    EXPECT_EQ(kind(name, lines), InputKind::jsonl) << name;
    EXPECT_EQ(kind(name, "\xEF\xBB\xBF\n" + lines), InputKind::jsonl) << name;
  }
}

TEST_F(InputKindTest, LeavesProseProse) {
  for (const char* content :
       {"", "Once", "{ a brace", "[Intro] and so on", "[1] Smith et al.\nmore", "{\\bf x}",
        "{\"quoted\" opening", "\xEF\xBB\xBFmarked"}) {
    EXPECT_EQ(kind("x.txt", content), InputKind::text) << content;
    EXPECT_EQ(kind("README", content), InputKind::text) << content;
  }
  EXPECT_EQ(kind("x.txt", "{\"a\": 1}\n{\"a\": 2}\n"), InputKind::text) << "its name says so";
  EXPECT_EQ(kind("x.txt", "[1, 2]"), InputKind::text);
}

TEST_F(InputKindTest, RefusesOtherJsonAndTables) {
  EXPECT_TRUE(contains(refusal("x.json", "[{\"text\": \"a\"}]"), "a JSON list"));
  EXPECT_TRUE(contains(refusal("x", "[\n {\"text\": \"a\"},\n"), "a JSON list"));
  EXPECT_TRUE(contains(refusal("x.json", "{\n \"text\": \"a\"\n}\n"), "one JSON object"));
  EXPECT_TRUE(contains(refusal("x.json", "words"), "called .json"));
  EXPECT_TRUE(contains(refusal("x.csv", "id,text\n1,a\n"), "a table"));
  EXPECT_TRUE(contains(refusal("x.tsv", "id\ttext\n"), "a table"));
  write_bytes(folder_ / "x.csv", "id,text\n");
  EXPECT_EQ(recognise_input(folder_ / "x.csv", InputKind::text), InputKind::text);
}

TEST_F(InputKindTest, RefusesWhatIsNoTextUnderAnyName) {
  const std::vector<std::pair<std::string, std::string>> files = {
      {"HDLTOKEN....", "token file"},
      {"\x1F\x8B\x08....", "gzip"},
      {"\x28\xB5\x2F\xFD....", "zstd"},
      {"PAR1....", "Parquet"},
      {"ARROW1..", "Arrow"},
      {"\x93NUMPY....", "NumPy"},
      {"\x10\0\0\0\0\0\0\0{\"a\":1}........"s, "safetensors"},
      {"MMIDIDX\0\0\1"s, "Megatron"},
      {"\xFF\xFEh\0i\0"s, "UTF-16"},
      {"\xFE\xFF\0h\0i"s, "UTF-16"},
      {"\5\0\7\0\1\1"s, "binary data (byte 1 is 0)"},  // what Megatron's .bin looks like
  };
  for (const auto& [content, kind] : files) {
    for (const char* name : {"x.bin", "x.txt", "x.jsonl", "x.json"}) {
      EXPECT_TRUE(contains(refusal(name, content), kind)) << name << " " << kind;
    }
    EXPECT_TRUE(contains(refusal("x", content, InputKind::text), kind)) << "even when asked";
  }
}

}  // namespace
}  // namespace heddle
