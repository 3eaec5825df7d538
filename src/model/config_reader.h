#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "model/spec.h"

namespace heddle {

/// Reads keys of a config.json with checks: every failure is an Error(data) that names the file and
/// the key.
class ConfigReader {
 public:
  ConfigReader(const Json& config, std::string where);

  /// Larger sizes mean nothing, and products of three of them would overflow.
  static constexpr std::int64_t kLargestSize = std::int64_t{1} << 24;

  /// A size: a positive integer up to kLargestSize. size() wants the key; null counts as absent.
  std::int64_t size(const std::string& key) const;
  std::int64_t size_or(const std::string& key, std::int64_t fallback) const;
  /// The size that any of these keys says, which all mean the same: those that are there must
  /// agree.
  std::optional<std::int64_t> size_by(const std::vector<std::string>& keys) const;
  double number_or(const std::string& key, double fallback) const;
  bool flag_or(const std::string& key, bool fallback) const;
  std::string text_or(const std::string& key, const std::string& fallback) const;
  /// A number that must be there.
  double number(const std::string& key) const;
  bool has(const std::string& key) const;
  /// Whether the key is there at all, be it with null.
  bool mentions(const std::string& key) const;
  /// The object below this key, to be read with the same checks; absent and null give none.
  std::optional<ConfigReader> section(const std::string& key) const;
  const Json& json() const { return config_; }

  /// Refuses a config that asks for something we do not do.
  void require_value(const std::string& key, const Json& only_supported) const;
  /// "resid_pdrop = 0.1, ...": those of these dropout probabilities that are not 0.
  std::string dropout_asked(const std::vector<std::string>& keys) const;

  [[noreturn]] void refuse(const std::string& message, const std::string& hint = {}) const;

 private:
  const Json* find(const std::string& key) const;

  const Json& config_;
  std::string where_;
};

}  // namespace heddle
