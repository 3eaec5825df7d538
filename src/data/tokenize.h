#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/file_system.h"
#include "data/formats/record_reader.h"
#include "data/token_file.h"

namespace heddle {

/// Appends the tokens of `text`, which is valid UTF-8, to `out`. It may go on with a text that was
/// cut where the format says (DocumentFormat::cut): tokens are those of the whole.
using EncodeText =
    std::function<void(std::string_view text, bool continues, std::vector<std::int32_t>& out)>;

enum class OnFault { stop, skip };

struct TokenizeOptions {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path out;
  TokenFileOrigin origin = {};
  std::filesystem::path tokenizer = {};        ///< kept in the record, for who reads the tokens
  std::optional<std::int32_t> end_token = {};  ///< appended to each document
  bool parse_special = true;  ///< what make_encoder was given; a change makes parts invalid
  DocumentFormat format = {};
  std::optional<InputKind> kind = {};  ///< of all inputs; absent: recognised file by file
  OnFault on_fault = OnFault::stop;
  int threads = 1;
};

struct TokenizeProgress {
  std::size_t done_bytes = 0, total_bytes = 0;  ///< of input
  std::size_t reused_bytes = 0;  ///< of done_bytes, found finished by an earlier call
};

struct TokenizeResult {
  std::int64_t documents = 0, tokens = 0;
  std::int64_t skipped = 0;  ///< malformed documents left out
  std::int64_t empty = 0;    ///< documents without a token, left out
  std::size_t input_bytes = 0;
  std::int64_t parts = 0, reused_parts = 0;
  std::vector<std::filesystem::path> left_out = {};  ///< files of folders that were not read
  bool was_up_to_date = false;  ///< `out` was already the result of the same call
};

/// Turns text into the token file `options.out`, on `threads` threads; `make_encoder` is called
/// once per thread. The output depends on the inputs and options alone, not on the threads.
///
/// Inputs are read in blocks of a few MiB of records (input_blocks.h), several files at a time and
/// blocks of one file by several threads. Each is written to the folder `OUT.parts` as a token file
/// with a small JSON record of what it was made from (options, content), so a call after an
/// interruption encodes only what is missing or has changed. `OUT.json` records the same for the
/// whole, with the inputs' sizes and times of change; when it still holds, nothing is done. Memory:
/// per thread about a block and its tokens, or the largest document, where that cannot be cut.
///
/// Nothing that is read is replaced, and of `OUT.json` and `OUT.parts` only what an earlier call
/// left there: anything else there is an Error(usage).
///
/// `progress`, which may be absent, is called on the calling thread at the start, about twice a
/// second and at the end. Throws
/// Error(data) for faults of the inputs (the first in input order), Error(resources) where writing
/// fails; finished parts stay.
TokenizeResult tokenize(FileSystem& files, const TokenizeOptions& options,
                        const std::function<EncodeText()>& make_encoder,
                        const std::function<void(const TokenizeProgress&)>& progress = {});

/// The tokenizer that tokenize() recorded beside `token_file`; absent when there is no record.
std::optional<std::filesystem::path> recorded_tokenizer(const std::filesystem::path& token_file);

}  // namespace heddle
