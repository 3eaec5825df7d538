#include "bench/codec_bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/error.h"
#include "base/quantile.h"
#include "base/rng.h"
#include "checkpoint/safetensors.h"
#include "codec/registry.h"
#include "engine/train_step.h"
#include "engine/weights.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "tensor/transfer.h"

namespace heddle {
namespace {

/// What a codec needs for tensors of up to so many values.
class CodecRoom {
 public:
  CodecRoom(const codec::Codec& codec, std::int64_t values, Memory& memory)
      : bytes_(room(codec.encoded_bytes(values), memory)),
        workspace_(room(codec.workspace_bytes(values), memory)),
        bad_(memory.zeros({1}, DType::i64, MemoryTag::workspace)) {}

  codec::Encoding encoding(const codec::Codec& codec, const Tensor& x) const {
    return {.x = x, .bytes = bytes_of(codec, x.count()), .bad = bad_, .workspace = workspace_};
  }
  Tensor bytes_of(const codec::Codec& codec, std::int64_t values) const {
    return bytes_.slice(0, 0, static_cast<std::int64_t>(codec.encoded_bytes(values)));
  }
  const Tensor& bad() const { return bad_; }

 private:
  static Tensor room(std::size_t bytes, Memory& memory) {
    return memory.alloc({static_cast<std::int64_t>(bytes)}, DType::u8, MemoryTag::workspace);
  }

  Tensor bytes_, workspace_, bad_;
};

/// Runs codecs in turns with a copy of their values, so that both meet the same state of the
/// machine.
class CodecBench {
 public:
  CodecBench(const CodecBenchOptions& options, const std::vector<Tensor>& gradients, Stream& stream)
      : options_(options), stream_(stream), memory_(stream.device()) {
    const auto floats = [&](std::int64_t count) {
      return memory_.alloc({count}, DType::f32, MemoryTag::workspace);
    };
    x_ = floats(options.values);
    y_ = floats(options.values);
    residual_ = floats(options.values);
    ops::fill_normal(x_, 1, 0, 1.0, stream);
    for (const Tensor& gradient : gradients) {
      gradients_.push_back(to_device(gradient, memory_, MemoryTag::workspace, stream));
    }
  }

  CodecBenchResult run(const codec::Codec& codec) {
    CodecBenchResult result;
    result.name = codec.name();
    result.values = static_cast<double>(options_.values);
    // On the host, for which so many are enough.
    const std::int64_t judged = std::min<std::int64_t>(options_.values, 1 << 24);
    result.gaussian = quality(codec, {x_.slice(0, 0, judged)}, "Gaussian values");
    result.gradients = quality(codec, gradients_, "the gradients");
    const CodecRoom room(codec, options_.values, memory_);
    const codec::Encoding plain = room.encoding(codec, x_);
    codec::Encoding with_residual = plain;
    if (!codec.is_lossless()) with_residual.residual = residual_;
    ops::fill(residual_, 0.0, stream_);
    const std::function<void()> parts[] = {
        [&] { codec.encode(with_residual, stream_); },
        [&] { codec.encode(plain, stream_); },
        [&] { codec.decode(plain.bytes, y_, stream_); },
        [&] { codec.decode_add(plain.bytes, y_, stream_); },
        [&] { ops::copy(x_, y_, stream_); },
    };
    double* const medians[] = {&result.feedback_seconds, &result.encode_seconds,
                               &result.decode_seconds, &result.add_seconds, &result.copy_seconds};
    std::vector<std::vector<double>> times(std::size(parts));
    const Stopwatch total;
    while (times[0].size() < 5 || total.seconds() < options_.seconds) {
      for (std::size_t i = 0; i < std::size(parts); ++i) times[i].push_back(seconds_of(parts[i]));
    }
    for (std::size_t i = 0; i < std::size(parts); ++i) *medians[i] = quantile(times[i], 0.5);
    return result;
  }

 private:
  /// Once for nothing, because what ran before has left its own data in the caches.
  double seconds_of(const std::function<void()>& part) {
    part();
    stream_.synchronize();
    const Stopwatch watch;
    part();
    stream_.synchronize();
    return watch.seconds();
  }

