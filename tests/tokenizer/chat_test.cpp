#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "support/source_dir.h"
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
  const Json file = read_json_file(fs::path(source_dir()) / "tests" / "reference" / "chat.json");
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
  expect_refused("{{ 'abc'.zfill(3) }}",
                 "undefined zfill is called; it may be a function or method");
  expect_refused("{{ '%05d' % 3 }}", "a format with %0 is not supported");
  expect_refused("{{ 0x1f }}", "a number of this form is not supported");
  expect_refused("{{ é }}", "unexpected \"é\"");
  expect_refused("{% macro m() %}{% endmacro %}{{ m.name }}", "a function has no \"name\"");
}

TEST(ChatTemplate, WhatIsNotSupportedIsNoErrorWhereItIsNotReached) {
  EXPECT_EQ(render("{% if false %}{{ x | from_json }}{% else %}a{% endif %}"), "a");
  EXPECT_EQ(render("{{ 'b' if true or x is filter }}{{ 'c' if true else f(1) }}"), "bc");
}

TEST(ChatTemplate, FiltersOfWhatIsFalseGiveNothing) {
  for (const char* filter :
       {"select", "reject('none')", "selectattr('a')", "rejectattr('a', 'equalto', 'b')",
        "map(attribute='x')", "map('upper')"}) {
    for (const char* subject : {"none", "tools", "missing", "0", "false", "''"}) {
      const std::string source = fmt::format("{{{{ {} | {} | list }}}}", subject, filter);
      EXPECT_EQ(render(source), "[]") << source;
    }
  }
}

/// Of Jinja as transformers sets it up.
TEST(ChatTemplate, ArgumentsDoWhatTheyDoInJinja) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"{'b': [1, 2], 'a': 'é'} | tojson(separators=(',', ':'))", R"({"b":[1,2],"a":"é"})"},
      {"{'b': 1, 'a': {'d': 1, 'c': 2}} | tojson(sort_keys=true)",
       R"({"a": {"c": 2, "d": 1}, "b": 1})"},
      {"'é' | tojson(ensure_ascii=True)", R"("\u00e9")"},
      {"'é' | tojson(true)", R"("\u00e9")"},
      {"'é' | tojson(ensure_ascii=False)", "\"é\""},
      {"{'b': [1]} | tojson(indent=1, separators=('; ', '= '))", "{\n \"b\"= [\n  1\n ]\n}"},
      {"[1, 2] | tojson(indent='--')", "[\n--1,\n--2\n]"},
      {"[1] | tojson(indent=0)", "[\n1\n]"},
      {"'abcb'.find('b', 2)", "3"},
      {"'äbcb'.find('b', 0, 1)", "-1"},
      {"'abc'.find('a', 5)", "-1"},
      {"'äbcb'.index('b', -2)", "3"},
      {"'abc'.startswith('b', 1)", "True"},
      {"'abc'.startswith('a', 1)", "False"},
      {"'abc'.endswith('b', 0, 2)", "True"},
      {"'abab'.count('a', 1)", "1"},
      {"'a\\nb\\r\\nc'.splitlines(true)", "['a\\n', 'b\\r\\n', 'c']"},
      {"'x' | float(1.5)", "1.5"},
      {"'2.5 ' | float", "2.5"},
      {"'x' | int(7)", "7"},
      {"'0x1A' | int", "0"},
      {"'9007199254740993' | int", "9007199254740993"},
      {"{'b': 1, 'a': 2} | dictsort(by='value') | map('first') | join", "ba"},
      {"{'b': 1, 'A': 2} | dictsort(reverse=true) | map('first') | join", "bA"},
      {"{'b': 1, 'A': 2, 'a': 3} | dictsort(true) | map('first') | join", "Aab"},
      {"['b', 'A'] | sort(case_sensitive=true)", "['A', 'b']"},
      {"['b', 'A', 'B'] | sort(reverse=true)", "['b', 'B', 'A']"},
      {"['a', 'A', 'b'] | unique | list", "['a', 'b']"},
      {"['b', 'A', 'c'] | max", "c"},
      {"['b', 'A', 'a'] | min", "A"},
      {"[{'a': 2}, {'a': 1}] | min(attribute='a')", "{'a': 1}"},
      {"[{'a': 1}, {'a': 2}] | sum(attribute='a')", "3"},
      {"[[1], [2]] | sum(start=[])", "[1, 2]"},
      {"3.14159 | round(2)", "3.14"},
      {"2.5 | round", "2.0"},
      {"2.1 | round(method='ceil') | int", "3"},
      {"'a b, c_d' | wordcount", "3"},
      {"'{}-{} {{{}}}'.format(1, 'b', none)", "1-b {None}"},
      {"'{1}{0}'.format('a', 'b')", "ba"},
      {"'%s=%d%%' % ('é', 2.0 | int)", "é=2%"},
      {"'%s and %r' | format([1], 'b')", "[1] and 'b'"},
      {"\"it's a-b (c) d\" | title", "It's A-B (C) D"},
      {"\"it's\".title()", "It'S"},
      {"'a\\u2028b\\x1cc'.splitlines()", "['a', 'b', 'c']"},
      {"('a', 1)", "('a', 1)"},
      {"('a',) + ()", "('a',)"},
      {"{'a': 1}.items() | list", "[('a', 1)]"},
      {"('a', 1) == ['a', 1]", "False"},
      {"{16384: 'a', 512: 'b', '512': 'c'}", "{16384: 'a', 512: 'b', '512': 'c'}"},
      {"{16384: 'a', 512: 'b'} | dictsort | first | last", "b"},
      {"{16384: 'a', 512: 'b'}[16384]", "a"},
      {"{2: 1, 'b': 2.5} | tojson", R"({"2": 1, "b": 2.5})"},
      {"{'1': 2}.get(1)", "None"},
      {"['\\x1c\\u200b\\U000e0041é漢 ']", R"(['\x1c\u200b\U000e0041é漢 '])"},
      {"[missing]", "[Undefined]"},
      {"'<' + ('a>' | safe) + '&'", "&lt;a>&amp;"},
      {"'<' ~ ('a>' | safe)", "<a>"},
      {"'<' | e", "&lt;"},
      {"1e3 + 2.5e-1", "1000.25"},
      {"9007199254740993 == 9007199254740992", "False"},
  };
  for (const auto& [expression, expected] : cases) {
    EXPECT_EQ(render(fmt::format("{{{{ {} }}}}", expression)), expected) << expression;
  }
}

