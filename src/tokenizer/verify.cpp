#include "tokenizer/verify.h"

#include <fmt/ranges.h>

#include <bit>

#include "base/clock.h"
#include "base/file_system.h"
#include "base/json.h"
#include "base/sha256.h"
#include "tokenizer/generated_texts.h"

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

/// The first eight digits of the hashes of a group: of ids, each text's with their number before
/// them, and of decoded texts, each with its size.
struct GroupHashes {
  std::string ids, decoded;
};

void update_with_size(Sha256& hash, std::size_t size, std::span<const std::byte> content) {
  const auto number = static_cast<std::uint32_t>(size);
  hash.update(std::as_bytes(std::span(&number, 1)));
  hash.update(content);
}

/// Adds what differs between decoding at once and token by token to the report.
GroupHashes hash_group(const Tokenizer& tokenizer, std::span<const std::string> texts,
                       TokenizerReport& report) {
  Sha256 of_ids, of_decoded;
  for (const std::string& text : texts) {
    const auto ids = tokenizer.encode(text);
    const auto decoded = tokenizer.decode(ids), streamed = decode_by_token(tokenizer, ids);
    if (decoded != streamed) add_failure(report, {text, decoded, streamed});
    update_with_size(of_ids, ids.size(), std::as_bytes(std::span(ids)));
    update_with_size(of_decoded, streamed.size(), std::as_bytes(std::span(streamed)));
  }
  return {of_ids.finish().substr(0, 8), of_decoded.finish().substr(0, 8)};
}

/// Compares groups of texts with the hashes that `expected` has for them. A group counts as a case.
void run_groups(const Tokenizer& tokenizer, const Json& expected,
                std::span<const std::string> texts, TokenizerReport& report) {
  const auto size = expected.at("group").get<std::size_t>();
  const auto& ids = expected.at("ids").get_ref<const std::string&>();
  const auto decoded = expected.value("decoded", std::string());
  const std::size_t groups = size == 0 ? 0 : (texts.size() + size - 1) / size;
  if (ids.size() != 8 * groups || !(decoded.empty() || decoded.size() == 8 * groups)) {
    fail(ErrorCode::data, "hashes of {} groups of texts where there are {}", ids.size() / 8,
         groups);
  }
  for (std::size_t group = 0; group < groups; ++group) {
    const auto some = texts.subspan(group * size, std::min(size, texts.size() - group * size));
    const GroupHashes got = hash_group(tokenizer, some, report);
    ++report.cases;
    const bool ids_equal = ids.compare(8 * group, 8, got.ids) == 0;
    const bool decoded_equal = decoded.empty() || decoded.compare(8 * group, 8, got.decoded) == 0;
    if (ids_equal) ++report.passed;
    if (decoded_equal) ++report.decode_passed;
    if (!ids_equal || !decoded_equal) {
      add_failure(report, {fmt::format("{} texts from: {}", some.size(), some.front()),
                           (ids_equal ? decoded : ids).substr(8 * group, 8),
                           ids_equal ? got.decoded : got.ids});
    }
  }
}

std::vector<std::string> all_generated(const TextRecipe& recipe) {
  std::vector<std::string> texts;
  for (std::int64_t i = 0; i < recipe.count; ++i) {
    texts.push_back(generated_text(recipe, static_cast<std::uint64_t>(i)));
  }
  return texts;
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
  if (file.contains("generated")) {
    const Json& generated = file.at("generated");
    const fs::path recipe = cases.parent_path() / generated.at("texts").get<std::string>();
    run_groups(tokenizer, generated, all_generated(read_text_recipe(recipe)), report);
  }
  if (file.contains("code_points")) {
    run_groups(tokenizer, file.at("code_points"), code_point_texts(), report);
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
