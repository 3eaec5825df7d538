#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/run_config.h"
#include "data/dataset.h"
#include "infer/special_tokens.h"
#include "tokenizer/tokenizer.h"

namespace heddle {

/// The tokenizer of a run, as far as it is known. A file of a kind that Heddle cannot tokenize with
/// is still the run's: checkpoints carry it, and token files are compared with it.
struct RunTokenizer {
  std::filesystem::path path = {};  ///< its file; empty when none is known
  /// As a tokenizer.json, whatever its file is; empty where that cannot be made of it.
  std::string json = {};
  std::uint64_t fingerprint = 0;            ///< as in headers of token files
  std::optional<Tokenizer> tokenizer = {};  ///< absent when none is known or it cannot be used
  std::optional<Error> fault = {};          ///< why it cannot be used
  bool is_models = false;                   ///< it is the one in the model's folder
  std::vector<std::string> warnings = {};

  /// The tokenizer, for making tokens of `text`. Throws when there is none, or why it is unusable.
  const Tokenizer& require(const std::filesystem::path& text) const;
};

/// data.tokenizer, or that of the model's folder, or the one a token file of the run was made with
/// and that has not changed since.
RunTokenizer configured_tokenizer(const config::RunConfig& config);

/// The tokens of its tokenizer that a run uses: its end token is data.eos.
SpecialTokens run_special_tokens(const config::RunConfig& config, const Tokenizer& tokenizer);
/// The token that data.eos names, where it names one.
std::optional<std::int32_t> chosen_end_token(const config::RunConfig& config,
                                             const Tokenizer& tokenizer);

/// Throws Error(data) when a file of `data` was made with another tokenizer. Returns a warning for
/// each file that does not say.
std::vector<std::string> check_tokenizer(const Dataset& data, const RunTokenizer& tokenizer);

}  // namespace heddle