TEST(ChatTemplate, LoopsSayHowDeepTheyAre) {
  EXPECT_EQ(render("{% for a in [1] %}{% for b in [1] %}{{ loop.depth }}{{ loop.depth0 }}"
                   "{% endfor %}{% endfor %}"),
            "10");
}

TEST(ChatTemplate, BlanksAreThoseOfPython) {
  EXPECT_EQ(render("a\u00A0\n\u3000{{- 1 -}}\u2028 \u0085b"), "a1b");
  EXPECT_EQ(render("a\n\u3000{% if true %}b{% endif -%}\u00A0\nc"), "a\nbc");
}

TEST(ChatTemplate, RawTextIsLeftAlone) {
  EXPECT_EQ(render("a {% raw %}\n{{ x }}{% if %}\n  {% endraw %}\nb"), "a \n{{ x }}{% if %}\nb");
  EXPECT_EQ(render("a\n{%- raw -%} {# {%- endraw -%}\n b{{ 1 }}"), "a{#b1");
  expect_refused("\n{% raw %}{{", "line 2: endraw is missing");
}

TEST(ChatTemplate, WholeNumbersDoNotWrapAround) {
  const std::string most = "9223372036854775807";
  const Json others = {{"most", std::numeric_limits<std::int64_t>::max()}};
  EXPECT_EQ(render("{{ most }} {{ -most }}", others), most + " -" + most);
  for (const char* sum : {"most + 1", "most * 2", "0 - most - 2", "2 ** 64"}) {
    EXPECT_THROW(render(fmt::format("{{{{ {} }}}}", sum), others), Error) << sum;
  }
  EXPECT_THROW(render("{{ n }}", {{"n", std::uint64_t{1} << 63}}), Error);
}

