#include <CLI/CLI.hpp>

#include <charconv>
#include <iostream>

#include "base/error.h"
#include "base/json.h"
#include "cli/threads.h"
#include "cli/verbs.h"
#include "verify/reference.h"

namespace heddle::cli {
namespace {

struct Arguments {
  std::string folder;
  int ranks = 1;
  std::vector<std::string> overrides;
  bool json = false;
};

int number_after(std::string_view text, std::string_view prefix) {
  const std::string_view digits = text.substr(prefix.size());
  int number = -1;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), number);
  if (error != std::errc() || end != digits.end() || number < 0 || number > 1024) {
    throw Error(ErrorCode::usage, fmt::format("--set {} is not a number of threads", text),
                "give a number up to 1024; 0 uses all cores");
  }
  return number;
}

/// The keys of the run file that change how a reference is run on one process.
ReferenceOptions options_of(const std::vector<std::string>& overrides) {
  ReferenceOptions options{.threads = thread_count(0)};
  for (const auto& text : overrides) {
    if (text == "train.recompute=block") {
      options.recompute = true;
    } else if (text.starts_with("run.threads=")) {
      options.threads = thread_count(number_after(text, "run.threads="));
    } else if (text != "run.device=cpu" && text != "train.recompute=none") {
      throw Error(ErrorCode::usage, "--set " + text + " has no meaning here in this version",
                  "use run.threads, run.device=cpu or train.recompute");
    }
  }
  return options;
}

void run(const Arguments& arguments) {
  if (arguments.ranks != 1) {
    throw Error(ErrorCode::usage,
                fmt::format("--ranks {}: this version runs one process", arguments.ranks),
                "use --ranks 1");
  }
  const auto report = verify_reference(arguments.folder, options_of(arguments.overrides));
  const auto line = [](const char* what, double value, double limit, const std::string& note = {}) {
    fmt::print(stderr, "{} {:<16} {:.2e}  (at most {:.0e}){}\n", value <= limit ? "ok  " : "FAIL",
               what, value, limit, note.empty() ? "" : "  worst: " + note);
  };
  line("logits", report.logits_rel, 1e-5);
  line("loss", report.loss_abs, 1e-5);
  line("gradients", report.grad_rel, 1e-4, report.grad_worst);
  line("training losses", report.train_loss_abs, 1e-4);
  line("trained weights", report.trained_rel, 1e-3, report.trained_worst);
  fmt::print(stderr, "{} greedy text\n", report.greedy_equal ? "ok  " : "FAIL");
  if (arguments.json) std::cout << to_json(report).dump() << "\n";
  if (!report.ok()) {
    throw Error(ErrorCode::data, arguments.folder + ": differs from its reference");
  }
}

}  // namespace

void add_verify_reference(CLI::App& verify) {
  auto* verb =
      verify.add_subcommand("reference", "run a model folder against what PyTorch computed");
  auto arguments = std::make_shared<Arguments>();
  verb->add_option("DIR", arguments->folder, "model folder with reference.safetensors")->required();
  verb->add_option("--ranks", arguments->ranks, "local ranks");
  verb->add_option("--set", arguments->overrides,
                   "section.key=value, as in the run file (repeatable)")
      ->allow_extra_args(false);
  verb->add_flag("--json", arguments->json, "print one JSON object");
  verb->callback([arguments] { run(*arguments); });
}

}  // namespace heddle::cli
