#include "recover/peer_source.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "base/json.h"
#include "comm/agree.h"
#include "ops/elementwise.h"

namespace heddle::recover {
namespace {

/// Messages that travel at a time: what staging them may take.
constexpr std::int64_t kBytesUnderWay = std::int64_t{64} << 20;

Json sizes(const Shape& shape) {
  const auto values = shape.sizes();
  return std::vector<std::int64_t>(values.begin(), values.end());
}

Shape shape_from(const Json& json) { return Shape(json.get<std::vector<std::int64_t>>()); }

}  // namespace

std::vector<HeldBox> boxes_of(const std::vector<StateKind>& kinds) {
  std::vector<HeldBox> boxes;
  for (const StateKind& kind : kinds) {
    for (const ParamPiece& piece : kind.pieces) {
      boxes.push_back({kind.kind, piece.part->name, piece.part->whole, piece.begin, piece.data});
    }
  }
  return boxes;
}

PeerSource::PeerSource(World& world, std::span<const HeldBox> own, std::span<const HeldBox> wanted,
                       Stream& stream, Missing missing)
    : own_(own), rule_(missing), stream_(stream) {
  const Lists had = tell(world, own), wants = tell(world, wanted);
  for (const std::vector<Entry>& of_rank : had) {
    for (const Entry& entry : of_rank) shapes_[{entry.kind, entry.name}] = entry.whole;
  }
  carry_out(world, plan(had, wants));
}

PeerSource::Lists PeerSource::tell(World& world, std::span<const HeldBox> boxes) {
  Json own = Json::array();
  for (const HeldBox& box : boxes) {
    own.push_back(Json::array({box.kind, box.name, sizes(box.whole), sizes(box.begin),
                               sizes(box.data.shape()), static_cast<int>(box.data.dtype())}));
  }
  Lists lists;
  for (const std::string& text : texts_of_all(world, own.dump())) {
    auto& of_rank = lists.emplace_back();
    for (const Json& json : parse_json(text, "what a rank has in memory")) {
      Entry& entry = of_rank.emplace_back();
      entry.index = of_rank.size() - 1;
      entry.kind = json.at(0);
      entry.name = json.at(1);
      entry.whole = shape_from(json.at(2));
      entry.region.begin = entry.region.end = shape_from(json.at(3));
      const Shape extent = shape_from(json.at(4));
      for (int dim = 0; dim < extent.dims(); ++dim) {
        entry.region.end.set(dim, entry.region.begin[dim] + extent[dim]);
      }
      entry.dtype = static_cast<DType>(json.at(5).get<int>());
    }
  }
  return lists;
}

Shape PeerSource::Region::extent() const {
  Shape extent = end;
  for (int dim = 0; dim < extent.dims(); ++dim) extent.set(dim, end[dim] - begin[dim]);
  return extent;
}

std::optional<PeerSource::Region> PeerSource::common(const Region& a, const Region& b) {
  Region both = a;
  for (int dim = 0; dim < a.begin.dims(); ++dim) {
    both.begin.set(dim, std::max(a.begin[dim], b.begin[dim]));
    both.end.set(dim, std::min(a.end[dim], b.end[dim]));
    if (both.begin[dim] >= both.end[dim]) return std::nullopt;
  }
  return both;
}

/// What is left of a box when one inside it is taken away, as boxes.
std::vector<PeerSource::Region> PeerSource::without(const Region& all, const Region& part) {
  std::vector<Region> left;
  Region rest = all;
  for (int dim = 0; dim < all.begin.dims(); ++dim) {
    if (rest.begin[dim] < part.begin[dim]) {
      left.push_back(rest);
      left.back().end.set(dim, part.begin[dim]);
    }
    if (part.end[dim] < rest.end[dim]) {
      left.push_back(rest);
      left.back().begin.set(dim, part.end[dim]);
    }
    rest.begin.set(dim, part.begin[dim]);
    rest.end.set(dim, part.end[dim]);
  }
  return left;
}

/// Who has it himself reads it there; else the ranks behind him give it, so that not all ask the
/// same one.
std::vector<PeerSource::Transfer> PeerSource::plan(const Lists& had, const Lists& wanted) {
  const int ranks = static_cast<int>(had.size());
  std::vector<std::map<std::pair<std::string, std::string>, std::vector<const Entry*>>> by_name(
      had.size());
  for (std::size_t rank = 0; rank < had.size(); ++rank) {
    for (const Entry& entry : had[rank]) by_name[rank][{entry.kind, entry.name}].push_back(&entry);
  }
  std::vector<Transfer> transfers;
  std::set<std::string> missing;
  for (int to = 0; to < ranks; ++to) {
    for (const Entry& want : wanted[static_cast<std::size_t>(to)]) {
      std::vector<Region> open = {want.region};
      for (int i = 0; i < ranks && !open.empty(); ++i) {
        const int from = (to + i) % ranks;
        const auto found = by_name[static_cast<std::size_t>(from)].find({want.kind, want.name});
        if (found == by_name[static_cast<std::size_t>(from)].end()) continue;
        for (const Entry* entry : found->second) {
          std::vector<Region> still_open;
          for (const Region& region : open) {
            const auto part = common(region, entry->region);
            if (!part) {
              still_open.push_back(region);
              continue;
            }
            if (from != to) transfers.push_back({from, to, entry, &want, *part});
            for (const Region& rest : without(region, *part)) still_open.push_back(rest);
          }
          open = std::move(still_open);
        }
      }
      if (!open.empty()) missing.insert(state_key(want.kind, want.name));
    }
  }
  missing_.assign(missing.begin(), missing.end());
  // The rest is of no use to anybody then.
  if (!missing_.empty() && rule_ == Missing::spoils_all) transfers.clear();
  return transfers;
}

Tensor PeerSource::part_of(const Tensor& data, const Shape& begin, const Region& region) {
  return data.box(Region{begin, region.begin}.extent(), region.extent());
}

/// Boxes may lie in any memory.
void PeerSource::copy(const Tensor& from, const Tensor& to) const {
  ops::copy(from, to, is_on_gpu(from) || is_on_gpu(to) ? stream_ : host_stream_);
}

/// In stretches that are the same on all ranks, so that none waits for one who waits for it.
void PeerSource::carry_out(World& world, std::span<const Transfer> transfers) {
  constexpr int kTag = 1;
  struct UnderWay {
    Tensor data;
    Work work;
  };
  for (std::size_t next = 0; next < transfers.size();) {
    std::vector<UnderWay> under_way;
    for (std::int64_t bytes = 0; next < transfers.size() && bytes < kBytesUnderWay; ++next) {
      const Transfer& transfer = transfers[next];
      const Shape extent = transfer.region.extent();
      bytes += extent.count() * static_cast<std::int64_t>(size_of(transfer.had->dtype));
      const bool sends = transfer.from == world.rank(), takes = transfer.to == world.rank();
      if (!sends && !takes) continue;
      const Tensor staged = host_.alloc(extent, transfer.had->dtype, MemoryTag::communication);
      if (sends) {
        const HeldBox& box = own_[transfer.had->index];
        copy(part_of(box.data, box.begin, transfer.region), staged);
        stream_.synchronize();
        under_way.push_back({staged, world.all().send(staged, transfer.to, stream_, kTag)});
      } else {
        under_way.push_back({staged, world.all().recv(staged, transfer.from, stream_, kTag)});
        received_.push_back({transfer.wanted->kind, transfer.wanted->name, transfer.wanted->whole,
                             transfer.region.begin, staged});
        received_bytes_ += static_cast<std::int64_t>(staged.size_bytes());
      }
    }
    for (const UnderWay& message : under_way) message.work.wait(stream_);
  }
}

std::vector<std::string> PeerSource::names(std::string_view kind) const {
  std::vector<std::string> names;
  for (const auto& [key, shape] : shapes_) {
    if (key.first == kind) names.push_back(key.second);
  }
  return names;
}

std::optional<Shape> PeerSource::shape(std::string_view kind, std::string_view name) const {
  const auto found = shapes_.find(std::pair(std::string(kind), std::string(name)));
  return found == shapes_.end() ? std::nullopt : std::optional(found->second);
}

void PeerSource::read(std::string_view kind, std::string_view name,
                      std::span<const std::int64_t> begin, std::span<const std::int64_t> end,
                      const Tensor& out) const {
  const Region wanted{Shape(begin), Shape(end)};
  std::int64_t copied = 0;
  if (rule_ == Missing::is_zero) ops::fill(out, 0.0, host_stream_);
  const auto copy_from = [&](const HeldBox& box) {
    if (box.kind != kind || box.name != name) return;
    Region region{box.begin, box.begin};
    for (int dim = 0; dim < region.end.dims(); ++dim) {
      region.end.set(dim, box.begin[dim] + box.data.size(dim));
    }
    const auto part = common(wanted, region);
    if (!part) return;
    HEDDLE_CHECK(box.data.dtype() == out.dtype(), "{} is kept in another precision",
                 state_key(kind, name));
    const Tensor from = part_of(box.data, box.begin, *part);
    copy(from, part_of(out, wanted.begin, *part));
    copied += from.count();
  };
  for (const HeldBox& box : own_) copy_from(box);
  for (const HeldBox& box : received_) copy_from(box);
  stream_.synchronize();
  HEDDLE_CHECK(copied >= out.count() || rule_ == Missing::is_zero, "{} was not asked for",
               state_key(kind, name));
}

}  // namespace heddle::recover
