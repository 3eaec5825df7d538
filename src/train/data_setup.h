#pragma once

#include <filesystem>
#include <optional>

#include "config/run_config.h"
#include "data/dataset.h"
#include "observe/terminal.h"
#include "train/run_tokenizer.h"

namespace heddle {

/// A run's data: what is trained on, and what is evaluated on (a file of its own, or the held-out
/// part).
struct RunData {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> separate_eval;

  const Dataset& eval() const { return separate_eval ? *separate_eval : *train; }
};

/// Where and how text is tokenised on the way.
struct DataWork {
  int threads = 1;
  std::filesystem::path folder = {};  ///< token files go to its folder `data`
  bool is_maker = true;               ///< of processes that share the folder, one makes streams
  observe::Terminal terminal = {};    ///< a silent one keeps warnings silent too
};

/// Opens the run's data. Text and records are tokenised first, into the work folder; what is there
/// already and still holds is used as it is. With data.stream this goes on while the data is used.
/// Token files of another tokenizer than `tokenizer`, or of different ones, are refused.
RunData open_run_data(const config::RunConfig& config, const RunTokenizer& tokenizer,
                      const DataWork& work);

/// These inputs, each a source, all of them held out.
std::unique_ptr<Dataset> open_eval_data(const std::vector<std::filesystem::path>& inputs,
                                        const config::RunConfig& config,
                                        const RunTokenizer& tokenizer, const DataWork& work);

/// The best loss per token that a model can reach on the held-out part, where its text is of the
/// demo language; absent when it is not.
std::optional<double> best_demo_loss(const Dataset& eval, const Tokenizer& tokenizer);

}  // namespace heddle
