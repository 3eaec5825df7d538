#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/run_config.h"

namespace heddle::config {

/// How a key is written. `bytes` takes an integer or text such as "3 GiB"; `texts` is a list of
/// texts, or one; `sources` is a list of tables.
enum class Type { boolean, integer, number, text, path, choice, bytes, texts, sources };

/// A key's value as the parser and the printers pass it on. Paths and choices travel as text, bytes
/// as an integer; monostate is an optional key that was not given.
using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string,
                           std::vector<std::string>, std::vector<DataSource>>;

/// The member of RunConfig a key stands for. Made by the functions of field.h.
struct Field {
  Type type;
  static constexpr double kAny = std::numeric_limits<double>::infinity();
  double most;  ///< that the member of an integer can hold
  std::vector<std::string> choices;
  /// What is wrong with a text; empty where any is right.
  std::function<std::string(const std::string&)> problem;
  std::function<Value(const RunConfig&)> get;
  /// The value has the alternative of `type`, for a choice one of `choices`, and no problem.
  std::function<void(RunConfig&, const Value&)> set;
};

/// Over what a value has to be the same: what ranks compare when they meet, and a run when it is
/// resumed (train/run_identity.h).
enum class Scope {
  process,  ///< over nothing: each process of a run may have its own
  launch,   ///< over the ranks of one start; resuming may change it, the run's meaning stays
  run,      ///< from the first step to the last; resuming with another one has to be accepted
  weights,  ///< as `run`, but trained weights are worth nothing with another one: refused
  derived,  ///< the key itself is not compared, but what it leads to is: a file's content, a total
};

/// Everything there is to say about one key; parser, checks, help and documentation read it here.
struct Key {
  std::string section = {};  ///< filled in by keys()
  std::string name;
  Field field;
  Scope scope;            ///< has no default: every key says it
  std::string unit = {};  ///< "tokens", "steps", ...; empty for none
  double minimum =
      -std::numeric_limits<double>::infinity();  ///< of integers and numbers, inclusive
  double maximum = std::numeric_limits<double>::infinity();
  std::string help;              ///< one line
  std::string explanation = {};  ///< what the one line leaves out
  std::string when_absent = {};  ///< what an absent value means, where the default does not say it
  std::vector<std::string> foreign = {};  ///< names other systems use, as written there
  /// Of a choice: which one a word of another system stands for; "" when none does.
  std::function<std::string(std::string_view)> meant_by = {};

  std::string full_name() const { return section + "." + name; }
  /// The bounds, and those of what the member can hold.
  double least() const;
  double most() const;
  Value default_value() const { return field.get(RunConfig{}); }
};

struct Section {
  std::string name;
  std::string help;
  std::vector<std::string> foreign;
};

/// In the order in which they are printed.
const std::vector<Section>& sections();
const std::vector<Key>& keys();
const Key* find_key(std::string_view full_name);
bool is_section(std::string_view name);

/// What is wrong with a value of the right type (out of range, not one of the choices); empty when
/// nothing is.
std::string problem_with(const Key& key, const Value& value);

/// The device that "gpu", "nvidia" or "cuda:1" stands for; "" for words that stand for none.
std::string device_meant_by(std::string_view word);

/// As it is written in a run file: `3e-4`, `"cosine"`, `"3 GiB"`; "" for a value not given.
std::string to_text(const Key& key, const Value& value);
/// A TOML basic string, quoted and escaped.
std::string toml_string(std::string_view text);

/// "integer, 1 or more, tokens": for help and documentation.
std::string describe_type(const Key& key);

/// "3 GiB", "512MiB", "1000": a count of bytes, or nothing when it is not one.
std::optional<std::int64_t> parse_bytes(std::string_view text);

/// What to say after "unknown key X": "; did you mean parallel.tp?", or "". Knows slips of the pen,
/// keys of other sections and the names other systems use.
std::string suggestion_for_key(std::string_view section, std::string_view name);
std::string suggestion_for_section(std::string_view name);

}  // namespace heddle::config
