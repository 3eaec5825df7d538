#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

/// How ranks of axis cp share the attention of one sequence.
enum class ContextMethod : std::uint8_t {
  automatic,  ///< ulysses where heads allow it and it sends less than a ring, else ring
  ring,       ///< K and V travel from rank to rank (Liu et al. 2023)
  gather,     ///< K and V go to all who need them, one part of the heads after another (Llama 3)
  ulysses,    ///< all tokens of some heads on each rank (Jacobs et al. 2023)
  usp,        ///< Ulysses within groups of neighbours, a ring between groups (Fang, Zhao 2024)
  lightseq,   ///< K and V, or q to a rank that has nothing to do (Li et al. 2024, DistFlashAttn)
  tokenring   ///< q travels one way, partial outputs the other (Wang et al. 2024)
};

/// Which tokens ranks have: one stretch each; stretches r and 2P - 1 - r of 2P; every P-th token.
enum class ContextOrder : std::uint8_t { automatic, contiguous, zigzag, striped };

/// As the run file and the command line spell them, in the order of the enum.
std::span<const std::string_view> context_method_names();
std::span<const std::string_view> context_order_names();
std::string_view name_of(ContextMethod method);
std::string_view name_of(ContextOrder order);

/// The attention that is to be divided: causal, within documents, and within a window where there
/// is one.
struct ContextShape {
  ContextMethod method = ContextMethod::automatic;
  ContextOrder order = ContextOrder::automatic;
  int ranks = 1;
  std::int64_t tokens = 1;
  std::vector<std::int64_t> documents = {};  ///< their lengths, in order; none: one document
  int heads = 1, key_heads = 1, head_dim = 1;
  int context_heads = 0;  ///< of usp: over how many ranks heads are divided; 0: as many as can be
  std::optional<std::int64_t> window = {};  ///< keys that a query sees at most, its own included

  /// Query heads of a key head.
  int group() const { return heads / key_heads; }
};

/// In whose words refusals are: "--context-heads 3" (simulate context, bench context), or
/// "parallel.context_heads = 3".
struct ContextTerms {
  bool are_run_file = false;
  int tp = 1;  ///< of so many ranks one has the heads of the shape
};

/// Everything that keeps a shape from being divided, each with what would be legal. Empty: nothing.
std::vector<std::string> problems_of(const ContextShape& shape, const ContextTerms& terms = {});

/// The shape with all that was left open decided, and without a window that no document is longer
/// than. It must have no problems.
ContextShape resolved(ContextShape shape);

}  // namespace heddle
