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
#include "verify/recipe.h"
#include "verify/reference.h"

namespace heddle::cli {
namespace {

struct VerifyReferenceArguments {
  std::string folder;
  int ranks = 0;  ///< those of the recipe, or one
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

void print_line(const char* what, double value, double limit, const std::string& note = {}) {
  log_info("{} {:<16} {:.2e}  (at most {:.0e}){}", value <= limit ? "ok  " : "FAIL", what, value,
           limit, note.empty() ? "" : "  worst: " + note);
}

void print(const ReferenceReport& report) {
  const auto limits = report.limits();
  print_line("logits", report.logits_rel, limits.logits);
  print_line("loss", report.loss_abs, limits.loss);
  print_line("gradients", report.grad_rel, limits.gradients, report.grad_worst);
  print_line("training losses", report.train_loss_abs, limits.training_losses);
  print_line("gradient norms", report.train_norm_rel, limits.training_norms);
  print_line("trained weights", report.trained_rel, limits.trained, report.trained_worst);
  log_info("{} greedy text", report.greedy_equal ? "ok  "
                             : limits.greedy     ? "FAIL"
                                                 : "differs (allowed):");
}

void print(const RecipeReport& report) {
  log_info("recipe {} on {}", report.kind, report.mesh);
  print_line("training losses", report.train_loss_abs, report.loss_limit);
  print_line("trained weights", report.trained_rel, report.weights_limit, report.trained_worst);
  if (report.outer_rel) {
    print_line("outer weights", *report.outer_rel, report.weights_limit, report.outer_worst);
  }
}

/// Lets every rank make its report, and prints the first one's.
template <class Report, class Verify>
void verify(const VerifyReferenceArguments& arguments, Device::Kind device, int ranks,
            const Verify& verify_on_rank) {
  Report report;
  run_on_devices(device, ranks, [&](World& world, Device own_device) {
    Report own = verify_on_rank(world, own_device);
    if (world.rank() == 0) report = std::move(own);
  });
  if (!is_first_process()) return;
  print(report);
  if (arguments.json) std::cout << to_json(report).dump() << "\n";
  if (!report.ok()) {
    throw Error(ErrorCode::data, arguments.folder + ": differs from its reference");
  }
}

void run(const VerifyReferenceArguments& arguments) {
  config::RunConfig settings;
  int local = arguments.ranks;
  prepare_on_ranks([&] {
    settings = config::parse_settings(arguments.overrides);
    refuse_settings_without_effect(arguments.overrides);
    compute_dtype(settings);
    if (local == 0 && rank_count(1) == 1 && has_recipe(arguments.folder)) {
      local = recipe_ranks(arguments.folder, settings);
    }
  });
  const int ranks = rank_count(std::max(1, local));
  const Device::Kind device = device_kind(settings);
  if (has_recipe(arguments.folder)) {
    verify<RecipeReport>(arguments, device, ranks, [&](World& world, Device own) {
      const int threads = thread_count(static_cast<int>(settings.run.threads), ranks);
      return verify_recipe(arguments.folder, settings, {threads, own}, world);
    });
  } else {
    verify<ReferenceReport>(arguments, device, ranks, [&](World& world, Device own) {
      return verify_reference(arguments.folder, options_of(settings, ranks, own), world);
    });
  }
}

}  // namespace

void add_verify_reference(Verb verify) {
  Verb verb = verify.add_verb("reference",
                              "run a model folder, or a recipe, against what PyTorch computed");
  auto arguments = std::make_shared<VerifyReferenceArguments>();
  verb.add_option("DIR", arguments->folder,
                  "model folder with reference.safetensors, maybe a recipe.json")
      .required();
  verb.add_option("--ranks", arguments->ranks, "local ranks; those of a recipe when left out");
  verb.add_option("--set", arguments->overrides,
                  "section.key=value, as in the run file (repeatable)")
      .one_at_a_time();
  verb.add_flag("--json", arguments->json, "print one JSON object");
  verb.callback([arguments] { run(*arguments); });
}

}  // namespace heddle::cli
