#include "train/companions.h"

#include <algorithm>

#include "base/json.h"
#include "checkpoint/hf_config.h"
#include "engine/adapters.h"
#include "train/model_setup.h"

namespace heddle {
namespace {

std::string tokenizer_config(const Tokenizer& tokenizer, const SpecialTokens& tokens,
                             const ModelSpec& spec) {
  Json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
               {"model_max_length", spec.longest_sequence()},
               {"clean_up_tokenization_spaces", false}};
  const auto put = [&](const char* key, std::optional<std::int32_t> id) {
    if (id) json[key] = std::string(tokenizer.token_bytes(*id));
  };
  put("bos_token", tokens.bos);
  put("eos_token", tokens.eos);
  put("pad_token", tokens.pad);
  return json.dump(2) + "\n";
}

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

}  // namespace

std::vector<TextFile> checkpoint_companions(const config::RunConfig& config, const ModelSpec& spec,
                                            const RunTokenizer& run_tokenizer, DType stored) {
  const std::optional<Tokenizer>& tokenizer = run_tokenizer.tokenizer;
  std::vector<TextFile> files;
  if (!config.model.path.empty()) files = read_companions(config.model.path);
  const auto put = [&](const std::string& name, const std::string& content) {
    std::erase_if(files, [&](const TextFile& file) { return file.name == name; });
    files.push_back({name, content});
  };
  if (tokenizer && brings_own_tokenizer(config, tokenizer)) {
    files.clear();  // the rest is the other tokenizer's
    const SpecialTokens tokens = run_special_tokens(config, *tokenizer);
    put("tokenizer_config.json", tokenizer_config(*tokenizer, tokens, spec));
    put("generation_config.json", generation_config(tokens));
  }
  if (spec.tuning.lora) {
    const std::string base = std::filesystem::absolute(config.model.path).lexically_normal();
    put(kAdapterConfigFile, adapter_config_text(adapter_config(spec, base)));
  } else {
    put("config.json", config_with_dtype(spec.config->dump(2) + "\n", stored, "config.json"));
  }
  if (!run_tokenizer.path.empty()) put("tokenizer.json", run_tokenizer.json);
  return files;
}

}  // namespace heddle
