#include <iostream>

#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "cli/ranks.h"
#include "cli/temporary_folder.h"
#include "cli/threads.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "config/load.h"
#include "train/model_setup.h"
#include "verify/mesh.h"

namespace heddle::cli {
namespace {

struct VerifyMeshArguments {
  std::string run_file;
  std::vector<std::string> overrides;
  int ranks = 1;
  MeshOptions mesh;
  bool json = false;
};

void run(const VerifyMeshArguments& arguments) {
  const int ranks = rank_count(arguments.ranks);
  config::LoadedRun loaded;
  prepare_on_ranks([&] { loaded = load_run(arguments.run_file, arguments.overrides, ranks); });
  const TemporaryFolder tokens;
  MeshOptions options = arguments.mesh;
  options.threads = thread_count(static_cast<int>(loaded.config.run.threads), ranks);
  options.work_folder = tokens.path();
  MeshReport report;
  run_on_devices(device_kind(loaded.config), ranks,
                 [&](World& world, Device device) {
                   MeshOptions own_options = options;
                   own_options.device = device;
                   const auto own = verify_mesh(loaded.config, own_options, world);
                   if (world.rank() == 0) report = own;
                 },
                 {.joining = std::chrono::duration<double>(loaded.config.run.timeout)});
  if (!is_first_process()) return;
  log_info("one rank    loss {:.6f}\n{:<11} loss {:.6f}", report.loss_one, report.mesh,
           report.loss_mesh);
  if (report.ok) {
    log_info("ok: everything agrees within {:.0e}; the largest difference is {:.1e}",
             report.tolerance, report.rel);
  }
  if (arguments.json) std::cout << to_json(report).dump() << "\n";
  if (report.ok) return;
  const std::string where =
      report.microbatch < 0 ? "" : fmt::format(", micro-batch {}", report.microbatch);
  throw Error(ErrorCode::data,
              fmt::format("{} differs from one rank first in {} ({}{}): {:.1e}, at most {:.0e} is "
                          "expected",
                          report.mesh, report.tensor, report.direction, where, report.rel,
                          report.tolerance),
              "this is a defect of heddle or of the machine; please report it with the run file");
}

}  // namespace

void add_verify_mesh(Verb verify) {
  Verb verb = verify.add_verb(
      "mesh", "the same run on one rank and on a mesh; names the first tensor that differs");
  auto arguments = std::make_shared<VerifyMeshArguments>();
  verb.add_option("RUN", arguments->run_file, "run file (TOML)").required();
  verb.add_option("--ranks", arguments->ranks, "local ranks to start");
  verb.add_option("--set", arguments->overrides, "section.key=value, over the file's (repeatable)")
      .one_at_a_time();
  verb.add_option("--steps", arguments->mesh.steps, "steps whose losses are compared")
      .show_default()
      .positive();
  verb.add_option("--tolerance", arguments->mesh.tolerance,
                  "largest norm of a difference over the norm on one rank")
      .show_default()
      .positive();
  verb.add_flag("--json", arguments->json, "print one JSON object");
  verb.footer("heddle verify mesh run.toml --ranks 4 --set parallel.tp=2");
  verb.callback([arguments] { run(*arguments); });
}

}  // namespace heddle::cli
