#include "checkpoint/convert.h"

#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "base/strings.h"
#include "checkpoint/model_source.h"
#include "checkpoint/routing_trace.h"
#include "cli/progress_line.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "cli/weights_verb.h"
#include "engine/adapters.h"
#include "engine/renumber_experts.h"
#include "model/registry.h"
#include "train/companions.h"

namespace heddle::cli {
namespace {

struct ConvertArguments {
  std::string source, adapter, out, dtype, placement;
  std::uint64_t max_shard_bytes = kDefaultMaxShardBytes;
  bool keeps_quantized = false, json = false;
};

std::optional<DType> dtype_of(const std::string& name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (name == name_of(dtype)) return dtype;
  }
  return std::nullopt;
}

JsonValue to_json(const ConvertReport& report) {
  JsonValue json = JsonValue::object();
  json["source"] = report.source.string();
  json["out"] = report.out.string();
  json["tensors"] = report.tensors;
  json["parameters"] = report.parameters;
  json["bytes"] = report.size_bytes;
  json["files"] = JsonValue::array();
  for (const FileRecord& file : report.files) json["files"].push_back(file.path);
  json["warnings"] = report.warnings;
  return json;
}

/// Where tensors come from when experts are renumbered; empty where they are not.
std::map<std::string, TensorOrigin> origins_of(const ConvertArguments& options) {
  if (options.placement.empty()) return {};
  const ExpertPlacement placement = read_expert_placement(options.placement);
  const ModelSource source(options.source);
  if (source.kind() == ModelSource::Kind::file) {
    throw Error(ErrorCode::usage,
                "--placement needs a model folder, whose config.json says what is "
                "an expert");
  }
  return renumbered_experts(read_model_spec(source.path() / "config.json"), source.weights(),
                            renumbering_of(placement));
}

/// A tokenizer_config.json for a folder that has a tokenizer.json alone: without one transformers
/// takes the family's class, which need not be this tokenizer. Nothing for a tokenizer or a model
/// of a kind that we cannot read.
std::vector<TextFile> missing_companions(const std::filesystem::path& source) {
  try {
    const std::filesystem::path folder = ModelSource(source).path();
    if (!std::filesystem::exists(folder / "tokenizer.json") ||
        std::filesystem::exists(folder / "tokenizer_config.json")) {
      return {};
    }
    const Tokenizer tokenizer = Tokenizer::load(folder / "tokenizer.json");
    const ModelSpec spec = read_model_spec(folder / "config.json");
    return {{"tokenizer_config.json",
             tokenizer_config(tokenizer, special_tokens(tokenizer), spec.longest_sequence())}};
  } catch (const Error&) {
    return {};
  }
}

/// What is written, and what adapters add to it.
struct ConvertSubject {
  std::filesystem::path source;
  std::map<std::string, LowRankUpdate> updates = {};
  std::vector<TextFile> companions = {};
};

/// Adapters are merged into their base, with the tokenizer that they were trained with.
ConvertSubject subject_of(const ConvertArguments& options) {
  if (options.adapter.empty() && !has_adapters(ModelSource(options.source).path())) {
    return {.source = options.source};
  }
  if (!options.placement.empty()) {
    throw Error(ErrorCode::usage, "--placement does not go with adapters to be merged",
                "merge them first, then number experts");
  }
  const StoredModel model = open_stored_model(options.source, options.adapter);
  ConvertSubject subject{.source = model.base, .updates = merged_updates(model)};
  if (model.texts() != model.base) {
    for (TextFile& file : read_companions(model.texts())) {
      if (file.name != "config.json") subject.companions.push_back(std::move(file));
    }
  }
  return subject;
}

void run(const ConvertArguments& options) {
  ConvertSubject subject = subject_of(options);
  const ConvertReport report = convert(real_file_system(), subject.source, options.out,
                                       {.dtype = dtype_of(options.dtype),
                                        .max_shard_bytes = options.max_shard_bytes,
                                        .keeps_quantized = options.keeps_quantized,
                                        .origins = origins_of(options),
                                        .updates = std::move(subject.updates),
                                        .companions = std::move(subject.companions),
                                        .missing = missing_companions(subject.source),
                                        .progress = progress_line("converting " + options.source)});
  for (const std::string& warning : report.warnings) log_warn("{}", warning);
  log_info("wrote {}: {} tensors, {} parameters, {} in {} files", report.out.string(),
           report.tensors, format_count(static_cast<double>(report.parameters)),
           format_bytes(static_cast<double>(report.size_bytes)), report.files.size());
  if (options.json) std::cout << to_json(report).dump() << std::endl;
}

}  // namespace

void add_convert(Verb app) {
  auto options = std::make_shared<ConvertArguments>();
  Verb verb = app.add_verb("convert", "write weights as a Hugging Face folder, in another dtype");
  add_weights_and_json(verb, "SRC", &ConvertArguments::source, options, run);
  verb.add_option("--adapter", options->adapter,
                  "folder with adapters to merge; SRC may be one itself, and is then merged into "
                  "its base");
  verb.add_option("--out", options->out, "the new folder").required();
  verb.add_option("--dtype", options->dtype, "f32, bf16 or f16 (default: as stored)")
      .one_of({"f32", "bf16", "f16"});
  verb.add_option("--max-shard-bytes", options->max_shard_bytes,
                  "start a new file beyond this size")
      .positive();
  verb.add_option("--placement", options->placement,
                  "number experts by this placement (of plan experts --out), so that experts of a "
                  "rank follow each other");
  verb.add_flag("--keep-quantized", options->keeps_quantized,
                "copy fp8 and other quantized weights as they are, unread");
}

}  // namespace heddle::cli
