#include "tokenizer/generated_texts.h"

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {

TextRecipe read_text_recipe(const std::filesystem::path& path) {
  const Json file = read_json_file(path);
  TextRecipe recipe;
  try {
    recipe.seed = file.at("seed").get<std::uint64_t>();
    recipe.count = file.at("count").get<std::int64_t>();
    recipe.longest = file.at("longest").get<std::uint64_t>();
    recipe.pieces = file.at("pieces").get<std::vector<std::string>>();
    for (const Json& range : file.at("ranges")) {
      recipe.ranges.emplace_back(range.at(0).get<std::uint32_t>(),
                                 range.at(1).get<std::uint32_t>());
    }
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorCode::data, "{} does not describe texts: {}", path.string(), e.what());
  }
  for (const auto& [begin, end] : recipe.ranges) {
    if (begin >= end || end > 0x110000) {
      fail(ErrorCode::data, "{}: a range of characters is empty or too high", path.string());
    }
  }
  if (recipe.longest == 0 || recipe.pieces.empty() || recipe.ranges.empty()) {
    fail(ErrorCode::data, "{}: nothing to make texts of", path.string());
  }
  return recipe;
}

std::string generated_text(const TextRecipe& recipe, std::uint64_t index) {
  const std::uint64_t key = rng_key(recipe.seed, index);
  const std::uint64_t parts = 1 + random_u64(key, 0) % recipe.longest;
  std::string text;
  for (std::uint64_t part = 1; part <= parts; ++part) {
    const std::uint64_t value = random_u64(key, part), rest = value >> 8;
    if (value % 4 < 3) {
      text += recipe.pieces[rest % recipe.pieces.size()];
    } else {
      const auto& [begin, end] = recipe.ranges[rest % recipe.ranges.size()];
      append_utf8(begin + static_cast<char32_t>((rest >> 24) % (end - begin)), text);
    }
  }
  return text;
}

std::vector<std::string> code_point_texts() {
  std::vector<std::string> texts;
  for (char32_t c = 0; c < 0x110000; ++c) {
    const Category category = category_of(c);
    if (category == Category::cn || (c >= 0xD800 && c < 0xE000)) continue;
    std::string character;
    append_utf8(c, character);
    texts.push_back(character + " a" + character + "b");
  }
  return texts;
}

}  // namespace heddle
