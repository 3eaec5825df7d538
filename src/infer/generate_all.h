#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "infer/generate.h"

namespace heddle {

/// How often rows travel in a layer whose experts are divided over ranks
/// (docs/design/043-experts-schedules-and-places.md).
enum class ExpertExchanges : std::uint8_t {
  two,  ///< to their experts and back
  one   ///< to their experts, where they go on: every rank has every sequence's keys and values
};

/// Why rows of this model on this mesh cannot stay with their experts; empty: they can.
std::string refuse_one_exchange(const ModelSpec& spec, const MeshShape& mesh, Device device);

/// Called on every rank with every new token and the number of its prompt, in the same order;
/// returns false, alike on all, to stop that sequence.
using OnTokenOf = std::function<bool(std::size_t prompt, std::int32_t token)>;

/// Continues every prompt as `generate` does by itself, and returns the new tokens of each, on all
/// ranks. Replicas (axis dp) share the prompts. A prompt's sampling is that of its own tokens:
/// neither the others nor the mesh change it. Error(usage) where axis cp divides sequences, or
/// where rows cannot stay with their experts and `exchanges` wants it.
std::vector<std::vector<std::int32_t>> generate_all(
    const Model& model, std::span<const std::vector<std::int32_t>> prompts,
    const GenerateOptions& options, ExpertExchanges exchanges, const OnTokenOf& on_token,
    Stream& stream, Memory& memory);

}  // namespace heddle
