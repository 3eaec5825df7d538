#include "data/documents.h"

#include <gtest/gtest.h>

#include "data/jsonl_field.h"
#include "data/test_files.h"

namespace heddle {
namespace {

struct Read {
  std::vector<std::string> texts, faults;
};

Read read_all(const std::string& content, InputKind kind, const DocumentFormat& format = {}) {
  Read read;
  read_documents(
      {.path = "in", .kind = kind}, content, 0, content.size(), format,
      [&](std::string_view text) { read.texts.emplace_back(text); },
      [&](const Error& error) { read.faults.push_back(error.message()); });
  return read;
}

using Strings = std::vector<std::string>;

TEST(Documents, JsonlGivesOneTextPerLine) {
  const Read read = read_all("{\"text\": \"one\\ntwo\"}\r\n\n{\"id\": 3, \"text\": \"\\u00e9\"}",
                             InputKind::jsonl);
  EXPECT_EQ(read.texts, (Strings{"one\ntwo", "\u00e9"}));
  EXPECT_TRUE(read.faults.empty());
}

TEST(Documents, JsonlFaultsNameTheirLine) {
  const Read read = read_all(
      "{\"text\": \"ok\"}\n{\"text\": \n[1]\n{\"body\": \"x\"}\n{\"text\": 5}\n{\"text\": "
      "\"a\xff\"}\n"
      "{\"text\": \"\\ud800\"}\n{\"text\": \"last\"}\n",
      InputKind::jsonl);
  EXPECT_EQ(read.texts, (Strings{"ok", "last"}));
  ASSERT_EQ(read.faults.size(), 6U);
  EXPECT_TRUE(contains(read.faults[0], "in:2: not valid JSON")) << read.faults[0];
  EXPECT_EQ(read.faults[1], "in:3: not a JSON object");
  EXPECT_EQ(read.faults[2], "in:4: no field \"text\"");
  EXPECT_EQ(read.faults[3], "in:5: field \"text\" is not a string");
  EXPECT_EQ(read.faults[4], "in:6: invalid UTF-8 (byte 0xff)");
  EXPECT_TRUE(contains(read.faults[5], "in:7: not valid JSON")) << read.faults[5];
}

TEST(Documents, OnlyTheOutermostFieldCounts) {
  EXPECT_EQ(
      jsonl_field(R"({"meta": {"text": "no"}, "list": [{"text": "no"}], "text": "yes"})", "text")
          .value(),
      "yes");
  EXPECT_FALSE(jsonl_field(R"({"meta": {"text": "no"}})", "text").has_value());
  EXPECT_FALSE(jsonl_field(R"([{"text": "no"}])", "text").has_value());
  EXPECT_FALSE(jsonl_field(R"({"text": {"text": "no"}})", "text").has_value());
}

TEST(Documents, DeepNestingIsHarmless) {
  const std::string deep(1000000, '[');
  EXPECT_FALSE(jsonl_field(deep, "text").has_value());
}

TEST(Documents, TextIsCutAsAsked) {
  const std::string text = "\n\none\ntwo\n\n \nthree\r\n\r\nfour";
  EXPECT_EQ(read_all(text, InputKind::text).texts, (Strings{text}));
  EXPECT_EQ(read_all(text, InputKind::text, {.split = TextSplit::blank_lines}).texts,
            (Strings{"one\ntwo", "three\r", "four"}));
  EXPECT_EQ(read_all("a<s>b c<s><s>\n<s>d", InputKind::text,
                     {.split = TextSplit::delimiter, .delimiter = "<s>"})
                .texts,
            (Strings{"a", "b c", "d"}));
}

TEST(Documents, InvalidUtf8InTextNamesItsLine) {
  const Read read = read_all("one\ntwo\nthr\xc0\x80", InputKind::text);
  EXPECT_TRUE(read.texts.empty());
  EXPECT_EQ(read.faults, (Strings{"in:3: invalid UTF-8 (byte 0xc0)"}));
}

TEST(Documents, EveryCutAtADocumentStartGivesTheSameDocuments) {
  const DocumentFormat paragraphs{.split = TextSplit::blank_lines};
  const DocumentFormat delimited{.split = TextSplit::delimiter, .delimiter = "=="};
  const std::string lines = "{\"text\": \"a\"}\n{\"text\": \"b\"}\n\n{\"text\": \"c\"}\n";
  const std::string text = "a\nb\n\nc\n\n\nd\n \ne==f==g";
  const auto check = [](const std::string& content, InputKind kind, const DocumentFormat& format) {
    const Strings whole = read_all(content, kind, format).texts;
    for (std::size_t at = 0; at <= content.size(); ++at) {
      const std::size_t cut = next_document(content, kind, format, at);
      ASSERT_GE(cut, at);
      Strings texts = read_all(content.substr(0, cut), kind, format).texts;
      for (const auto& t : read_all(content.substr(cut), kind, format).texts) texts.push_back(t);
      EXPECT_EQ(texts, whole) << "cut at " << cut;
    }
  };
  check(lines, InputKind::jsonl, {});
  check(text, InputKind::text, paragraphs);
  check(text, InputKind::text, delimited);
  check(text, InputKind::text, {});
}

TEST(FindInputs, WalksFoldersInOrderAndNamesWhatIsMissing) {
  const TemporaryFolder folder;
  write_bytes(folder / "in/b/x.txt", "x");
  write_bytes(folder / "in/a.jsonl", "{}");
  write_bytes(folder / "in/skip.bin", "x");
  write_bytes(folder / "code.py", "x");
  const auto inputs = find_inputs({folder / "code.py", folder / "in"});
  const auto& found = inputs.files;
  EXPECT_EQ(inputs.left_out, (std::vector<std::filesystem::path>{folder / "in/skip.bin"}));
  EXPECT_TRUE(contains(describe_left_out(inputs.left_out), "in/skip.bin"));
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].kind, InputKind::text);
  EXPECT_EQ(found[1].path.filename(), "a.jsonl");
  EXPECT_EQ(found[1].kind, InputKind::jsonl);
  EXPECT_EQ(found[2].path.filename(), "x.txt");
  EXPECT_TRUE(contains(error_of([&] { find_inputs({folder / "no.txt"}); }).what(), "no.txt"));
  std::filesystem::create_directory(folder / "empty");
  EXPECT_TRUE(contains(error_of([&] { find_inputs({folder / "empty"}); }).what(), "empty"));
}

}  // namespace
}  // namespace heddle
