#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/chat/chat_template.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

std::tm fixed_time() {
  std::tm time{};
  time.tm_year = 126;
  time.tm_mon = 10;
  time.tm_mday = 17;
  time.tm_hour = 12;
  time.tm_min = 30;
  return time;
}

std::string render(const std::string& source, const Json& others = Json::object()) {
  return ChatTemplate(source).render(Json::array({{{"role", "user"}, {"content", "Hi"}}}), others,
                                     {.now = fixed_time()});
}

/// What transformers makes of conversations, by make_chat_cases.py.
TEST(ChatTemplate, EqualsTransformers) {
  const Json file =
      read_json_file(fs::path(HEDDLE_SOURCE_DIR) / "tests" / "reference" / "chat.json");
  int compared = 0, refused = 0;
  for (const Json& one : file["cases"]) {
    SCOPED_TRACE(one["name"].get<std::string>() + " " + one["others"].dump());
    Json others = one["others"];
    for (const auto& [name, token] : file["tokens"].items()) others[name] = token;
    const ChatTemplate parsed(file["templates"][one["template"].get<std::string>()]);
    const Json& messages = file["conversations"][one["conversation"].get<std::string>()];
    const ChatTemplate::Options options{
        .add_generation_prompt = one["add_generation_prompt"].get<bool>(), .now = fixed_time()};
    if (one.contains("refused")) {
      EXPECT_THROW(parsed.render(messages, others, options), Error);
      ++refused;
      continue;
    }
    EXPECT_EQ(parsed.render(messages, others, options), one["text"].get<std::string>());
    ++compared;
  }
  EXPECT_GE(compared, 100);
  EXPECT_GE(refused, 10);
}

void expect_refused(const std::string& source, const std::string& part) {
  try {
    const std::string text = render(source);
    ADD_FAILURE() << source << " gave " << text;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::data);
    EXPECT_NE(e.message().find(part), std::string::npos) << e.message();
  }
}

TEST(ChatTemplate, RefusesByNameAndLineWhatIsNotSupported) {
  expect_refused("a\n{{ x | urlize }}", "line 2: filter urlize is not supported");
  expect_refused("{{ x is filter }}", "line 1: test filter is not supported");
  expect_refused("\n\n{% include 'x' %}", "line 3: block include is not supported");
  expect_refused("{% for x in y recursive %}{% endfor %}", "recursive");
  expect_refused("{{ 'abc'.zfill(3) }}", "undefined zfill is called");
}

TEST(ChatTemplate, RefusesWhatIsBroken) {
  for (const char* source : {"{{",
                             "{{ }}",
                             "{{ 1 + }}",
                             "{{ 'a }}",
                             "{% if %}{% endif %}",
                             "{% if x %}",
                             "{% endif %}",
                             "{% for x %}{% endfor %}",
                             "{{ (1 }}",
                             "{{ [1) }}",
                             "{{ a..b }}",
                             "{# x",
                             "{{ x ! }}",
                             "{% set %}",
                             "{% macro m %}{% endmacro %}",
                             "{{ '\\u12' }}",
                             "{{ f(**x) }}",
                             "{{ x[1:2:3:4] }}",
                             "{{ 99999999999999999999 }}",
                             "{% set a.b.c = 1 %}"}) {
    EXPECT_THROW(render(source), Error) << source;
  }
}

TEST(ChatTemplate, RefusesWhatJinjaRefusesWhenItRuns) {
  expect_refused("{{ raise_exception('No such role') }}", "it refuses: No such role");
  expect_refused("{{ missing.field }}", "undefined missing has no \"field\"");
  expect_refused("{{ 1 / 0 }}", "division by zero");
  expect_refused("{{ 1 + 'a' }}", "cannot be added");
  expect_refused("{{ messages < 1 }}", "have no order");
  expect_refused("{% set messages.x = 1 %}", "is no namespace");
}

TEST(ChatTemplate, EndsEvenWhenATemplateDoesNot) {
  expect_refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deeply");
  expect_refused("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}x{% endfor %}",
                 "does not come to an end");
  expect_refused("{{ 'x' * 99999999 }}", "repeated too often");
  expect_refused("{{ range(999999999) }}", "more than 100,000");
}

TEST(ChatTemplate, IsFoundInAFolder) {
  const fs::path folder = fs::path(testing::TempDir()) / "chat_template_folder";
  fs::remove_all(folder);
  fs::create_directories(folder);
  EXPECT_FALSE(ChatTemplate::find(folder).has_value());
  const auto write = [&](const char* name, const std::string& content) {
    std::ofstream(folder / name) << content;
  };
  const auto rendered = [&] { return ChatTemplate::find(folder)->render(Json::array(), {}, {}); };
  write("tokenizer_config.json", R"({"bos_token": {"content": "<b>"}, "eos_token": "<e>"})");
  EXPECT_FALSE(ChatTemplate::find(folder).has_value());
  write("tokenizer_config.json", R"({"bos_token": {"content": "<b>"}, "chat_template":
      "{{ bos_token }}{{ eos_token }}1"})");
  EXPECT_EQ(rendered(), "<b>1");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "2"},
      {"name": "default", "template": "3"}]})");
  EXPECT_EQ(rendered(), "3");
  for (const char* bad : {R"([{"name": 5, "template": "2"}])",
                          R"([{"name": "default", "template": 7}])", R"([null, "default"])"}) {
    write("tokenizer_config.json", fmt::format(R"({{"chat_template": {}}})", bad));
    EXPECT_THROW(ChatTemplate::find(folder), Error) << bad;
  }
  write("chat_template.jinja", "4\n");
  EXPECT_EQ(rendered(), "4");
  write("chat_template.jinja", "{{");
  try {
    ChatTemplate::find(folder);
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("chat_template.jinja"), std::string::npos) << e.message();
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace heddle
