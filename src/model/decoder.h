#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "model/blocks/branch_builder.h"
#include "model/spec.h"
#include "nn/layer.h"
#include "nn/loss_head.h"
#include "nn/split_head.h"
#include "parallel/parallel_request.h"
#include "parallel/tensor_rules.h"

namespace heddle {

/// Tokens a chunk of the output projection where nobody chose: 1024 on CPU, where logits should
/// stay in the cache; on a GPU, which wants large products, as many as make logits of 1024M
/// elements.
std::int64_t usual_loss_chunk(const ModelSpec& spec, Device device);

/// Each rank's rows of the embedding and of the output projection are a multiple of it, the last
/// ones zero: a GPU's matrix products with the vocabulary are several times faster when its size is
/// a multiple of a tile.
std::int64_t vocabulary_multiple(Device device);

/// The part of a decoder that a rank has: a run of units of every stage it owns.
struct DecoderPart {
  struct Units {
    int begin = 0, end = 0;
    bool operator==(const Units&) const = default;
  };
  TensorRules tensor = {};
  Communicator* context = nullptr;          ///< axis cp, where it divides tokens
  std::optional<ExpertRanks> experts = {};  ///< where ranks divide experts
  VocabularyPlacement vocabulary = VocabularyPlacement::tensor;
  /// The pipeline, when the vocabulary is divided over it, and how then the head's input gradient
  /// is made.
  Communicator* pipeline = nullptr;
  SplitHead::InputGrad head_input_grad = SplitHead::InputGrad::early;
  std::vector<Units> stages = {};  ///< by local stage; empty: one stage with everything
  bool unties = false;  ///< embedding and head are parameters of their own, also where tied
};

/// The units of a decoder, numbered from the front: embedding, blocks, final norm, head.
inline int unit_count(const ModelSpec& spec) { return static_cast<int>(spec.layers) + 3; }

/// Calls `take` for all Hugging Face tensors of the model, each once, in its order. Takes no memory
/// for them.
void visit_tensors(const ModelSpec& spec,
                   const std::function<void(const Parameter&, const Parameter::Part&)>& take);
/// Their names.
std::vector<std::string> tensor_names(const ModelSpec& spec);

/// What a unit is.
struct UnitLabel {
  enum class Kind : std::uint8_t { embedding, positions, block, norm, head_entry, head };
  Kind kind = Kind::block;
  int block = 0;  ///< the number of a block

  /// "block 3", "head".
  std::string text() const;
};

/// A decoder, or the part of it that a rank has, as lists of units by stage.
struct Decoder {
  using Units = Layers;
  std::vector<Units> stages;
  std::vector<std::vector<UnitLabel>> labels;  ///< of the units, by stage
  LossHead* head = nullptr;                    ///< the last unit, where it is here
  Layer* head_entry =
      nullptr;  ///< the unit that leads from the residual into it, where it needs one
  std::shared_ptr<Parameter> token_embedding, projection;  ///< where they are here; one when tied
  /// With a vocabulary divided over the pipeline embedding and head are in no stage, but on every
  /// rank; the head is then trained in two passes.
  Units vocabulary;
  std::unique_ptr<SplitHead> split_head;

  /// Stage by stage, then embedding and head where they are in none.
  std::vector<Layer*> unit_pointers() const;
};

/// Builds the layers; parameters are described but have no memory yet (ParamStore gives it).
Decoder build_decoder(const ModelSpec& spec, const BuildOptions& options, Memory& memory,
                      const DecoderPart& part = {});

/// One block of each kind that the model repeats, and nothing else, on a single rank.
Decoder one_of_each_block(const ModelSpec& spec, Memory& memory);

/// Forward work of every unit for one token, in floating-point operations: what stages are balanced
/// by.
std::vector<double> unit_costs(const ModelSpec& spec, std::int64_t seq_len);

}  // namespace heddle
