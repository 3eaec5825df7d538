#include <malloc.h>

#include <chrono>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "cli/ended.h"
#include "cli/ranks.h"
#include "cli/standard_streams.h"
#include "cli/threads.h"
#include "cli/verb.h"
#include "cli/verbs.h"

namespace heddle::cli {
namespace {

void run(int argc, char** argv) {
  Program program(
      "heddle", "Heddle trains large language models across processors joined by imperfect links.",
      HEDDLE_VERSION);
  Verb root = program.root();
  root.require_verb();
  add_train(root);
  add_launch(root);
  add_eval(root);
  add_generate(root);
  add_tokenize(root);
  add_tokenizer(root);
  add_inspect(root);
  add_convert(root);
  add_verify(root);
  add_plan(root);
  add_simulate(root);
  add_trace(root);
  add_bench(root);
  add_doctor(root);
  add_config(root);
  add_demo_text(root);
  if (argc == 1) {
    log_info("{}", program.help());
    throw Error(ErrorCode::usage, "no verb was given", "see heddle --help");
  }
  program.run(argc, argv);
}

/// Matrix products take aligned buffers of a few to tens of megabytes and free them in every call.
/// The C library raises its threshold for mapping when it sees that and then takes them from its
/// heaps, whose free pieces do not fit the next aligned buffer: a process grows by 50 to 180 MB
/// that nobody planned. A threshold that is set stays where it is, and what is mapped goes back.
/// That costs page faults, a few hundredths of a step at most; heaps that keep everything grow as
/// above.
void return_large_buffers() {
#ifdef __GLIBC__
  constexpr int kMappedFrom = 1 << 20;
  mallopt(M_MMAP_THRESHOLD, kMappedFrom);
#endif
}

/// The exit status of what ended the verb.
int report_failure() {
  try {
    throw;
  } catch (const Ended& ended) {
    return ended.status;
  } catch (const Error& e) {
    if (speaks(e)) {
      log_line(LogLevel::error, e.what());
    } else {
      // Launchers end all ranks as soon as one has failed: first the one that says why.
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    return static_cast<int>(e.code());
  } catch (const std::exception& e) {
    // Whatever a verb prints by throws its own kind of exception.
    if (results_have_failed()) return 0;
    log_line(LogLevel::error, std::string("internal: ") + e.what());
    return static_cast<int>(ErrorCode::internal);
  }
}

int run_and_report(int argc, char** argv) {
  int status = 0;
  try {
    run(argc, argv);
  } catch (...) {
    status = report_failure();
  }
  return status_with_results(status);
}

}  // namespace
}  // namespace heddle::cli

int main(int argc, char** argv) {
  heddle::cli::prepare_standard_streams();
  heddle::cli::return_large_buffers();
  heddle::cli::wait_briefly();
  return heddle::cli::run_and_report(argc, argv);
}
