#pragma once

namespace heddle {

/// A round trip, in seconds, from which on ranks are far from each other: nothing on one site takes
/// so long.
constexpr double kLongRoundTrip = 0.008;

/// How many collectives of a group may be under way at a time. Far ranks do not wait for the result
/// of one before the next leaves, or a way over the link would be lost with each. More would only
/// take memory: four of a size worth dividing fill a link for as long as a way takes.
constexpr int calls_at_once(bool are_far) { return are_far ? 4 : 1; }

}  // namespace heddle
