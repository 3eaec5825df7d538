#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace heddle::cli {

// What verbs need of the command line parser. Only verb.cpp includes CLI11, which takes seconds to
// compile wherever it is used.

/// One option or positional argument of a verb. A handle: copies mean the same option.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option& required();
  /// The help shows the value that the variable has now.
  Option& show_default();
  Option& positive();
  Option& not_negative();
  /// The limits belong to the range. Their type is named in help and errors.
  Option& range(int low, int high);
  Option& range(std::uint64_t low, std::uint64_t high);
  Option& range(double low, double high);
  Option& one_of(const std::vector<std::string>& words);
  /// A list that takes one word each time it is given, and leaves the next words alone.
  Option& one_at_a_time();
  Option& excludes(const Option& other);
  /// Whether the command line has it; once it is parsed.
  bool is_given() const;

 private:
  CLI::Option* option_;
};

/// One verb of the program, or the program itself. A handle: copies mean the same verb. Variables
/// are written while the command line is parsed and have to live until then.
class Verb {
 public:
  explicit Verb(CLI::App* app) : app_(app) {}

  /// A verb below this one.
  Verb add_verb(const std::string& name, const std::string& description);
  /// This verb does nothing by itself: one of those below it has to be given.
  void require_verb();
  /// Whether the command line names a verb below this one: its callback runs before this one's.
  bool has_chosen_verb() const;
  /// Works, but is not in the help.
  void hide();

  /// `name` starts with -- or is that of a positional argument.
  Option add_option(const std::string& name, std::string& value, const std::string& description);
  Option add_option(const std::string& name, std::filesystem::path& value,
                    const std::string& description);
  Option add_option(const std::string& name, int& value, const std::string& description);
  Option add_option(const std::string& name, std::int64_t& value, const std::string& description);
  Option add_option(const std::string& name, std::uint64_t& value, const std::string& description);
  Option add_option(const std::string& name, double& value, const std::string& description);
  Option add_option(const std::string& name, std::vector<std::string>& values,
                    const std::string& description);
  void add_flag(const std::string& name, bool& value, const std::string& description);

  /// The last line of the help.
  void footer(const std::string& text);
  /// Called when the verb was chosen and its command line is right.
  void callback(std::function<void()> run);

 private:
  CLI::App* app_;
};

/// Error(usage) where an option is missing that `verb` ("simulate step") needs. For options that a
/// verb below it does not share.
void require_option(bool is_given, const char* verb, const char* option);

/// The program: the verb above all others.
class Program {
 public:
  Program(const std::string& name, const std::string& description, const std::string& version);
  ~Program();

  Verb root();
  std::string help() const;
  /// Runs the verb that the command line names, or prints the help or the version that it asks
  /// for. Error(usage) names the word that is wrong, and the nearest known one.
  void run(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace heddle::cli
