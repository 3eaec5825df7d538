#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "model/spec.h"
#include "tensor/device.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle {

/// How well a codec does on some tensors, each encoded by itself.
struct CodecQuality {
  double bytes_per_value = 0;
  double relative_error =
      0;  ///< root of the sum of squares of what is lost, over that of the values
};

struct CodecBenchResult {
  std::string name;  ///< with all parameters
  CodecQuality gaussian, gradients;
  double encode_seconds = 0, feedback_seconds = 0;  ///< medians of one call, without and with
                                                    ///< a residual
  double decode_seconds = 0, add_seconds = 0;
  double copy_seconds = 0;  ///< of as many float32 values, in turns with the others
  double values = 0;        ///< in a call

  /// Bytes of float32 values a second.
  double rate(double seconds) const { return 4 * values / seconds; }
  /// How close to a copy: bytes that have to be read and written, for each second, over a copy's.
  double encode_fraction() const { return moved() / encode_seconds / copy_rate(); }
  double decode_fraction() const { return moved() / decode_seconds / copy_rate(); }

 private:
  double moved() const { return values * (4 + gaussian.bytes_per_value); }
  double copy_rate() const { return 8 * values / copy_seconds; }
};

struct CodecBenchOptions {
  std::vector<std::string> codecs = {};  ///< none: all that are known, with usual parameters
  std::int64_t values = 1 << 24;
  double seconds = 0.2;  ///< shortest time spent on one codec
};

/// Error(usage) for a codec that there is not.
std::vector<CodecBenchResult> bench_codecs(const CodecBenchOptions& options,
                                           const std::vector<Tensor>& gradients, Stream& stream);

/// The gradients of a fresh model on a few sequences of random tokens, some of which are far more
/// frequent than others; flat f32 in host memory, one for each parameter.
std::vector<Tensor> made_gradients(const ModelSpec& spec, Stream& stream);

/// The floating-point tensors of a safetensors file, flat f32 in host memory; only those called
/// grad.* where there are any. Error(data) where there are none.
std::vector<Tensor> read_gradients(const std::filesystem::path& file);

}  // namespace heddle
