#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/spec.h"
#include "nn/experts/exchange.h"
#include "nn/linear.h"
#include "parallel/tensor_rules.h"

namespace heddle {

class Mlp;
class RopeTables;

/// How layers are made for a run.
struct BuildOptions {
  DType dtype = DType::f32;
  std::int64_t positions = 0;  ///< longest sequence that will be run; rope tables are made for it
  bool recompute_blocks = false;
  /// That an MLP computes at once where blocks are recomputed: more tokens, and its inside would be
  /// what limits the length of sequences. Many enough for any device to be as fast as with all.
  std::int64_t mlp_tokens = 32768;
  std::int64_t loss_chunk = 1024;  ///< tokens per chunk of the fused output projection
  bool scale_residual_init =
      false;  ///< output projections start smaller by sqrt(2 * layers), as in GPT-2
};

std::shared_ptr<Parameter> make_parameter(const std::string& name, const Shape& shape, Init init,
                                          const Layout& layout);

/// Makes the layers that branches of a block are built of; knows the family's names and options and
/// how tp divides them.
class BranchBuilder {
 public:
  using Cut = TensorRules::Cut;
  /// One Hugging Face tensor's share of a linear layer: these stretches of its `whole` outputs.
  struct Output {
    std::string pattern;
    std::int64_t whole = 0;
    std::vector<Cut> cuts;
  };
  /// The input of a linear layer: this stretch of `whole`.
  struct Input {
    std::int64_t whole = 0;
    Cut cut;
  };

  /// A box of a Hugging Face matrix.
  struct Matrix {
    std::string name;
    Shape whole, begin, extent;
  };

  /// What turns q and k, in blocks with a window too if there is no other for them.
  struct Ropes {
    std::shared_ptr<const RopeTables> usual, of_windows = nullptr;
  };

  /// All outlive it.
  BranchBuilder(const ModelSpec& spec, const BuildOptions& options, const TensorRules& tensor,
                Ropes rope, Communicator* context = nullptr, const ExpertRanks* experts = nullptr)
      : spec_(spec),
        options_(options),
        tensor_(tensor),
        rope_(std::move(rope)),
        context_(context),
        experts_(experts) {}

  /// What follows are blocks of one stage of this rank, before `end`.
  void begin_stage(std::int64_t end) { stage_end_ = end; }
  std::int64_t stage_end() const { return stage_end_; }
  void begin_block(std::int64_t index) { index_ = index; }
  std::int64_t block() const { return index_; }
  const ModelSpec& spec() const { return spec_; }
  const BuildOptions& options() const { return options_; }
  const TensorRules& tensor() const { return tensor_; }
  /// What turns q and k of this block; without tables where nothing does.
  std::shared_ptr<const RopeTables> rope() const;
  /// The window of this block's attention.
  std::optional<std::int64_t> window() const { return spec_.block(index_).window; }
  /// The ranks that have other tokens of the same sequences; null: there are none.
  Communicator* context() const { return context_; }
  /// The ranks that divide experts; null: these lie like other MLPs.
  const ExpertRanks* experts() const { return experts_; }

  /// A name of the family for this block.
  std::string named(const std::string& pattern) const;
  std::string named(const std::string& pattern, std::int64_t expert) const;
  std::unique_ptr<Layer> norm(const std::string& pattern) const;
  /// The first and the last layers of a branch: norms where they have names, and what scales the
  /// branch.
  void begin_branch(Layers& layers, const std::string& norm) const;
  void end_branch(Layers& layers, const std::string& post_norm) const;
  /// A linear whose outputs are divided over tp, those from `first_key` on by key heads. One
  /// product for several outputs of the same input, stacked.
  std::unique_ptr<Linear> linear_by_output(const std::vector<Output>& outputs, bool has_bias,
                                           std::optional<std::int64_t> first_key = {}) const;
  /// A linear whose inputs are divided over tp: its output is a partial sum.
  std::unique_ptr<Linear> linear_by_input(const std::string& pattern, const Input& in,
                                          bool has_bias) const;
  /// A linear that every rank of tp has whole, for tokens that others do not have.
  std::unique_ptr<Linear> linear_by_token(const std::vector<Output>& outputs, std::int64_t in,
                                          double stddev) const;
  /// The first two with SwiGLU between them, of one MLP of this width.
  std::unique_ptr<Mlp> gated_mlp(const std::string& gate, const std::string& up,
                                 const std::string& down, std::int64_t width) const;
  /// The same whole on every rank of tp, for tokens that others do not have.
  std::unique_ptr<Mlp> gated_mlp_by_token(const std::string& gate, const std::string& up,
                                          const std::string& down, std::int64_t width) const;
  /// Matrices of equal width, one below the other.
  std::shared_ptr<Parameter> stacked(const std::vector<Matrix>& matrices, const Layout& layout,
                                     double stddev) const;
  /// Of the weights of norms.
  Init norm_init() const { return {spec_.norm_adds_one ? Init::Kind::zeros : Init::Kind::ones}; }
  /// Of the initial weights of a projection back to the residual.
  double output_stddev() const;

 private:
  /// How the adapters of a linear lie on tp: `down` and, from output `first_key` on by key heads,
  /// `up`.
  struct AdapterLayouts {
    Layout down, up;
    std::optional<std::int64_t> first_key = {};
    TokenShare tokens = {};  ///< of the batch's, that the input has
  };
  /// Gives the linear the adapters that the model has for these outputs.
  void adapt(Linear& linear, const std::vector<Output>& outputs, const Input& in,
             const AdapterLayouts& layouts) const;
  std::shared_ptr<Parameter> linear_weight(const std::vector<Output>& outputs, const Input& in,
                                           const Layout& layout, double stddev) const;
  std::shared_ptr<Parameter> linear_bias(const std::vector<Output>& outputs,
                                         const Layout& layout) const;

  const ModelSpec& spec_;
  const BuildOptions& options_;
  const TensorRules& tensor_;
  const Ropes rope_;
  Communicator* context_;
  const ExpertRanks* experts_;
  std::int64_t index_ = 0, stage_end_ = 0;
};

}  // namespace heddle
