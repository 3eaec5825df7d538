#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace heddle {

/// One field of a message in protobuf's wire format.
struct ProtoField {
  std::uint32_t number = 0;
  std::uint64_t value = 0;      ///< of a number; of fixed ones, their bits
  std::string_view bytes = {};  ///< of a string, or a message
};

/// Reads the fields of a message in order. Throws Error(data), which starts with `where`, for bytes
/// that are no message.
class ProtoReader {
 public:
  ProtoReader(std::string_view message, const std::string& where) : rest_(message), where_(where) {}

  /// False at the end.
  bool next(ProtoField& field);

 private:
  std::uint64_t varint();
  std::string_view take(std::uint64_t count);
  [[noreturn]] void refuse() const;

  std::string_view rest_;
  const std::string& where_;
};

}  // namespace heddle
