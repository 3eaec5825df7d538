#include "config/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/file_system.h"
#include "base/strings.h"
#include "base/toml.h"
#include "config/schema.h"

namespace heddle::config {
namespace {

std::string kind_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::none: return "nothing";
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return node.as_array()->empty() ? "an empty list" : "a list";
    case toml::node_type::string:
      return "text " + toml_string(shortened(*node.value<std::string>()));
    case toml::node_type::integer: return fmt::format("integer {}", *node.value<std::int64_t>());
    case toml::node_type::floating_point: return fmt::format("number {}", *node.value<double>());
    case toml::node_type::boolean: return *node.value<bool>() ? "true" : "false";
    case toml::node_type::date:
    case toml::node_type::time:
    case toml::node_type::date_time: return "a date or time";
  }
  return "something else";
}

std::string expectation(Type type) {
  switch (type) {
    case Type::boolean: return "true or false";
    case Type::integer: return "an integer";
    case Type::number: return "a number";
    case Type::text:
    case Type::path:
    case Type::choice: return "text in quotes";
    case Type::bytes: return "a number of bytes such as 1000000 or \"3 GiB\"";
    case Type::texts: return "a list of texts in quotes";
    case Type::sources: return "tables, each under its own [[data.sources]]";
  }
  return "";
}

/// Where a value stands: its line and column in the file, or (no line) an override.
struct Place {
  std::string text;  ///< "run.toml:14:3", "--set optim.lr=1"
  toml::source_position at = {};
};

/// Collects everything that is wrong and where the values came from, so that one run of the program
/// shows all of it.
class Loader {
 public:
  explicit Loader(std::string file) : file_(std::move(file)) {}

  void read_file(const toml::table& root) {
    for (const auto& [section, node] : root) {
      const auto where = place(section.source());
      if (!is_section(section.str())) {
        report_unknown_section(where, section.str(), node);
      } else if (const auto* table = node.as_table()) {
        for (const auto& [key, value] : *table) {
          read_key(place(key.source()), fmt::format("{}:{}", file_, key.source().begin.line),
                   section.str(), key.str(), value);
        }
      } else {
        report(where, section.str(),
               fmt::format("{0} is a section: write [{0}] and its keys below it", section.str()));
      }
    }
  }

  void apply(const std::string& override_text) {
    const Place where = {"--set " + override_text};
    const auto equals = override_text.find('=');
    const auto name = trim(std::string_view(override_text).substr(0, equals));
    const auto dot = name.find('.');
    if (equals == std::string::npos || dot == std::string_view::npos) {
      return report(where, "", "not of the form section.key=value");
    }
    if (valid_utf8_prefix(override_text) != override_text.size()) {
      return report(where, "", "not valid UTF-8");
    }
    const auto section = name.substr(0, dot), key = name.substr(dot + 1);
    const auto text = trim(std::string_view(override_text).substr(equals + 1));
    if (!is_section(section)) {
      return report(where, "",
                    fmt::format("unknown section {}{}", section, suggestion_for_section(section)));
    }
    const auto value = parse_override(find_key(name), text);
    read_key(where, "--set", section, key, *value.get("value"));
  }

  RunConfig settings() {
    if (!problems_.empty()) throw_problems();
    return loaded_.config;
  }

  LoadedRun finish(const std::string& default_name, int ranks, const MoreConflicts& of_model) {
    auto& parallel = loaded_.config.parallel;
    parallel.dp = parallel.replicas_on(ranks);
    if (loaded_.config.run.name.empty()) {
      loaded_.config.run.name = default_name;
      loaded_.origins["run.name"] = "the file's name";
    }
    std::vector<Conflict> conflicts = find_conflicts(loaded_.config, ranks);
    for (Conflict& more : of_model ? of_model(loaded_.config) : std::vector<Conflict>()) {
      if (std::ranges::find(conflicts, more.message, &Conflict::message) == conflicts.end()) {
        conflicts.push_back(std::move(more));
      }
    }
    for (const auto& conflict : conflicts) report_conflict(conflict);
    if (!problems_.empty()) throw_problems();
    return std::move(loaded_);
  }

 private:
  struct Problem {
    Place where;
    std::string what;
  };

