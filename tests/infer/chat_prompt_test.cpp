#include "infer/chat_prompt.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

class ChatPrompt : public testing::Test {
 protected:
  ChatPrompt() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~ChatPrompt() override { fs::remove_all(folder_); }

  fs::path write(const char* name, const std::string& content) const {
    std::ofstream(folder_ / name) << content;
    return folder_ / name;
  }
  void expect_refused(const std::string& messages, const std::string& part) const {
    try {
      chat_prompt_of_file(folder_, write("messages.json", messages));
      ADD_FAILURE() << messages << " accepted";
    } catch (const Error& e) {
      EXPECT_NE(e.message().find(part), std::string::npos) << e.message();
    }
  }

  fs::path folder_ = fs::path(testing::TempDir()) / "chat_prompt";
  const std::string template_ =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
      "{{ tools | length if tools }}{% if add_generation_prompt %}<answer>{% endif %}";
};

TEST_F(ChatPrompt, IsWrittenByTheModelsTemplate) {
  write("chat_template.jinja", template_);
  EXPECT_EQ(chat_prompt(folder_, "Hi"), "<user>Hi<answer>");
  const auto list = write("list.json", R"([{"role": "system", "content": "S"},
      {"role": "user", "content": "U"}])");
  EXPECT_EQ(chat_prompt_of_file(folder_, list), "<system>S<user>U<answer>");
  const auto object =
      write("object.json", R"({"messages": [{"role": "user", "content": "U"}], "tools": [1, 2]})");
  EXPECT_EQ(chat_prompt_of_file(folder_, object), "<user>U2<answer>");
}

TEST_F(ChatPrompt, RefusesWhatIsNoConversation) {
  expect_refused(R"([{"role": "user", "content": "U"}])", "has no chat template");
  write("chat_template.jinja", template_);
  for (const char* bad : {"[]", "{}", "3", R"(["user"])", R"([{"content": "x"}])"}) {
    expect_refused(bad, "is no list of messages");
  }
}

}  // namespace
}  // namespace heddle
