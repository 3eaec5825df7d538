#include "train/run_state.h"

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/writer.h"
#include "ops/cast.h"

namespace heddle {
namespace {

constexpr const char* kMoment1 = "exp_avg.";
constexpr const char* kMoment2 = "exp_avg_sq.";
constexpr const char* kMaster = "master.";

/// Calls visit(name, value, moment1, moment2) for every part of every parameter.
template <class Visit>
void for_each_part(const ParamStore& store, const Visit& visit) {
  for (std::size_t p = 0; p < store.parameters().size(); ++p) {
    const Parameter& parameter = *store.parameters()[p];
    for (std::size_t part = 0; part < parameter.parts.size(); ++part) {
      visit(parameter.parts[part].name, parameter.part_of(parameter.value, part),
            parameter.part_of(store.moment1(p), part), parameter.part_of(store.moment2(p), part));
    }
  }
}

}  // namespace

std::filesystem::path save_run(const std::filesystem::path& checkpoints, const RunState& state,
                               const Model& model, DType weights_dtype,
                               const std::vector<TextFile>& companions, Memory& memory,
                               Stream& stream) {
  CheckpointContent content;
  content.step = state.step;
  content.tokens = state.tokens;
  content.eval_loss = state.eval_loss;
  content.mesh = "dp=1 tp=1 pp=1";
  content.companions = companions;
  content.trainer = std::make_shared<const Json>(
      Json{{"skipped_updates", state.skipped_updates}, {"seconds", state.seconds}});
  const bool rounds = weights_dtype != model.dtype();
  for_each_part(model.store(), [&](const std::string& name, const Tensor& value,
                                   const Tensor& moment1, const Tensor& moment2) {
    Tensor stored = value;
    if (rounds) {
      stored = memory.alloc(value.shape(), weights_dtype, MemoryTag::workspace);
      ops::cast(value, stored, stream);
      content.optimizer.push_back(whole_entry(kMaster + name, value));
    }
    content.weights.push_back(whole_entry(name, stored));
    content.optimizer.push_back(whole_entry(kMoment1 + name, moment1));
    content.optimizer.push_back(whole_entry(kMoment2 + name, moment2));
  });
  return write_checkpoint(real_file_system(), checkpoints, content);
}

RunState restore_run(const CheckpointReader& checkpoint, Model& model) {
  const auto read = [&](const StoredTensors& stored, const std::string& name, const Tensor& out) {
    if (!stored.contains(name) || stored.shape(name) != out.shape()) {
      throw Error(
          ErrorCode::data,
          fmt::format("{}: {} is not there with shape {}", checkpoint.path().string(), name,
                      out.shape().text()),
          "the run file's model changed since; start afresh with --fresh or another run.dir");
    }
    stored.read(name, out);
  };
  for_each_part(model.store(), [&](const std::string& name, const Tensor& value,
                                   const Tensor& moment1, const Tensor& moment2) {
    const bool has_master = checkpoint.optimizer().contains(kMaster + name);
    read(has_master ? checkpoint.optimizer() : checkpoint.weights(),
         has_master ? kMaster + name : name, value);
    read(checkpoint.optimizer(), kMoment1 + name, moment1);
    read(checkpoint.optimizer(), kMoment2 + name, moment2);
  });
  const Manifest& manifest = checkpoint.manifest();
  return {.step = manifest.step,
          .tokens = manifest.tokens,
          .skipped_updates = manifest.trainer->value("skipped_updates", std::int64_t{0}),
          .seconds = manifest.trainer->value("seconds", 0.0),
          .eval_loss = manifest.eval_loss};
}

}  // namespace heddle
