#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace heddle {

/// The axes along which ranks are arranged. "Axis" is always a mesh axis; a tensor has "dims".
/// Several arrangements of the same ranks are in use at once: the views below.
enum class Axis : std::uint8_t {
  site,  ///< replicas that exchange seldom
  pp,    ///< stages of a pipeline
  dp,    ///< other sequences
  cp,    ///< other parts of the same sequences
  tp,    ///< other parts of the same matrices
  kv,    ///< of tp: those that hold different key heads,
  copy,  ///< and those that hold the same ones
  edp,   ///< of dp x cp x tp: other tokens for the same experts,
  ep,    ///< other experts,
  etp    ///< and other parts of the same experts
};
inline constexpr int kAxes = 10;
/// "pp", "dp", ...
const char* name_of(Axis axis);

/// An arrangement of all ranks: axes whose sizes multiply to their number
/// (docs/design/019-views-and-groups.md).
enum class View : std::uint8_t { dense, keys, experts };
/// The slowest first: the last one numbers neighbouring ranks.
std::span<const Axis> axes_of(View view);

/// A set of axes.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= bit(axis);
  }

  constexpr bool contains(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr int count() const { return std::popcount(bits_); }
  constexpr AxisSet with(Axis axis) const { return AxisSet(bits_ | bit(axis)); }
  constexpr AxisSet without(AxisSet other) const { return AxisSet(bits_ & ~other.bits_); }
  friend constexpr auto operator<=>(const AxisSet&, const AxisSet&) = default;

 private:
  constexpr explicit AxisSet(std::uint32_t bits) : bits_(bits) {}
  static constexpr std::uint32_t bit(Axis axis) { return 1U << static_cast<unsigned>(axis); }

  std::uint32_t bits_ = 0;
};

/// The first view that has all of these axes. A set that mixes views is our bug.
View view_of(AxisSet axes);
/// "dp, cp".
std::string to_text(AxisSet axes);

/// Ranks that see other tokens: the batch is divided among them.
inline constexpr AxisSet kTokenAxes{Axis::dp, Axis::cp};
/// The same over all sites.
inline constexpr AxisSet kDataAxes{Axis::site, Axis::dp, Axis::cp};
/// Ranks of one stage: those that the state of a matrix may be divided among.
inline constexpr AxisSet kStageAxes{Axis::dp, Axis::cp, Axis::tp};
/// All ranks that work on one step together: those of a site.
inline constexpr AxisSet kStepAxes{Axis::pp, Axis::dp, Axis::cp, Axis::tp};

}  // namespace heddle
