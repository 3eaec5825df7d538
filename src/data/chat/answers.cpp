#include "data/chat/answers.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "data/chat/token_places.h"

namespace heddle {
namespace {

Json first_messages(const Conversation& conversation, std::size_t count) {
  Json some = Json::array();
  for (std::size_t i = 0; i < count; ++i) some.push_back(conversation.messages[i]);
  return some;
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

using Stretch = ChatTemplate::Stretch;

/// Finds answers in what a template writes of a whole conversation.
class AnswerFinder {
 public:
  AnswerFinder(const ChatTemplate& form, const Conversation& conversation, const std::string& place)
      : form_(form),
        conversation_(conversation),
        place_(place),
        written_(form.render_marked(conversation.messages, conversation.others,
                                    {.add_generation_prompt = false})) {}

  ChatText find() {
    std::vector<Stretch> answers;
    for (std::size_t i = 0; i < conversation_.messages.size(); ++i) {
      if (!conversation_.is_answer(i)) continue;
      answers.push_back(stretch(i));
    }
    return {std::move(written_.text), std::move(answers)};
  }

 private:
  /// From where the template lets a model begin to where it has written the message; or, where it
  /// writes a message otherwise when the conversation goes on, what it printed in its turn.
  Stretch stretch(std::size_t message) const {
    const std::string& text = written_.text;
    const bool is_last = message + 1 == conversation_.messages.size();
    const std::string before = message == 0 ? "" : written(message, true);
    const std::string behind = is_last ? text : written(message + 1, false);
    if (message > 0 && text.starts_with(behind) && behind.starts_with(before) &&
        behind.size() > before.size()) {
      return {before.size(), behind.size()};
    }
    if (message > 0 && behind != before) {
      if (const auto found = in_its_turn(message, before)) return *found;
    }
    throw Error(ErrorCode::data,
                fmt::format("{}: where message {} stands cannot be told from the chat template, "
                            "which writes {}",
                            place_, message + 1,
                            message == 0 ? "no beginning of an answer before the first message"
                            : behind == before ? "nothing of it"
                            : is_last          ? "what comes before it otherwise when it follows"
                                               : "it otherwise when a conversation goes on behind "
                                                 "it"),
                is_last ? "mark answers with {% generation %} in the template"
                        : "mark answers with {% generation %} in the template, or end "
                          "conversations there");
  }

  std::optional<Stretch> in_its_turn(std::size_t message, const std::string& before) const {
    const auto& turn = written_.turns[message];
    if (!turn) return std::nullopt;
    const std::string_view said =
        std::string_view(written_.text).substr(turn->begin, turn->end - turn->begin);
    const std::string question = written(message, false);
    if (!before.starts_with(question)) return std::nullopt;
    const std::size_t opening = opening_in(said, before.substr(question.size()), message);
    if (opening >= said.size() || (opening == 0 && before != question)) return std::nullopt;
    return Stretch{turn->begin + opening, turn->end};
  }

  /// How much of what lets a model begin stands before its answer: "<think>" of it may not.
  std::size_t opening_in(std::string_view said, std::string_view opening,
                         std::size_t message) const {
    const auto equal =
        static_cast<std::size_t>(std::ranges::mismatch(said, opening).in1 - said.begin());
    const Json content = conversation_.messages[message].value("content", Json());
    if (equal == opening.size() || !content.is_string() || content == "") return equal;
    return std::min(equal, said.find(content.get<std::string>()));
  }

  /// The first so many messages.
  std::string written(std::size_t messages, bool opens_answer) const {
    return form_.render(first_messages(conversation_, messages), conversation_.others,
                        {.add_generation_prompt = opens_answer});
  }

  const ChatTemplate& form_;
  const Conversation& conversation_;
  const std::string& place_;
  ChatTemplate::Rendered written_;
};

/// How many tokens of the text lie wholly before byte `at`; fewer where the text before it has
/// other tokens without the rest.
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
                                : AnswerFinder(form, conversation, place).find();
  } catch (const Error& error) {
    if (std::string_view(error.what()).starts_with(place)) throw;
    throw error.within(place);
  }
}

ChatTokens chat_tokens(const Tokenizer& tokenizer, const ChatText& chat, EncodeCache& cache) {
  ChatTokens made;
  tokenizer.encode(chat.text, {}, cache, made.ids);
  made.are_answers.resize(made.ids.size());
  const auto places = token_places(tokenizer, chat.text, made.ids);
  for (const Stretch& answer : chat.answers) {
    if (places) {
      const auto first =
          std::ranges::find_if(*places, [&](auto one) { return one.end > answer.begin; });
      const auto behind =
          std::ranges::find_if(*places, [&](auto one) { return one.begin >= answer.end; });
      for (auto one = first; one < behind; ++one) {
        made.are_answers[static_cast<std::size_t>(one - places->begin())] = true;
      }
      continue;
    }
    const std::size_t from = tokens_before(tokenizer, chat, made.ids, answer.begin, cache);
    const std::size_t to = tokens_before(tokenizer, chat, made.ids, answer.end, cache);
    std::fill(made.are_answers.begin() + static_cast<std::ptrdiff_t>(from),
              made.are_answers.begin() + static_cast<std::ptrdiff_t>(std::max(from, to)), true);
  }
  return made;
}

}  // namespace heddle
