#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"
#include "cli/verbs.h"

namespace heddle::cli {
namespace {

/// The verb that was named, as far as the words were understood: "heddle tokenizer train".
std::string command_of(const CLI::App& app) {
  std::string command = app.get_name();
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    command += " " + at->get_name();
  }
  return command;
}

std::string failure_message(const CLI::App* app, const CLI::Error& error) {
  return fmt::format("error: {}; see {} --help\n", error.what(), command_of(*app));
}

/// A wrong verb would otherwise be answered with the remark that a verb is missing.
void check_verb(const CLI::App& app, const std::string& word) {
  if (word.starts_with('-')) return;
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) verbs.push_back(verb->get_name());
  if (std::ranges::find(verbs, word) != verbs.end()) return;
  const auto near = nearest_word(word, verbs);
  throw Error(ErrorCode::usage, fmt::format("unknown verb {}", word),
              near.empty() ? "see heddle --help" : fmt::format("did you mean {}?", near));
}

int run(int argc, char** argv) {
  CLI::App app{"Heddle trains large language models across processors joined by imperfect links."};
  app.name("heddle");
  app.require_subcommand(1);
  app.failure_message(failure_message);
  app.set_version_flag("--version", HEDDLE_VERSION);
  add_train(app);
  add_eval(app);
  add_generate(app);
  add_tokenize(app);
  add_tokenizer(app);
  add_inspect(app);
  add_convert(app);
  add_verify(app);
  add_bench(app);
  add_doctor(app);
  add_config(app);
  add_demo_text(app);
  if (argc == 1) {
    fmt::print(stderr, "{}", app.help());
    return static_cast<int>(ErrorCode::usage);
  }
  check_verb(app, argv[1]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    // CLI11 uses its own numbers; ours are fixed by the contract: 0 for help, 2 for bad usage.
    return app.exit(e) == 0 ? 0 : static_cast<int>(ErrorCode::usage);
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
