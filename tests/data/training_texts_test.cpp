#include "data/training_texts.h"

#include <gtest/gtest.h>

#include "data/test_files.h"

namespace heddle {
namespace {

using Texts = std::vector<std::string_view>;

TEST(TrainingTexts, AreWholeTextFilesAndTheTextOfJsonLines) {
  const TemporaryFolder folder;
  write_bytes(folder / "a.txt", "\xEF\xBB\xBFone\ntwo\n");
  write_bytes(folder / "a.jsonl", "{\"text\":\"x\\ny\"}\n\n{\"id\":1,\"text\":\"z\"}");
  TrainingTexts texts;
  for (const InputFile& input : find_inputs({folder.path()}).files) texts.add(input);
  EXPECT_EQ(texts.texts(), (Texts{"x\ny", "z", "one\ntwo\n"}));
}

TEST(TrainingTexts, NameTheFileAndLineOfBadText) {
  const TemporaryFolder folder;
  const auto message = [&](const std::string& name, const std::string& content) {
    write_bytes(folder / name, content);
    const InputFile input = find_inputs({folder / name}).files.front();
    const Error error = error_of([&] { TrainingTexts().add(input); });
    EXPECT_EQ(error.code(), ErrorCode::data);
    return error.message();
  };
  EXPECT_TRUE(contains(message("b.txt", "ab\n\xFF"), "b.txt:2: invalid UTF-8"));
  EXPECT_TRUE(contains(message("b.jsonl", "{\"text\":\"a\"}\n{\"text\":3}\n"), "b.jsonl:2:"));
  EXPECT_TRUE(contains(message("c.jsonl", "{\"text\":\n"), "c.jsonl:1:"));
  EXPECT_TRUE(contains(message("d.jsonl", "[1]\n"), "d.jsonl:1:"));
}

}  // namespace
}  // namespace heddle
