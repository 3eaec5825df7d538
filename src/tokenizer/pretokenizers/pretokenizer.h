#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "tokenizer/pretokenizers/scan.h"

namespace heddle {

class Section;

/// A stretch of the text on its way to the model.
struct Piece {
  std::string_view text;
  bool at_start = false;  ///< begins with the first character of what is being encoded

  /// `part` is a stretch of `text`.
  Piece part(std::string_view part) const { return {part, at_start && part.data() == text.data()}; }
};

using PieceSink = FunctionRef<void(Piece)>;

/// One step of cutting text into the words that the model stays within. Immutable and thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Calls `sink` with the non-empty pieces of `piece` (not empty) in order; a piece is valid
  /// during its call only.
  virtual void split(Piece piece, PieceSink sink) const = 0;
  /// Not null where the step does nothing but cut at the ends that this finds, which is then called
  /// in place of `split`.
  virtual Scan scan() const { return nullptr; }
  /// The step changes nothing but how bytes are spelled (byte_alphabet.h).
  virtual bool only_spells_bytes() const { return false; }
  /// The step rewrites text or searches it with a pattern: it is worth remembering what comes of a
  /// piece.
  virtual bool is_dear() const { return false; }
  /// What comes of a piece depends on its text alone, not on where it stands.
  virtual bool ignores_start() const { return true; }
  /// Pieces on one side of a single space between letters of ASCII do not depend on what is on the
  /// other, but for one that reaches over it.
  virtual bool is_local_at_spaces() const { return false; }
};

/// Steps, each of which cuts the pieces of the one before. In front of the first dear step, but
/// behind another, pieces can be remembered with what becomes of them.
class PreTokenizerChain {
 public:
  void add(std::unique_ptr<const PreTokenizer> step);
  void add(Scan scan);
  std::size_t size() const { return steps_.size(); }

  bool ends_with_spelling() const { return !steps_.empty() && steps_.back()->only_spells_bytes(); }
  void remove_last();

  /// PreTokenizer::is_local_at_spaces of all steps.
  bool is_local_at_spaces() const;

  /// Whether pieces that can be remembered are not words yet.
  bool has_pieces() const { return first_dear_ != 0; }
  /// Calls `sink(Piece)` for every piece that can be remembered, in order; a piece is valid during
  /// its call only.
  template <class Sink>
  void for_each_piece(Piece text, Sink&& sink) const {
    if (!text.text.empty()) apply(0, first_dear_, text, sink);
  }
  /// Calls `sink(Piece)` for every word of such a piece.
  template <class Sink>
  void for_each_word_of(Piece piece, Sink&& sink) const {
    apply(first_dear_, steps_.size(), piece, sink);
  }
  /// Calls `sink(Piece)` for every word of a text.
  template <class Sink>
  void for_each_word(Piece text, Sink&& sink) const {
    if (!text.text.empty()) apply(0, steps_.size(), text, sink);
  }

 private:
  void find_first_dear();

  /// Steps from `step` to before `until`.
  template <class Sink>
  void apply(std::size_t step, std::size_t until, Piece piece, Sink& sink) const {
    if (step == until) {
      sink(piece);
    } else if (const Scan scan = steps_[step]->scan()) {
      const char* p = piece.text.data();
      const char* const end = p + piece.text.size();
      while (p < end) {
        const char* next = scan(p, end);
        apply(step + 1, until, piece.part({p, static_cast<std::size_t>(next - p)}), sink);
        p = next;
      }
    } else {
      steps_[step]->split(piece, [&](Piece part) { apply(step + 1, until, part, sink); });
    }
  }

  std::vector<std::unique_ptr<const PreTokenizer>> steps_;
  std::size_t first_dear_ = 0;  // 0: there is none behind another step
};

/// Appends what `stage` (for_steps) asks for. A kind that is not known is refused by
/// name with Error(data).
void add_pretokenizer(const Section& stage, PreTokenizerChain& chain);

}  // namespace heddle
