#include "config/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/strings.h"

namespace heddle::config {
namespace {

struct ByteUnit {
  std::string_view name;
  std::int64_t size;
};
constexpr std::array<ByteUnit, 9> kByteUnits = {{{"TiB", std::int64_t{1} << 40},
                                                 {"GiB", std::int64_t{1} << 30},
                                                 {"MiB", std::int64_t{1} << 20},
                                                 {"KiB", std::int64_t{1} << 10},
                                                 {"TB", 1'000'000'000'000},
                                                 {"GB", 1'000'000'000},
                                                 {"MB", 1'000'000},
                                                 {"kB", 1'000},
                                                 {"B", 1}}};

/// Shortest text that reads back as the same double and is a TOML float, not an integer.
std::string number_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string bytes_text(std::int64_t bytes) {
  for (const auto& unit : kByteUnits) {
    if (unit.name.size() == 3 && bytes > 0 && bytes % unit.size == 0) {
      return toml_string(fmt::format("{} {}", bytes / unit.size, unit.name));
    }
  }
  return std::to_string(bytes);
}

std::string bound_text(const Key& key, double bound) {
  return key.field.type == Type::number ? fmt::format("{}", bound)
                                        : fmt::format("{}", static_cast<std::int64_t>(bound));
}

/// Bounds from here on only keep arithmetic safe.
constexpr double kWide = 1e9;

/// "from 0 to 3", "1 or more", or "" when every value is allowed. Wide bounds are left out.
std::string range_text(const Key& key) {
  if (std::isinf(key.least())) return "";
  if (key.most() < kWide) {
    return fmt::format("from {} to {}", bound_text(key, key.least()), bound_text(key, key.most()));
  }
  return fmt::format("{} or more", bound_text(key, key.least()));
}

std::string name_of(Type type) {
  switch (type) {
    case Type::boolean: return "true or false";
    case Type::integer: return "integer";
    case Type::number: return "number";
    case Type::text: return "text";
    case Type::path: return "path";
    case Type::choice: return "one of";
    case Type::bytes: return "bytes";
    case Type::texts: return "list of texts";
    case Type::sources: return "list of tables";
  }
  return "";
}

/// Names of other systems are compared without leading dashes, in lower case, with underscores.
std::string plain(std::string_view name) {
  std::string result;
  for (const char c : name.substr(std::min(name.find_first_not_of('-'), name.size()))) {
    result += c == '-' || c == ' '     ? '_'
              : (c >= 'A' && c <= 'Z') ? static_cast<char>(c - 'A' + 'a')
                                       : c;
  }
  return result;
}

bool knows(const std::vector<std::string>& foreign, std::string_view name) {
  return std::find(foreign.begin(), foreign.end(), name) != foreign.end();
}

std::string did_you_mean(std::string_view what) { return fmt::format("; did you mean {}?", what); }

}  // namespace

const Key* find_key(std::string_view full_name) {
  for (const auto& key : keys()) {
    if (key.full_name() == full_name) return &key;
  }
  return nullptr;
}

bool is_section(std::string_view name) {
  return std::any_of(sections().begin(), sections().end(),
                     [&](const Section& s) { return s.name == name; });
}

std::string toml_string(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    switch (c) {
      case '"': result += "\\\""; break;
      case '\\': result += "\\\\"; break;
      case '\n': result += "\\n"; break;
      case '\t': result += "\\t"; break;
      default:
        if (code < 0x20 || code == 0x7F) {
          result += fmt::format("\\u{:04X}", code);
        } else {
          result += c;
        }
    }
  }
  return result + '"';
}

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  text = trim(text);
  std::int64_t unit_size = 1;
  for (const auto& unit : kByteUnits) {
    if (text.ends_with(unit.name)) {
      unit_size = unit.size;
      text = trim(text.substr(0, text.size() - unit.name.size()));
      break;
    }
  }
  double count = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (status != std::errc() || end != text.data() + text.size()) return std::nullopt;
  const double bytes = count * static_cast<double>(unit_size);
  if (!(bytes >= 0 && bytes <= 9e18)) return std::nullopt;
  return static_cast<std::int64_t>(bytes);
}

std::string device_meant_by(std::string_view word) {
  const std::string plain_word = plain(word);
  const bool is_gpu = plain_word == "gpu" || plain_word == "nvidia" ||
                      plain_word.starts_with("gpu:") || plain_word.starts_with("cuda");
  return is_gpu ? "cuda" : "";
}

double Key::least() const { return std::max(minimum, -field.most - 1.0); }

double Key::most() const { return std::min(maximum, field.most); }

std::string problem_with(const Key& key, const Value& value) {
  const auto& [type, most, choices, problem, get, set] = key.field;
  if (problem) {
    const auto& text = std::get<std::string>(value);
    const std::string found = problem(text);
    return found.empty()
               ? ""
               : fmt::format("{} = {}: {}", key.full_name(), toml_string(shortened(text)), found);
  }
  if (type == Type::choice) {
    const auto& text = std::get<std::string>(value);
    if (std::find(choices.begin(), choices.end(), text) != choices.end()) return "";
    if (text.empty() && value == key.default_value()) return "";
    auto near = key.meant_by ? key.meant_by(text) : std::string();
    if (near.empty()) near = nearest_word(text, choices);
    return fmt::format("{} = {} is not one of {}{}", key.full_name(), toml_string(shortened(text)),
                       fmt::join(choices, ", "),
                       near.empty() ? "" : did_you_mean(toml_string(near)));
  }
  if (type == Type::path) {
    const auto& text = std::get<std::string>(value);
    const bool has_control = std::any_of(
        text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; });
    return has_control ? fmt::format("{} = {} is not a path: it has a control character",
                                     key.full_name(), toml_string(shortened(text)))
                       : "";
  }
  double number = 0;
  if (const auto* i = std::get_if<std::int64_t>(&value)) {
    number = static_cast<double>(*i);
  } else if (const auto* d = std::get_if<double>(&value)) {
    number = *d;
  } else {
    return "";
  }
  if (number >= key.least() && number <= key.most()) return "";  // refuses NaN
  const bool is_above = number > key.most();
  return fmt::format("{} = {} is out of range; it must be {}", key.full_name(), to_text(key, value),
                     is_above && key.most() >= kWide
                         ? fmt::format("at most {}", bound_text(key, key.most()))
                         : range_text(key));
}

