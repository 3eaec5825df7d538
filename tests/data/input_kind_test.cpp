#include "data/formats/input_kind.h"

#include <gtest/gtest.h>

#include "data/test_files.h"

namespace heddle {
namespace {

using std::string_literals::operator""s;

class InputKindTest : public testing::Test {
 protected:
  InputKind kind(const std::string& name, const std::string& content,
                 std::optional<InputKind> asked = {}) {
    write_bytes(folder_ / name, content);
    return recognise(folder_ / name, content, asked).kind;
  }
  std::string refusal(const std::string& name, const std::string& content,
                      std::optional<InputKind> asked = {}) {
    write_bytes(folder_ / name, content);
    const Error error = error_of([&] { recognise(folder_ / name, content, asked); });
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
  for (const char* name : {"x.txt", "x.csv", "x.tsv", "x.log"}) {
    EXPECT_EQ(kind(name, "{\"a\": 1}\n{\"a\": 2}\n"), InputKind::jsonl) << name;
  }
  EXPECT_EQ(kind("x.txt", "{\"a\": 1}\n{\"a\": \"where the look ends"), InputKind::jsonl);
  EXPECT_EQ(kind("x.txt", "{\"a\": 1}\n"), InputKind::text) << "one line may be prose";
  EXPECT_EQ(kind("x.txt", "{\"a\": 1}\n{\"a\": 2}\n", InputKind::text), InputKind::text);
  EXPECT_EQ(kind("x.txt", "[1, 2]"), InputKind::text);
}

TEST_F(InputKindTest, KnowsJsonAndTables) {
  EXPECT_EQ(kind("x.json", "[{\"text\": \"a\"}]"), InputKind::json);
  EXPECT_EQ(kind("x", "[\n {\"text\": \"a\"},\n"), InputKind::json);
  EXPECT_EQ(kind("x.jsonl", "[\n {\"text\": \"a\"},\n"), InputKind::json) << "mislabelled";
  EXPECT_EQ(kind("x.json", "{\n \"text\": \"a\"\n}\n"), InputKind::json);
  EXPECT_EQ(kind("x", "{\"a\": 1}{\"a\": 2}"), InputKind::json);
  EXPECT_EQ(kind("x.csv", "id,text\n1,a\n"), InputKind::csv);
  EXPECT_EQ(kind("x.tsv", "id\ttext\n"), InputKind::tsv);
  EXPECT_EQ(recognise("x.csv", "id,text\n", InputKind::text).kind, InputKind::text);
  EXPECT_TRUE(contains(refusal("x.json", "words"), "named .json"));
  for (const char* name : {"x.parquet", "x.pq", "x.arrow", "x.feather"}) {
    EXPECT_TRUE(contains(refusal(name, "words"), "does not begin as such a file does")) << name;
    EXPECT_TRUE(contains(refusal(name, ""), "does not begin as such a file does")) << name;
  }
  EXPECT_TRUE(contains(refusal("x.txt", "words", InputKind::parquet), "taken for parquet"));
}

TEST_F(InputKindTest, DamagedJsonIsJsonWhoseReaderNamesThePlace) {
  EXPECT_EQ(kind("x.json", "[{\"text\": \"a\"},]"), InputKind::json);
  EXPECT_EQ(kind("x.json", "\n {\"text\": \"a\"\n \"b\"}"), InputKind::json);
  EXPECT_TRUE(contains(refusal("x.json", "words"), "does not begin as JSON does"));
}

TEST_F(InputKindTest, KnowsBinaryKindsUnderAnyName) {
  for (const char* name : {"x.txt", "x.jsonl", "x", "x.csv", "x.bin"}) {
    EXPECT_EQ(kind(name, "PAR1...."), InputKind::parquet) << name;
    EXPECT_EQ(kind(name, "ARROW1\0\0"s), InputKind::arrow) << name;
    EXPECT_EQ(kind(name, "\xFF\xFF\xFF\xFF\x10\0\0\0"s), InputKind::arrow) << name;
    EXPECT_EQ(kind(name, "MMIDIDX\0\0\1"s), InputKind::megatron) << name;
  }
  EXPECT_EQ(kind("x.bin", "\5\0\7\0\1\1"s), InputKind::nanogpt);
  EXPECT_EQ(recognise("x", "\5\0\7\0\1\1"s, InputKind::nanogpt).kind, InputKind::nanogpt);
  write_bytes(folder_ / "y.idx", "MMIDIDX\0\0\1"s);
  EXPECT_EQ(kind("y.bin", "\5\0\7\0\1\1"s), InputKind::megatron);
  EXPECT_EQ(kind("x.bin", "{\"text\": \"a\"}\n"), InputKind::jsonl) << "text all the same";
  EXPECT_TRUE(contains(refusal("x", "PAR1....", InputKind::text), "of kind parquet, not text"));
}

TEST_F(InputKindTest, RefusesWhatIsNoTextUnderAnyName) {
  const std::string zeros(600, '\0');
  std::string tar = std::string("name") + zeros;
  tar.replace(257, 5, "ustar");
  const std::vector<std::pair<std::string, std::string>> files = {
      {"HDLTOKEN....", "token file"},
      {"BZh91AY&SY\1"s, "bzip2"},
      {"\xFD"
       "7zXZ\0.."s,
       "xz"},
      {"PK\3\4....", "zip"},
      {"\x80\4\x95....", "pickle"},
      {"(dp0\nS'a'\n", "pickle"},
      {"%PDF-1.7\n", "PDF"},
      {"\x89PNG\r\n", "PNG"},
      {"\xFF\xD8\xFF\xE0", "JPEG"},
      {"\x7F"
       "ELF\2\1"s,
       "ELF"},
      {"MZ\x90\0"s, "program"},
      {"SQLite format 3\0"s, "SQLite"},
      {"Obj\1\4", "Avro"},
      {"ORC\2\3"s, "ORC"},
      {"GGUF\3\0\0\0"s, "GGUF"},
      {tar, "tar"},
      {"\0\0\0\x20"
       "ftypisom"s,
       "MP4"},
      {"\x93NUMPY....", "NumPy"},
      {"\x10\0\0\0\0\0\0\0{\"a\":1}........"s, "safetensors"},
      {"\xFF\xFEh\0i\0"s, "UTF-16"},
      {"\xFE\xFF\0h\0i"s, "UTF-16"},
  };
  for (const auto& [content, kind] : files) {
    for (const char* name : {"x.bin", "x.txt", "x.jsonl", "x.json", "x.csv", "x.gz"}) {
      EXPECT_TRUE(contains(refusal(name, content), kind)) << name << " " << kind;
    }
    EXPECT_TRUE(contains(refusal("x", content, InputKind::text), kind)) << "even when asked";
  }
  for (const char* name : {"x.txt", "x.jsonl", "x.csv", "x"}) {
    EXPECT_TRUE(contains(refusal(name, "\5\0\7\0\1\1"s), "binary data (byte 1 is 0)")) << name;
  }
}

TEST_F(InputKindTest, TakesWordsForWords) {
  for (const char* content : {"ORCs are green", "MZ is a key", "RIFF raff", "GIF8 is no word",
                              "ID3 tags", "BZh is how he said it", "GGUF, he said"}) {
    EXPECT_EQ(kind("x.txt", content), InputKind::text) << content;
  }
}

}  // namespace
}  // namespace heddle
