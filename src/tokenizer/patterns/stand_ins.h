#pragma once

#include <string>
#include <string_view>

namespace heddle {

/// PCRE2 has a table of categories of its own, of an older Unicode (10.42: 14.0) than ours, which
/// decides. What a pattern is matched against is therefore `text` with every character on whose
/// general category the two disagree replaced by a neighbour of the right category and the same
/// length in UTF-8: positions stay. Gives `text` itself where nothing is replaced, else a view of
/// `buffer`. Valid UTF-8 only.
std::string_view with_stand_ins(std::string_view text, std::string& buffer);

}  // namespace heddle