  CodecQuality quality(const codec::Codec& codec, const std::vector<Tensor>& tensors,
                       const std::string& what) {
    double bytes = 0, values = 0, lost = 0, whole = 0;
    for (const Tensor& x : tensors) {
      const CodecRoom room(codec, x.count(), memory_);
      const Tensor y = memory_.alloc(x.shape(), DType::f32, MemoryTag::workspace);
      codec.encode(room.encoding(codec, x), stream_);
      codec::require_finite(room.bad(), codec, what, stream_);
      codec.decode(room.bytes_of(codec, x.count()), y, stream_);
      bytes += static_cast<double>(
          codec.used_bytes(room.bytes_of(codec, x.count()), x.count(), stream_));
      values += static_cast<double>(x.count());
      const Tensor from = to_host(x, stream_), back = to_host(y, stream_);
      for (std::int64_t i = 0; i < x.count(); ++i) {
        const auto want = static_cast<double>(from.data<float>()[i]);
        lost += std::pow(want - static_cast<double>(back.data<float>()[i]), 2);
        whole += want * want;
      }
    }
    return {.bytes_per_value = bytes / values, .relative_error = std::sqrt(lost / whole)};
  }

  CodecBenchOptions options_;
  Stream& stream_;
  Memory memory_;
  Tensor x_, y_, residual_;
  std::vector<Tensor> gradients_;
};

Tensor flat_copy(const Tensor& from) {
  const Tensor to = Memory().alloc({from.count()}, DType::f32, MemoryTag::workspace);
  Stream host(1);
  ops::copy(from, to.view(from.shape()), host);
  return to;
}

}  // namespace

std::vector<CodecBenchResult> bench_codecs(const CodecBenchOptions& options,
                                           const std::vector<Tensor>& gradients, Stream& stream) {
  std::vector<std::unique_ptr<const codec::Codec>> codecs;
  const auto add = [&](std::string_view name) { codecs.push_back(codec::make_codec(name)); };
  std::ranges::for_each(options.codecs, add);
  if (codecs.empty()) std::ranges::for_each(codec::known_codecs(), add, &codec::CodecHelp::usual);
  CodecBench bench(options, gradients, stream);
  std::vector<CodecBenchResult> results;
  results.reserve(codecs.size());
  for (const auto& codec : codecs) results.push_back(bench.run(*codec));
  return results;
}

std::vector<Tensor> made_gradients(const ModelSpec& spec, Stream& stream) {
  constexpr std::int64_t kSequences = 2, kTokens = 128;
  Memory memory(stream.device()), host = memory.for_host();
  Model model(spec, {.positions = kTokens}, ParamStore::Purpose::training, memory);
  initialize(model.store(), 0, stream);
  const auto optimizer = make_optimizer(OptimizerConfig{}, model.store());
  TrainStep step(model, *optimizer, stream, memory);
  const auto skewed_ids = [&](std::uint64_t key) {
    const Tensor ids = host.alloc({kSequences, kTokens}, DType::i32, MemoryTag::data);
    std::uint64_t index = 0;
    for (auto& id : ids.host<std::int32_t>()) {
      const double share = std::pow(random_uniform(key, index++), 4);
      id = static_cast<std::int32_t>(share * static_cast<double>(spec.vocab));
    }
    return ids;
  };
  step.gradients(std::vector{plain_batch(skewed_ids(1), skewed_ids(2), 0, host)});
  std::vector<Tensor> gradients;
  for (const ParamPiece& piece : model.store().grad_pieces()) {
    gradients.push_back(flat_copy(to_host(piece.data, stream)));
  }
  return gradients;
}

std::vector<Tensor> read_gradients(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  const auto is_gradient = [](const SafetensorsEntry& entry) {
    return entry.name.starts_with("grad.");
  };
  const bool has_gradients = std::ranges::any_of(file.entries(), is_gradient);
  std::vector<Tensor> gradients;
  for (const SafetensorsEntry& entry : file.entries()) {
    const bool is_float = entry.dtype() && is_floating(*entry.dtype()) && entry.count() > 0;
    if (!is_float || (has_gradients && !is_gradient(entry))) continue;
    const Tensor tensor = Memory().alloc(entry.shape(), DType::f32, MemoryTag::workspace);
    file.read(entry.name, tensor);
    gradients.push_back(tensor.view({tensor.count()}));
  }
  if (gradients.empty()) {
    throw Error(ErrorCode::data, fmt::format("{} holds no floating-point tensor", path.string()),
                "give a safetensors file with gradients");
  }
  return gradients;
}

}  // namespace heddle
