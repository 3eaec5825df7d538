#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "base/json_value.h"
#include "bench/codec_bench.h"
#include "cli/compute_choice.h"
#include "cli/threads.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "codec/registry.h"
#include "train/model_setup.h"

namespace heddle::cli {
namespace {

struct BenchCodecArguments {
  CodecBenchOptions bench;
  std::filesystem::path gradients;
  std::string model = "llama-15m", device = "cpu";
  int threads = 1;
  bool json = false;
};

JsonValue to_json(const CodecQuality& quality) {
  return {{"bytes_per_value", quality.bytes_per_value}, {"relative_error", quality.relative_error}};
}

void print_json(const BenchCodecArguments& arguments,
                const std::vector<CodecBenchResult>& results) {
  JsonValue list = JsonValue::array();
  for (const CodecBenchResult& r : results) {
    list.push_back({{"codec", r.name},
                    {"gaussian", to_json(r.gaussian)},
                    {"gradients", to_json(r.gradients)},
                    {"encode_seconds", r.encode_seconds},
                    {"encode_with_residual_seconds", r.feedback_seconds},
                    {"decode_seconds", r.decode_seconds},
                    {"decode_add_seconds", r.add_seconds},
                    {"copy_seconds", r.copy_seconds},
                    {"encode_fraction", r.encode_fraction()},
                    {"decode_fraction", r.decode_fraction()}});
  }
  const JsonValue report = {{"device", arguments.device},
                            {"threads", arguments.threads},
                            {"values", arguments.bench.values},
                            {"codecs", list}};
  fmt::print("{}\n", report.dump(2));
}

void print_table(const BenchCodecArguments& arguments,
                 const std::vector<CodecBenchResult>& results) {
  const bool is_cpu = arguments.device == "cpu";
  fmt::print("{} float32 values on {}{}; rates in GB/s of them, beside those of a copy\n",
             arguments.bench.values, arguments.device,
             is_cpu ? fmt::format(", {} threads", arguments.threads) : "");
  fmt::print("{:<17}{:<19}{:<21}{:<30}{}\n", "", "Gaussian", "gradients", "encode", "decode");
  fmt::print("{:<16}{:>7}{:>10}{:>9}{:>10}{:>9}{:>9}{:>11}{:>11}{:>9}{:>9}{:>9}\n", "codec",
             "bytes", "error", "bytes", "error", "rate", "of copy", "residual", "rate", "of copy",
             "and add", "copy");
  for (const CodecBenchResult& r : results) {
    const auto rate = [&](double seconds) { return r.rate(seconds) / 1e9; };
    fmt::print("{:<16}{:>7.4f}{:>10.2e}{:>9.4f}{:>10.2e}", r.name, r.gaussian.bytes_per_value,
               r.gaussian.relative_error, r.gradients.bytes_per_value, r.gradients.relative_error);
    fmt::print("{:>9.2f}{:>8.0f}%{:>11.2f}{:>11.2f}{:>8.0f}%{:>9.2f}{:>9.2f}\n",
               rate(r.encode_seconds), 100 * r.encode_fraction(), rate(r.feedback_seconds),
               rate(r.decode_seconds), 100 * r.decode_fraction(), rate(r.add_seconds),
               rate(r.copy_seconds));
  }
}

void run(BenchCodecArguments arguments) {
  const ComputeChoice choice = compute_choice(arguments.device, "f32");
  for (const std::string& name : arguments.bench.codecs) codec::make_codec(name);
  arguments.threads = thread_count(arguments.threads);
  Stream stream(arguments.threads, choice.device), host(arguments.threads);
  const auto gradients = arguments.gradients.empty()
                             ? made_gradients(named_model(arguments.model), host)
                             : read_gradients(arguments.gradients);
  const auto results = bench_codecs(arguments.bench, gradients, stream);
  if (arguments.json) {
    print_json(arguments, results);
  } else {
    print_table(arguments, results);
  }
}

}  // namespace

void add_bench_codec(Verb bench) {
  const auto arguments = std::make_shared<BenchCodecArguments>();
  Verb verb = bench.add_verb(
      "codec", "size, error and speed of the codecs that make messages between ranks shorter");
  verb.add_option("--codec", arguments->bench.codecs,
                  "only this one, with parameters or without (repeatable)")
      .one_at_a_time();
  verb.add_option("--values", arguments->bench.values,
                  "float32 values in a call; a GPU needs some 2^28 for a rate")
      .positive()
      .show_default();
  verb.add_option("--gradients", arguments->gradients,
                  "safetensors file with gradients (grad.*, or all of it)");
  verb.add_option("--model", arguments->model,
                  "preset, config.json or model folder whose gradients are made otherwise")
      .show_default();
  verb.add_option("--seconds", arguments->bench.seconds, "shortest time spent on one codec")
      .range(0.0, 3600.0)
      .show_default();
  verb.add_option("--threads", arguments->threads, "size of the thread team; 0: all cores")
      .range(0, 4096)
      .show_default();
  verb.add_option("--device", arguments->device, "cpu or cuda").show_default();
  verb.add_flag("--json", arguments->json, "print one JSON object");
  std::string forms;
  for (const codec::CodecHelp& help : codec::known_codecs()) {
    forms += fmt::format("\n  {:<32}{}", help.form, help.does);
  }
  verb.footer("Codecs:" + forms);
  verb.callback([arguments] { run(*arguments); });
}

}  // namespace heddle::cli
