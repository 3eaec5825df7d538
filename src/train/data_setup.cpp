#include "train/data_setup.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"
#include "data/chat/tokenize_chat.h"
#include "data/demo_text.h"
#include "data/encode.h"
#include "data/token_stream.h"
#include "data/tokenize_line.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// Token files say themselves which tokens are answers.
void require_answers(const fs::path& path, const config::RunConfig& config) {
  if (config.data.kind != config::DataKind::chat || TokenFile::open(path).has_answers()) return;
  throw Error(
      ErrorCode::usage,
      fmt::format("{} does not say which of its tokens are answers, as data.kind = "
                  "\"chat\" needs",
                  path.string()),
      "name the conversations themselves, or take it as text (data.kind = \"text\", or eval "
      "without --chat)");
}

/// That of the tokenizer's folder, or of the model's.
ChatTemplate chat_template(const config::RunConfig& config, const RunTokenizer& known) {
  const fs::path beside = known.path.has_parent_path() ? known.path.parent_path() : fs::path(".");
  for (const fs::path& folder : {beside, config.model.path}) {
    if (folder.empty()) continue;
    if (auto found = ChatTemplate::find(folder)) return *found;
  }
  throw Error(ErrorCode::usage,
              fmt::format("data.kind = \"chat\" needs a chat template, and there is none beside {}",
                          known.path.string()),
              "put a chat_template.jinja into the tokenizer's folder");
}

/// What conversations become.
TokenizeResult tokenize_conversations(const fs::path& path, const fs::path& out,
                                      const config::RunConfig& config, const RunTokenizer& known,
                                      const DataWork& work) {
  const ChatTemplate form = chat_template(config, known);
  const Tokenizer& tokenizer = known.require(path);
  TokenizeLine line(work.terminal);
  auto made = tokenize_chat(real_file_system(),
                            {.inputs = {path},
                             .out = out,
                             .tokenizer = known.path,
                             .fields = {.messages = config.data.messages_field,
                                        .prompt = config.data.prompt_field,
                                        .answer = config.data.answer_field},
                             .kind = input_kind_named(config.data.format),
                             .threads = work.threads},
                            form, tokenizer, [&](const TokenizeProgress& now) { line.show(now); });
  line.finish();
  return made;
}

/// How the text of `path` is tokenized. The result is called by its place in the run file (`train`,
/// `source-2`, `eval`): files of one name stay apart, and a moved run finds them again.
TokenizeOptions tokenize_options(const fs::path& path, const std::string& place,
                                 const config::RunConfig& config, const RunTokenizer& known,
                                 const DataWork& work) {
  const auto asked = input_kind_named(config.data.format);
  find_inputs({path}, asked);  // what is not there, or no text, is said before what it would need
  const Tokenizer& tokenizer = known.require(path);
  const fs::path out = work.folder / "data" / (place + ".tokens");
  real_file_system().create_directories(out.parent_path());
  TokenizeOptions options{.inputs = {path},
                          .out = out,
                          .origin = origin_of(tokenizer),
                          .tokenizer = known.path,
                          .end_token = run_special_tokens(config, tokenizer).eos,
                          .kind = asked,
                          .threads = work.threads};
  options.format.field = config.data.field;
  options.format.cut = cuts_of(tokenizer);
  return options;
}

/// The token file of `path`: itself, or what its text becomes.
fs::path as_token_file(const fs::path& path, const std::string& place,
                       const config::RunConfig& config, const RunTokenizer& known,
                       const DataWork& work) {
  if (is_token_file(path)) {
    require_answers(path, config);
    return path;
  }
  const TokenizeOptions options = tokenize_options(path, place, config, known, work);
  const auto tokenize_text = [&] {
    TokenizeLine line(work.terminal);
    auto made =
        tokenize(real_file_system(), options, encoders(known.require(path), options.parse_special),
                 [&](const TokenizeProgress& now) { line.show(now); });
    line.finish();
    return made;
  };
  const TokenizeResult result = config.data.kind == config::DataKind::chat
                                    ? tokenize_conversations(path, options.out, config, known, work)
                                    : tokenize_text();
  if (!result.was_up_to_date) {
    log_info("tokenized {}: {} documents, {} tokens", path.string(),
             format_thousands(result.documents), format_thousands(result.tokens));
    if (!result.left_out.empty()) log_warn("{}", describe_left_out(result.left_out));
  }
  return options.out;
}

/// Ranks other than the first find the same and keep silent.
void warn(const std::vector<std::string>& warnings, const DataWork& work) {
  if (work.terminal.is_silent) return;
  for (const std::string& warning : warnings) log_warn("{}", warning);
}

/// What of `path` is trained on while it is tokenized. Half of the threads are left to training.
std::shared_ptr<TokenShards> as_stream(const fs::path& path, const std::string& place,
                                       const config::RunConfig& config, const RunTokenizer& known,
                                       const DataWork& work) {
  if (is_token_file(path)) {
    throw Error(ErrorCode::usage,
                fmt::format("data.stream = true, but {} is tokenized already", path.string()),
                "set data.stream = false, or give the text");
  }
  const Inputs inputs = find_inputs({path}, input_kind_named(config.data.format));
  if (!inputs.left_out.empty()) warn({describe_left_out(inputs.left_out)}, work);
  TokenizeOptions options = tokenize_options(path, place, config, known, work);
  options.threads = std::max(1, work.threads / 2);
  return std::make_shared<TokenStream>(real_file_system(), options,
                                       encoders(known.require(path), options.parse_special),
                                       work.is_maker);
}

