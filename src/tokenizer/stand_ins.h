#pragma once

#include <string>
#include <string_view>

namespace heddle {

/// The classes of characters are those of utf8proc everywhere (unicode.h; 2.8 has Unicode 15.0).
/// PCRE2 has a table of its own, of another version perhaps (10.42: Unicode 14.0). What a pattern
/// is matched against is therefore `text` with every character on whose general category the two
/// disagree replaced by a neighbour of the right category and the same length in UTF-8: positions
/// stay. Gives `text` itself where nothing is replaced, else a view of `buffer`. Valid UTF-8 only.
std::string_view with_stand_ins(std::string_view text, std::string& buffer);

}  // namespace heddle
