#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/rank_model.h"
#include "model/spec.h"
#include "nn/decoded_rows.h"
#include "nn/kv_cache.h"
#include "parallel/sequence/context_division.h"

namespace heddle {

/// A model in memory, or this rank's part of one: its layers by stage, and its parameters.
class Model {
 public:
  /// Everything on one rank.
  Model(ModelSpec spec, const BuildOptions& options, ParamStore::Purpose purpose, Memory& memory);
  /// The part of the rank whose mesh it is; `mesh` outlives the model.
  Model(ModelSpec spec, const BuildOptions& options, const ParallelPlan& plan, const Mesh& mesh,
        ParamStore::Purpose purpose, Memory& memory);

  const ModelSpec& spec() const { return spec_; }
  const ParallelPlan& plan() const { return plan_; }
  const Mesh& mesh() const { return mesh_; }
  ParamStore& store() { return *rank_.store; }
  const ParamStore& store() const { return *rank_.store; }
  DType dtype() const { return dtype_; }

  /// What of the model is here, for tell_step. Units are numbered stage by stage, those of a
  /// vocabulary that is divided over the pipeline last.
  const RankUnits& units() const { return rank_.units; }
  Layer& unit(int unit) const { return *rank_.layers[static_cast<std::size_t>(unit)]; }
  /// "block 3": for messages.
  const std::shared_ptr<const std::string>& label(int unit) const {
    return labels_[static_cast<std::size_t>(unit)];
  }
  /// Whether the unit's output is losses.
  bool is_head(int unit) const {
    return rank_.layers[static_cast<std::size_t>(unit)] == rank_.decoder.head;
  }
  /// Whether it is one of the blocks that the model repeats.
  bool is_block(int unit) const {
    return rank_.labels[static_cast<std::size_t>(unit)].kind == UnitLabel::Kind::block;
  }
  bool has_head() const { return rank_.decoder.head != nullptr; }
  /// This rank's part of a vocabulary that is divided over the pipeline.
  struct Vocabulary {
    Layer& embedding;
    SplitHead& head;
  };
  Vocabulary vocabulary() const;
  /// What crosses the boundary between two stages for a micro-batch of so many tokens.
  Shape boundary_shape(std::int64_t tokens) const;
  /// What embedding and head of a vocabulary divided over the pipeline give and take.
  Shape head_input_shape(std::int64_t tokens) const;

  /// How messages between stages travel in training; null: plainly.
  const CodedMessages* messages() const { return rank_.messages.get(); }
  /// Whether something of the step could not be encoded, being not finite. Waits.
  bool took_bad_values(Stream& stream) const { return rank_.notes && rank_.notes->take(stream); }

  /// The tokens of a micro-batch in host memory that this rank has: all of them, or its share where
  /// axis cp divides them.
  MicroBatch share(const MicroBatch& whole, Memory& host) const;
  /// A batch in host memory on the device of `memory`: itself, or a copy, for which ids, targets
  /// and positions are checked, since kernels do not.
  MicroBatch upload(const MicroBatch& batch, Stream& stream, Memory& memory) const;

  /// Of the attention that ranks of axis cp share; null where there is none.
  AttentionMeter* attention_meter() const { return division_ ? &division_->meter() : nullptr; }

  /// From now on what is not training goes through these blocks only, in this order: early exit,
  /// skipped and swapped blocks. Error(usage) for blocks that there are not or that are named
  /// twice, and in a pipeline for an order that its stages do not have.
  void go_through(std::vector<int> blocks);
  /// From now on nothing goes through these blocks, in training too: what comes to one passes it
  /// by, forward and backward, and its gradients are zeros.
  void leave_out(std::vector<int> blocks) { left_out_ = std::move(blocks); }
  const std::vector<int>& left_out() const { return left_out_; }
  bool is_left_out(int unit) const;

  // Every rank of a pipeline, of cp and of tp calls these at the same time. Batches lie in host
  // memory and are whole.

  /// Loss of the tokens of the batch that this rank counts, [n] f64; absent where another rank has
  /// the head. Nothing is kept for backward.
  /// `on_choices` is told what routers choose.
  Tensor losses(const MicroBatch& batch, Stream& stream, Memory& memory,
                const OnChoices& on_choices = {}) const;
  /// Logits [rows, V] (f32, or f64 for f64), the same on every rank: of all tokens, or with
  /// `last_only` of each sequence's last. With a cache the batch continues what the cache holds,
  /// which is then advanced.
  Tensor logits(const MicroBatch& batch, bool last_only, KvCache* cache, Stream& stream,
                Memory& memory) const;

  /// Logits [n, V] of the rows that are here when they have gone through all layers. Ranks of a
  /// pipeline and of tp have the same rows; not for axis cp.
  Tensor next_logits(DecodedRows& rows, Stream& stream, Memory& memory) const;

  KvCache::Shape cache_shape(std::int64_t sequences, std::int64_t capacity) const;
  Cost cost(const CostShape& shape) const;

 private:
  Model(ModelSpec spec, const BuildOptions& options, const ParallelPlan& plan,
        std::unique_ptr<Mesh> own_mesh, const Mesh* mesh, ParamStore::Purpose purpose,
        Memory& memory);
  /// The head is the last unit that is here.
  int head_unit() const { return static_cast<int>(rank_.layers.size()) - 1; }
  /// Runs the stages in turn. Returns the activations behind the last unit that is not the head's
  /// (`into_head`: that lead into it included), where the head is here.
  Tensor trunk(bool into_head, Ctx& ctx) const;
  /// Of a stage's units, those of which `trunk` goes through, in its order.
  std::vector<int> units_on_the_way(int stage, bool into_head) const;
  /// What of the new tokens this rank computes, and which of them its cache keeps.
  MicroBatch share_to_decode(const MicroBatch& whole, KvCache* cache, Memory& host) const;
  /// The row of the sequence's last token, which one of the ranks that share it has.
  Tensor last_token(const Tensor& x_TD, Ctx& ctx) const;
  /// Has the unit's values here meanwhile.
  void with_values(int unit, Stream& stream, const std::function<void()>& compute) const;
  /// What the first stage begins with: the sum of what the ranks of the pipeline look up.
  Tensor look_up(Ctx& ctx) const;
  /// All tokens of a residual of which this rank may have a share.
  Tensor all_tokens(const Tensor& x, Ctx& ctx) const;
  /// The same tensor on every rank of the pipeline, from the one that has the head.
  Tensor from_head(const Tensor& logits, const Shape& shape, Ctx& ctx) const;

  ModelSpec spec_;
  DType dtype_;
  std::int64_t positions_;
  const ParallelPlan plan_;
  const std::unique_ptr<Mesh> own_mesh_;
  const Mesh& mesh_;
  const std::unique_ptr<ContextDivision> division_;  // where axis cp divides tokens
  RankModel rank_;
  std::vector<std::shared_ptr<const std::string>> labels_;  // by unit; outlived by records of calls
  std::optional<std::vector<int>> blocks_;                  // go_through; absent: all in order
  std::vector<int> left_out_;
};

/// A batch in host memory over the caller's ids and targets ([B, S] i32; targets may be absent),
/// positions counting from `first_position` in every sequence, one document each.
MicroBatch plain_batch(const Tensor& ids_BS, const Tensor& targets_BS, std::int64_t first_position,
                       Memory& memory);

}  // namespace heddle
