// Token files: any bytes give a file that can be read everywhere, or an Error(data). The first byte
// chooses how much is checked and whether the header's own checksum is made true, without which
// hardly any input would get past it.

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.h"
#include "data/packing.h"
#include "data/sampler.h"
#include "data/token_file.h"

namespace {

using heddle::TokenFile;

void read_everywhere(const TokenFile& file) {
  for (std::int64_t i = 0; i < file.document_count(); ++i) {
    if (file.document_of(file.document_start(i)) != i) std::abort();
  }
  if (file.token_count() < 2) return;
  const heddle::Splits splits = heddle::split_tokens(file, 0.3);
  constexpr std::int64_t kLength = 5;
  std::vector<std::int32_t> ids(kLength), targets(kLength), positions(kLength), first_key(kLength);
  for (std::int64_t begin = 0; begin < splits.train.end; begin += kLength) {
    const std::int64_t counted =
        heddle::pack_window(file, begin, splits.train.end, heddle::DocumentMode::mask,
                            {ids, targets, positions, first_key});
    if (counted != kLength - std::count(targets.begin(), targets.end(), heddle::kIgnoredTarget)) {
      std::abort();
    }
    if (!std::is_sorted(first_key.begin(), first_key.end())) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::uint8_t choice = data[0];
  std::vector<std::uint8_t> bytes(data + 1, data + size);
  if ((choice & 1) != 0 && bytes.size() >= 64) {
    const std::uint64_t hash = XXH64(bytes.data(), 56, 0);
    std::memcpy(bytes.data() + 56, &hash, sizeof hash);
  }
  const auto check = (choice & 2) != 0 ? TokenFile::Check::content : TokenFile::Check::structure;
  try {
    read_everywhere(TokenFile::parse(std::as_bytes(std::span(bytes)), "fuzz", check));
  } catch (const heddle::Error& e) {
    if (e.code() != heddle::ErrorCode::data) std::abort();
  }
  return 0;
}
