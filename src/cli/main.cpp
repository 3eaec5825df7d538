#include <CLI/CLI.hpp>

#include <cstdio>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"
#include "cli/verbs.h"

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
  std::string command = "heddle";
  while (!verb->get_subcommands().empty()) {
    verb = verb->get_subcommands().front();
    command += " " + verb->get_name();
  }
  const std::string help = "see " + command + " --help";
  const auto unknown = app.remaining(true);
  if (unknown.empty()) return {ErrorCode::usage, command + ": " + error.what(), help};
  const std::string& word = unknown.front();
  const std::string near = nearest_word(word, known_words(*verb, word));
  return {ErrorCode::usage, fmt::format("{} does not know {}", command, word),
          near.empty() ? help : fmt::format("did you mean {}? {}", near, help)};
}

int run(int argc, char** argv) {
  CLI::App app{"Heddle trains large language models across processors joined by imperfect links."};
  app.name("heddle");
  app.require_subcommand(1);
  app.set_version_flag("--version", HEDDLE_VERSION);
  add_train(app);
  add_eval(app);
  add_generate(app);
  add_tokenize(app);
  add_tokenizer(app);
  add_inspect(app);
  add_convert(app);
  add_verify(app);
  add_simulate(app);
  add_bench(app);
  add_doctor(app);
  add_config(app);
  add_demo_text(app);
  if (argc == 1) {
    fmt::print(stderr, "{}\n", app.help());
    throw Error(ErrorCode::usage, "no verb was given", "see heddle --help");
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) throw usage_error(app, e);
    app.exit(e);  // help or version
  }
  return 0;
}

}  // namespace
}  // namespace heddle::cli

int main(int argc, char** argv) {
  try {
    return heddle::cli::run(argc, argv);
  } catch (const heddle::Error& e) {
    const bool is_stop = e.code() == heddle::ErrorCode::stopped;
    heddle::log_line(is_stop ? heddle::LogLevel::info : heddle::LogLevel::error, e.what());
    return static_cast<int>(e.code());
  } catch (const std::exception& e) {
    heddle::log_line(heddle::LogLevel::error, std::string("internal: ") + e.what());
    return static_cast<int>(heddle::ErrorCode::internal);
  }
}
