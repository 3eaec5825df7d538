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
