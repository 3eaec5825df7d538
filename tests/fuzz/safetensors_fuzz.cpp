// Safetensors files: any bytes give tensors that lie inside them, or an Error(data). What is
// accepted has a header that, written again, describes the same tensors.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/tensor_stats.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const heddle::SafetensorsHeader& header, std::span<const std::byte> file) {
  const auto data = file.subspan(header.data_begin);
  std::vector<heddle::TensorSpec> specs;
  for (const auto& entry : header.entries) {
    const auto bytes = data.subspan(entry.begin, entry.end - entry.begin);
    require(entry.size_bytes() == bytes.size());
    if (const auto dtype = entry.dtype()) {
      require(heddle::stats_of(bytes, *dtype).count == entry.count());
    }
    specs.push_back(entry);
  }
  std::string again = heddle::safetensors_header_bytes(specs, header.metadata);
  again.append(reinterpret_cast<const char*>(data.data()), data.size());
  const auto reread = heddle::parse_safetensors_header(std::as_bytes(std::span(again)), "again");
  require(reread.entries.size() == header.entries.size() && reread.metadata == header.metadata);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  heddle::SafetensorsHeader header;
  try {
    header = heddle::parse_safetensors_header(file, "fuzz.safetensors");
  } catch (const heddle::Error& e) {
    require(e.code() == heddle::ErrorCode::data);
    return 0;
  }
  check(header, file);
  return 0;
}
