#include "data/demo_grammar.h"

#include <algorithm>
#include <cctype>

namespace heddle {
namespace {

using Words = std::vector<std::string>;

const Words kPlaces = {"garden", "kitchen", "forest", "market", "harbor", "meadow"};
const Words kAdjectives = {"small", "red", "warm", "quiet", "shiny", "round", "lazy", "green"};
const Words kRest = {"sleep", "sing", "run", "jump", "wait", "hide"};
const Words kRests = {"sleeps", "sings", "runs", "jumps", "waits", "hides"};

/// Weight of the word of `rank`: a few words are common and most are rare, as in real text. `turn`
/// makes another word the commonest, so that the word before matters.
double zipf(std::size_t rank, std::size_t turn, std::size_t count) {
  return 1.0 / static_cast<double>((rank + turn) % count + 1);
}

std::string lower(std::string word) {
  word[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(word[0])));
  return word;
}

}  // namespace

int DemoGrammar::reserve() {
  language_.states_.emplace_back();
  return static_cast<int>(language_.states_.size()) - 1;
}

void DemoGrammar::define(int state, const std::vector<Option>& options) {
  double sum = 0;
  for (const Option& option : options) sum += option.weight;
  for (const Option& option : options) {
    language_.states_[static_cast<std::size_t>(state)].push_back(
        {option.text, option.weight / sum, option.next});
  }
}

int DemoGrammar::add(const std::vector<Option>& options) {
  const int state = reserve();
  define(state, options);
  return state;
}

int DemoGrammar::noun(const Words& nouns, const std::vector<int>& next) {
  const auto noun_options = [&](std::size_t turn, double weight) {
    std::vector<Option> options;
    for (std::size_t i = 0; i < nouns.size(); ++i) {
      options.push_back({" " + nouns[i], weight * zipf(i, turn, nouns.size()), next[i]});
    }
    return options;
  };
  std::vector<Option> options = noun_options(0, 1.5);
  for (std::size_t a = 0; a < kAdjectives.size(); ++a) {
    const int after = add(noun_options(3 * a + 1, 1.0));
    options.push_back({" " + kAdjectives[a], zipf(a, 0, kAdjectives.size()), after});
  }
  return add(options);
}

int DemoGrammar::object(const NounClass& nouns, int next) {
  const std::vector<int> all_next(nouns.singular.size(), next);
  const int one = noun(nouns.singular, all_next);
  const int two = noun(nouns.plural, all_next);
  return add({{" a", 5, one}, {" the", 3, one}, {" two", 2, two}});
}

int DemoGrammar::verb_phrase(int next) {
  const std::vector<NounClass> classes = {
      {{"bird", "cat", "dog", "fox", "mouse", "rabbit", "goat", "duck"},
       {"birds", "cats", "dogs", "foxes", "mice", "rabbits", "goats", "ducks"},
       {"sees", "feeds", "calls", "follows"}},
      {{"pear", "carrot", "cake", "plum", "berry", "nut", "cherry", "loaf"},
       {"pears", "carrots", "cakes", "plums", "berries", "nuts", "cherries", "loaves"},
       {"eats", "wants", "shares", "buys"}},
      {{"lamp", "stone", "key", "basket", "rope", "kite", "box", "book"},
       {"lamps", "stones", "keys", "baskets", "ropes", "kites", "boxes", "books"},
       {"takes", "finds", "paints", "carries"}}};
  std::vector<Option> verbs;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    const int after = object(classes[c], next);
    for (std::size_t v = 0; v < classes[c].verbs.size(); ++v) {
      verbs.push_back({" " + classes[c].verbs[v], zipf(v, c, 4), after});
    }
  }
  return add(verbs);
}

int DemoGrammar::animal_phrase(const Words& animals, const Words& verbs, int next) {
  std::vector<int> verb_states;
  for (std::size_t a = 0; a < animals.size(); ++a) {
    std::vector<Option> options;
    for (std::size_t v = 0; v < verbs.size(); ++v) {
      options.push_back({" " + verbs[v], zipf(v, a, verbs.size()), next});
    }
    verb_states.push_back(add(options));
  }
  return noun(animals, verb_states);
}

int DemoGrammar::story(const Person& person, const std::string& place) {
  const int sentence = reserve();
  const int after_object = add({{".", 7, sentence},
                                {" and smiles.", 2, sentence},
                                {" near the " + place + ".", 1, sentence}});
  const int after_animal = add({{".", 6, sentence},
                                {" in the rain.", 2, sentence},
                                {" with " + person.name + ".", 2, sentence}});
  const int does = verb_phrase(after_object);
  const int one = animal_phrase({"bird", "cat", "dog", "fox"}, kRests, after_animal);
  const int two = animal_phrase({"birds", "cats", "dogs", "foxes"}, kRest, after_animal);
  define(sentence,
         {{" " + person.pronoun, 28, does},
          {" " + person.name, 10, does},
          {" Soon " + lower(person.pronoun), 12, does},
          {" The", 20, one},
          {" Two", 15, two},
          {" At night " + person.name + " leaves the " + place + ".", 15, DemoLanguage::kEnd}});
  return sentence;
}

int DemoGrammar::build() {
  const std::vector<Person> people = {{"Mira", "She"}, {"Otto", "He"},  {"Tess", "She"},
                                      {"Hugo", "He"},  {"Nora", "She"}, {"Karl", "He"}};
  std::vector<Option> names;
  for (std::size_t p = 0; p < people.size(); ++p) {
    std::vector<Option> places;
    for (std::size_t i = 0; i < kPlaces.size(); ++i) {
      places.push_back({" is in the " + kPlaces[i] + ".", zipf(i, p, kPlaces.size()),
                        story(people[p], kPlaces[i])});
    }
    names.push_back({" " + people[p].name, zipf(p, 0, people.size()), add(places)});
  }
  return add({{"Today", 1, add(names)}});
}

}  // namespace heddle
