#include <gtest/gtest.h>

#include "base/json.h"
#include "data/formats/json_field.h"
#include "data/formats/record_reader.h"
#include "data/test_files.h"

namespace heddle {
namespace {

struct Read {
  std::vector<std::string> texts, faults;
};

/// The texts and faults of a file; places in faults begin with "in".
Read read_all(const std::string& content, InputKind kind, const DocumentFormat& format = {}) {
  const TemporaryFolder folder;
  write_bytes(folder / "in", content);
  const InputFile file{.path = folder / "in", .kind = kind};
  Read read;
  const auto reader = open_records(file, format);
  for (Record record; reader->next(record);) {
    const auto text = record_text(record, file, format.field);
    if (text) {
      read.texts.push_back(*text);
    } else {
      read.faults.push_back(text.error().message().substr(folder.path().string().size() + 1));
    }
  }
  return read;
}

/// The message of the error that ends the reading of a file.
std::string damage_of(const std::string& content, InputKind kind) {
  return error_of([&] { read_all(content, kind); }).message();
}

using Strings = std::vector<std::string>;

TEST(Records, JsonlGivesOneTextPerLine) {
  const Read read = read_all("{\"text\": \"one\\ntwo\"}\r\n\n{\"id\": 3, \"text\": \"\\u00e9\"}",
                             InputKind::jsonl);
  EXPECT_EQ(read.texts, (Strings{"one\ntwo", "\u00e9"}));
  EXPECT_TRUE(read.faults.empty());
}

TEST(Records, JsonlFaultsNameTheirLine) {
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

TEST(Records, OnlyTheOutermostFieldCounts) {
  EXPECT_EQ(
      json_field(R"({"meta": {"text": "no"}, "list": [{"text": "no"}], "text": "yes"})", "text")
          .value(),
      "yes");
  EXPECT_FALSE(json_field(R"({"meta": {"text": "no"}})", "text").has_value());
  EXPECT_FALSE(json_field(R"([{"text": "no"}])", "text").has_value());
  EXPECT_FALSE(json_field(R"({"text": {"text": "no"}})", "text").has_value());
}

TEST(Records, NumbersThatAreTooLargeAreNamedWithoutTheParser) {
  const auto field = json_field(R"({"text": "a", "n": 1e999})", "text");
  ASSERT_FALSE(field.has_value());
  EXPECT_EQ(field.error().message(), "not valid JSON at byte 24: number overflow parsing '1e999'");
}

TEST(Records, DeepNestingIsHarmless) {
  const std::string deep(1000000, '[');
  EXPECT_FALSE(json_field(deep, "text").has_value());
  EXPECT_TRUE(contains(damage_of(deep, InputKind::json), "has no end"));
}

TEST(Records, TextIsCutAsAsked) {
  const std::string text = "\n\none\ntwo\n\n \nthree\r\n\r\nfour";
  EXPECT_EQ(read_all(text, InputKind::text).texts, (Strings{text}));
  EXPECT_EQ(read_all(text, InputKind::text, {.split = TextSplit::blank_lines}).texts,
            (Strings{"one\ntwo", "three", "four"}));
  EXPECT_EQ(
      read_all("a\r\nb\r\n\r\nc\r\n", InputKind::text, {.split = TextSplit::blank_lines}).texts,
      (Strings{"a\r\nb", "c"}));
  EXPECT_EQ(read_all("a<s>b c<s><s>\n<s>d", InputKind::text,
                     {.split = TextSplit::delimiter, .delimiter = "<s>"})
                .texts,
            (Strings{"a", "b c", "d"}));
}

TEST(Records, InvalidUtf8InTextNamesItsLine) {
  const Read whole = read_all("one\ntwo\nthr\xc0\x80", InputKind::text);
  EXPECT_TRUE(whole.texts.empty());
  EXPECT_EQ(whole.faults, (Strings{"in:3: invalid UTF-8 (byte 0xc0)"}));
  const Read cut = read_all("one\n\n\ntwo\nthr\xc0\x80\n\nfour", InputKind::text,
                            {.split = TextSplit::blank_lines});
  EXPECT_EQ(cut.texts, (Strings{"one", "four"}));
  EXPECT_EQ(cut.faults, (Strings{"in:5: invalid UTF-8 (byte 0xc0)"}));
}

TEST(Records, AreTheSameHoweverTheyLieInWhatIsReadAtOnce) {
  // Streams are read 256 KiB at a time; a record that grows letter by letter meets every cut.
  constexpr std::size_t kRead = std::size_t{256} << 10;
  for (std::size_t size = kRead - 30; size < kRead + 3; ++size) {
    const std::string first(size, 'x');
    const Strings expected = {first, "b\\\"}", "c"};
    const std::string lines =
        "{\"text\": \"" + first + "\"}\n{\"text\": \"b\\\\\\\"}\"}\n\n{\"text\": \"c\"}\n";
    EXPECT_EQ(read_all(lines, InputKind::jsonl).texts, expected) << size;
    EXPECT_EQ(read_all(lines, InputKind::json).texts, expected) << size;
    const std::string plain = first + "\n\nb\\\"}\n\nc";
    EXPECT_EQ(read_all(plain, InputKind::text, {.split = TextSplit::blank_lines}).texts, expected);
    EXPECT_EQ(read_all(first + "====b\\\"}====c", InputKind::text,
                       {.split = TextSplit::delimiter, .delimiter = "===="})
                  .texts,
              expected);
  }
}

TEST(Records, JsonValuesStandInAListOrOneAfterAnother) {
  const Strings expected = {"a", "]}\\\""};
  for (const char* content : {"[{\"text\": \"a\"}, {\"text\": \"]}\\\\\\\"\"}]",
                              "\n [\n {\"x\": [1, {\"text\": 3}],\n  \"text\": "
                              "\"a\"}\n,\n{\"text\": \"]}\\\\\\\"\"} ] \n",
                              "{\n \"text\": \"a\"\n}\n{\"text\": \"]}\\\\\\\"\"}",
                              "{\"text\":\"a\"}{\"text\":\"]}\\\\\\\"\"}\n"}) {
    EXPECT_EQ(read_all(content, InputKind::json).texts, expected) << content;
  }
  EXPECT_TRUE(read_all("[]", InputKind::json).texts.empty());
  EXPECT_TRUE(read_all(" ", InputKind::json).texts.empty());
  const Read mixed =
      read_all("[1,\n \"a\",\n {\"text\": 1}, null,\n{\"text\": \"b\"}]", InputKind::json);
  EXPECT_EQ(mixed.texts, (Strings{"b"}));
  EXPECT_EQ(mixed.faults,
            (Strings{"in:1: not a JSON object", "in:2: not a JSON object",
                     "in:3: field \"text\" is not a string", "in:3: not a JSON object"}));
}

TEST(Records, DamagedJsonIsRefusedWhereItEnds) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[{\"text\": \"a\"},\n{\"text\": ",
       "in:2: not valid JSON: the value that begins here has no"},
      {"[{\"text\": \"a\"}\n", "in:2: not valid JSON: the list has no end"},
      {"[{\"text\": \"a\"},\n", "in:2: not valid JSON: the list has no end"},
      {"[{\"text\": \"a\"},]", "in:1: not valid JSON: a comma stands before the end"},
      {"[{\"text\": \"a\"} {\"text\": \"b\"}]", "a comma is missing"},
      {"[{\"text\": \"a\"}]\n[1]", "something follows the list"},
  };
  for (const auto& [content, message] : cases) {
    EXPECT_TRUE(contains(damage_of(content, InputKind::json), message))
        << content << ": " << damage_of(content, InputKind::json);
  }
}

TEST(Records, ObjectsHaveAllTheirFields) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.jsonl",
              "{\"messages\": [{\"role\": \"user\"}], \"n\": 1}\n\n{\"n\": 2}\n");
  write_bytes(folder / "b.json", "[{\"n\": 3}]");
  Strings objects, places;
  for_each_object(find_inputs({folder / "a.jsonl", folder / "b.json"}).files,
                  [&](const Json& object, const std::string& place) {
                    objects.push_back(object.dump());
                    places.push_back(place.substr(folder.path().string().size() + 1));
                  });
  EXPECT_EQ(objects,
            (Strings{R"({"messages":[{"role":"user"}],"n":1})", R"({"n":2})", R"({"n":3})"}));
  EXPECT_EQ(places, (Strings{"a.jsonl:1", "a.jsonl:3", "b.json:1"}));
  write_bytes(folder / "c.jsonl", "{\"n\": 1}\n[1]\n");
  write_bytes(folder / "d.txt", "prose");
  const auto refusal = [&](const char* name) {
    return error_of([&] {
             for_each_object(find_inputs({folder / name}).files,
                             [](const Json&, const std::string&) {});
           })
        .message();
  };
  EXPECT_TRUE(contains(refusal("c.jsonl"), "c.jsonl:2: not a JSON object"));
  EXPECT_TRUE(contains(refusal("d.txt"), "d.txt holds text"));
}

