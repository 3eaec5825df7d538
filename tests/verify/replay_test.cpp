// A training run of PyTorch's, step by step: the same weights and batches must give the same
// losses.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/file_system.h"
#include "checkpoint/hf_folder.h"
#include "engine/train_step.h"
#include "engine/weights.h"
#include "model/registry.h"
#include "optim/lr_schedule.h"
#include "verify/shared_files.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kRows = 16, kSeq = 128;

/// Ids, one byte each, as the i32 tensor [kRows, kSeq] that a batch wants.
template <class Byte>
Tensor to_ids(std::span<const Byte> bytes, Memory& memory) {
  const auto rows = static_cast<std::int64_t>(bytes.size()) / kSeq;
  const Tensor ids = memory.alloc({rows, kSeq}, DType::i32, MemoryTag::data);
  std::ranges::transform(bytes, ids.host<std::int32_t>().begin(),
                         [](Byte id) { return static_cast<std::int32_t>(id); });
  return ids;
}

std::vector<float> floats(const SafetensorsFile& file, const std::string& name, Memory& memory) {
  const Tensor values = memory.alloc(file.entry(name).shape(), DType::f32, MemoryTag::workspace);
  file.read(name, values);
  const auto span = values.host<float>();
  return {span.begin(), span.end()};
}

/// The last tenth of a text, each character as its rank among the characters of the whole.
std::vector<std::uint8_t> held_out_ids(const fs::path& path) {
  const std::string text = read_text_file(path);
  const std::set<char> characters(text.begin(), text.end());
  std::vector<std::uint8_t> ids;
  for (std::size_t i = text.size() * 9 / 10; i < text.size(); ++i) {
    ids.push_back(
        static_cast<std::uint8_t>(std::distance(characters.begin(), characters.find(text[i]))));
  }
  return ids;
}

/// The mean loss over consecutive windows.
double held_out_loss(const Model& model, std::span<const std::uint8_t> ids, Stream& stream,
                     Memory& memory) {
  const std::size_t windows = (ids.size() - 1) / kSeq;
  double sum = 0;
  for (std::size_t first = 0; first < windows; first += kRows) {
    const std::size_t count = std::min<std::size_t>(kRows, windows - first) * kSeq;
    const Tensor losses =
        model.losses(plain_batch(to_ids(ids.subspan(first * kSeq, count), memory),
                                 to_ids(ids.subspan(first * kSeq + 1, count), memory), 0, memory),
                     stream, memory);
    for (const double loss : losses.host<double>()) sum += loss;
  }
  return sum / static_cast<double>(windows * kSeq);
}

TEST(Replay, FollowsPyTorchThroughThreeHundredSteps) {
  const fs::path folder = shared_folder() / "fixtures" / "shakespeare-llama";
  const fs::path text = shared_folder() / "data" / "tinyshakespeare.txt";
  if (!fs::exists(folder) || !fs::exists(text)) GTEST_SKIP() << "no fixtures at " << folder;
  Memory memory;
  Stream stream(1);  // other tests run beside it
  const ModelSpec spec = read_model_spec(folder / "config.json");
  Model model(spec, {.positions = kSeq}, ParamStore::Purpose::training, memory);
  load_weights(HfFolder(folder), spec, model.store(), stream);
  const auto optimizer = make_optimizer(
      AdamWConfig{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1}, model.store());
  TrainStep step(model, *optimizer, stream, memory);
  const LrSchedule lr{.shape = LrSchedule::Shape::constant, .peak = 1e-3, .warmup_steps = 20};

  const SafetensorsFile reference(folder / "reference.safetensors");
  const auto losses = floats(reference, "loss", memory);
  const auto norms = floats(reference, "grad_norm", memory);
  const auto inputs = reference.bytes(reference.entry("input_ids"));
  const auto labels = reference.bytes(reference.entry("labels"));
  ASSERT_EQ(losses.size(), 300u);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const auto at = i * kRows * kSeq;
    const MicroBatch batch =
        plain_batch(to_ids(inputs.subspan(at, kRows * kSeq), memory),
                    to_ids(labels.subspan(at, kRows * kSeq), memory), 0, memory);
    const auto number = static_cast<std::int64_t>(i) + 1;
    const auto result = step.run({&batch, 1}, {.lr = lr.at(number), .step = number}, 1.0);
    ASSERT_NEAR(result.loss, losses[i], 2e-3) << "step " << number;
    ASSERT_NEAR(result.grad_norm / norms[i], 1.0, 0.05) << "step " << number;
  }
  EXPECT_NEAR(held_out_loss(model, held_out_ids(text), stream, memory),
              floats(reference, "val_loss", memory)[0], 5e-3);
}

}  // namespace
}  // namespace heddle
