#include "train/run_tokenizer.h"

#include "base/file_system.h"
#include "base/json.h"
#include "data/tokenize.h"
#include "tokenizer/files/tokenizer_files.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

std::uint64_t hash_of(const std::string& text) {
  return content_hash(std::as_bytes(std::span(text)));
}

/// Its text and fingerprint. A form that cannot be read is the run's as it is.
RunTokenizer found_in(const fs::path& path, TokenRoles& roles) {
  RunTokenizer found{.path = tokenizer_file(path)};
  try {
    TokenizerText text = read_tokenizer(found.path);
    found.json = std::move(text.json);
    found.fingerprint = hash_of(found.json);
    roles = std::move(text.roles);
  } catch (const Error& error) {
    if (!fs::is_regular_file(found.path)) throw;
    found.fingerprint = hash_of(read_text_file(found.path));
    found.fault = error;
  }
  return found;
}

RunTokenizer load(const fs::path& path) {
  TokenRoles roles;
  RunTokenizer loaded = found_in(path, roles);
  if (loaded.fault) return loaded;
  try {
    loaded.tokenizer = Tokenizer::from_json(loaded.json, loaded.path.string(), std::move(roles));
  } catch (const Error& error) {
    parse_json(loaded.json, loaded.path.string());  // what is no JSON is no tokenizer of any kind
    loaded.fault = error;
  }
  return loaded;
}

std::uint64_t fingerprint_of(const fs::path& path) {
  TokenRoles roles;
  return found_in(path, roles).fingerprint;
}

std::vector<fs::path> token_files(const config::RunConfig& config) {
  std::vector<fs::path> paths = {config.data.train, config.data.eval};
  for (const auto& source : config.data.sources) paths.push_back(source.path);
  std::erase_if(paths, [](const fs::path& path) { return !is_token_file(path); });
  return paths;
}

}  // namespace

const Tokenizer& RunTokenizer::require(const fs::path& text) const {
  if (tokenizer) return *tokenizer;
  if (fault) throw fault->within(fmt::format("{} is text and cannot be tokenized", text.string()));
  throw Error(ErrorCode::usage, fmt::format("{} is text and no tokenizer is known", text.string()),
              "set data.tokenizer to a tokenizer.json, or make one with `heddle tokenizer train`");
}

RunTokenizer configured_tokenizer(const config::RunConfig& config) {
  const bool model_has_one = !config.model.path.empty() && has_tokenizer(config.model.path);
  if (!config.data.tokenizer.empty()) {
    RunTokenizer given = load(config.data.tokenizer);
    given.is_models = model_has_one && fingerprint_of(config.model.path) == given.fingerprint;
    return given;
  }
  if (model_has_one) {
    RunTokenizer own = load(config.model.path);
    own.is_models = true;
    return own;
  }
  RunTokenizer none;
  for (const fs::path& file : token_files(config)) {
    const auto recorded = recorded_tokenizer(file);
    if (!recorded || !fs::exists(*recorded)) continue;
    RunTokenizer found = load(*recorded);
    if (found.fingerprint == TokenFile::open(file).header().tokenizer_fingerprint) return found;
    none.warnings.push_back(
        fmt::format("{} has changed since {} was made with it, and is not used; data.tokenizer may "
                    "name the tokenizer that it was then",
                    recorded->string(), file.string()));
  }
  return none;
}

SpecialTokens run_special_tokens(const config::RunConfig& config, const Tokenizer& tokenizer) {
  return special_tokens(tokenizer, config.data.eos.empty() ? "auto" : config.data.eos);
}

std::optional<std::int32_t> chosen_end_token(const config::RunConfig& config,
                                             const Tokenizer& tokenizer) {
  if (config.data.eos.empty() || config.data.eos == "auto") return std::nullopt;
  return run_special_tokens(config, tokenizer).eos;
}

std::vector<std::string> check_tokenizer(const Dataset& data, const RunTokenizer& tokenizer) {
  std::vector<std::string> warnings;
  if (tokenizer.path.empty()) return warnings;
  for (int source = 0; source < data.source_count(); ++source) {
    const TokenFile& file = data.file(source);
    const std::uint64_t fingerprint = file.header().tokenizer_fingerprint;
    if (fingerprint == 0) {
      warnings.push_back(
          fmt::format("{} does not say which tokenizer it was made with; {} is "
                      "taken to be the one",
                      file.name(), tokenizer.path.string()));
    } else if (fingerprint != tokenizer.fingerprint) {
      throw Error(
          ErrorCode::data,
          fmt::format("{} was made with another tokenizer (fingerprint {:016x}) than {} "
                      "({:016x}): its ids mean other text",
                      file.name(), fingerprint, tokenizer.path.string(), tokenizer.fingerprint),
          fmt::format("make it again with `heddle tokenize --tokenizer {}`, or name the tokenizer "
                      "it was made with (data.tokenizer; for eval --tokenizer)",
                      tokenizer.path.string()));
    }
  }
  return warnings;
}

}  // namespace heddle
