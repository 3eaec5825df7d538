#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "base/error.h"
#include "tokenizer/models/kinds.h"
#include "tokenizer/models/piece_trie.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

/// What an unknown character costs beyond the rarest piece.
constexpr double kUnknownPenalty = 10.0;
constexpr std::size_t kMaxPieceBytes = 4096;

/// Cuts words into the pieces of the highest sum of scores (log probabilities).
class Unigram final : public TokenModel {
 public:
  Unigram(const TokenizerBulk& bulk, std::optional<std::int32_t> unknown, bool falls_back_to_bytes,
          const Vocabulary& vocabulary)
      : ids_(vocabulary), unknown_(unknown) {
    std::vector<std::pair<std::string, std::int32_t>> pieces;
    double lowest = std::numeric_limits<double>::infinity();
    for (const auto& [piece, score] : bulk.pieces) {
      pieces.emplace_back(piece, static_cast<std::int32_t>(scores_.size()));
      scores_.push_back(score);
      lowest = std::min(lowest, score);
    }
    trie_ = PieceTrie(std::move(pieces));
    unknown_score_ = lowest - kUnknownPenalty;
    byte_ids_.fill(-1);
    if (!falls_back_to_bytes) return;
    for (std::size_t b = 0; b < 256; ++b) {
      byte_ids_[b] = ids_.find(fmt::format("<0x{:02X}>", b)).value_or(-1);
    }
  }

  void encode(std::string_view word, std::vector<std::int32_t>& out) const override {
    const std::vector<Node> best = best_ends(word);
    const std::size_t first = out.size();
    for (std::size_t end = word.size(); end > 0;) {  // from the last piece to the first
      const std::int32_t id = best[end].id;
      std::size_t start = best[end].start;
      if (id != unknown_) {
        out.push_back(id);
      } else {  // with those before it
        while (start > 0 && best[start].id == unknown_) start = best[start].start;
        put_unknown(word.substr(start, end - start), out);
      }
      end = start;
    }
    std::reverse(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
  }

 private:
  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);
  struct Node {
    std::int32_t id = 0;
    double score = 0;  ///< of the best way to here
    std::size_t start = kNowhere;
  };

  /// The last piece of the best way to each end.
  std::vector<Node> best_ends(std::string_view word) const {
    std::vector<Node> best(word.size() + 1);
    const auto offer = [&](std::size_t start, std::size_t end, std::int32_t id, double score) {
      const double total = score + best[start].score;
      if (best[end].start == kNowhere || total > best[end].score) best[end] = {id, total, start};
    };
    for_each_character(word, [&](char32_t, std::string_view bytes) {
      const auto start = static_cast<std::size_t>(bytes.data() - word.data());
      bool is_known = false;
      trie_.for_each_prefix(word.substr(start), [&](std::size_t length, std::int32_t id) {
        offer(start, start + length, id, scores_[static_cast<std::size_t>(id)]);
        is_known = is_known || length == bytes.size();
      });
      if (!is_known) {
        if (!unknown_) fail_unknown(bytes);
        offer(start, start + bytes.size(), *unknown_, unknown_score_);
      }
    });
    return best;
  }

  /// From its last token to the first.
  void put_unknown(std::string_view piece, std::vector<std::int32_t>& out) const {
    if (const auto id = ids_.find(piece)) {
      out.push_back(*id);
      return;
    }
    const auto id_of = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
    if (std::all_of(piece.begin(), piece.end(), [&](char byte) { return id_of(byte) >= 0; })) {
      for (auto byte = piece.rbegin(); byte != piece.rend(); ++byte) out.push_back(id_of(*byte));
      return;
    }
    if (!unknown_) fail_unknown(piece);
    out.push_back(*unknown_);
  }

  [[noreturn]] static void fail_unknown(std::string_view piece) {
    throw Error(ErrorCode::data,
                fmt::format("the text has {:?}, for which the tokenizer has no piece", piece),
                "use a tokenizer with an unk_id");
  }

  const Vocabulary& ids_;
  std::optional<std::int32_t> unknown_;
  double unknown_score_ = 0;
  PieceTrie trie_;
  std::vector<double> scores_;
  std::array<std::int32_t, 256> byte_ids_{};  // of <0x00> to <0xFF>
};

}  // namespace

TokenModelPtr make_unigram(const Section& model, const TokenizerBulk& bulk,
                           Vocabulary& vocabulary) {
  const std::string where = model.path_of("vocab");
  if (!bulk.has_pieces) fail(ErrorCode::data, "{} is missing or not a list", where);
  if (bulk.pieces.empty()) fail(ErrorCode::data, "{} is empty", where);
  if (bulk.pieces.size() > kMaxTokens) fail(ErrorCode::data, "{} is too long", where);
  for (std::size_t i = 0; i < bulk.pieces.size(); ++i) {
    if (bulk.pieces[i].first.size() > kMaxPieceBytes) {
      fail(ErrorCode::data, "{}[{}]: a piece of more than {} bytes", where, i, kMaxPieceBytes);
    }
    vocabulary.add_or_move(bulk.pieces[i].first, static_cast<std::int32_t>(i));
  }
  std::optional<std::int32_t> unknown;
  if (model.find("unk_id") != nullptr) unknown = model.id("unk_id");
  if (unknown && static_cast<std::size_t>(*unknown) >= bulk.pieces.size()) {
    fail(ErrorCode::data, "{} = {} is not in the vocabulary", model.path_of("unk_id"), *unknown);
  }
  return std::make_unique<Unigram>(bulk, unknown, model.flag("byte_fallback", false), vocabulary);
}

}  // namespace heddle
