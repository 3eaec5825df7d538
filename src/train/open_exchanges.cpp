#include "train/open_exchanges.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string>

#include "ops/elementwise.h"
#include "recover/peer_source.h"

namespace heddle {
namespace {

using recover::HeldBox;
using recover::PeerSource;

constexpr const char* kWeights = "weights";
constexpr const char* kVelocity = "velocity";

std::string sent_by(int site) { return fmt::format("sent by site {}", site); }

/// Whole under a name of its own: ranks of one mesh have the same pieces or none, and each piece is
/// there or not.
HeldBox box_of(const std::string& kind, const ParamPiece& piece) {
  Shape corner = piece.data.shape();
  for (int dim = 0; dim < corner.dims(); ++dim) corner.set(dim, 0);
  return {kind, fmt::format("{} from {}", piece.part->name, fmt::join(piece.begin.sizes(), ", ")),
          piece.data.shape(), corner, piece.data};
}

class Settlement {
 public:
  Settlement(World& all, const OpenExchanges& own, Stream& stream)
      : all_(all), own_(own), stream_(stream), open_(own.outer->open_pieces(stream)) {}

  bool is_needed() const { return !open_.empty(); }

  void run() {
    for (const auto& piece : own_.outer->settled_pieces()) offer_outcome(piece);
    std::vector<HeldBox> wanted;
    for (const auto& piece : open_) {
      had_.push_back(box_of(sent_by(own_.site), piece.sent));
      wanted.push_back(box_of(kWeights, piece.weights));
      if (piece.velocity) wanted.push_back(box_of(kVelocity, *piece.velocity));
      for (const int site : own_.sites) wanted.push_back(box_of(sent_by(site), piece.sent));
    }
    const PeerSource peers(all_, had_, wanted, stream_, PeerSource::Missing::is_zero);
    for (const auto& piece : open_) {
      if (!is_there(peers, kWeights, piece.weights)) make_mean(peers, piece.sent);
    }
    own_.outer->settle_open(stream_);
    for (const auto& piece : open_) {
      if (!is_there(peers, kWeights, piece.weights)) continue;
      take(peers, kWeights, piece.weights);
      if (piece.velocity) take(peers, kVelocity, *piece.velocity);
    }
  }

 private:
  void offer_outcome(const OuterSteps::Exchanged& piece) {
    had_.push_back(box_of(kWeights, piece.weights));
    if (piece.velocity) had_.push_back(box_of(kVelocity, *piece.velocity));
  }

  static bool is_there(const PeerSource& peers, const std::string& kind, const ParamPiece& piece) {
    return peers.shape(kind, box_of(kind, piece).name).has_value();
  }

  static void read(const PeerSource& peers, const std::string& kind, const ParamPiece& piece,
                   const Tensor& to) {
    const HeldBox box = box_of(kind, piece);
    peers.read(kind, box.name, box.begin.sizes(), box.whole.sizes(), to);
  }

  void take(const PeerSource& peers, const std::string& kind, const ParamPiece& piece) {
    fill_from_host(piece, stream_, [&](const Tensor& to) { read(peers, kind, piece, to); });
  }

  /// Of the sites whose part is there, in their order: as they would have added them up.
  void make_mean(const PeerSource& peers, const ParamPiece& sent) {
    Memory memory;
    Stream host(1);
    const Tensor mean = memory.zeros(sent.data.shape(), DType::f32, MemoryTag::workspace);
    const Tensor part = memory.zeros(sent.data.shape(), DType::f32, MemoryTag::workspace);
    int sites = 0;
    for (const int site : own_.sites) {
      if (!is_there(peers, sent_by(site), sent)) continue;
      read(peers, sent_by(site), sent, part);
      sites++ == 0 ? ops::copy(part, mean, host) : ops::accumulate(part, mean, host);
    }
    ops::scale(mean, 1.0 / sites, host);
    fill_from_host(sent, stream_, [&](const Tensor& to) { ops::copy(mean, to, host); });
  }

  World& all_;
  const OpenExchanges& own_;
  Stream& stream_;
  const std::vector<OuterSteps::Exchanged> open_;
  std::vector<HeldBox> had_;
};

}  // namespace

void settle_exchanges(World& all, const OpenExchanges* own, Stream& stream) {
  if (own != nullptr) own->outer->catch_up(own->step, stream);
  std::optional<Settlement> settlement;
  if (own != nullptr) settlement.emplace(all, *own, stream);
  const bool is_needed = settlement && settlement->is_needed();
  if (all.all().combine(is_needed ? 1 : 0, ReduceOp::max) != 0) {
    if (settlement) {
      settlement->run();
    } else {
      const PeerSource others(all, {}, {}, stream, PeerSource::Missing::is_zero);
    }
  }
  if (own != nullptr) own->outer->end_open(own->step, stream);
  stream.synchronize();
  all.all().barrier();  // what follows is for those who are all as far
}

}  // namespace heddle
