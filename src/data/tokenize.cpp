#include "data/tokenize.h"

#include "base/check.h"
#include "base/error.h"
#include "data/tokenize_job.h"
#include "data/tokenize_parts.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

/// Everything that will be written or removed must be new, or left by an earlier call.
void check_outputs(const TokenizeOptions& options, const std::vector<InputFile>& inputs) {
  std::vector<fs::path> read;
  for (const InputFile& input : inputs) read.push_back(input.path);
  if (!options.tokenizer.empty()) read.push_back(options.tokenizer);
  const std::string out = options.out.string();
  for (const char* suffix : {"", ".tmp", ".json", ".json.tmp"})
    refuse_to_replace(read, out + suffix);
  const auto refuse = [&](const fs::path& found, const char* what) {
    throw Error(ErrorCode::usage,
                fmt::format("{} is {}, and would be replaced", found.string(), what),
                fmt::format("move it, or give another --out than {}", out));
  };
  if (fs::is_directory(options.out)) refuse(options.out, "a folder");
  const fs::path record = out + ".json";
  if (fs::exists(record) && !is_record(record)) refuse(record, "no record of an earlier call");
  const fs::path parts = out + ".parts";
  if (fs::exists(parts) && !fs::is_directory(parts)) refuse(parts, "a file");
  if (!fs::exists(parts)) return;
  for (const auto& entry : fs::directory_iterator(parts)) {
    const bool is_part = entry.path().filename().string().starts_with("part-");
    if (!is_part) refuse(entry.path(), "no part of an earlier call");
    refuse_to_replace(read, entry.path());
  }
}

}  // namespace

TokenizeResult tokenize(FileSystem& files, const TokenizeOptions& options,
                        const std::function<EncodeText()>& make_encoder,
                        const std::function<void(const TokenizeProgress&)>& progress) {
  HEDDLE_CHECK(!options.inputs.empty(), "no inputs");
  const Inputs inputs = find_inputs(options.inputs, options.kind);
  check_outputs(options, inputs.files);
  const std::string key = call_key(inputs.files, options);
  const fs::path record_path = options.out.string() + ".json";
  if (const auto record = find_record(record_path, options.out, key)) {
    TokenizeResult result;
    for (const InputFile& file : inputs.files) result.input_bytes += file.size_bytes;
    result.documents = record->documents;
    result.tokens = record->tokens;
    result.skipped = record->skipped;
    result.empty = record->empty;
    result.left_out = inputs.left_out;
    result.was_up_to_date = true;
    return result;
  }
  TokenizeJob job(files, options, make_encoder, inputs.files, options.out.string() + ".parts");
  job.run(progress);
  TokenizeResult result = job.result();
  result.left_out = inputs.left_out;
  if (result.tokens == 0) {
    throw Error(
        ErrorCode::data,
        fmt::format("the inputs hold no text ({} bytes in {}{})", result.input_bytes,
                    options.inputs.front().string(), options.inputs.size() > 1 ? ", ..." : ""),
        "check the input files and the field or the delimiter");
  }
  const TokenFileHeader header =
      concatenate_token_files(files, job.token_files(), options.origin, options.out);
  write_record(files, record_path,
               {.key = key,
                .documents = result.documents,
                .tokens = result.tokens,
                .skipped = result.skipped,
                .empty = result.empty,
                .checksum = header.checksum,
                .tokenizer = options.tokenizer.string()});
  files.remove_all(job.folder());
  return result;
}

}  // namespace heddle
