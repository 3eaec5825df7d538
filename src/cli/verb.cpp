#include "cli/verb.h"

#include <CLI/CLI.hpp>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/strings.h"

namespace heddle::cli {
namespace {

/// The words that `verb` would have understood in place of `word`.
std::vector<std::string> known_words(const CLI::App& verb, const std::string& word) {
  std::vector<std::string> names;
  if (word.starts_with('-')) {
    for (const auto* option : verb.get_options()) names.push_back(option->get_name());
  } else {
    const auto is_shown = [](const CLI::App* one) { return !one->get_group().empty(); };
    for (const auto* one : verb.get_subcommands(is_shown)) names.push_back(one->get_name());
  }
  return names;
}

/// What is wrong with the command line. A word that is not known comes first: CLI11 would rather
/// say what is missing, because of that word.
Error usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* verb = &app;
  std::string command = app.get_name();
  while (!verb->get_subcommands().empty()) {
    verb = verb->get_subcommands().front();
    command += " " + verb->get_name();
  }
  const std::string help = "see " + command + " --help";
  auto unknown = app.remaining(true);
  std::erase(unknown, "--");  // what comes behind it is known
  if (unknown.empty()) {
    return {ErrorCode::usage, command + ": " + shortened(error.what(), 300), help};
  }
  const std::string& word = unknown.front();
  const std::string near = nearest_word(word, known_words(*verb, word));
  return {ErrorCode::usage, fmt::format("{} does not know {}", command, shortened(word)),
          near.empty() ? help : fmt::format("did you mean {}? {}", near, help)};
}

/// Beyond, a count would overflow when something is added to it.
constexpr double kLargest = 1e18;

/// A number for which `holds`; `must` says in words what that is. Not CLI11's own checks: NaN
/// passes them, and they spell the largest number of all out in their messages.
CLI::Validator number_that(const char* name, const char* must, bool (*holds)(double)) {
  const auto problem = [=](const std::string& text) -> std::string {
    double value = 0;
    if (!CLI::detail::lexical_cast(text, value)) return {};  // the conversion to come says so
    if (value > kLargest) return shortened(text) + " is too large";
    return holds(value) ? "" : fmt::format("must be {}, not {}", must, shortened(text));
  };
  return CLI::Validator([=](std::string& text) { return problem(text); }, name);
}

/// CLI11 takes the largest number for one that is larger still.
template <class T>
CLI::Validator fits() {
  const auto check = [](std::string& text) -> std::string {
    double value = 0;
    const bool is_beyond = CLI::detail::lexical_cast(text, value) &&
                           std::abs(value) > static_cast<double>(std::numeric_limits<T>::max());
    return is_beyond ? shortened(text) + " is too large" : "";
  };
  return {check, ""};
}

}  // namespace

Option& Option::required() {
  option_->required();
  return *this;
}

Option& Option::show_default() {
  option_->capture_default_str();
  return *this;
}

Option& Option::positive() {
  option_->check(number_that("POSITIVE", "a number above 0", [](double x) { return x > 0; }));
  return *this;
}

Option& Option::not_negative() {
  option_->check(number_that("NONNEGATIVE", "0 or more", [](double x) { return x >= 0; }));
  return *this;
}

Option& Option::range(int low, int high) {
  option_->check(CLI::Range(low, high));
  return *this;
}

Option& Option::range(std::uint64_t low, std::uint64_t high) {
  option_->check(CLI::Range(low, high));
  return *this;
}

Option& Option::range(double low, double high) {
  option_->check(CLI::Range(low, high));
  option_->check(number_that("", "a number", [](double x) { return !std::isnan(x); }));
  return *this;
}

Option& Option::one_of(const std::vector<std::string>& words) {
  option_->check(CLI::IsMember(words));
  return *this;
}

Option& Option::one_at_a_time() {
  option_->allow_extra_args(false);
  return *this;
}

bool Option::is_given() const { return option_->count() > 0; }

Option& Option::excludes(const Option& other) {
  option_->excludes(other.option_);
  return *this;
}

Verb Verb::add_verb(const std::string& name, const std::string& description) {
  return Verb(app_->add_subcommand(name, description));
}

void Verb::require_verb() { app_->require_subcommand(1); }

bool Verb::has_chosen_verb() const { return !app_->get_subcommands().empty(); }

void Verb::hide() { app_->group(""); }

Option Verb::add_option(const std::string& name, std::string& value,
                        const std::string& description) {
  return Option(app_->add_option(name, value, description));
}

Option Verb::add_option(const std::string& name, std::filesystem::path& value,
                        const std::string& description) {
  return Option(app_->add_option(name, value, description));
}

Option Verb::add_option(const std::string& name, int& value, const std::string& description) {
  return Option(app_->add_option(name, value, description)->check(fits<int>()));
}

Option Verb::add_option(const std::string& name, std::int64_t& value,
                        const std::string& description) {
  return Option(app_->add_option(name, value, description)->check(fits<std::int64_t>()));
}

Option Verb::add_option(const std::string& name, std::uint64_t& value,
                        const std::string& description) {
  return Option(app_->add_option(name, value, description)->check(fits<std::uint64_t>()));
}

Option Verb::add_option(const std::string& name, double& value, const std::string& description) {
  return Option(app_->add_option(name, value, description));
}

Option Verb::add_option(const std::string& name, std::vector<std::string>& values,
                        const std::string& description) {
  return Option(app_->add_option(name, values, description));
}

void Verb::add_flag(const std::string& name, bool& value, const std::string& description) {
  app_->add_flag(name, value, description);
}

void Verb::footer(const std::string& text) { app_->footer(text); }

void Verb::callback(std::function<void()> run) { app_->callback(std::move(run)); }

void require_option(bool is_given, const char* verb, const char* option) {
  if (is_given) return;
  throw Error(ErrorCode::usage, fmt::format("heddle {}: {} is missing", verb, option),
              fmt::format("see heddle {} --help", verb));
}

Program::Program(const std::string& name, const std::string& description,
                 const std::string& version)
    : app_(std::make_unique<CLI::App>(description, name)) {
  app_->set_version_flag("--version", version);
}

Program::~Program() = default;

Verb Program::root() { return Verb(app_.get()); }

std::string Program::help() const { return app_->help(); }

void Program::run(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) throw usage_error(*app_, e);
    app_->exit(e);  // help or version
  }
}

}  // namespace heddle::cli
