
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "base/strings.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "data/encode.h"
#include "data/tokenize_line.h"
#include "tokenizer/files/tokenizer_files.h"

namespace heddle::cli {
namespace {

namespace fs = std::filesystem;

struct TokenizeArguments {
  std::vector<std::string> inputs;
  std::string tokenizer, out;
  std::string end_token = "auto", field = "text", split = "whole-file", delimiter;
  std::string on_error = "fail", as;
  int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  bool no_special = false, json = false;
};

TokenizeOptions resolve(const TokenizeArguments& options, const fs::path& tokenizer_file,
                        const Tokenizer& tokenizer) {
  TokenizeOptions resolved{.inputs = {options.inputs.begin(), options.inputs.end()},
                           .out = options.out,
                           .origin = origin_of(tokenizer),
                           .tokenizer = fs::absolute(tokenizer_file).lexically_normal(),
                           .end_token = find_end_token(tokenizer, options.end_token),
                           .parse_special = !options.no_special,
                           .threads = options.threads};
  resolved.on_fault = options.on_error == "skip" ? OnFault::skip : OnFault::stop;
  resolved.kind = input_kind_named(options.as);
  resolved.format.field = options.field;
  resolved.format.cut = cuts_of(tokenizer);
  resolved.format.delimiter = options.delimiter;
  resolved.format.split = !options.delimiter.empty()       ? TextSplit::delimiter
                          : options.split == "blank-lines" ? TextSplit::blank_lines
                                                           : TextSplit::whole_file;
  return resolved;
}

void print_for_people(const TokenizeArguments& options, const TokenizeResult& result,
                      double seconds) {
  const std::string what = fmt::format("{} tokens in {} documents", format_thousands(result.tokens),
                                       format_thousands(result.documents));
  if (result.was_up_to_date) {
    log_info("{} is up to date: {}", options.out, what);
    return;
  }
  log_info("{}: {} from {} in {} ({:.2f} bytes per token)", options.out, what,
           format_bytes(static_cast<double>(result.input_bytes)), format_duration(seconds),
           static_cast<double>(result.input_bytes) / static_cast<double>(result.tokens));
  if (result.reused_parts > 0) {
    log_info("{} of {} parts were finished by an earlier run", result.reused_parts, result.parts);
  }
  if (result.skipped > 0) log_warn("{} malformed documents were left out", result.skipped);
  if (result.empty > 0) log_warn("{} documents without text were left out", result.empty);
}

JsonValue to_json(const TokenizeOptions& options, const TokenizeResult& result, double seconds) {
  return {{"out", options.out.string()},
          {"tokens", result.tokens},
          {"documents", result.documents},
          {"skipped", result.skipped},
          {"empty", result.empty},
          {"vocab_size", options.origin.vocab_size},
          {"end_token", options.end_token ? JsonValue(*options.end_token) : JsonValue()},
          {"input_bytes", result.input_bytes},
          {"parts", result.parts},
          {"reused_parts", result.reused_parts},
          {"up_to_date", result.was_up_to_date},
          {"seconds", seconds}};
}

void run(const TokenizeArguments& options) {
  const TokenizerText text = read_tokenizer(options.tokenizer);
  const Tokenizer tokenizer = Tokenizer::from_json(text.json, text.path.string(), text.roles);
  const TokenizeOptions resolved = resolve(options, text.path, tokenizer);
  if (options.end_token == "auto" && !resolved.end_token) {
    log_warn("the tokenizer has no end-of-text token that is known by name; documents get none");
  }
  const Stopwatch clock;
  TokenizeLine line(observe::stderr_terminal(false));
  const TokenizeResult result =
      tokenize(real_file_system(), resolved, encoders(tokenizer, resolved.parse_special),
               [&](const TokenizeProgress& now) { line.show(now); });
  line.finish();
  if (!result.left_out.empty()) log_warn("{}", describe_left_out(result.left_out));
  print_for_people(options, result, clock.seconds());
  if (options.json) {
    const std::string text = to_json(resolved, result, clock.seconds()).dump();
    std::puts(text.c_str());
  }
}

}  // namespace

void add_tokenize(Verb app) {
  auto options = std::make_shared<TokenizeArguments>();
  Verb verb =
      app.add_verb("tokenize", "text, JSON, CSV, Parquet, Arrow or others' tokens to a token file");
  verb.add_option("INPUT", options->inputs,
                  "files, folders, patterns, or - for standard input; .gz and .zst are unpacked")
      .required();
  verb.add_option("--tokenizer", options->tokenizer,
                  "tokenizer.json, tokenizer.model, vocab.json or vocab.txt, or a folder with one")
      .required();
  verb.add_option("--out", options->out, "token file to write").required();
  verb.add_option("--threads", options->threads, "threads to use").range(1, 1024).show_default();
  verb.add_option("--as", options->as, "what the inputs are; otherwise recognised by content")
      .one_of(input_kind_names());
  verb.add_option("--field", options->field,
                  "field of objects, or column of tables, that holds the text")
      .show_default();
  const Option split =
      verb.add_option("--split", options->split, "what is a document in a text file")
          .one_of({"whole-file", "blank-lines"})
          .show_default();
  const Option delimiter =
      verb.add_option("--delimiter", options->delimiter, "text that stands between documents")
          .excludes(split);
  verb.add_option("--append-eos", options->end_token,
                  "token after each document: TOKEN, auto, none")
      .show_default();
  verb.add_flag("--no-special", options->no_special,
                "take special tokens that occur in the text as plain text");
  verb.add_option("--on-error", options->on_error, "what a malformed document does")
      .one_of({"fail", "skip"})
      .show_default();
  verb.add_flag("--json", options->json, "print one JSON object");
  verb.footer("The same command again continues where it was interrupted.");
  verb.callback([options, delimiter] {
    if (delimiter.is_given() && options->delimiter.empty()) {
      throw Error(ErrorCode::usage, "--delimiter is empty",
                  "leave it out where files are documents");
    }
    run(*options);
  });
}

}  // namespace heddle::cli