  /// In the order of the file; what has no line comes last.
  [[noreturn]] void throw_problems() {
    const auto position = [](const Problem& p) {
      const bool has_line = p.where.at.line > 0;
      return std::tuple(!has_line, p.where.at.line, p.where.at.column);
    };
    std::stable_sort(problems_.begin(), problems_.end(),
                     [&](const Problem& a, const Problem& b) { return position(a) < position(b); });
    std::vector<std::string> lines;
    for (const auto& [where, what] : problems_) lines.push_back(where.text + ": " + what);
    throw Error(ErrorCode::usage, fmt::format("{}", fmt::join(lines, "\n")));
  }

  Place place(const toml::source_region& at) const {
    return {fmt::format("{}:{}:{}", file_, at.begin.line, at.begin.column), at.begin};
  }

  void report(const Place& where, std::string_view section, const std::string& what) {
    problems_.push_back({where, what});
    faulty_sections_.emplace(section);
  }

  /// A conflict that involves a section with a fault of its own is left out: its cause may be the
  /// fault. "" stands for a fault outside of the known sections, which may cause any conflict.
  void report_conflict(const Conflict& conflict) {
    if (faulty_sections_.count("") > 0) return;
    for (const auto& key : conflict.keys) {
      if (faulty_sections_.count(key.substr(0, key.find('.'))) > 0) return;
    }
    Place where{file_};
    for (const auto& key : conflict.keys) {
      const auto place = places_.find(key);
      if (place == places_.end()) continue;
      where = place->second;
      break;
    }
    problems_.push_back({where, conflict.message});
  }

  void report_unknown_section(const Place& where, std::string_view name, const toml::node& node) {
    if (node.is_table() || node.is_array_of_tables()) {
      report(where, "", fmt::format("unknown section {}{}", name, suggestion_for_section(name)));
    } else {
      report(where, "",
             fmt::format("key {} outside of any section{}", name, suggestion_for_key("", name)));
    }
  }

  /// Text keys take what is written after the equals sign, so that shells need no second quotes.
  static toml::table parse_override(const Key* key, std::string_view text) {
    const bool is_text =
        key != nullptr && (key->field.type == Type::text || key->field.type == Type::path ||
                           key->field.type == Type::choice);
    const bool is_quoted = text.starts_with('"') || text.starts_with('\'');
    if (!is_text || is_quoted) {
      try {
        auto parsed = parse_toml("value = " + std::string(text), "--set");
        if (parsed.size() == 1) return parsed;
      } catch (const Error&) {
        // Not TOML: bare text, whose type is checked like any other's.
      }
    }
    return toml::table{{"value", std::string(text)}};
  }

  void read_key(const Place& where, const std::string& origin, std::string_view section,
                std::string_view name, const toml::node& node) {
    const std::string full_name = fmt::format("{}.{}", section, name);
    const Key* key = find_key(full_name);
    if (key == nullptr) {
      return report(where, section,
                    fmt::format("unknown key {}{}", full_name, suggestion_for_key(section, name)));
    }
    const auto value = convert(*key, where, node);
    if (!value) return;
    if (const auto problem = problem_with(*key, *value); !problem.empty()) {
      return report(where, section, problem);
    }
    key->field.set(loaded_.config, *value);
    loaded_.origins[full_name] = origin;
    places_[full_name] = where;
  }

  std::optional<Value> convert(const Key& key, const Place& where, const toml::node& node) {
    switch (key.field.type) {
      case Type::boolean:
        if (const auto* v = node.as_boolean()) return v->get();
        break;
      case Type::integer:
        if (const auto* v = node.as_integer()) return v->get();
        break;
      case Type::number:
        if (const auto* v = node.as_integer()) return static_cast<double>(v->get());
        if (const auto* v = node.as_floating_point()) return v->get();
        break;
      case Type::text:
      case Type::path:
      case Type::choice:
        if (const auto* v = node.as_string()) return v->get();
        break;
      case Type::bytes:
        if (const auto* v = node.as_integer()) return v->get();
        if (const auto* v = node.as_string()) {
          if (const auto bytes = parse_bytes(v->get())) return *bytes;
        }
        break;
      case Type::texts:
        if (const auto* v = node.as_string()) return std::vector{v->get()};
        if (const auto* v = node.as_array(); v != nullptr && v->is_homogeneous<std::string>()) {
          std::vector<std::string> texts;
          for (const auto& text : *v) texts.push_back(*text.value<std::string>());
          return texts;
        }
        break;
      case Type::sources:
        if (const auto* v = node.as_array()) return read_sources(*v);
        break;
    }
    std::string message = fmt::format("{} must be {}, not {}", key.full_name(),
                                      expectation(key.field.type), kind_of(node));
    const auto* number = node.as_floating_point();
    if (key.field.type == Type::integer && number != nullptr && std::abs(number->get()) < 1e15 &&
        number->get() == std::floor(number->get())) {
      message += fmt::format("; write {}", static_cast<std::int64_t>(number->get()));
    }
    report(where, key.section, message);
    return std::nullopt;
  }

