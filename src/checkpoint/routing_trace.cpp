#include "checkpoint/routing_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "base/json_value.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

constexpr const char* kTraceFormat = "heddle-routing-trace";
constexpr const char* kPlacementFormat = "heddle-expert-placement";
constexpr const char* kTakenTensor = "experts";
constexpr int kMostExperts = 1 << 20;
/// Of experts of neighbouring layers, which affinity counts apart: 2 GiB.
constexpr double kMostPairs = 1 << 28;
constexpr const char* kTraceHint = "docs/formats/routing-trace.md describes the file";

[[noreturn]] void refuse(const fs::path& path, const std::string& what) {
  throw Error(ErrorCode::data, fmt::format("{}: {}", path.string(), what), kTraceHint);
}

int experts_of(const SafetensorsFile& file) {
  const auto& metadata = file.metadata();
  const auto value = [&](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string() : found->second;
  };
  if (value("format") != kTraceFormat) refuse(file.path(), "is not a routing trace");
  if (value("version") != "1") {
    refuse(file.path(), fmt::format("version \"{}\" is not known", value("version")));
  }
  const std::string text = value("experts");
  int experts = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), experts);
  if (error != std::errc() || end != text.data() + text.size() || experts < 1 ||
      experts > kMostExperts) {
    refuse(file.path(), fmt::format("metadata \"experts\" is \"{}\"", text));
  }
  return experts;
}

}  // namespace

RoutingTrace read_routing_trace(const fs::path& path) {
  const SafetensorsFile file(path);
  RoutingTrace trace{.experts = experts_of(file)};
  const SafetensorsEntry& entry = file.entry(kTakenTensor);
  const auto& sizes = entry.sizes;
  if (entry.dtype() != DType::i32 || sizes.size() != 3) {
    refuse(path, "tensor \"experts\" is not I32 of [tokens, layers, choices]");
  }
  if (sizes[1] < 2 || sizes[2] < 1 || sizes[1] > kMostExperts || sizes[2] > trace.experts) {
    refuse(path, fmt::format("it has {} layers and {} choices of {} experts; affinity needs two "
                             "layers and a choice",
                             sizes[1], sizes[2], trace.experts));
  }
  const double experts = trace.experts,
               pairs = static_cast<double>(sizes[1] - 1) * experts * experts;
  if (pairs > kMostPairs) {
    refuse(path, fmt::format("{} layers of {} experts have {:.3g} pairs of experts that follow "
                             "each other, more than the {:.3g} that are counted",
                             sizes[1], trace.experts, pairs, kMostPairs));
  }
  trace.layers = static_cast<int>(sizes[1]);
  trace.choices = static_cast<int>(sizes[2]);
  const auto bytes = file.bytes(entry);
  trace.taken.resize(bytes.size() / sizeof(std::int32_t));
  if (!bytes.empty()) std::memcpy(trace.taken.data(), bytes.data(), bytes.size());
  for (std::size_t i = 0; i < trace.taken.size(); ++i) {
    if (trace.taken[i] >= -1 && trace.taken[i] < trace.experts) continue;
    refuse(path, fmt::format("element {} is expert {} of {}", i, trace.taken[i], trace.experts));
  }
  return trace;
}

void write_routing_trace(FileSystem& files, const fs::path& path, const RoutingTrace& trace) {
  const TensorSpec spec{kTakenTensor, "I32", {trace.tokens(), trace.layers, trace.choices}};
  const std::vector<TensorSpec> specs = {spec};
  std::string text = safetensors_header_bytes(
      specs,
      {{"format", kTraceFormat}, {"version", "1"}, {"experts", std::to_string(trace.experts)}});
  text.append(reinterpret_cast<const char*>(trace.taken.data()),
              trace.taken.size() * sizeof(std::int32_t));
  write_file_atomically(files, path, text);
}

ExpertPlacement read_expert_placement(const fs::path& path) {
  const Json json = read_json_file(path);
  ExpertPlacement placement;
  try {
    if (json.at("format") != kPlacementFormat || json.at("version") != 1) {
      refuse(path, "is not an expert placement of version 1");
    }
    placement.ranks = json.at("ranks").get<int>();
    placement.rank_of = json.at("rank_of").get<std::vector<std::vector<int>>>();
  } catch (const Json::exception& e) {
    refuse(path, fmt::format("is not an expert placement: {}", e.what()));
  }
  if (placement.rank_of.empty() || placement.ranks < 1) refuse(path, "it places nothing");
  const std::size_t experts = placement.rank_of.front().size();
  for (std::size_t layer = 0; layer < placement.rank_of.size(); ++layer) {
    const auto& ranks = placement.rank_of[layer];
    if (ranks.size() != experts) {
      refuse(path,
             fmt::format("layer {} has {} experts, layer 0 has {}", layer, ranks.size(), experts));
    }
    for (int rank = 0; rank < placement.ranks; ++rank) {
      const auto here = static_cast<std::size_t>(std::ranges::count(ranks, rank));
      if (here * static_cast<std::size_t>(placement.ranks) == experts) continue;
      refuse(path, fmt::format("in layer {} rank {} has {} of {} experts; every one of {} ranks "
                               "needs as many",
                               layer, rank, here, experts, placement.ranks));
    }
  }
  return placement;
}

void write_expert_placement(FileSystem& files, const fs::path& path,
                            const ExpertPlacement& placement) {
  JsonValue layers = JsonValue::array();
  for (const auto& layer : placement.rank_of) layers.push_back(layer);
  const JsonValue json = {{"format", kPlacementFormat},
                          {"version", 1},
                          {"ranks", placement.ranks},
                          {"rank_of", std::move(layers)}};
  write_file_atomically(files, path, json.dump() + "\n");
}

}  // namespace heddle
