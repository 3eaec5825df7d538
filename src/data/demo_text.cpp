#include "data/demo_text.h"

#include <cmath>

#include "base/check.h"
#include "base/rng.h"
#include "data/demo_grammar.h"

namespace heddle {

DemoLanguage::DemoLanguage() {
  start_ = DemoGrammar(*this).build();
  check_states();
  compute_expectations();
}

void DemoLanguage::check_states() const {
  for (const State& state : states_) {
    for (const Choice& a : state) {
      for (const Choice& b : state) {
        HEDDLE_CHECK(&a == &b || !b.text.starts_with(a.text), "'{}' begins '{}'", a.text, b.text);
      }
    }
  }
}

void DemoLanguage::compute_expectations() {
  // V(s) = r(s) + sum of p V(next), by repeated substitution. Choices point mostly to states
  // built before their own, so one sweep in that order carries values through a whole sentence,
  // and the error shrinks by the chance that a story goes on.
  std::vector<double> nats(states_.size(), 0), bytes(states_.size(), 0);
  double change = 1;
  for (int sweep = 0; change > 1e-12; ++sweep) {
    HEDDLE_CHECK(sweep < 10000, "the demo language has stories without end");
    const double before =
        nats[static_cast<std::size_t>(start_)] + bytes[static_cast<std::size_t>(start_)];
    for (std::size_t s = 0; s < states_.size(); ++s) {
      double state_nats = 0, state_bytes = 0;
      for (const Choice& choice : states_[s]) {
        const auto next = static_cast<std::size_t>(choice.next);
        const bool ends = choice.next == kEnd;
        state_nats +=
            choice.probability * (-std::log(choice.probability) + (ends ? 0.0 : nats[next]));
        state_bytes += choice.probability *
                       (static_cast<double>(choice.text.size()) + (ends ? 0.0 : bytes[next]));
      }
      nats[s] = state_nats;
      bytes[s] = state_bytes;
    }
    nats_per_document_ = nats[static_cast<std::size_t>(start_)];
    bytes_per_document_ = bytes[static_cast<std::size_t>(start_)];
    change = sweep < 10 ? 1 : std::abs(nats_per_document_ + bytes_per_document_ - before);
  }
}

DemoDocument DemoLanguage::document(std::uint64_t seed, std::uint64_t index) const {
  const std::uint64_t key = rng_key(rng_key(seed, "demo.text"), index);
  DemoDocument document;
  int state = start_;
  for (std::uint64_t step = 0; state != kEnd; ++step) {
    const State& choices = states_[static_cast<std::size_t>(state)];
    double left = random_uniform(key, step);
    std::size_t chosen = 0;
    while (chosen + 1 < choices.size() && left >= choices[chosen].probability) {
      left -= choices[chosen++].probability;
    }
    document.text += choices[chosen].text;
    document.nats -= std::log(choices[chosen].probability);
    state = choices[chosen].next;
  }
  return document;
}

std::vector<DemoDocument> DemoLanguage::documents(std::uint64_t seed, std::size_t bytes) const {
  std::vector<DemoDocument> documents;
  for (std::size_t made = 0; made < bytes;) {
    documents.push_back(document(seed, documents.size()));
    made += documents.back().text.size();
  }
  return documents;
}

std::optional<double> DemoLanguage::nats_of(std::string_view text) const {
  double nats = 0;
  int state = start_;
  while (state != kEnd) {
    const Choice* taken = nullptr;
    for (const Choice& choice : states_[static_cast<std::size_t>(state)]) {
      if (text.starts_with(choice.text)) taken = &choice;
    }
    if (taken == nullptr) return std::nullopt;
    nats -= std::log(taken->probability);
    text.remove_prefix(taken->text.size());
    state = taken->next;
  }
  return text.empty() ? std::optional(nats) : std::nullopt;
}

}  // namespace heddle