TEST(FindInputs, WalksFoldersInOrderAndNamesWhatIsMissing) {
  const TemporaryFolder folder;
  write_bytes(folder / "in/b/x.txt", "x");
  write_bytes(folder / "in/a.jsonl", "{}");
  write_bytes(folder / "in/skip.bin", "x");
  write_bytes(folder / "in/list.json", " [{}]");
  write_bytes(folder / "in/dataset_info.json", "{\n \"features\": {}\n}\n");
  write_bytes(folder / "code.py", "x");
  const auto inputs = find_inputs({folder / "code.py", folder / "in"});
  const auto& found = inputs.files;
  EXPECT_EQ(inputs.left_out.size(), 2U);
  EXPECT_TRUE(contains(describe_left_out(inputs.left_out), "in/skip.bin"));
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[0].kind, InputKind::text);
  EXPECT_EQ(found[1].path.filename(), "a.jsonl");
  EXPECT_EQ(found[1].kind, InputKind::jsonl);
  EXPECT_EQ(found[2].path.filename(), "x.txt");
  EXPECT_EQ(found[3].path.filename(), "list.json");
  EXPECT_TRUE(contains(error_of([&] { find_inputs({folder / "no.txt"}); }).what(), "no.txt"));
  std::filesystem::create_directory(folder / "empty");
  EXPECT_TRUE(contains(error_of([&] { find_inputs({folder / "empty"}); }).what(), "empty"));
}

TEST(FindInputs, ExpandsPatternsInOrder) {
  const TemporaryFolder folder;
  write_bytes(folder / "in/b.txt", "b");
  write_bytes(folder / "in/a.txt", "a");
  write_bytes(folder / "in/c.md", "c");
  write_bytes(folder / "in/[x].txt", "literal");
  const auto names = [&](const char* pattern) {
    Strings out;
    for (const InputFile& file : find_inputs({folder / pattern}).files) {
      out.push_back(file.path.filename());
    }
    return out;
  };
  EXPECT_EQ(names("in/?.txt"), (Strings{"a.txt", "b.txt"}));
  EXPECT_EQ(names("i*/[ac].*"), (Strings{"a.txt", "c.md"}));
  EXPECT_EQ(names("in/[x].txt"), (Strings{"[x].txt"})) << "a file of that name comes first";
  EXPECT_TRUE(contains(error_of([&] { names("in/*.csv"); }).message(), "*.csv"));
}

}  // namespace
}  // namespace heddle
