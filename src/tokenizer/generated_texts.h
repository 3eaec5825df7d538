#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace heddle {

/// What generated texts are made of. They follow from this alone, in the tests' scripts and here.
struct TextRecipe {
  std::uint64_t seed = 0;
  std::int64_t count = 0;                             ///< of texts
  std::uint64_t longest = 0;                          ///< of parts
  std::vector<std::string> pieces;                    ///< three of four parts
  std::vector<std::pair<char32_t, char32_t>> ranges;  ///< of characters, for the others
};

/// Throws Error(data) where the file does not have that form.
TextRecipe read_text_recipe(const std::filesystem::path& path);

std::string generated_text(const TextRecipe& recipe, std::uint64_t index);

/// A text for each code point of Unicode 16, in their order.
std::vector<std::string> code_point_texts();

}  // namespace heddle
