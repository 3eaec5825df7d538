#include "data/chat/answers.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace heddle {
namespace {

Json first_messages(const Conversation& conversation, std::size_t count) {
  Json some = Json::array();
  for (std::size_t i = 0; i < count; ++i) some.push_back(conversation.messages[i]);
  return some;
}

/// The first so many messages, as the template writes them.
std::string beginning(const ChatTemplate& form, const Conversation& conversation,
                      std::size_t messages, bool opens_answer) {
  return form.render(first_messages(conversation, messages), conversation.others,
                     {.add_generation_prompt = opens_answer});
}

ChatText marked(const ChatTemplate& form, const Conversation& conversation,
                const std::string& place) {
  auto rendered = form.render_marked(conversation.messages, conversation.others,
                                     {.add_generation_prompt = false});
  // Messages before the first that counts have marks too, in the same order.
  std::size_t given = 0;
  if (conversation.first > 0) {
    given = form.render_marked(first_messages(conversation, conversation.first),
                               conversation.others, {.add_generation_prompt = false})
                .marked.size();
  }
  if (rendered.marked.size() <= given) {
    throw Error(ErrorCode::data, fmt::format("{}: the chat template marks no answer of it", place),
                "put {% generation %} around what the template writes of an answer, not around "
                "a macro or a value");
  }
  rendered.marked.erase(rendered.marked.begin(),
                        rendered.marked.begin() + static_cast<std::ptrdiff_t>(given));
  return {std::move(rendered.text), std::move(rendered.marked)};
}

ChatText between_prompts(const ChatTemplate& form, const Conversation& conversation,
                         const std::string& place) {
  const std::size_t count = conversation.messages.size();
  ChatText chat{beginning(form, conversation, count, false), {}};
  for (std::size_t i = 0; i < count; ++i) {
    if (!conversation.is_answer(i)) continue;
    const bool is_last = i + 1 == count;
    const std::string before = i == 0 ? "" : beginning(form, conversation, i, true);
    const std::string behind = is_last ? chat.text : beginning(form, conversation, i + 1, false);
    const bool is_found = i > 0 && chat.text.starts_with(behind) && behind.starts_with(before) &&
                          behind.size() > before.size();
    if (!is_found) {
      throw Error(
          ErrorCode::data,
          fmt::format("{}: where message {} stands cannot be told from the chat template, which "
                      "writes {}",
                      place, i + 1,
                      i == 0             ? "no beginning of an answer before the first message"
                      : behind == before ? "nothing of it"
                      : is_last          ? "what comes before it otherwise when it follows"
                                         : "it otherwise when a conversation goes on behind it"),
          is_last
              ? "mark answers with {% generation %} in the template"
              : "mark answers with {% generation %} in the template, or end conversations there");
    }
    chat.answers.push_back({before.size(), behind.size()});
  }
  return chat;
}

/// How many tokens of the text lie wholly before byte `at`.
std::size_t tokens_before(const Tokenizer& tokenizer, const ChatText& chat,
                          const std::vector<std::int32_t>& ids, std::size_t at,
                          EncodeCache& cache) {
  if (at >= chat.text.size()) return ids.size();
  std::vector<std::int32_t> beginning;
  tokenizer.encode(std::string_view(chat.text).substr(0, at), {}, cache, beginning);
  return static_cast<std::size_t>(std::ranges::mismatch(beginning, ids).in1 - beginning.begin());
}

}  // namespace

ChatText chat_text(const ChatTemplate& form, const Conversation& conversation,
                   const std::string& place) {
  try {
    return form.marks_answers() ? marked(form, conversation, place)
                                : between_prompts(form, conversation, place);
  } catch (const Error& error) {
    if (std::string_view(error.what()).starts_with(place)) throw;
    throw error.within(place);
  }
}

ChatTokens chat_tokens(const Tokenizer& tokenizer, const ChatText& chat, EncodeCache& cache) {
  ChatTokens made;
  tokenizer.encode(chat.text, {}, cache, made.ids);
  made.are_answers.resize(made.ids.size());
  for (const auto& [begin, end] : chat.answers) {
    const std::size_t from = tokens_before(tokenizer, chat, made.ids, begin, cache);
    const std::size_t to = tokens_before(tokenizer, chat, made.ids, end, cache);
    std::fill(made.are_answers.begin() + static_cast<std::ptrdiff_t>(from),
              made.are_answers.begin() + static_cast<std::ptrdiff_t>(std::max(from, to)), true);
  }
  return made;
}

}  // namespace heddle