DatasetOptions dataset_options(const config::RunConfig& config) {
  return {.sources = {},
          .seq_len = config.data.seq_len,
          .seed = static_cast<std::uint64_t>(config.data_seed()),
          .holdout = config.data.eval.empty() ? config.data.holdout : 0.0,
          .documents = config.data.documents == config::Documents::mask ? DocumentMode::mask
                                                                        : DocumentMode::ignore};
}

/// Of conversations that no window holds whole.
std::vector<std::string> cut_conversations(const Dataset& data) {
  std::vector<std::string> warnings;
  for (int source = 0; source < data.source_count(); ++source) {
    const TokenFile& file = data.file(source);
    if (!file.has_answers()) continue;
    std::int64_t cut = 0, longest = 0;
    for (std::int64_t i = 0; i < file.document_count(); ++i) {
      const std::int64_t tokens = file.document_start(i + 1) - file.document_start(i);
      if (tokens > data.seq_len() + 1) ++cut;
      longest = std::max(longest, tokens);
    }
    if (cut == 0) continue;
    warnings.push_back(fmt::format(
        "{}: {} of {} conversations {} longer than sequences of {} tokens and cut, the longest has "
        "{}: answers behind a cut are without what they answer; use longer sequences "
        "(data.seq_len; for eval --seq)",
        data.name(source), format_thousands(cut), format_thousands(file.document_count()),
        cut == 1 ? "is" : "are", format_thousands(data.seq_len()), format_thousands(longest)));
  }
  return warnings;
}

}  // namespace

std::unique_ptr<Dataset> open_eval_data(const std::vector<fs::path>& inputs,
                                        const config::RunConfig& config,
                                        const RunTokenizer& tokenizer, const DataWork& work) {
  DatasetOptions options = dataset_options(config);
  for (const fs::path& input : inputs) {
    const std::string place =
        options.sources.empty() ? "eval" : fmt::format("eval-{}", options.sources.size() + 1);
    options.sources.push_back(
        {.file = as_token_file(input, place, config, tokenizer, work), .name = input.string()});
  }
  options.holdout = 1.0;
  auto data = std::make_unique<Dataset>(options);
  warn(check_tokenizer(*data, tokenizer), work);
  warn(cut_conversations(*data), work);
  return data;
}

RunData open_run_data(const config::RunConfig& config, const RunTokenizer& tokenizer,
                      const DataWork& work) {
  const auto resolve = [&](const fs::path& path, const std::string& place) -> DataSource {
    if (!config.data.stream) {
      return {.file = as_token_file(path, place, config, tokenizer, work), .name = path.string()};
    }
    return {.file = {},
            .name = path.string(),
            .shards = as_stream(path, place, config, tokenizer, work)};
  };
  DatasetOptions options = dataset_options(config);
  if (!config.data.train.empty()) options.sources.push_back(resolve(config.data.train, "train"));
  for (const auto& source : config.data.sources) {
    const std::string place = fmt::format("source-{}", options.sources.size() + 1);
    options.sources.push_back(resolve(source.path, place));
    options.sources.back().weight = source.weight;
    if (!source.name.empty()) options.sources.back().name = source.name;
  }
  warn(tokenizer.warnings, work);
  if (tokenizer.fault) {
    warn({fmt::format("{}; checkpoints carry it unchanged, no samples are written",
                      tokenizer.fault->message())},
         work);
  }
  RunData data;
  data.train = std::make_unique<Dataset>(options);
  warn(check_tokenizer(*data.train, tokenizer), work);
  warn(cut_conversations(*data.train), work);
  if (!config.data.eval.empty()) {
    data.separate_eval = open_eval_data({config.data.eval}, config, tokenizer, work);
    require_same_tokenizer(data.train->file(0), data.separate_eval->file(0));
  }
  return data;
}

std::optional<double> best_demo_loss(const Dataset& eval, const Tokenizer& tokenizer) {
  const DemoLanguage language;
  double nats = 0.0;
  std::int64_t targets = 0;
  for (int source = 0; source < eval.source_count(); ++source) {
    const TokenFile& file = eval.file(source);
    const TokenRange range = eval.splits(source).held_out;
    std::int64_t at = range.begin;
    while (at < range.end) {
      const std::int64_t end = file.document_start(file.document_of(at) + 1);
      if (end > range.end || file.document_start(file.document_of(at)) != at) return std::nullopt;
      std::vector<std::int32_t> ids(static_cast<std::size_t>(end - at));
      file.read(at, ids);
      const auto document = language.nats_of(tokenizer.decode(ids, true));
      if (!document) return std::nullopt;
      nats += *document;
      targets +=
          static_cast<std::int64_t>(ids.size()) - 1;  // the first token is given, not predicted
      at = end;
    }
  }
  if (targets == 0) return std::nullopt;
  return nats / static_cast<double>(targets);
}

}  // namespace heddle
