#include "planner/codec_time.h"

#include <algorithm>

namespace heddle::planner {
namespace {

constexpr double kValueBytes = 4.0;

std::string_view family(std::string_view name) { return name.substr(0, name.find(':')); }

const CodecRate* rate_of(const Machine& machine, const codec::Codec& codec) {
  const std::string name = codec.name();
  auto found = std::ranges::find(machine.codecs, name, &CodecRate::codec);
  if (found == machine.codecs.end()) {
    found = std::ranges::find(machine.codecs, family(name),
                              [](const CodecRate& rate) { return family(rate.codec); });
  }
  return found == machine.codecs.end() ? nullptr : &*found;
}

/// Of the result, for each value.
double coded_bytes(const codec::Codec& codec) {
  constexpr std::int64_t kMany = 1 << 20;
  return static_cast<double>(codec.encoded_bytes(kMany)) / kMany;
}

}  // namespace

double encode_seconds(const Machine& machine, const codec::Codec* codec, double values,
                      bool keeps_residual) {
  if (codec == nullptr) return 0.0;
  // A residual is read and written beside what is encoded.
  const double moved = kValueBytes * (keeps_residual ? 3.0 : 1.0) + coded_bytes(*codec);
  const CodecRate* const rate = rate_of(machine, *codec);
  if (rate == nullptr) return values * moved / machine.device.memory_bytes_per_s;
  const double per_s = keeps_residual ? rate->encode_with_residual : rate->encode;
  return values * kValueBytes / per_s;
}

double decode_seconds(const Machine& machine, const codec::Codec* codec, double values) {
  if (codec == nullptr) return 0.0;
  const CodecRate* const rate = rate_of(machine, *codec);
  if (rate == nullptr) {
    return values * (kValueBytes + coded_bytes(*codec)) / machine.device.memory_bytes_per_s;
  }
  return values * kValueBytes / rate->decode;
}

}  // namespace heddle::planner
