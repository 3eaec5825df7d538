#include <malloc.h>

#include <cstdio>

#include "base/error.h"
#include "base/log.h"
#include "cli/local_processes.h"
#include "cli/ranks.h"
#include "cli/verb.h"
#include "cli/verbs.h"

namespace heddle::cli {
namespace {

int run(int argc, char** argv) {
  Program program(
      "heddle", "Heddle trains large language models across processors joined by imperfect links.",
      HEDDLE_VERSION);
  Verb root = program.root();
  root.require_verb();
  add_train(root);
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
    fmt::print(stderr, "{}\n", program.help());
    throw Error(ErrorCode::usage, "no verb was given", "see heddle --help");
  }
  program.run(argc, argv);
  return 0;
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

}  // namespace
}  // namespace heddle::cli

int main(int argc, char** argv) {
  heddle::cli::return_large_buffers();
  try {
    return heddle::cli::run(argc, argv);
  } catch (const heddle::cli::ProcessesEnded& ended) {
    return ended.status;
  } catch (const heddle::AgreedError& e) {
    if (heddle::cli::is_first_process()) heddle::log_line(heddle::LogLevel::error, e.what());
    return static_cast<int>(e.code());
  } catch (const heddle::Error& e) {
    const bool is_stop = e.code() == heddle::ErrorCode::stopped;
    heddle::log_line(is_stop ? heddle::LogLevel::info : heddle::LogLevel::error, e.what());
    return static_cast<int>(e.code());
  } catch (const std::exception& e) {
    heddle::log_line(heddle::LogLevel::error, std::string("internal: ") + e.what());
    return static_cast<int>(heddle::ErrorCode::internal);
  }
}
