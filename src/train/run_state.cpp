#include "train/run_state.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/catalog.h"
#include "checkpoint/writer.h"
#include "ops/cast.h"
#include "ops/elementwise.h"

namespace heddle {
namespace {

constexpr const char* kMoment1 = "exp_avg.";
constexpr const char* kMoment2 = "exp_avg_sq.";
constexpr const char* kMaster = "master.";

/// Puts a tensor that lies in boxes on all ranks together on the first one.
class Collector {
 public:
  Collector(const Model& model, World& world, const Memory& memory, Stream& stream)
      : names_(tensor_names(model.spec())),
        world_(world),
        memory_(memory.for_host()),
        stream_(stream),
        host_(stream.threads()) {}

  /// By name, in host memory, on the first rank; elsewhere nothing. On a single rank on CPU these
  /// are the tensors themselves, not copies.
  std::map<std::string, Tensor> collect(const std::vector<ParamPiece>& pieces) {
    std::map<std::string, Tensor> whole;
    for (const ParamPiece& piece : pieces) {
      if (!piece.is_writer) continue;
      if (world_.rank() > 0) {
        send(piece);
      } else if (piece.data.shape() == piece.part->whole) {
        whole[piece.part->name] = on_host(piece, stream_);
      } else {
        put(whole, piece.part->name, piece.part->whole, piece.begin, on_host(piece, stream_));
      }
    }
    if (world_.rank() > 0) {
      send_header({kEnd});
    } else {
      for (int rank = 1; rank < world_.size(); ++rank) receive_all(rank, whole);
    }
    for (const Work& work : sends_) work.wait(host_);
    sends_.clear();
    return whole;
  }

 private:
  // A box travels as a header (which tensor, its shape, where the box begins, its extent) and its
  // elements.
  static constexpr std::int64_t kEnd = -1;
  static constexpr int kHeader = 8;

  void put(std::map<std::string, Tensor>& whole, const std::string& name, const Shape& shape,
           const Shape& begin, const Tensor& data) {
    Tensor& tensor = whole[name];
    if (!tensor.defined()) tensor = memory_.alloc(shape, data.dtype(), MemoryTag::workspace);
    ops::copy(data, tensor.box(begin, data.shape()), host_);
  }

  void send_header(const std::vector<std::int64_t>& words) {
    const Tensor header = memory_.zeros({kHeader}, DType::i64, MemoryTag::communication);
    std::ranges::copy(words, header.host<std::int64_t>().begin());
    sends_.push_back(world_.all().send(header, 0, host_));
  }

  void send(const ParamPiece& piece) {
    const auto name = std::ranges::find(names_, piece.part->name);
    std::vector<std::int64_t> words = {name - names_.begin(), piece.data.dims()};
    for (const Shape& shape : {piece.part->whole, piece.begin, piece.data.shape()}) {
      for (const std::int64_t size : shape.sizes()) words.push_back(size);
    }
    send_header(words);
    Tensor data = on_host(piece, stream_);
    if (!data.is_contiguous()) {
      data = memory_.alloc(data.shape(), data.dtype(), MemoryTag::communication);
      ops::copy(piece.data, data, host_);
    }
    sends_.push_back(world_.all().send(data, 0, host_));
  }

  void receive_all(int rank, std::map<std::string, Tensor>& whole) {
    const Tensor header = memory_.alloc({kHeader}, DType::i64, MemoryTag::communication);
    const auto words = header.host<std::int64_t>();
    while (true) {
      world_.all().recv(header, rank, host_).wait(host_);
      if (words[0] == kEnd) return;
      const auto dims = static_cast<std::size_t>(words[1]);
      const Shape shape(words.subspan(2, dims)), begin(words.subspan(2 + dims, dims));
      const Tensor data = memory_.alloc(Shape(words.subspan(2 + 2 * dims, dims)), DType::f32,
                                        MemoryTag::communication);
      world_.all().recv(data, rank, host_).wait(host_);
      put(whole, names_[static_cast<std::size_t>(words[0])], shape, begin, data);
    }
  }