  /// Reports what is wrong in each table and returns the rest.
  Value read_sources(const toml::array& array) {
    std::vector<DataSource> sources;
    for (const auto& node : array) {
      const auto where = place(node.source());
      const auto* table = node.as_table();
      if (table == nullptr) {
        report(where, "data",
               "data.sources must be " + expectation(Type::sources) + ", not " + kind_of(node));
        continue;
      }
      sources.push_back(read_source(where, *table));
    }
    return sources;
  }

  DataSource read_source(const Place& where, const toml::table& table) {
    DataSource source;
    for (const auto& [key, node] : table) {
      const auto at = place(key.source());
      const auto text = node.value_exact<std::string>();
      const auto number = node.value<double>();
      if (key == "path" && text) {
        source.path = *text;
      } else if (key == "name" && text) {
        source.name = *text;
      } else if (key == "weight" && node.is_number() && *number >= 0 && *number <= 1e9) {
        source.weight = *number;
      } else if (key == "path" || key == "name") {
        report(at, "data",
               fmt::format("{} of a data source must be text in quotes, not {}", key.str(),
                           kind_of(node)));
      } else if (key == "weight") {
        report(at, "data",
               fmt::format("weight of a data source must be a number from 0 to 1e9, not {}",
                           kind_of(node)));
      } else {
        const auto near = nearest_word(key.str(), {"path", "weight", "name"});
        report(at, "data",
               fmt::format("unknown key data.sources.{}{}", key.str(),
                           near.empty() ? "; a source has path, weight and name"
                                        : fmt::format("; did you mean {}?", near)));
      }
    }
    const std::string path = source.path.string();
    if (path.empty()) {
      report(where, "data", "a data source without path; set path to a token file, .txt or .jsonl");
    } else if (std::any_of(path.begin(), path.end(), [](char c) { return c >= 0 && c < 0x20; })) {
      report(where, "data",
             fmt::format("path of a data source = {} is not a path: it has a control "
                         "character",
                         toml_string(path)));
    }
    if (source.name.empty()) source.name = path;
    return source;
  }

  std::string file_;
  LoadedRun loaded_;
  std::map<std::string, Place> places_;
  std::set<std::string> faulty_sections_;
  std::vector<Problem> problems_;
};

LoadedRun load(std::string_view text, const std::string& name, const std::string& default_name,
               const std::vector<std::string>& overrides, int ranks,
               const MoreConflicts& of_model) {
  const auto root = parse_toml(text, name);
  Loader loader(name);
  loader.read_file(root);
  for (const auto& text_of_override : overrides) loader.apply(text_of_override);
  return loader.finish(default_name, ranks, of_model);
}

std::string read_run_file(const std::filesystem::path& path) {
  try {
    return read_text_file(path);
  } catch (const Error& e) {
    throw Error(ErrorCode::usage, e.message(), "name a run file to read");
  }
}

}  // namespace

LoadedRun load_run_file(const std::filesystem::path& path,
                        const std::vector<std::string>& overrides, int ranks,
                        const MoreConflicts& of_model) {
  const std::string text = read_run_file(path);
  return load(text, path.string(), path.stem().string(), overrides, ranks, of_model);
}

LoadedRun parse_run(std::string_view text, const std::string& name,
                    const std::vector<std::string>& overrides, int ranks) {
  return load(text, name, std::filesystem::path(name).stem().string(), overrides, ranks, {});
}

RunConfig parse_settings(const std::vector<std::string>& overrides,
                         const std::filesystem::path& part) {
  Loader loader(part.string());
  if (!part.empty()) {
    const std::string text = read_run_file(part);
    loader.read_file(parse_toml(text, part.string()));
  }
  for (const auto& text : overrides) loader.apply(text);
  return loader.settings();
}

}  // namespace heddle::config
