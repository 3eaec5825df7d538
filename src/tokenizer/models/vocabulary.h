#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace heddle {

/// Lets maps with keys of std::string be searched with views.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};
using TextIds = std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>>;

/// The tokens of a model and their ids, as the file spells them.
class Vocabulary {
 public:
  /// Throws Error(data), which starts with `where`, for an id outside the limits and for a token or
  /// an id that is given twice.
  void add(const std::string& token, std::int64_t id, const std::string& where);
  /// Of a token that is given twice the last id counts.
  void add_or_move(const std::string& token, std::int32_t id);

  std::optional<std::int32_t> find(std::string_view token) const {
    const auto at = ids_.find(token);
    return at == ids_.end() ? std::nullopt : std::optional(at->second);
  }
  /// One more than the highest id.
  std::size_t size() const { return tokens_.size(); }
  /// Absent where an id has no token.
  const std::optional<std::string>& token(std::size_t id) const { return tokens_[id]; }
  const TextIds& ids() const { return ids_; }
  bool empty() const { return ids_.empty(); }

 private:
  std::vector<std::optional<std::string>> tokens_;
  TextIds ids_;
};

}  // namespace heddle
