// Conversations as tokens with answers: tests/reference/make_chat_answers.py made the cases.

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file_system.h"
#include "data/chat/answers.h"
#include "data/chat/tokenize_chat.h"
#include "data/packing.h"
#include "support/temporary_folder.h"
#include "verify/shared_files.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

const char* const kChatMl =
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";

Tokenizer tokenizer_of(const std::string& name) {
  return Tokenizer::load(reference_folder() / "tokenizers" / name);
}

Conversation said(const Json& record) { return conversation_of(record, {}, "chat.jsonl:1"); }

void expect_refusal(const std::function<void()>& act, const std::string& words) {
  try {
    act();
    FAIL() << "no error about " << words;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(ChatAnswers, AreTheTokensThatTransformersFinds) {
  const Json reference = read_json_file(reference_folder() / "chat-answers.json");
  std::size_t cases = 0;
  for (const Json& one : reference["cases"]) {
    const ChatTemplate form(
        reference["templates"][one["template"].get<std::string>()].get<std::string>());
    const Json& messages = reference["conversations"][one["conversation"].get<std::size_t>()];
    const Tokenizer tokenizer = tokenizer_of(one["tokenizer"]);
    EncodeCache cache;
    const ChatTokens made =
        chat_tokens(tokenizer, chat_text(form, said({{"messages", messages}}), "a"), cache);
    const std::string what = one["tokenizer"].get<std::string>() + " " +
                             one["template"].get<std::string>() + " " + one["conversation"].dump();
    EXPECT_EQ(made.ids, one["ids"].get<std::vector<std::int32_t>>()) << what;
    std::vector<bool> expected;
    for (const Json& answer : one["answers"]) expected.push_back(answer.get<int>() != 0);
    EXPECT_EQ(made.are_answers, expected) << what;
    ++cases;
  }
  EXPECT_EQ(cases, 36u);
}

TEST(ChatAnswers, HaveTokensThatReachBeyondThem) {
  // The text up to the end of the answer would have other tokens: one space behind it.
  const ChatTemplate form(
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "{% endgeneration %}  x{% else %}A: {% endif %}{% endfor %}");
  const Json messages = Json::array(
      {{{"role", "user"}, {"content", ""}}, {{"role", "assistant"}, {"content", "so "}}});
  const std::vector<std::pair<std::string, std::vector<bool>>> expected = {
      {"gpt2", {false, false, true, true, true, false}},           // A : Ġs o ĠĠ Ġx
      {"llama2", {false, false, true, true, true, false, false}},  // ▁A : ▁s o ▁▁ ▁ x
  };
  for (const auto& [name, answers] : expected) {
    EncodeCache cache;
    const ChatText text = chat_text(form, said({{"messages", messages}}), "a");
    EXPECT_EQ(text.text, "A: so   x");
    EXPECT_EQ(chat_tokens(tokenizer_of(name), text, cache).are_answers, answers) << name;
  }
}

TEST(ChatAnswers, OfAPromptAndItsCompletionAreTheCompletion) {
  const ChatTemplate form{kChatMl};
  const ChatText text =
      chat_text(form, said({{"prompt", "Hi"}, {"completion", "Hello"}, {"id", 7}}), "a");
  EXPECT_EQ(text.text, "<|user|>Hi\n<|assistant|>Hello\n");
  ASSERT_EQ(text.answers.size(), 1u);
  EXPECT_EQ(text.text.substr(text.answers[0].begin), "Hello\n");
  // Of messages in a prompt, answers are given and not learnt.
  const Json turns = Json::array({{{"role", "user"}, {"content", "a"}},
                                  {{"role", "assistant"}, {"content", "b"}},
                                  {{"role", "user"}, {"content", "c"}}});
  const ChatText longer = chat_text(form, said({{"prompt", turns}, {"completion", "d"}}), "a");
  ASSERT_EQ(longer.answers.size(), 1u);
  EXPECT_EQ(longer.text.substr(longer.answers[0].begin), "d\n");
}

TEST(ChatAnswers, ThatCannotBeFoundAreRefusedWithTheirPlace) {
  expect_refusal(
      [] {
        said({{"text", "a"}});
      },
      "chat.jsonl:1: the record has neither \"messages\"");
  expect_refusal([] { said({{"messages", "a"}}); }, "\"messages\" is no list of messages");
  expect_refusal(
      [] {
        said({{"messages", Json::array({{{"content", "a"}}})}});
      },
      "without role and content");
  expect_refusal(
      [] {
        said({{"messages", Json::array({{{"role", "user"}, {"content", "a"}}})}});
      },
      "chat.jsonl:1: the conversation has no answer");
  const Conversation two =
      said({{"messages", Json::array({{{"role", "user"}, {"content", "a"}},
                                      {{"role", "assistant"}, {"content", "b"}},
                                      {{"role", "user"}, {"content", "c"}},
                                      {{"role", "assistant"}, {"content", "d"}}})}});
  // As templates do that leave thoughts out of earlier answers.
  const ChatTemplate forgetful(
      "{% for message in messages %}{% if loop.last or message.role == 'user' %}"
      "{{ message.role + ':' + message.content }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}");
  expect_refusal([&] { chat_text(forgetful, two, "chat.jsonl:9"); },
                 "chat.jsonl:9: where message 2 stands cannot be told");
  const ChatTemplate inside(
      "{% macro say(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}"
      "{% for message in messages %}{{ say(message) }}{% endfor %}");
  expect_refusal([&] { chat_text(inside, two, "chat.jsonl:9"); }, "marks no answer");
  const Conversation unsaid = said({{"prompt", "a"}, {"completion", ""}});
  expect_refusal([&] { chat_text(ChatTemplate("{{ messages[0].content }}"), unsaid, "a:1"); },
                 "which writes nothing of it");
  const ChatTemplate refusing("{{ raise_exception('no tools here') }}");
  expect_refusal([&] { chat_text(refusing, two, "chat.jsonl:9"); }, "chat.jsonl:9");
}

Conversation of_turns(const std::vector<std::pair<const char*, const char*>>& turns) {
  Json messages = Json::array();
  for (const auto& [role, content] : turns) {
    messages.push_back({{"role", role}, {"content", content}});
  }
  return said({{"messages", messages}});
}

// Qwen3's way: thoughts are written of what follows the last question, an empty one of the last.
const char* const kThinking =
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}"
    "{% set parts = m.content.split('</think>') %}"
    "{% set thought = parts[0].split('<think>')[-1].strip('\\n') if parts | length > 1 else '' %}"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}"
    "{{ '<think>\\n' + thought + '\\n</think>\\n\\n' }}{% endif %}"
    "{{ parts[-1].lstrip('\\n') }}"
    "{% for call in m.tool_calls %}{{ '<tool_call>' + call.name + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% else %}"
    "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

