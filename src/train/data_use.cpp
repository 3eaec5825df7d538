#include "train/data_use.h"

#include "base/strings.h"

namespace heddle {
namespace {

/// Up to about this many passes, tokens read again are worth nearly as much as new ones
/// (Muennighoff et al. 2023, "Scaling data-constrained language models").
constexpr double kWorthwhileEpochs = 4.0;

std::string epochs_text(double epochs) {
  return fmt::format("{:.3g} epochs{}", epochs, epochs > 1.0 ? " (read more than once)" : "");
}

}  // namespace

DataUse describe_use(const RunData& data, const config::RunConfig& config) {
  const std::int64_t samples =
      config.total_steps() * (config.tokens_per_step() / config.data.seq_len);
  const std::vector<SourceUse> sources = data.train->use(samples);
  DataUse use;
  if (data.train->is_streamed()) {
    use.lines.push_back(fmt::format("trains while data is tokenized; {} windows held out",
                                    format_thousands(data.eval().eval_windows())));
    return use;
  }
  use.lines.push_back(
      fmt::format("{} windows of {} tokens to train on, {} held out{}",
                  format_thousands(data.train->train_windows()), config.data.seq_len,
                  format_thousands(data.eval().eval_windows()),
                  sources.size() == 1 ? "; " + epochs_text(sources.front().epochs) : ""));
  for (const SourceUse& source : sources) {
    if (sources.size() > 1) {
      use.lines.push_back(fmt::format("{}: {:.1f} % of the samples, {}", source.name,
                                      100 * source.weight, epochs_text(source.epochs)));
    }
    if (source.epochs > kWorthwhileEpochs) {
      use.warnings.push_back(fmt::format(
          "{} is read {:.3g} times; beyond about {} times the same text teaches little more and is "
          "learnt by heart: give more data or fewer steps",
          source.name, source.epochs, kWorthwhileEpochs));
    }
  }
  return use;
}

}  // namespace heddle
