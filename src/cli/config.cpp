
#include <cstdio>
#include <memory>

#include "base/json_value.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "config/explain.h"
#include "config/load.h"
#include "config/schema.h"

namespace heddle::cli {
namespace {

using config::Key;
using config::Value;

struct ConfigOptions {
  std::string run_file;
  std::string what;
  std::vector<std::string> overrides;
  bool json = false;
  bool markdown = false;
};

JsonValue to_json(const Value& value) {
  return std::visit(
      [](const auto& v) -> JsonValue {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<T, std::vector<config::DataSource>>) {
          JsonValue list = JsonValue::array();
          for (const auto& source : v) {
            list.push_back(
                {{"path", source.path.string()}, {"weight", source.weight}, {"name", source.name}});
          }
          return list;
        } else {
          return v;
        }
      },
      value);
}

JsonValue to_json(const Key& key) {
  JsonValue json = {{"key", key.full_name()},
                    {"type", config::describe_type(key)},
                    {"unit", key.unit},
                    {"default", to_json(key.default_value())},
                    {"default_text", config::default_text(key)},
                    {"help", key.help},
                    {"explanation", key.explanation},
                    {"foreign", key.foreign}};
  if (!key.field.choices.empty()) json["choices"] = key.field.choices;
  if (std::isfinite(key.minimum)) json["minimum"] = key.minimum;
  if (std::isfinite(key.maximum)) json["maximum"] = key.maximum;
  return json;
}

JsonValue to_json(const config::LoadedRun& run) {
  JsonValue values = JsonValue::object(), origins = JsonValue::object();
  for (const auto& key : config::keys()) {
    values[key.section][key.name] = to_json(key.field.get(run.config));
    origins[key.full_name()] = config::origin_of(key, run.origins);
  }
  return {{"values", values},
          {"origins", origins},
          {"derived",
           {{"total_steps", run.config.total_steps()},
            {"tokens_per_step", run.config.tokens_per_step()},
            {"accumulation", run.config.accumulation()},
            {"folder", run.config.folder().string()}}}};
}

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void print_run(const ConfigOptions& options) {
  const auto run = config::load_run_file(options.run_file, options.overrides);
  print(options.json ? to_json(run).dump(2) + "\n" : config::describe_run(run));
}

void explain(const ConfigOptions& options) {
  const auto keys = config::keys_named(options.what);
  if (options.markdown) return print(config::explain_markdown());
  if (options.json) {
    JsonValue list = JsonValue::array();
    for (const auto* key : keys) list.push_back(to_json(*key));
    return print(JsonValue{{"keys", list}}.dump(2) + "\n");
  }
  std::string text;
  for (const auto* key : keys) text += (text.empty() ? "" : "\n") + config::explain(*key);
  print(text);
}

}  // namespace

void add_config(Verb app) {
  Verb verb = app.add_verb("config", "what a run file resolves to, and what a key means");
  verb.require_verb();
  auto options = std::make_shared<ConfigOptions>();

  Verb print_verb = verb.add_verb("print", "every value of a run file, with its origin");
  print_verb.add_option("RUN.toml", options->run_file, "the run file").required();
  print_verb.add_option("--set", options->overrides, "section.key=value, overrides the file")
      .one_at_a_time();
  print_verb.add_flag("--json", options->json, "one JSON object on standard output");
  print_verb.callback([options] { print_run(*options); });

  Verb explain_verb = verb.add_verb("explain", "what a key, a section or all keys mean");
  explain_verb.add_option("KEY", options->what, "section.key, a section, or all").required();
  explain_verb.add_flag("--json", options->json, "one JSON object on standard output");
  explain_verb.add_flag("--markdown", options->markdown,
                        "the reference of all keys, docs/run-file.md");
  explain_verb.callback([options] { explain(*options); });
}

}  // namespace heddle::cli
