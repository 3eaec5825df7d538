#pragma once

#include <string>
#include <vector>

#include "data/demo_text.h"

namespace heddle {

/// Builds the states of DemoLanguage from word lists and sentence forms, last words first.
class DemoGrammar {
 public:
  explicit DemoGrammar(DemoLanguage& language) : language_(language) {}
  /// Adds all states; returns the first.
  int build();

 private:
  struct Option {
    std::string text;
    double weight;
    int next;
  };
  struct Person {
    std::string name, pronoun;
  };
  /// Nouns that the same verbs go with.
  struct NounClass {
    std::vector<std::string> singular, plural, verbs;
  };

  int reserve();
  void define(int state, const std::vector<Option>& options);
  int add(const std::vector<Option>& options);

  int story(const Person& person, const std::string& place);
  /// " small red bird" ... as the object of a verb or as a subject.
  int noun(const std::vector<std::string>& nouns, const std::vector<int>& next);
  int object(const NounClass& nouns, int next);
  int verb_phrase(int next);
  int animal_phrase(const std::vector<std::string>& animals, const std::vector<std::string>& verbs,
                    int next);

  DemoLanguage& language_;
};

}  // namespace heddle