  const std::vector<std::string> names_;
  World& world_;
  Memory memory_;
  Stream& stream_;  // of the pieces
  Stream host_;
  std::vector<Work> sends_;
};

}  // namespace

std::filesystem::path save_run(const std::filesystem::path& checkpoints, const RunState& state,
                               const RunIdentity& identity, const Model& model, DType weights_dtype,
                               const std::vector<TextFile>& companions, World& world,
                               Memory& memory, Stream& stream) {
  Collector collector(model, world, memory, stream);
  const auto values = collector.collect(model.store().value_pieces());
  const auto moment1 = collector.collect(model.store().moment_pieces(1));
  const auto moment2 = collector.collect(model.store().moment_pieces(2));
  if (world.rank() == 0) {
    CheckpointContent content;
    content.step = state.step;
    content.tokens = state.tokens;
    content.eval_loss = state.eval_loss;
    content.mesh = model.plan().mesh.text();
    content.companions = companions;
    content.trainer = std::make_shared<const Json>(Json{{"skipped_updates", state.skipped_updates},
                                                        {"seconds", state.seconds},
                                                        {"identity", identity.to_json()}});
    Memory host = memory.for_host();
    Stream host_stream(stream.threads());
    for (const std::string& name : tensor_names(model.spec())) {
      const Tensor& value = values.at(name);
      Tensor stored = value;
      if (weights_dtype != value.dtype()) {
        stored = host.alloc(value.shape(), weights_dtype, MemoryTag::workspace);
        ops::cast(value, stored, host_stream);
        content.optimizer.push_back(whole_entry(kMaster + name, value));
      }
      content.weights.push_back(whole_entry(name, stored));
      content.optimizer.push_back(whole_entry(kMoment1 + name, moment1.at(name)));
      content.optimizer.push_back(whole_entry(kMoment2 + name, moment2.at(name)));
    }
    write_checkpoint(real_file_system(), checkpoints, content);
  }
  world.all().barrier();
  return checkpoints / checkpoint_name(state.step);
}

RunState run_state_of(const Manifest& manifest) {
  return {.step = manifest.step,
          .tokens = manifest.tokens,
          .skipped_updates = manifest.trainer->value("skipped_updates", std::int64_t{0}),
          .seconds = manifest.trainer->value("seconds", 0.0),
          .eval_loss = manifest.eval_loss};
}

std::vector<StateKind> states_of(const ParamStore& store) {
  return {{kWeightsKind, store.value_pieces()},
          {"exp_avg", store.moment_pieces(1)},
          {"exp_avg_sq", store.moment_pieces(2)}};
}

void restore_state(const StateSource& source, Model& model, Stream& stream) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::data, source.place() + what,
                "the run file's model changed since; start afresh with --fresh or another run.dir");
  };
  const auto known = tensor_names(model.spec());
  for (const std::string& name : source.names(kWeightsKind)) {
    if (std::ranges::find(known, name) == known.end()) {
      refuse(fmt::format(" has {}, which the model has not", name));
    }
  }
  for (const auto& [kind, pieces] : states_of(model.store())) {
    for (const ParamPiece& piece : pieces) {
      const std::string& name = piece.part->name;
      const bool has_master = kind == kWeightsKind && source.shape(kMasterKind, name);
      const std::string stored = has_master ? kMasterKind : kind;
      if (source.shape(stored, name) != piece.part->whole) {
        refuse(fmt::format(": {} is not there with shape {}", state_key(stored, name),
                           piece.part->whole.text()));
      }
      fill_from_host(piece, stream, [&](const Tensor& to) {
        source.read(stored, name, piece.begin.sizes(), piece.end().sizes(), to);
      });
    }
  }
  model.store().values_changed(stream);
}

}  // namespace heddle
