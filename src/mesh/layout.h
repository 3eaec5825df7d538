#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace heddle {

/// The axes along which ranks are arranged. "Axis" is always a mesh axis; a tensor has "dims".
enum class Axis : std::uint8_t { pp, dp, cp, tp, ep };
inline constexpr int kAxes = 5;
/// "pp", "dp", ...
const char* name_of(Axis axis);

/// How a tensor lies on one axis.
///   invariant  the same everywhere and used the same way: its gradient is invariant
///   replicate  the same everywhere but used differently: its gradient arrives as partial sums
///   partial    the value is the sum over the ranks: its gradient is replicate
///   shard      dimension `dim` is split over the ranks: its gradient is split alike
struct Placement {
  enum class Kind : std::uint8_t { invariant, replicate, partial, shard };
  Kind kind = Kind::invariant;
  int dim = -1;  ///< for shard only

  friend bool operator==(const Placement&, const Placement&) = default;
};

inline constexpr Placement invariant() { return {}; }
inline constexpr Placement replicate() { return {Placement::Kind::replicate, -1}; }
inline constexpr Placement partial() { return {Placement::Kind::partial, -1}; }
inline constexpr Placement shard(int dim) { return {Placement::Kind::shard, dim}; }

/// The placement of the gradient of a value placed so.
Placement dual(const Placement& value);

/// A placement for every axis; invariant where nothing is said.
struct Layout {
  std::array<Placement, kAxes> by_axis{};

  const Placement& on(Axis axis) const { return by_axis[static_cast<std::size_t>(axis)]; }
  Layout with(Axis axis, Placement placement) const;
  friend bool operator==(const Layout&, const Layout&) = default;
};

Layout dual(const Layout& value);
/// "dp=R tp=S(0)"; "I" when invariant on every axis.
std::string to_text(const Layout& layout);

}  // namespace heddle
