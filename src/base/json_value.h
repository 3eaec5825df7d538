#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heddle {

/// JSON that is written and never read: what verbs print and reports hold. Cheap to include and to
/// compile, unlike base/json.h, which is for documents that are read. Numbers read back to the same
/// double; NaN and infinity become null, and bytes that are not UTF-8 become U+FFFD.
class JsonValue {
 public:
  JsonValue() = default;  ///< null
  JsonValue(std::nullptr_t) {}
  JsonValue(bool value);
  JsonValue(int value) : JsonValue(static_cast<std::int64_t>(value)) {}
  JsonValue(std::int64_t value);
  JsonValue(std::uint64_t value);
  JsonValue(double value);
  JsonValue(const char* text) : JsonValue(std::string_view(text)) {}
  JsonValue(std::string_view text);
  JsonValue(const std::string& text) : JsonValue(std::string_view(text)) {}
  template <class T>
  JsonValue(const std::vector<T>& values) : JsonValue(array()) {
    for (const T& value : values) push_back(value);
  }
  template <class T, std::size_t kSize>
  JsonValue(const std::array<T, kSize>& values) : JsonValue(array()) {
    for (const T& value : values) push_back(value);
  }
  template <class T>
  JsonValue(const std::map<std::string, T>& members) : JsonValue(object()) {
    for (const auto& [key, value] : members) (*this)[key] = value;
  }
  template <class T>
  JsonValue(const std::optional<T>& value) : JsonValue(value ? JsonValue(*value) : JsonValue()) {}
  /// An object: {{"key", value}, ...}.
  JsonValue(std::initializer_list<std::pair<std::string_view, JsonValue>> members);

  static JsonValue array();
  static JsonValue object();

  /// To an array.
  void push_back(JsonValue value);
  /// The member, made at the end where it is not there yet. Null becomes an object.
  JsonValue& operator[](std::string_view key);

  /// On one line, or with `indent` spaces per level.
  std::string dump(int indent = -1) const;

 private:
  enum class Kind { scalar, array, object };
  void append_to(std::string& text, int indent, int level) const;

  Kind kind_ = Kind::scalar;
  std::string text_ = "null";  // of a scalar
  std::vector<std::string> keys_;
  std::vector<JsonValue> children_;
};

}  // namespace heddle
