#include "train/companions.h"

#include <algorithm>
#include <array>

#include "base/file_system.h"
#include "base/json.h"
#include "checkpoint/hf_config.h"
#include "engine/adapters.h"
#include "train/model_setup.h"

namespace heddle {
namespace {

constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kGenerationConfig = "generation_config.json";

std::string generation_config(const SpecialTokens& tokens) {
  Json json = Json::object();
  const auto put = [&](const char* key, std::optional<std::int32_t> id) {
    if (id) json[key] = *id;
  };
  put("bos_token_id", tokens.bos);
  put("eos_token_id", tokens.eos);
  put("pad_token_id", tokens.pad);
  return json.dump(2) + "\n";
}

/// What came beside a tokenizer that is not the model's: what it says of it. Where the tokenizer
/// cannot be read, its own files too.
std::vector<TextFile> files_beside(const RunTokenizer& tokenizer) {
  static constexpr std::array kOfAModel = {"config.json", kGenerationConfig};
  static constexpr std::array kForms = {"tokenizer.json", "tokenizer.model", "vocab.json",
                                        "merges.txt",     "vocab.txt",       "added_tokens.json"};
  if (tokenizer.path.empty()) return {};
  const std::filesystem::path folder = tokenizer.path.parent_path();
  std::vector<TextFile> files = read_companions(folder.empty() ? "." : folder);
  std::erase_if(files, [&](const TextFile& file) {
    return std::ranges::count(kOfAModel, file.name) > 0 ||
           (!tokenizer.json.empty() && std::ranges::count(kForms, file.name) > 0);
  });
  return files;
}

/// tokenizer_config.json as it came, but with the token that ends documents. Of a tokenizer that
/// came in another form than tokenizer.json, which is what is written, the class would look for
/// that form; BERT's takes both.
std::string true_tokenizer_config(const TextFile& file, const RunTokenizer& of_run,
                                  std::optional<std::int32_t> end) {
  Json json = parse_json(file.content, file.name);
  const Json before = json;
  if (end) json["eos_token"] = std::string(of_run.tokenizer->token_bytes(*end));
  const std::filesystem::path name = of_run.path.filename();
  const bool takes_both = name == "vocab.txt" && json.contains("tokenizer_class");
  if ((name == "vocab.json" || name == "vocab.txt" || name.extension() == ".model") &&
      !takes_both) {
    json["tokenizer_class"] = kAnyTokenizer;
  }
  return json == before ? file.content : json.dump(2) + "\n";
}

}  // namespace

std::string tokenizer_config(const Tokenizer& tokenizer, const SpecialTokens& tokens,
                             std::int64_t longest) {
  Json json = {{"tokenizer_class", kAnyTokenizer},
               {"model_max_length", longest},
               {"clean_up_tokenization_spaces", false}};
  const auto put = [&](const char* key, std::optional<std::int32_t> id) {
    if (id) json[key] = std::string(tokenizer.token_bytes(*id));
  };
  put("bos_token", tokens.bos);
  put("eos_token", tokens.eos);
  put("pad_token", tokens.pad);
  return json.dump(2) + "\n";
}

std::vector<TextFile> checkpoint_companions(const config::RunConfig& config, const ModelSpec& spec,
                                            const RunTokenizer& of_run, DType stored) {
  const bool keeps_models = of_run.is_models || (of_run.path.empty() && !config.model.path.empty());
  std::vector<TextFile> files =
      keeps_models ? read_companions(config.model.path) : files_beside(of_run);
  const auto put = [&](const char* name, std::string content) {
    put_file(files, {name, std::move(content)});
  };
  if (of_run.tokenizer) {
    const Tokenizer& tokenizer = *of_run.tokenizer;
    const SpecialTokens tokens = run_special_tokens(config, tokenizer);
    const auto chosen = chosen_end_token(config, tokenizer);
    const TextFile* const came = find_file(files, kTokenizerConfig);
    put(kTokenizerConfig, came != nullptr
                              ? true_tokenizer_config(*came, of_run, chosen)
                              : tokenizer_config(tokenizer, tokens, spec.longest_sequence()));
    const TextFile* const generation = find_file(files, kGenerationConfig);
    if (!of_run.is_models) {
      put(kGenerationConfig, generation_config(tokens));
    } else if (generation != nullptr && chosen) {
      Json json = parse_json(generation->content, generation->name);
      // Where it does not say, the config's count, which then are passed over.
      if (!json.contains("eos_token_id")) json["eos_token_id"] = (*spec.config)["eos_token_id"];
      add_end_token(json, *chosen);
      put(kGenerationConfig, json.dump(2) + "\n");
    }
  }
  if (spec.tuning.lora) {
    const std::string base = std::filesystem::absolute(config.model.path).lexically_normal();
    put(kAdapterConfigFile, adapter_config_text(adapter_config(spec, base)));
  } else {
    put("config.json", config_with_dtype(spec.config->dump(2) + "\n", stored, "config.json"));
  }
  if (!of_run.json.empty()) put("tokenizer.json", of_run.json);
  return files;
}

}  // namespace heddle
