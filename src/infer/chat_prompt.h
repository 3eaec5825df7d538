#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace heddle {

/// The text of a conversation as the template of a model folder writes it, up to where the model's
/// answer begins. Its marks are part of the text: nothing is to be put around it.

/// Of one message of a user.
std::string chat_prompt(const std::filesystem::path& folder, const std::string& message);
/// Of a JSON file: a list of messages (objects with role and content), or an object with `messages`
/// and whatever else the template knows (tools, enable_thinking, ...).
std::string chat_prompt_of_file(const std::filesystem::path& folder,
                                const std::filesystem::path& file);

}  // namespace heddle
