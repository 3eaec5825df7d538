#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace heddle {

/// Sixteen times the largest vocabulary in use; bounds what a lying id can make us allocate.
inline constexpr std::int64_t kMaxTokens = std::int64_t{1} << 22;

/// Typed access to an object of a tokenizer.json, with messages that name the key. Everything it
/// throws is Error(data).
class Section {
 public:
  /// `path` is what messages start with: "FILE: model", say. It must end in ": " for the file's
  /// outermost object.
  Section(const Json& json, std::string path);

  const std::string& path() const { return path_; }
  std::string path_of(std::string_view key) const;

  /// The value, or nullptr when absent or null.
  const Json* find(std::string_view key) const;
  const Json& at(std::string_view key) const;
  bool flag(std::string_view key, bool otherwise) const;
  const std::string& string(std::string_view key) const;
  std::string string(std::string_view key, const std::string& otherwise) const;
  /// A string of exactly one character.
  const std::string& character(std::string_view key) const;
  const Json& array(std::string_view key) const;
  Section section(std::string_view key) const { return {at(key), path_of(key)}; }
  /// Element `i` of the list at `key`.
  Section element(std::string_view key, std::size_t i) const;
  /// A whole number from 0 to `limit`.
  std::int64_t count(std::string_view key, std::int64_t otherwise, std::int64_t limit) const;
  /// A token id, inside the limits but not necessarily in the vocabulary.
  std::int32_t id(std::string_view key) const { return checked_id(at(key), path_of(key)); }
  static std::int32_t checked_id(const Json& value, const std::string& path);

  [[noreturn]] void refuse(std::string_view what, const std::string& hint = "") const;

 private:
  const Json& json_;
  std::string path_;
};

}  // namespace heddle
