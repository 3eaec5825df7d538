#pragma once

#include <string_view>

#include "parallel/sequence/context_plan.h"

/// The parts of `validate`. Each is about one pass, `name`d in its messages.
namespace heddle {

/// What is wrong with one pass whatever its tiles compute: messages without counterpart, tokens and
/// heads that do not exist. The other checks need a pass without such.
void check_messages(const ContextPlan& plan, const ContextPass& pass, std::string_view name,
                    std::vector<Diagnostic>& found);

/// Whether tiles compute every pair that the mask allows once, whoever computes them.
void check_pairs(const ContextPlan& plan, const ContextPass& pass, std::string_view name,
                 std::vector<Diagnostic>& found);

/// Whether ranks have what they compute with and send, and whether all results come home.
void check_data(const ContextPlan& plan, std::vector<Diagnostic>& found);

/// "tokens 4 to 7", "token 4", "tokens 1 to 9 by 4".
std::string to_text(const TokenRun& run);
const char* name_of(Content content);
/// The key heads that query heads use.
HeadRange key_heads_of(HeadRange heads, const ContextShape& shape);

}  // namespace heddle
