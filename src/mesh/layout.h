#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "mesh/axis.h"

namespace heddle {

/// How a tensor lies on one axis.
///   unsaid     nothing is known: an axis with one rank
///   invariant  the same everywhere and used the same way: its gradient is invariant
///   replicate  the same everywhere but used differently: its gradient arrives as partial sums
///   partial    the value is the sum over the ranks: its gradient is replicate
///   shard      dimension `dim` is split over the ranks: its gradient is split alike
/// and, of parameters only:
///   alone      other ranks of the axis hold other parameters: stages of a pipeline
///   ends       the first and the last stage hold it and use it differently (tied embeddings)
///   own        every rank has a value of its own, brought together seldom: sites
struct Placement {
  enum class Kind : std::uint8_t { unsaid, invariant, replicate, partial, shard, alone, ends, own };
  Kind kind = Kind::unsaid;
  int dim = -1;  ///< for shard only

  friend bool operator==(const Placement&, const Placement&) = default;
};

inline constexpr Placement invariant() { return {Placement::Kind::invariant}; }
inline constexpr Placement replicate() { return {Placement::Kind::replicate}; }
inline constexpr Placement partial() { return {Placement::Kind::partial}; }
inline constexpr Placement shard(int dim) { return {Placement::Kind::shard, dim}; }
inline constexpr Placement alone() { return {Placement::Kind::alone}; }
inline constexpr Placement ends() { return {Placement::Kind::ends}; }
inline constexpr Placement own() { return {Placement::Kind::own}; }

/// The placement of the gradient of a value placed so.
Placement dual(const Placement& value);

/// A placement for every axis of one view of the ranks.
struct Layout {
  View view = View::dense;
  std::array<Placement, kAxes> by_axis{};

  const Placement& on(Axis axis) const { return by_axis[static_cast<std::size_t>(axis)]; }
  Layout with(Axis axis, Placement placement) const;
  friend bool operator==(const Layout&, const Layout&) = default;
};

/// Of a parameter that a stage has whole and uses alike on every tp rank: the layout from which
/// others differ on tp, or on pp.
Layout whole_on_stage(View view = View::dense);

/// "dp=R tp=S(0)": what is said, without what is invariant; "I" when that is all.
std::string to_text(const Layout& layout);

}  // namespace heddle
