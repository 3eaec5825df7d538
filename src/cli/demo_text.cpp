#include "data/demo_text.h"

#include <memory>

#include "base/file_system.h"
#include "base/json_value.h"
#include "base/log.h"
#include "cli/verb.h"
#include "cli/verbs.h"

namespace heddle::cli {
namespace {

struct DemoTextOptions {
  std::string out;
  std::size_t bytes = 1'000'000;
  std::uint64_t seed = 0;
};

void run(const DemoTextOptions& options) {
  const DemoLanguage language;
  std::string lines;
  const auto documents = language.documents(options.seed, options.bytes);
  for (const DemoDocument& document : documents) {
    lines += JsonValue{{"text", document.text}, {"nats", document.nats}}.dump() + "\n";
  }
  write_file_atomically(real_file_system(), options.out, lines);
  log_info("{}: {} documents; the language has {:.4f} nats per byte", options.out, documents.size(),
           language.nats_per_byte());
}

}  // namespace

void add_demo_text(Verb app) {
  auto options = std::make_shared<DemoTextOptions>();
  Verb verb = app.add_verb("demo-text", "the text that `make demo` trains on");
  verb.hide();  // not in the help: a step of the demo
  verb.add_option("--out", options->out, "JSONL file to write").required();
  verb.add_option("--bytes", options->bytes, "size of the text")
      .range(std::size_t{1}, std::size_t{1} << 30)
      .show_default();
  verb.add_option("--seed", options->seed, "another seed, another text").show_default();
  verb.callback([options] { run(*options); });
}

}  // namespace heddle::cli
