#include "tokenizer/unicode/graphemes.h"

#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

/// What of a cluster decides whether the next character belongs to it.
class Cluster {
 public:
  explicit Cluster(char32_t first) { take(first); }

  /// Rules GB3 to GB13 of the annex.
  bool joins(char32_t next) const {
    using B = GraphemeBreak;
    const B after = grapheme_break(next);
    if (last_ == B::cr) return after == B::lf;
    if (ends_alone(last_) || ends_alone(after)) return false;
    if (last_ == B::l) {
      if (after == B::l || after == B::v || after == B::lv || after == B::lvt) return true;
    }
    if ((last_ == B::lv || last_ == B::v) && (after == B::v || after == B::t)) return true;
    if ((last_ == B::lvt || last_ == B::t) && after == B::t) return true;
    if (after == B::extend || after == B::zwj || after == B::spacing || last_ == B::prepend) {
      return true;
    }
    if (is_linked_ && conjunct_break(next) == ConjunctBreak::consonant) return true;
    if (is_joined_picture_ && has(next, CharFlag::pictographic)) return true;
    return last_ == B::regional && after == B::regional && regionals_ % 2 == 1;
  }

  void take(char32_t c) {
    last_ = grapheme_break(c);
    regionals_ = last_ == GraphemeBreak::regional ? regionals_ + 1 : 0;
    const ConjunctBreak conjunct = conjunct_break(c);
    if (conjunct == ConjunctBreak::consonant) {
      has_consonant_ = true;
      is_linked_ = false;
    } else if (conjunct == ConjunctBreak::linker) {
      is_linked_ = has_consonant_;
    } else if (conjunct == ConjunctBreak::none) {
      has_consonant_ = is_linked_ = false;
    }
    is_joined_picture_ = last_ == GraphemeBreak::zwj && has_picture_;
    if (has(c, CharFlag::pictographic)) {
      has_picture_ = true;
    } else if (last_ != GraphemeBreak::extend && last_ != GraphemeBreak::zwj) {
      has_picture_ = false;
    }
  }

 private:
  static bool ends_alone(GraphemeBreak kind) {
    return kind == GraphemeBreak::cr || kind == GraphemeBreak::lf || kind == GraphemeBreak::control;
  }

  GraphemeBreak last_ = GraphemeBreak::other;
  int regionals_ = 0;               // regional indicators at the end
  bool has_consonant_ = false;      // a consonant, then extending characters only
  bool is_linked_ = false;          // and a linker among these
  bool has_picture_ = false;        // a picture, then extending characters only
  bool is_joined_picture_ = false;  // and a joiner as the last
};

}  // namespace

std::size_t grapheme_length(std::string_view text) {
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto is_ascii = [](const char* p) { return static_cast<signed char>(*p) >= 0; };
  if (is_ascii(begin) && *begin != '\r' && (text.size() == 1 || is_ascii(begin + 1))) return 1;
  CodePoint c = decode_utf8(begin, end);
  Cluster cluster(c.value);
  const char* p = begin + c.length;
  while (p < end) {
    c = decode_utf8(p, end);
    if (!cluster.joins(c.value)) break;
    cluster.take(c.value);
    p += c.length;
  }
  return static_cast<std::size_t>(p - begin);
}

}  // namespace heddle