TEST(ChatTemplate, RefusesByNameArgumentsThatItWouldPassOver) {
  expect_refused("{{ [1] | tojson(cls='x') }}", "tojson with the argument cls");
  expect_refused("{{ 'x' | int(7, 16) }}", "int with 2 arguments");
  expect_refused("{{ 'x' | int(base=16) }}", "int with the argument base");
  expect_refused("{{ 'a' | upper(1) }}", "upper with 1 arguments");
  expect_refused("{{ 'a'.upper(1) }}", "upper with 1 arguments");
  expect_refused("{{ {'a': 1}.items(1) }}", "items with 1 arguments");
  expect_refused("{{ 'a,b'.split(',', keep=1) }}", "split with the argument keep");
  expect_refused("{{ 1 is odd(2) }}", "odd with 1 arguments");
  expect_refused("{{ range(1, step=2) }}", "range with the argument step");
  expect_refused("{{ {'a': 1} | dictsort(by='size') }}", "dictsort by size");
  expect_refused("{{ [1] | select(key=1) }}", "argument key");
  expect_refused("{{ [{}] | map(attribute='a', otherwise=1) }}", "map with the argument otherwise");
  expect_refused("{{ '{:>5}'.format('x') }}", "format of {:>5}");
  expect_refused("{% macro m(a) %}{% endmacro %}{{ m(1, b=2) }}", "macro m with the argument b");
}

TEST(ChatTemplate, MacrosSeeTheLoopTheyAreMadeIn) {
  EXPECT_EQ(render("{% for i in range(2) %}{% macro g(a) %}{{ a }}{{ i }}{% endmacro %}"
                   "{{ g('k') }}{% endfor %}"),
            "k0k1");
  EXPECT_EQ(render("{% set x = 1 %}{% macro f() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ f() }}"
                   "{% for x in [3] %}{{ f() }}{% endfor %}"),
            "22");
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

TEST(ChatTemplate, ThoughtsAreKnownByEveryName) {
  const ChatTemplate form(
      "{% for m in messages %}{{ m.thinking }}/{{ m.reasoning_content }};{% endfor %}");
  const Json messages = Json::parse(R"([{"role": "assistant", "reasoning": "a"},
      {"role": "assistant", "thinking": "b"}, {"role": "assistant", "reasoning_content": "c"},
      {"role": "assistant", "thinking": "d", "reasoning_content": "e", "reasoning": "f"},
      {"role": "assistant", "thinking": null}, {"role": "user"}])");
  EXPECT_EQ(form.render(messages, Json::object(), {}), "a/a;b/b;c/c;d/e;None/;/;");
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
  write("tokenizer_config.json", R"({"boi_token": "<i>", "chat_template":
      "{{ bos_token }}{{ eos_token }}{{ boi_token }}{{ eoi_token }}",
      "extra_special_tokens": {"eoi_token": "</i>"}})");
  write("special_tokens_map.json", R"({"bos_token": {"content": "<b>"}, "eos_token": "<e>"})");
  EXPECT_EQ(rendered(), "<b><e><i></i>");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "2"},
      {"name": "default", "template": "3"}]})");
  EXPECT_EQ(rendered(), "3");
  for (const char* bad : {R"([{"name": 5, "template": "2"}])",
                          R"([{"name": "default", "template": 7}])", R"([null, "default"])"}) {
    write("tokenizer_config.json", fmt::format(R"({{"chat_template": {}}})", bad));
    EXPECT_THROW(ChatTemplate::find(folder), Error) << bad;
  }
  const Json with_tools = {{"tools", Json::array()}}, without = {{"tools", nullptr}};
  const auto of_tools = [&](const Json& others) {
    return ChatTemplate::find(folder)->render(Json::array(), others, {});
  };
  write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "2"},
      {"name": "default", "template": "3"}]})");
  EXPECT_EQ(of_tools(with_tools), "2");
  EXPECT_EQ(of_tools(without), "3");
  write("chat_template.jinja", "4\n");
  EXPECT_EQ(rendered(), "4");
  EXPECT_EQ(of_tools(with_tools), "4");
  fs::create_directories(folder / "additional_chat_templates");
  write("additional_chat_templates/tool_use.jinja", "5");
  EXPECT_EQ(of_tools(with_tools), "5");
  EXPECT_EQ(of_tools(without), "4");
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
