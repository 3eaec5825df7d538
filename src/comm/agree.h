#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/world.h"

namespace heddle {

// How ranks come to one decision. All of them are collective: every rank of the world calls them at
// the same point.

/// The text of rank 0, on every rank.
std::string text_of_first(World& world, std::string text);

/// The texts of all ranks, in the order of ranks, on every rank.
std::vector<std::string> texts_of_all(World& world, const std::string& text);

/// The numbers of all ranks, those of a rank together, in the order of ranks, on every rank. All
/// give as many.
std::vector<double> numbers_of_all(World& world, std::span<const double> own);

/// As these functions throw it. The first of the world that agreed can tell the user where it is
/// only a part of the ranks, to which the first process need not belong.
class AgreedInWorld : public AgreedError {
 public:
  AgreedInWorld(const Error& error, bool is_first) : AgreedError(error), is_first_(is_first) {}
  bool is_first() const { return is_first_; }

 private:
  bool is_first_;
};

/// Every rank, with the same error: throws it as an AgreedInWorld once all ranks know of it.
[[noreturn]] void throw_on_all(World& world, const Error& error);

/// Throws the error of the first rank that has one, on all ranks; returns where none has.
void throw_any(World& world, const std::optional<Error>& own);

/// Runs `decide` on rank 0 while the others wait. An Error that it throws is thrown by all ranks.
void decide_on_first(World& world, const std::function<void()>& decide);

}  // namespace heddle