std::string to_text(const Key& key, const Value& value) {
  if (const auto* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const auto* i = std::get_if<std::int64_t>(&value)) {
    return key.field.type == Type::bytes ? bytes_text(*i) : std::to_string(*i);
  }
  if (const auto* d = std::get_if<double>(&value)) return number_text(*d);
  if (const auto* s = std::get_if<std::string>(&value)) {
    const bool is_absent = s->empty() && key.field.type != Type::text;
    return is_absent || (s->empty() && !key.when_absent.empty()) ? "" : toml_string(*s);
  }
  if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
    std::vector<std::string> quoted;
    for (const std::string& text : *texts) quoted.push_back(toml_string(text));
    return quoted.empty() ? "" : fmt::format("[{}]", fmt::join(quoted, ", "));
  }
  if (const auto* sources = std::get_if<std::vector<DataSource>>(&value)) {
    std::vector<std::string> tables;
    for (const auto& source : *sources) {
      tables.push_back(fmt::format("{{ path = {}, weight = {}, name = {} }}",
                                   toml_string(source.path.string()), number_text(source.weight),
                                   toml_string(source.name)));
    }
    return tables.empty() ? "" : fmt::format("[{}]", fmt::join(tables, ", "));
  }
  return "";
}

std::string describe_type(const Key& key) {
  std::string text = name_of(key.field.type);
  if (key.field.type == Type::choice)
    text += " " + fmt::format("{}", fmt::join(key.field.choices, ", "));
  if (const auto range = range_text(key); !range.empty()) text += " " + range;
  if (!key.unit.empty() && key.field.type != Type::bytes) text += ", " + key.unit;
  return text;
}

std::string suggestion_for_key(std::string_view section, std::string_view name) {
  const std::string ours = plain(name);
  if (knows(
          {"gradient_accumulation_steps", "grad_accum", "accumulation", "accumulate_grad_batches"},
          ours)) {
    return "; accumulation is computed: set train.tokens_per_step and train.microbatch";
  }
  const Key* other_section = nullptr;
  std::vector<std::string> same_section, everywhere;
  // A foreign name is looked for in the section it stands in first: `data.seed` of one system is
  // `seed` of another.
  for (const bool anywhere : {false, true}) {
    for (const auto& key : keys()) {
      if ((anywhere || key.section == section) && knows(key.foreign, ours)) {
        return did_you_mean(key.full_name());
      }
    }
  }
  for (const auto& key : keys()) {
    if (key.name == ours && other_section == nullptr) other_section = &key;
    if (key.section == section) same_section.push_back(key.name);
    everywhere.push_back(key.name);
  }
  if (other_section != nullptr) return did_you_mean(other_section->full_name());
  if (const auto near = nearest_word(ours, same_section); !near.empty()) {
    return did_you_mean(fmt::format("{}.{}", section, near));
  }
  if (const auto near = nearest_word(ours, everywhere); !near.empty()) {
    for (const auto& key : keys()) {
      if (key.name == near) return did_you_mean(key.full_name());
    }
  }
  return "";
}

std::string suggestion_for_section(std::string_view name) {
  const std::string ours = plain(name);
  std::vector<std::string> names;
  for (const auto& section : sections()) {
    if (knows(section.foreign, ours)) return did_you_mean("[" + section.name + "]");
    names.push_back(section.name);
  }
  if (const auto near = nearest_word(ours, names); !near.empty()) {
    return did_you_mean("[" + near + "]");
  }
  if (const auto key = suggestion_for_key("", name); !key.empty()) return key;
  return fmt::format("; the sections are {}", fmt::join(names, ", "));
}

}  // namespace heddle::config
