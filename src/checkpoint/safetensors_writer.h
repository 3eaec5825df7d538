#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"
#include "checkpoint/checksum.h"
#include "checkpoint/safetensors_header.h"
#include "tensor/tensor.h"

namespace heddle {

/// The bytes before the data: length and JSON, padded with spaces so that the data begins at a
/// multiple of 64. The tensors follow each other in the given order.
std::string safetensors_header_bytes(std::span<const TensorSpec> tensors,
                                     const std::map<std::string, std::string>& metadata);

/// Writes one safetensors file front to back; holds no tensor data. The header is written at once
/// from what is declared; then the bytes of each tensor are appended in the declared order.
class SafetensorsWriter {
 public:
  SafetensorsWriter(FileSystem& files, const std::filesystem::path& path,
                    std::vector<TensorSpec> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  /// The next bytes of the tensor `name`, which is the first one not yet full. A tensor may come in
  /// several pieces.
  void append(std::string_view name, std::span<const std::byte> bytes);
  /// A whole tensor in host memory, with the dtype and shape declared; any strides.
  void append(std::string_view name, const Tensor& tensor);

  /// Makes the file durable. Every declared byte must have been appended.
  FileRecord finish();

 private:
  void skip_empty();

  std::vector<TensorSpec> tensors_;
  HashingFile file_;
  std::size_t next_ = 0;
  std::uint64_t filled_ = 0;  // bytes of tensors_[next_] written
};

}  // namespace heddle
