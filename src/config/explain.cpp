#include "config/explain.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/strings.h"

namespace heddle::config {
namespace {

std::string wrapped(std::string_view text, std::size_t width, std::string_view indent) {
  std::string result, line;
  for (const auto& word : split(text, ' ')) {
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      result += fmt::format("{}{}\n", indent, line);
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return result + fmt::format("{}{}\n", indent, line);
}

/// Text inside a Markdown table cell.
std::string cell(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    result += c;
  }
  return result;
}

std::string key_row(const Key& key) {
  std::string meaning = key.help + ".";
  if (!key.explanation.empty()) meaning += " " + key.explanation;
  meaning[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(meaning[0])));
  const bool is_value = !to_text(key, key.default_value()).empty();
  const auto fallback = default_text(key);
  return fmt::format("| `{}` | {} | {} | {} |\n", key.name, cell(describe_type(key)),
                     is_value ? "`" + cell(fallback) + "`" : cell(fallback), cell(meaning));
}

std::string foreign_rows() {
  std::string text;
  for (const auto& key : keys()) {
    if (key.foreign.empty()) continue;
    text += fmt::format("| `{}` | {} |\n", key.full_name(), fmt::join(key.foreign, ", "));
  }
  return text;
}

const char* describe(Scope scope) {
  switch (scope) {
    case Scope::process: return "ranks may differ in it, and resuming may change it";
    case Scope::launch: return "the same on all ranks; resuming may change it";
    case Scope::run: return "the same on all ranks; changing it on resuming needs --accept-changes";
    case Scope::weights: return "the same on all ranks; resuming cannot change it";
    case Scope::derived: return "not compared itself, but what it leads to is";
  }
  return "";
}

std::string scope_rows() {
  std::string text;
  for (const Scope scope :
       {Scope::process, Scope::launch, Scope::run, Scope::weights, Scope::derived}) {
    std::vector<std::string> names;
    for (const auto& key : keys()) {
      if (key.scope == scope) names.push_back("`" + key.full_name() + "`");
    }
    if (names.empty()) continue;
    text += fmt::format("| {} | {} |\n", describe(scope), fmt::join(names, ", "));
  }
  return text;
}

}  // namespace

std::string origin_of(const Key& key, const Origins& origins) {
  const auto at = origins.find(key.full_name());
  return at == origins.end() ? "default" : at->second;
}

std::string default_text(const Key& key) {
  const auto text = to_text(key, key.default_value());
  if (!text.empty()) return text;
  return key.when_absent.empty() ? "none" : key.when_absent;
}

std::vector<const Key*> keys_named(const std::string& what) {
  std::vector<const Key*> found;
  for (const auto& key : keys()) {
    if (what == "all" || what == key.section || what == key.full_name()) found.push_back(&key);
  }
  if (!found.empty()) return found;
  const auto dot = what.find('.');
  const std::string section = dot == std::string::npos ? "" : what.substr(0, dot);
  const std::string name = dot == std::string::npos ? what : what.substr(dot + 1);
  std::string hint = suggestion_for_key(section, name);
  if (hint.empty()) hint = suggestion_for_section(what);
  fail(ErrorCode::usage, "unknown key {}{}", what, hint);
}

std::string explain(const Key& key) {
  std::string text = fmt::format("{}  ({})\n", key.full_name(), describe_type(key));
  text += fmt::format("  default: {}\n", default_text(key));
  text += wrapped(key.help, 90, "  ");
  if (!key.explanation.empty()) text += wrapped(key.explanation, 90, "  ");
  text += fmt::format("  {}\n", describe(key.scope));
  if (!key.foreign.empty()) {
    text += wrapped(fmt::format("elsewhere: {}", fmt::join(key.foreign, ", ")), 90, "  ");
  }
  return text;
}

std::string explain_markdown() {
  std::string text =
      "<!-- Made by `heddle config explain all --markdown`; a test compares. Change "
      "src/config/keys.cpp. -->\n"
      "# The run file\n\n"
      "TOML in sections. Every key has a default except that a model, training data and a "
      "length must be\ngiven. An unknown key or section is an error that names the nearest known "
      "one; all errors are shown together.\n"
      "`--set section.key=value` (repeatable, the last one wins) overrides the file; text needs no "
      "quotes there.\n\n"
      "Paths are relative to the folder in which `heddle` is started, not to the run file: the "
      "copy "
      "that is saved\nin the run folder then means the same as the original.\n\n"
      "`heddle config print RUN.toml` shows every value and where it came from; `heddle config "
      "explain KEY` what it\nmeans.\n";
  for (const auto& section : sections()) {
    text += fmt::format("\n## [{}]: {}\n\n| key | type | default | meaning |\n|---|---|---|---|\n",
                        section.name, section.help);
    for (const auto& key : keys()) {
      if (key.section == section.name) text += key_row(key);
    }
  }
  text +=
      "\n## Ranks and resuming\n\nRanks that meet compare their settings and refuse to start where "
      "they differ; a run that is resumed compares\nwith what its checkpoint recorded. Files are "
      "compared by content: the model's config, the tokenizer (neither may\nchange), the data.\n\n"
      "| compared how | keys |\n|---|---|\n" +
      scope_rows();
  text +=
      "\n## Names in other systems\n\nThe message about an unknown key knows these.\n\n| here | "
      "elsewhere |\n|---|---|\n" +
      foreign_rows();
  return text;
}

std::string describe_run(const LoadedRun& run) {
  std::size_t key_width = 0, value_width = 0;
  const auto shown = [&](const Key& key) {
    const auto value = to_text(key, key.field.get(run.config));
    return value.empty() ? "(" + default_text(key) + ")" : value;
  };
  for (const auto& key : keys()) {
    key_width = std::max(key_width, key.full_name().size());
    value_width = std::max(value_width, std::min<std::size_t>(shown(key).size(), 40));
  }
  std::string text;
  for (const auto& key : keys()) {
    text += fmt::format("{:<{}}  {:<{}}  {}\n", key.full_name(), key_width, shown(key), value_width,
                        origin_of(key, run.origins));
  }
  const auto& c = run.config;
  text += fmt::format(
      "\n{} steps of {} tokens: {} micro-batch{} of {} x {}; {} tokens in all\n"
      "run folder {}\n",
      c.total_steps(), c.tokens_per_step(), c.accumulation(), c.accumulation() == 1 ? "" : "es",
      c.train.microbatch, c.data.seq_len,
      format_count(static_cast<double>(c.total_steps()) * static_cast<double>(c.tokens_per_step())),
      c.folder().string());
  return text;
}

}  // namespace heddle::config
