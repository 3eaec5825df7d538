#include "tokenizer/chat/syntax.h"

namespace heddle::chat {
namespace {

constexpr std::int64_t kMaxSteps = 1'000'000;
constexpr int kMaxCalls = 100;

}  // namespace

const Value* Scope::find(std::string_view name) const {
  for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
    if (const Value* value = level->find(name)) return value;
  }
  return nullptr;
}

std::vector<Dict> Scope::enter_macro(const std::vector<Dict>& around) {
  std::vector<Dict> outside = std::move(levels_);
  levels_ = {outside.front()};
  levels_.insert(levels_.end(), around.begin(), around.end());
  push();
  return outside;
}

void Scope::follow(const List& messages) {
  rounds_.resize(messages.size());
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (const Dict* message = messages[i].dict()) messages_.emplace(message, i);
  }
}

void Scope::end_round(const Value& element, const std::string& out, std::size_t begin) {
  const auto message = messages_.find(element.dict());
  const auto printed = printed_since(out, begin);
  if (message == messages_.end() || !printed) return;
  std::vector<Mark>& rounds = rounds_[message->second];
  std::erase_if(rounds, [&](const Mark& inner) { return inner.begin >= begin; });
  rounds.push_back(*printed);
}

void Scope::count_step() {
  if (++steps_ > kMaxSteps) template_error("it does not come to an end");
}

void Scope::deepen() {
  if (++depth_ > kMaxCalls) template_error("its macros call each other too deeply");
}

Flow run_body(const Body& body, Scope& scope, std::string& out) {
  for (const auto& statement : body) {
    scope.count_step();
    if (const Flow flow = statement->run(scope, out); flow != Flow::next) return flow;
  }
  return Flow::next;
}

Arguments ArgumentList::evaluate(Scope& scope) const {
  Arguments arguments;
  for (const auto& argument : positional) arguments.positional.push_back(argument->evaluate(scope));
  for (const auto& [name, argument] : named) {
    arguments.named.emplace_back(name, argument->evaluate(scope));
  }
  return arguments;
}

}  // namespace heddle::chat
