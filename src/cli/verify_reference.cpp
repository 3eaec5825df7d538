#include <iostream>

#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "cli/ranks.h"
#include "cli/threads.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "config/load.h"
#include "train/model_setup.h"
#include "verify/reference.h"

namespace heddle::cli {
namespace {

struct VerifyReferenceArguments {
  std::string folder;
  int ranks = 1;
  std::vector<std::string> overrides;
  bool json = false;
};

ReferenceOptions options_of(const config::RunConfig& settings, int ranks, Device device) {
  return {.threads = thread_count(static_cast<int>(settings.run.threads), ranks),
          .device = device,
          .dtype = compute_dtype(settings),
          .recompute = settings.train.recompute == config::Recompute::block,
          .parallel = settings.parallel};
}

/// A setting that changes nothing here would only seem to have been verified.
void refuse_settings_without_effect(const std::vector<std::string>& overrides) {
  for (const std::string& text : overrides) {
    const std::string key = text.substr(0, text.find('='));
    if (key.starts_with("parallel.") || key == "train.recompute" || key == "run.threads" ||
        key == "run.device" || key == "run.dtype") {
      continue;
    }
    throw Error(ErrorCode::usage, "--set " + text + " has no meaning here",
                "use keys of [parallel], train.recompute, run.threads, run.device or run.dtype");
  }
}

void run(const VerifyReferenceArguments& arguments) {
  config::RunConfig settings;
  prepare_on_ranks([&] {
    settings = config::parse_settings(arguments.overrides);
    refuse_settings_without_effect(arguments.overrides);
    compute_dtype(settings);
  });
  ReferenceReport report;
  const int ranks = rank_count(arguments.ranks);
  run_on_devices(device_kind(settings), ranks, [&](World& world, Device device) {
    const auto own = verify_reference(arguments.folder, options_of(settings, ranks, device), world);
    if (world.rank() == 0) report = own;
  });
  if (!is_first_process()) return;
  const auto line = [](const char* what, double value, double limit, const std::string& note = {}) {
    log_info("{} {:<16} {:.2e}  (at most {:.0e}){}", value <= limit ? "ok  " : "FAIL", what, value,
             limit, note.empty() ? "" : "  worst: " + note);
  };
  const auto limits = report.limits();
  line("logits", report.logits_rel, limits.logits);
  line("loss", report.loss_abs, limits.loss);
  line("gradients", report.grad_rel, limits.gradients, report.grad_worst);
  line("training losses", report.train_loss_abs, limits.training_losses);
  line("trained weights", report.trained_rel, limits.trained, report.trained_worst);
  log_info("{} greedy text", report.greedy_equal ? "ok  "
                             : limits.greedy     ? "FAIL"
                                                 : "differs (allowed):");
  if (arguments.json) std::cout << to_json(report).dump() << "\n";
  if (!report.ok()) {
    throw Error(ErrorCode::data, arguments.folder + ": differs from its reference");
  }
}

}  // namespace

void add_verify_reference(Verb verify) {
  Verb verb = verify.add_verb("reference", "run a model folder against what PyTorch computed");
  auto arguments = std::make_shared<VerifyReferenceArguments>();
  verb.add_option("DIR", arguments->folder, "model folder with reference.safetensors").required();
  verb.add_option("--ranks", arguments->ranks, "local ranks");
  verb.add_option("--set", arguments->overrides,
                  "section.key=value, as in the run file (repeatable)")
      .one_at_a_time();
  verb.add_flag("--json", arguments->json, "print one JSON object");
  verb.callback([arguments] { run(*arguments); });
}

}  // namespace heddle::cli
