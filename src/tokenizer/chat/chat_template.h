#pragma once

#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"

namespace heddle {

/// A model's way to write a conversation as one text: a template in the subset of Jinja that
/// published models use (docs/design/061-chat-templates.md). Immutable and thread-safe.
class ChatTemplate {
 public:
  /// Throws Error(data) with the line of what is not understood or not supported.
  explicit ChatTemplate(const std::string& source);

  /// chat_template.jinja of a model folder, or `chat_template` of its tokenizer_config.json (of
  /// several the one named "default", and with tools "tool_use", which may also be a file in
  /// additional_chat_templates); nothing where the folder has none. Tokens that
  /// tokenizer_config.json and special_tokens_map.json name (bos_token, ...) are known to it.
  static std::optional<ChatTemplate> find(const std::filesystem::path& folder);

  struct Options {
    bool add_generation_prompt = true;  ///< end where an answer begins
    std::optional<std::tm> now = {};    ///< what strftime_now tells; absent: the time it is
  };
  /// `messages` is a list of objects with role and content; `others`, an object, are more names
  /// that the template may use (tools, enable_thinking, ...). Throws Error(data) where the template
  /// refuses them.
  std::string render(const Json& messages, const Json& others, const Options& options) const {
    return render_marked(messages, others, options).text;
  }

  /// Bytes [begin, end) of a text.
  struct Stretch {
    std::size_t begin = 0, end = 0;
    bool operator==(const Stretch&) const = default;
  };
  struct Rendered {
    std::string text;
    std::vector<Stretch> marked;  ///< what the template printed inside `generation` blocks
    /// What it printed of each message: in that one's round of a loop over messages. Nothing where
    /// no loop printed anything of it, or several did.
    std::vector<std::optional<Stretch>> turns;
  };
  Rendered render_marked(const Json& messages, const Json& others, const Options& options) const;
  /// Whether it has such blocks.
  bool marks_answers() const;
  const std::string& source() const;

 private:
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

}  // namespace heddle
