#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "tokenizer/verify.h"

namespace heddle::cli {
namespace {

struct VerifyTokenizerOptions {
  std::string tokenizer, cases, corpus;
  bool json = false;
};

JsonValue to_json(const TokenizerReport& report) {
  JsonValue out = {
      {"cases", report.cases}, {"passed", report.passed}, {"decode_passed", report.decode_passed}};
  if (report.has_corpus) {
    out["corpus_tokens"] = report.corpus_tokens;
    out["corpus_sha256"] = report.corpus_sha256;
    out["corpus_equal"] = report.corpus_equal;
    out["mb_per_second"] = report.mb_per_second;
  }
  out["failures"] = JsonValue::array();
  for (const auto& failure : report.failures) {
    out["failures"].push_back(
        {{"text", failure.text}, {"expected", failure.expected}, {"got", failure.got}});
  }
  out["ok"] = report.ok();
  return out;
}

void print_for_people(const TokenizerReport& report) {
  log_info("{} of {} texts to ids, {} of {} ids to text", report.passed, report.cases,
           report.decode_passed, report.cases);
  if (report.has_corpus) {
    log_info("corpus: {} tokens, {}, {:.1f} MB/s", report.corpus_tokens,
             report.corpus_equal ? "equal" : "DIFFERENT", report.mb_per_second);
  }
  for (const auto& failure : report.failures) {
    log_info("text {}: expected {}, got {}", JsonValue(failure.text).dump(), failure.expected,
             failure.got);
  }
}

void run(const VerifyTokenizerOptions& options) {
  const auto tokenizer = Tokenizer::load(options.tokenizer);
  const auto corpus =
      options.corpus.empty() ? std::nullopt : std::optional<std::filesystem::path>(options.corpus);
  const auto report = verify_tokenizer(tokenizer, options.cases, corpus);
  print_for_people(report);
  if (options.json) std::cout << to_json(report).dump() << std::endl;
  if (!report.ok()) fail(ErrorCode::data, "{} differs from {}", options.tokenizer, options.cases);
}

}  // namespace

void add_verify_tokenizer(Verb verify) {
  auto options = std::make_shared<VerifyTokenizerOptions>();
  Verb verb = verify.add_verb("tokenizer", "encode and decode against reference cases");
  verb.add_option("TOKENIZER", options->tokenizer,
                  "tokenizer.json, tokenizer.model, vocab.json or vocab.txt, or a folder with one")
      .required();
  verb.add_option("CASES", options->cases, "cases.json: texts with their ids").required();
  verb.add_option("--corpus", options->corpus, "text the cases' token count and hash are of");
  verb.add_flag("--json", options->json, "print one JSON object");
  verb.callback([options] { run(*options); });
}

}  // namespace heddle::cli