TEST(ChatAnswers, AreFoundWhereEarlierOnesAreWrittenOtherwise) {
  std::string form = kThinking;
  const std::string end = "{{ '<|im_end|>\\n' }}";
  const auto marks_end = form.find(end) + end.size();
  std::string marked = form;
  marked.insert(marks_end, "{%- endgeneration %}");
  const std::string opening = "{{ '<|im_start|>assistant\\n' }}";
  marked.insert(marked.find(opening) + opening.size(), "{%- generation %}");
  const auto expect_alike = [&](const Conversation& conversation, std::size_t answers) {
    const ChatText expected = chat_text(ChatTemplate{marked}, conversation, "marked");
    const ChatText found = chat_text(ChatTemplate{form}, conversation, "a");
    EXPECT_EQ(found.text, expected.text);
    EXPECT_EQ(found.answers, expected.answers) << found.text;
    EXPECT_EQ(found.answers.size(), answers);
  };
  expect_alike(of_turns({{"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}}), 2);
  expect_alike(of_turns({{"system", "s"},
                         {"user", "a"},
                         {"assistant", "<think>\nhm\n</think>\n\nb"},
                         {"user", "c"},
                         {"assistant", "<think>\nwell\n</think>\n\nd"},
                         {"user", "e"},
                         {"assistant", "f"}}),
               3);
  const Json call = {{"name", "weather"}};
  expect_alike(
      said({{"messages",
             Json::array({{{"role", "user"}, {"content", "a"}},
                          {{"role", "assistant"}, {"content", ""}, {"tool_calls", {call, call}}},
                          {{"role", "tool"}, {"content", "rain"}},
                          {{"role", "assistant"}, {"content", "b"}}})}}),
      2);
}

/// DeepSeek-R1's way: a model begins with a thought, which is written of no answer.
TEST(ChatAnswers, AreFoundWhereTheyBeginOtherwiseThanAModelIsLetBegin) {
  const ChatTemplate form(
      "{% for m in messages %}{% if m.role == 'user' %}{{ '<U>' + m.content }}{% else %}"
      "{{ '<A>' + m.content.split('</think>')[-1] + '<E>' }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<A><think>\\n' }}{% endif %}");
  const ChatText text = chat_text(form,
                                  of_turns({{"user", "a"},
                                            {"assistant", "<think>hm</think>b"},
                                            {"user", "c"},
                                            {"assistant", "<b>d</b>"}}),
                                  "a");
  EXPECT_EQ(text.text, "<U>a<A>b<E><U>c<A><b>d</b><E>");
  ASSERT_EQ(text.answers.size(), 2u);
  const auto answer = [&](std::size_t i) {
    const auto& [begin, end] = text.answers[i];
    return text.text.substr(begin, end - begin);
  };
  EXPECT_EQ(answer(0), "b<E>");
  EXPECT_EQ(answer(1), "<b>d</b><E>");
}

TEST(ChatAnswers, MayBeCallsOfToolsWithoutText) {
  const ChatTemplate form(
      "{% for m in messages %}{{ '<' + m.role + '>' }}{% if m.content %}{{ m.content }}{% endif %}"
      "{% for call in m.tool_calls %}{{ call.function.name }}{% endfor %}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}");
  const Json call = {{"function", {{"name", "weather"}, {"arguments", "{}"}}}};
  const ChatText text = chat_text(
      form,
      said({{"messages", Json::array({{{"role", "user"}, {"content", "a"}},
                                      {{"role", "assistant"}, {"tool_calls", Json::array({call})}},
                                      {{"role", "tool"}, {"content", "rain"}},
                                      {{"role", "assistant"}, {"content", "b"}}})}}),
      "a");
  EXPECT_EQ(text.text, "<user>a<assistant>weather<tool>rain<assistant>b");
  ASSERT_EQ(text.answers.size(), 2u);
  EXPECT_EQ(text.text.substr(text.answers[0].begin, 7), "weather");
}

/// Two conversations of a folder, as a token file.
class ChatFile : public testing::Test {
 protected:
  ChatFile() {
    write_file_atomically(real_file_system(), folder_.path() / "chat.jsonl",
                          R"({"prompt": "one", "completion": "two three"})"
                          "\n"
                          R"({"prompt": "four five", "completion": "six"})"
                          "\n");
  }
  TokenizeResult tokenize(const std::string& form = kChatMl, int threads = 2) {
    return tokenize_chat(real_file_system(),
                         {.inputs = {folder_.path() / "chat.jsonl"},
                          .out = folder_.path() / "chat.tokens",
                          .threads = threads},
                         ChatTemplate(form), tokenizer_of("gpt2"));
  }
  TokenFile file() const {
    return TokenFile::open(folder_.path() / "chat.tokens", TokenFile::Check::content);
  }
  const TemporaryFolder folder_;
};

TEST_F(ChatFile, IsMadeWithProgressUpToAllThatIsRead) {
  std::vector<TokenizeProgress> said;
  tokenize_chat(real_file_system(),
                {.inputs = {folder_.path() / "chat.jsonl"}, .out = folder_.path() / "chat.tokens"},
                ChatTemplate(kChatMl), tokenizer_of("gpt2"),
                [&](const TokenizeProgress& now) { said.push_back(now); });
  ASSERT_FALSE(said.empty());
  EXPECT_EQ(said.back().total_bytes, fs::file_size(folder_.path() / "chat.jsonl"));
  EXPECT_EQ(said.back().done_bytes, said.back().total_bytes);
}

TEST_F(ChatFile, HasADocumentAndTheAnswersOfEachRecord) {
  const TokenizeResult result = tokenize();
  EXPECT_EQ(result.documents, 2);
  ASSERT_TRUE(file().has_answers());
  const Tokenizer tokenizer = tokenizer_of("gpt2");
  std::vector<std::string> learnt;
  for (std::int64_t i = 0; i < 2; ++i) {
    const std::int64_t begin = file().document_start(i);
    const auto count = static_cast<std::size_t>(file().document_start(i + 1) - begin);
    std::vector<std::int32_t> ids(count), answer;
    file().read(begin, ids);
    const auto are_answers = std::make_unique<bool[]>(count);
    file().read_answers(begin, {are_answers.get(), count});
    for (std::size_t t = 0; t < count; ++t) {
      if (are_answers[t]) answer.push_back(ids[t]);
    }
    learnt.push_back(tokenizer.decode(answer));
  }
  EXPECT_EQ(learnt, (std::vector<std::string>{"two three\n", "six\n"}));
}

TEST_F(ChatFile, IsMadeOnceAndAgainWhenTheTemplateChanges) {
  EXPECT_FALSE(tokenize().was_up_to_date);
  const std::uint64_t first = file().header().checksum;
  EXPECT_TRUE(tokenize(kChatMl, 1).was_up_to_date);
  EXPECT_FALSE(tokenize("{{ '#' }}" + std::string(kChatMl)).was_up_to_date);
  EXPECT_NE(file().header().checksum, first);
}

TEST_F(ChatFile, GivesTargetsThatAreAnswersInsideTheirRecord) {
  tokenize();
  constexpr std::size_t kLength = 64;
  std::vector<std::int32_t> ids(kLength), targets(kLength), positions(kLength), first(kLength);
  const std::int64_t counted = pack_window(file(), 0, file().token_count(), DocumentMode::mask,
                                           {ids, targets, positions, first});
  std::vector<std::int32_t> learnt;
  for (const std::int32_t target : targets) {
    if (target != kIgnoredTarget) learnt.push_back(target);
  }
  EXPECT_EQ(counted, std::ssize(learnt));
  EXPECT_EQ(tokenizer_of("gpt2").decode(learnt), "two three\nsix\n");
  const auto second = static_cast<std::size_t>(file().document_start(1));
  EXPECT_EQ(first[second], static_cast<std::int32_t>(second));
}

}  // namespace
}  // namespace heddle
