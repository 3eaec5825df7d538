#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "config/schema.h"
#include "model/spec.h"
#include "train/data_setup.h"
#include "train/run_tokenizer.h"

namespace heddle {

/// What a run is, as facts with a name and a value: every key of the run file after defaults are
/// resolved, the model, the tokenizer, the data and the program. Ranks compare it when they meet
/// (rank_agreement.h), a resumed run with the one that its checkpoint recorded (resume_check.h).
///
/// Files count by their content, so that they may lie elsewhere. Names with a dot are keys of the
/// run file; others ("model layers", "tokenizer", "program") say what they are.
class RunIdentity {
 public:
  struct Fact {
    std::string name;
    std::string value;    ///< as in a run file
    config::Scope scope;  ///< launch, run or weights
  };
  /// A value that differs between two identities.
  struct Difference {
    std::string name, theirs, ours;
    config::Scope scope;
  };

  void add(std::string name, std::string value, config::Scope scope);
  void add(const RunIdentity& other);
  const std::vector<Fact>& facts() const { return facts_; }

  /// An object from names to values.
  Json to_json() const;
  /// Where an object made by to_json says something else. A name that only one of the two has is
  /// not compared: versions of the program differ in what they record.
  std::vector<Difference> differences_from(const Json& theirs) const;

 private:
  std::vector<Fact> facts_;
};

/// All but the data, which ranks have to open together: they compare this first.
RunIdentity identity_of_start(const config::RunConfig& config, const ModelSpec& spec,
                              const RunTokenizer& tokenizer, const std::string& program_version);
RunIdentity identity_of(const RunData& data);

/// The value of the fact `tokenizer` where none is known.
inline constexpr std::string_view kNoTokenizer = "none";

/// Values for a message: those too long for a line are cut to where they begin to differ.
std::pair<std::string, std::string> shown(const std::string& a, const std::string& b);

}  // namespace heddle
