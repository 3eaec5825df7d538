#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "checkpoint/hf_folder_writer.h"
#include "checkpoint/inspect.h"

namespace heddle {

/// What a written tensor is, where that is not the tensor of its own name as it is.
struct TensorOrigin {
  std::string name;            ///< of the source, which has the same type and shape
  std::vector<int> rows = {};  ///< the source's first dimension in this order; empty: as it is
};

/// scale * up down is added to a matrix, or its transpose where that is stored [in, out].
struct LowRankUpdate {
  Tensor up, down;  ///< [out, rank] and [rank, in], f32
  double scale = 1.0;
  bool is_in_out = false;
};

struct ConvertOptions {
  std::optional<DType> dtype = {};  ///< for floating tensors; the others and absent: as they are
  std::uint64_t max_shard_bytes = kDefaultMaxShardBytes;
  /// Without a dtype: copy weights that are quantized, or of types we cannot read, and say so.
  bool keeps_quantized = false;
  std::map<std::string, TensorOrigin> origins = {};   ///< by the name that is written
  std::map<std::string, LowRankUpdate> updates = {};  ///< of adapters to merge, by tensor
  std::vector<TextFile> companions = {};              ///< in place of the source's of that name
  std::vector<TextFile> missing = {};  ///< companions that are written where the source has none
  ByteProgress progress = {};
};

struct ConvertReport {
  std::filesystem::path source, out;
  std::int64_t tensors = 0;
  std::int64_t parameters = 0;
  std::uint64_t size_bytes = 0;  ///< of all files written
  std::vector<FileRecord> files;
  std::vector<std::string> warnings;  ///< elements that are not finite, too large, or unread
};

/// Writes the weights of `source` (as ModelSource takes it) as the Hugging Face folder `out`,
/// tensor by tensor in bounded memory, companion files included; config.json says the dtype that
/// most elements then have. Quantized weights are refused unless they are to be kept.
/// `out` appears whole or not at all, and must not exist or be empty: Error(usage) otherwise.
ConvertReport convert(FileSystem& files, const std::filesystem::path& source,
                      const std::filesystem::path& out, const ConvertOptions& options);

}  // namespace heddle
