#include <CLI/CLI.hpp>

#include <cstdio>

#include "base/error.h"
#include "base/log.h"
#include "cli/verbs.h"

namespace heddle::cli {
namespace {

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
  add_bench(app);
  add_doctor(app);
  add_config(app);
  add_demo_text(app);
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
