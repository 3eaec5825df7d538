#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

class Section;

/// Takes tokens, which may arrive in parts, and hands on what it makes of them, as early as it can.
/// Used for one text, by one thread.
class DecodeStep {
 public:
  virtual ~DecodeStep() = default;
  /// More of the current token, in whole characters; `ends`: the token ends with it.
  virtual void push(std::string_view text, bool ends) = 0;
  /// There are no more tokens. Comes after the end of a token, if there was one.
  virtual void finish() = 0;
};

/// A step that hands on to another, which must outlive it.
class LinkedStep : public DecodeStep {
 public:
  explicit LinkedStep(DecodeStep& next) : next_(next) {}
  void finish() override { next_.finish(); }

 protected:
  DecodeStep& next_;
};

/// A step that needs whole tokens.
class WholeTokenStep : public LinkedStep {
 public:
  using LinkedStep::LinkedStep;
  void push(std::string_view text, bool ends) final {
    token_ += text;
    if (!ends) return;
    take(token_);
    token_.clear();
  }

 protected:
  virtual void take(const std::string& token) = 0;

 private:
  std::string token_;
};

/// One entry of `decoder`: makes the steps of single texts. Immutable and thread-safe.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual std::unique_ptr<DecodeStep> start(DecodeStep& next) const = 0;
  /// Tokens are bytes spelled as characters (byte_alphabet.h).
  virtual bool reads_spelled_bytes() const { return false; }
};

using DecoderList = std::vector<std::unique_ptr<const Decoder>>;

/// Appends what `stage` (for_steps) asks for. A kind that is not known is refused by
/// name with Error(data).
void add_decoder(const Section& stage, DecoderList& list);

/// The decoding of one text: steps one behind the other.
class Decoding {
 public:
  /// Without decoders, tokens are joined by spaces. `decoders` must outlive this.
  explicit Decoding(const DecoderList& decoders);
  ~Decoding();

  /// A whole token, as the vocabulary spells it. Appends what it completes to `out`.
  void push(std::string_view token, std::string& out);
  void finish(std::string& out);

 private:
  class End;
  std::unique_ptr<End> end_;
  std::vector<std::unique_ptr<DecodeStep>> steps_;  // the last one first
};

}  // namespace heddle
