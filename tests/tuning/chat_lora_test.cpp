// Conversations and adapters in one: from the text to the last of ten steps as PyTorch and PEFT
// have them (tests/reference/make_chat_lora.py).

#include <gtest/gtest.h>

#include <algorithm>

#include "base/file_system.h"
#include "base/json.h"
#include "checkpoint/adapter_folder.h"
#include "checkpoint/catalog.h"
#include "cli/run_program.h"
#include "support/temporary_folder.h"
#include "tensor/memory.h"
#include "verify/difference.h"
#include "verify/shared_files.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

struct MeshOfChat {
  std::string name;
  int ranks = 1;
  std::vector<std::string> settings = {};
};

void PrintTo(const MeshOfChat& one, std::ostream* out) { *out << one.name; }

const MeshOfChat kMeshes[] = {
    {"OneRank"},
    {"Dp4Zero3", 4, {"parallel.zero=3"}},
    {"Tp2Sequence", 2, {"parallel.tp=2", "parallel.sequence=true"}},
    {"Pp2", 2, {"parallel.pp=2"}},
    {"Pp2Vocabulary", 4, {"parallel.pp=2", "parallel.vocabulary=pipeline"}},
    {"Cp2", 2, {"parallel.cp=2"}},
    {"Dp2Cp2Recomputed", 4, {"parallel.cp=2", "train.recompute=block"}},
    {"Dp2Tp2Pp2", 8, {"parallel.tp=2", "parallel.pp=2", "parallel.schedule=zb-h1"}},
};

class ChatAndAdapters : public testing::TestWithParam<MeshOfChat> {
 protected:
  fs::path reference() const { return reference_folder() / "chat-lora"; }

  Outcome train() const {
    // A step takes all windows: their order does not matter.
    const std::string text = fmt::format(R"([model]
path = "{0}/model"
[data]
train = "{0}/chat.jsonl"
kind = "chat"
seq_len = 48
holdout = 0
[train]
steps = 10
tokens_per_step = 576
microbatch = 1
[optim]
lr = 5e-3
schedule = "constant"
warmup_steps = 0
[lora]
path = "{0}/adapter"
[run]
dir = "{1}/run"
threads = 1
)",
                                         reference().string(), folder_.path().string());
    write_file_atomically(real_file_system(), folder_.path() / "run.toml", text);
    std::vector<std::string> words = {"train", (folder_.path() / "run.toml").string(), "--ranks",
                                      std::to_string(GetParam().ranks)};
    for (const std::string& setting : GetParam().settings) {
      words.insert(words.end(), {"--set", setting});
    }
    return run_heddle(words);
  }

  std::vector<double> losses() const {
    std::vector<double> losses;
    const std::string text = read_text_file(folder_.path() / "run" / "metrics.jsonl");
    for (std::size_t at = 0; at < text.size();) {
      const auto end = text.find('\n', at);
      losses.push_back(parse_json(text.substr(at, end - at), "metrics.jsonl").at("loss"));
      at = end + 1;
    }
    return losses;
  }

  const TemporaryFolder folder_;
};

TEST_P(ChatAndAdapters, TrainAsPeftDoes) {
  const Outcome outcome = train();
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto expected = read_json_file(reference() / "losses.json").get<std::vector<double>>();
  const std::vector<double> made = losses();
  ASSERT_EQ(made.size(), expected.size());
  for (std::size_t i = 0; i < made.size(); ++i) EXPECT_NEAR(made[i], expected[i], 1e-4) << i;
  const AdapterFolder own(folder_.path() / "run" / "checkpoints" / checkpoint_name(10));
  const AdapterFolder peft(reference() / "trained"), start(reference() / "adapter");
  ASSERT_EQ(own.tensors().entries().size(), peft.tensors().entries().size());
  Memory memory;
  for (const SafetensorsEntry& entry : peft.tensors().entries()) {
    const auto read = [&](const AdapterFolder& from) {
      const Tensor values = memory.alloc(entry.shape(), DType::f32, MemoryTag::workspace);
      from.tensors().read(entry.name, values);
      return values;
    };
    const Tensor wanted = read(peft), got = read(own), before = read(start);
    Difference difference, moved;
    difference.add(got.host<float>(), wanted.host<float>());
    moved.add(before.host<float>(), wanted.host<float>());
    EXPECT_LT(difference.relative(), 1e-3) << entry.name;
    EXPECT_GT(moved.relative(), 1e-2) << entry.name << " was not trained";
  }
}

INSTANTIATE_TEST_SUITE_P(Peft, ChatAndAdapters, testing::ValuesIn(kMeshes),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace heddle
