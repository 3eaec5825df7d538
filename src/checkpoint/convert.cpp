#include "checkpoint/convert.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"
#include "checkpoint/element_copy.h"
#include "checkpoint/free_space.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/model_source.h"
#include "ops/gemm.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

fs::path without_trailing_slash(const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

void require_absent_or_empty(const fs::path& out) {
  std::error_code error;
  if (!fs::exists(out, error)) return;
  if (!fs::is_directory(out, error) || !fs::is_empty(out, error)) {
    throw Error(ErrorCode::usage, fmt::format("{} exists and is not an empty folder", out.string()),
                "choose a new folder");
  }
}

std::vector<TensorSpec> planned_tensors(const StoredTensors& weights, std::optional<DType> dtype) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : weights.names()) {
    TensorSpec spec = weights.spec(name);
    if (dtype && spec.dtype() && is_floating(*spec.dtype())) {
      spec.dtype_name = safetensors_name_of(*dtype);
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

/// The type that most elements will have, of those a config can name.
std::optional<DType> main_dtype(const std::vector<TensorSpec>& specs) {
  std::map<DType, std::int64_t> counts;
  for (const TensorSpec& spec : specs) {
    if (spec.dtype() && is_floating(*spec.dtype())) counts[*spec.dtype()] += spec.count();
  }
  const auto most =
      std::max_element(counts.begin(), counts.end(),
                       [](const auto& x, const auto& y) { return x.second < y.second; });
  return most == counts.end() ? std::nullopt : std::optional(most->first);
}

/// Refuses weights whose numbers we could not read, or says that they are copied unread.
void check_quantized(const ModelSource& source, const std::vector<TextFile>& companions,
                     const ConvertOptions& options, std::vector<std::string>& warnings) {
  const std::string path = source.path().string();
  const bool copies = options.keeps_quantized && !options.dtype;
  const char* hint =
      "use a folder with bf16, f16 or f32 weights; --keep-quantized without --dtype "
      "copies this one as it is";
  for (const TextFile& companion : companions) {
    if (companion.name != "config.json") continue;
    const std::string where = (source.path() / companion.name).string();
    const auto method = quantization_of(companion.content, where);
    if (!method) continue;
    const std::string what =
        fmt::format("{}: its weights are quantized ({})", where, shortened(*method));
    if (!copies) throw Error(ErrorCode::data, what + ", which heddle does not read", hint);
    warnings.push_back(what + "; they were copied as they are");
  }
  std::string first;
  std::int64_t count = 0;
  for (const std::string& name : source.weights().names()) {
    const TensorSpec spec = source.weights().spec(name);
    if (!spec.is_opaque()) continue;
    if (count++ == 0) first = fmt::format("tensor \"{}\" is {}", name, spec.dtype_name);
  }
  if (count == 0) return;
  const std::string what = fmt::format("{}: {}", path, first);
  if (!copies) throw Error(ErrorCode::data, what + ", which heddle does not read", hint);
  warnings.push_back(fmt::format("{}; {} of this kind were copied without looking for NaN", what,
                                 count == 1 ? "1 tensor" : fmt::format("{} tensors", count)));
}

/// Copies a tensor, or rows of one, piece by piece and notes what the pieces lose.
void convert_bytes(std::span<const std::byte> bytes, std::optional<DType> from,
                   const TensorSpec& target, HfFolderWriter& writer,
                   std::vector<std::string>& warnings) {
  if (!from) return writer.append(target.name, bytes);
  const DType to = *target.dtype();
  const std::size_t count = bytes.size() / size_of(*from);
  std::vector<std::byte> piece(std::min<std::size_t>(count, kPieceElements) * size_of(to));
  TensorStats before, after;
  for (std::size_t at = 0; at < count; at += kPieceElements) {
    const std::size_t n = std::min<std::size_t>(count - at, kPieceElements);
    const auto source = bytes.subspan(at * size_of(*from), n * size_of(*from));
    const std::span<std::byte> result(piece.data(), n * size_of(to));
    convert_elements(source.data(), *from, result.data(), to, static_cast<std::int64_t>(n));
    writer.append(target.name, result);
    const auto add = [](TensorStats& stats, std::span<const std::byte> bytes, DType dtype) {
      for_each_piece(bytes, dtype, [&](std::span<const double> values) { stats.add(values); });
    };
    if (is_floating(*from)) add(before, source, *from);
    if (*from != to) add(after, result, to);
  }
  if (before.non_finite() > 0) {
    warnings.push_back(fmt::format("tensor \"{}\" has {} NaN and {} infinite elements", target.name,
                                   before.nan, before.inf));
  }
  if (after.non_finite() > before.non_finite()) {
    warnings.push_back(fmt::format("{} elements of tensor \"{}\" are too large for {}",
                                   after.non_finite() - before.non_finite(), target.name,
                                   name_of(to)));
  }
}

/// The tensor with what an adapter adds, in f32.
Tensor updated(const StoredTensors& weights, const std::string& name, const LowRankUpdate& update,
               const fs::path& source, Memory& memory) {
  const auto& [up, down, scale, is_in_out] = update;
  const Shape whole = is_in_out ? Shape{down.size(1), up.size(0)} : Shape{up.size(0), down.size(1)};
  if (weights.shape(name) != whole) {
    throw Error(ErrorCode::data,
                fmt::format("{}: tensor {} has shape {}, but adapters are for {}", source.string(),
                            name, weights.shape(name).text(), whole.text()),
                "these adapters belong to another model");
  }
  const Tensor sum = memory.alloc(whole, DType::f32, MemoryTag::workspace);
  weights.read(name, sum);
  using ops::Transpose;
  Stream stream(1);
  const ops::GemmScale add{.alpha = scale, .beta = 1.0};
  if (is_in_out) {
    ops::gemm(down, Transpose::yes, up, Transpose::yes, sum, add, stream);
  } else {
    ops::gemm(up, Transpose::no, down, Transpose::no, sum, add, stream);
  }
  return sum;
}

void require_all_updates(const ModelSource& source, const ConvertOptions& options) {
  for (const auto& [name, update] : options.updates) {
    if (source.weights().contains(name)) continue;
    throw Error(
        ErrorCode::data,
        fmt::format("{} has no tensor {}, which adapters are for", source.path().string(), name),
        "these adapters belong to another model");
  }
}

void convert_tensor(const StoredTensors& weights, const TensorSpec& target,
                    const ConvertOptions& options, const fs::path& source, Memory& memory,
                    HfFolderWriter& writer, std::vector<std::string>& warnings) {
  if (const auto update = options.updates.find(target.name); update != options.updates.end()) {
    const Tensor sum = updated(weights, target.name, update->second, source, memory);
    return convert_bytes(std::as_bytes(sum.host<float>()), DType::f32, target, writer, warnings);
  }
  const auto found = options.origins.find(target.name);
  const TensorOrigin origin =
      found == options.origins.end() ? TensorOrigin{.name = target.name} : found->second;
  const StoredTensors::Content content = weights.content(origin.name, memory);
  const auto from = weights.spec(origin.name).dtype();
  if (origin.rows.empty()) return convert_bytes(content.bytes, from, target, writer, warnings);
  const std::size_t row = content.bytes.size() / origin.rows.size();
  for (const int index : origin.rows) {
    convert_bytes(content.bytes.subspan(static_cast<std::size_t>(index) * row, row), from, target,
                  writer, warnings);
  }
}

void write_folder(FileSystem& files, const ModelSource& source, const fs::path& folder,
                  const ConvertOptions& options, ConvertReport& report) {
  std::vector<TensorSpec> specs = planned_tensors(source.weights(), options.dtype);
  std::uint64_t total = 0, done = 0;
  for (const TensorSpec& spec : specs) total += spec.size_bytes();
  require_all_updates(source, options);
  std::vector<TextFile> companions = source.companions();
  for (const TextFile& file : options.companions) put_file(companions, file);
  for (const TextFile& file : options.missing) {
    if (find_file(companions, file.name) == nullptr) companions.push_back(file);
  }
  check_quantized(source, companions, options, report.warnings);
  const auto dtype = main_dtype(specs);
  std::uint64_t text_bytes = 0;
  for (TextFile& companion : companions) {
    if (dtype && companion.name == "config.json") {
      companion.content =
          config_with_dtype(companion.content, *dtype, (source.path() / "config.json").string());
    }
    text_bytes += companion.content.size();
  }
  require_free_space(files, folder.has_parent_path() ? folder.parent_path() : fs::path("."),
                     total + text_bytes);
  files.create_directories(folder);
  HfFolderWriter writer(files, folder, std::move(specs), options.max_shard_bytes);
  Memory memory;
  for (const TensorSpec& spec : writer.order()) {
    convert_tensor(source.weights(), spec, options, source.path(), memory, writer, report.warnings);
    ++report.tensors;
    report.parameters += spec.count();
    done += spec.size_bytes();
    if (options.progress) options.progress(done, total);
  }
  writer.write_companions(companions);
  report.files = writer.finish();
}

}  // namespace

ConvertReport convert(FileSystem& files, const fs::path& source_path, const fs::path& out_path,
                      const ConvertOptions& options) {
  const fs::path out = without_trailing_slash(out_path);
  require_absent_or_empty(out);
  const ModelSource source(source_path, Verify::checksums);
  ConvertReport report;
  report.source = source.path();
  report.out = out;
  const fs::path parent = out.has_parent_path() ? out.parent_path() : fs::path(".");
  const fs::path beside = fmt::format("{}.tmp-{}", out.string(), ::getpid());
  files.create_directories(parent);
  try {
    write_folder(files, source, beside, options, report);
    files.rename(beside, out);
    files.sync_directory(parent);
  } catch (const Error&) {
    try {
      files.remove_all(beside);
    } catch (const Error& cleanup) {
      log_warn("{}", cleanup.what());
    }
    throw;
  }
  for (const FileRecord& file : report.files) report.size_bytes += file.size_bytes;
  return report;
}

}  // namespace heddle
