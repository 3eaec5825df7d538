#include "tokenizer/verify.h"

#include <fmt/ranges.h>

#include <bit>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/json.h"
#include "base/sha256.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kShownFailures = 10;
static_assert(std::endian::native == std::endian::little, "ids are hashed as they lie in memory");

void add_failure(TokenizerReport& report, TokenizerFailure failure) {
  if (report.failures.size() < kShownFailures) report.failures.push_back(std::move(failure));
}

std::string decode_by_token(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (const auto id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

void run_case(const Tokenizer& tokenizer, const Json& one, bool with_template,
              TokenizerReport& report) {
  const auto text = one.at("text").get<std::string>();
  const auto ids = one.at("ids").get<std::vector<std::int32_t>>();
  const auto got = tokenizer.encode(text, {.add_special = with_template});
  ++report.cases;
  if (got == ids) {
    ++report.passed;
  } else {
    add_failure(report, {text, fmt::format("{}", ids), fmt::format("{}", got)});
  }
  if (!one.contains("decoded")) {
    ++report.decode_passed;
    return;
  }
  const auto decoded = one.at("decoded").get<std::string>();
  const auto whole = tokenizer.decode(ids), streamed = decode_by_token(tokenizer, ids);
  if (whole == decoded && streamed == decoded) {
    ++report.decode_passed;
  } else {
    add_failure(report, {text, decoded, whole == decoded ? streamed : whole});
  }
}

void run_corpus(const Tokenizer& tokenizer, std::string_view text, std::int64_t tokens,
                const std::string& sha256, TokenizerReport& report) {
  const Stopwatch watch;
  const auto ids = tokenizer.encode(text);
  report.mb_per_second = static_cast<double>(text.size()) / 1e6 / std::max(watch.seconds(), 1e-9);
  Sha256 hash;
  hash.update(std::as_bytes(std::span(ids)));
  report.has_corpus = true;
  report.corpus_tokens = static_cast<std::int64_t>(ids.size());
  report.corpus_sha256 = hash.finish();
  report.corpus_equal = report.corpus_tokens == tokens && report.corpus_sha256 == sha256;
}

void run_file(const Tokenizer& tokenizer, const Json& file, const fs::path& cases,
              const std::optional<fs::path>& corpus, TokenizerReport& report) {
  for (const auto& one : file.at("cases")) run_case(tokenizer, one, false, report);
  if (file.contains("template_cases")) {
    for (const auto& one : file.at("template_cases")) run_case(tokenizer, one, true, report);
  }
  if (file.contains("corpus")) {
    run_corpus(tokenizer, file.at("corpus").get_ref<const std::string&>(),
               file.at("corpus_tokens").get<std::int64_t>(),
               file.at("corpus_sha256_of_le_u32").get<std::string>(), report);
  } else if (file.contains("shakespeare_tokens")) {
    const fs::path beside =
        fs::absolute(cases).parent_path() / ".." / ".." / "data" / "tinyshakespeare.txt";
    run_corpus(tokenizer, read_text_file(corpus.value_or(beside)),
               file.at("shakespeare_tokens").get<std::int64_t>(),
               file.at("shakespeare_sha256_of_le_u32").get<std::string>(), report);
  } else if (corpus) {
    throw Error(ErrorCode::usage, fmt::format("{} has no reference for a corpus", cases.string()),
                "leave --corpus out");
  }
}

}  // namespace

TokenizerReport verify_tokenizer(const Tokenizer& tokenizer, const fs::path& cases,
                                 const std::optional<fs::path>& corpus) {
  const Json file = read_json_file(cases);
  TokenizerReport report;
  try {
    run_file(tokenizer, file, cases, corpus, report);
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorCode::data, "{} does not have the form of tokenizer cases: {}", cases.string(),
         e.what());
  }
  return report;
}

}  // namespace heddle
