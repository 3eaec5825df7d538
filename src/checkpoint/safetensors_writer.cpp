#include "checkpoint/safetensors_writer.h"

#include <cstring>

#include "base/check.h"
#include "base/json.h"

namespace heddle {
namespace {

constexpr std::size_t kDataAlignment = 64;

/// Appends rows: every tensor's last dimension is contiguous.
void append_rows(SafetensorsWriter& writer, std::string_view name, const Tensor& tensor) {
  if (tensor.is_contiguous()) {
    writer.append(name, {tensor.bytes(), tensor.size_bytes()});
  } else {
    for (std::int64_t i = 0; i < tensor.size(0); ++i) {
      append_rows(writer, name, tensor.select(0, i));
    }
  }
}

}  // namespace

std::string safetensors_header_bytes(std::span<const TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata) {
  // Composed by hand: an ordered JSON object takes quadratic time to fill.
  std::string text = "{";
  const auto quoted = [](const std::string& s) { return nlohmann::json(s).dump(); };
  if (!metadata.empty()) text += "\"__metadata__\":" + nlohmann::json(metadata).dump();
  std::uint64_t at = 0;
  for (const auto& tensor : tensors) {
    if (text.size() > 1) text += ',';
    const std::uint64_t end = at + tensor.size_bytes();
    text +=
        fmt::format(R"({}:{{"dtype":{},"shape":{},"data_offsets":[{},{}]}})", quoted(tensor.name),
                    quoted(tensor.dtype_name), nlohmann::json(tensor.sizes).dump(), at, end);
    at = end;
  }
  text += '}';
  const std::size_t unpadded = sizeof(std::uint64_t) + text.size();
  text.append((kDataAlignment - unpadded % kDataAlignment) % kDataAlignment, ' ');
  const std::uint64_t length = text.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + text;
}

SafetensorsWriter::SafetensorsWriter(FileSystem& files, const std::filesystem::path& path,
                                     std::vector<TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : tensors_(std::move(tensors)), file_(files, path) {
  const std::string header = safetensors_header_bytes(tensors_, metadata);
  file_.append(std::as_bytes(std::span(header)));
  skip_empty();
}

void SafetensorsWriter::skip_empty() {
  while (next_ < tensors_.size() && filled_ == tensors_[next_].size_bytes()) {
    ++next_;
    filled_ = 0;
  }
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  HEDDLE_CHECK(next_ < tensors_.size() && tensors_[next_].name == name,
               "tensor {} written out of order", name);
  HEDDLE_CHECK(bytes.size() <= tensors_[next_].size_bytes() - filled_,
               "tensor {} has more bytes than declared", name);
  file_.append(bytes);
  filled_ += bytes.size();
  skip_empty();
}

void SafetensorsWriter::append(std::string_view name, const Tensor& tensor) {
  if (tensor.count() == 0) return;
  HEDDLE_CHECK(tensor.device().kind == Device::Kind::cpu, "tensor {} is in device memory", name);
  HEDDLE_CHECK(next_ < tensors_.size() && tensors_[next_].dtype() == tensor.dtype() &&
                   tensors_[next_].count() == tensor.count(),
               "tensor {} differs from its declaration", name);
  append_rows(*this, name, tensor);
}

FileRecord SafetensorsWriter::finish() {
  HEDDLE_CHECK(next_ == tensors_.size(), "tensor {} was declared and not written",
               tensors_[next_].name);
  return file_.finish();
}

}  // namespace heddle
