// What of outer steps was under way when ranks were lost.

#include "base/check.h"
#include "ops/elementwise.h"
#include "parallel/exchange/outer_steps.h"

namespace heddle {

void OuterSteps::catch_up(std::int64_t step, Stream& stream) {
  if (is_swapped_) swap_held(stream);
  for (int fragment = 0; fragment < policy_.fragments; ++fragment) {
    const bool is_due = policy_.begins(fragment, step) && last(fragment).begun < step;
    if (!is_due || stretches(fragment).empty()) continue;
    under_way_[fragment].sent = encode(fragment, stream);
    last(fragment).begun = step;
  }
}

std::vector<OuterSteps::Exchanged> OuterSteps::open_pieces(Stream& stream) {
  std::vector<Exchanged> pieces;
  for (auto& [fragment, exchange] : under_way_) {
    exchange.decoded.clear();
    std::int64_t at = 0;
    for (const auto& held : stretches(fragment)) {
      const std::int64_t values = held.value.count();
      const std::int64_t size = policy_.codec ? policy_.encoded_bytes(values) : values;
      const Tensor sent = exchange.sent.slice(0, at, at + size);
      at += size;
      const Tensor decoded = store_.memory().alloc({values}, DType::f32, MemoryTag::communication);
      policy_.codec ? policy_.codec->decode(sent, decoded, stream)
                    : ops::copy(sent, decoded, stream);
      exchange.decoded.push_back(decoded);
      add_pieces(held, decoded, pieces);
    }
  }
  return pieces;
}

std::vector<OuterSteps::Exchanged> OuterSteps::settled_pieces() const {
  std::vector<Exchanged> pieces;
  for (int fragment = 0; fragment < policy_.fragments; ++fragment) {
    if (under_way_.contains(fragment)) continue;
    for (const auto& held : stretches(fragment)) add_pieces(held, {}, pieces);
  }
  return pieces;
}

void OuterSteps::add_pieces(const ParamStore::HeldStretch& held, const Tensor& sent,
                            std::vector<Exchanged>& pieces) const {
  // The same boxes, in the same order, of whatever lies like the stretch.
  const std::vector<ParamPiece> weights = store_.pieces_of(held, outer_of(held));
  std::vector<ParamPiece> velocity, of_sent;
  if (velocity_ > 0) velocity = store_.pieces_of(held, held.states[velocity_]);
  if (sent.defined()) of_sent = store_.pieces_of(held, sent);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    Exchanged& piece = pieces.emplace_back();
    piece.weights = weights[i];
    if (velocity_ > 0) piece.velocity = velocity[i];
    if (sent.defined()) piece.sent = of_sent[i];
  }
}

void OuterSteps::settle_open(Stream& stream) {
  for (const auto& [fragment, exchange] : under_way_) {
    const Stretches& all = stretches(fragment);
    HEDDLE_CHECK(exchange.decoded.size() == all.size(), "fragment {} is not open", fragment);
    const Tensor room = scratch(all);
    for (std::size_t i = 0; i < all.size(); ++i) {
      update(all[i], exchange.decoded[i], room.slice(0, 0, all[i].value.count()), stream);
    }
  }
  exchanges_ += std::ssize(under_way_);
  under_way_.clear();
}

void OuterSteps::end_open(std::int64_t step, Stream& stream) {
  for (int fragment = 0; fragment < policy_.fragments; ++fragment) {
    const bool is_due = policy_.ends(fragment, step) && last(fragment).ended < step;
    if (!is_due || stretches(fragment).empty()) continue;
    mix(fragment, stream);
    last(fragment).ended = step;
  }
}

}  // namespace heddle
