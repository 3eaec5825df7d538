#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "mesh/mesh.h"
#include "nn/layer.h"
#include "parallel/ownership.h"
#include "tensor/memory.h"

namespace heddle {

/// A flat, local stretch of one kind of parameter, as the optimizer sees it: values, gradients and
/// moments of equal length, contiguous, in the dtype of gradients (statistics_of).
struct OptShard {
  Tensor value, grad, moment1, moment2;
  Tensor low;           ///< the values as layers see them, where they compute in a lower precision
  bool decays = false;  ///< weight decay applies: matrices and embeddings only
};

/// A box of a Hugging Face tensor as this rank holds it.
struct ParamPiece {
  const Parameter* parameter = nullptr;
  const Parameter::Part* part = nullptr;
  Shape begin;  ///< in the Hugging Face tensor
  Tensor data;
  WriteShare share;  ///< of the ranks that hold this box, what this one saves of it

  /// Whether this rank stands for all that hold the box: the first that saves of it.
  bool is_first_writer() const { return share.count > 0 && share.index == 0; }
  /// The corner opposite of `begin`.
  Shape end() const;
};

/// Owns the memory of a rank's parameters: flat buffers per unit (a block), in which every
/// Parameter is a view. A parameter that occurs in several units (tied embeddings) belongs to the
/// first. Who sums, divides, counts and writes follows from each parameter's layout (ownership.h).
/// What of a unit is here, and when it is exchanged with the ranks that see other tokens, is the
/// ZeRO stage (docs/design/008-ranks.md); nothing else knows of it. Where layers compute in bf16,
/// their values are copies of f32 masters, which lie with the optimizer's shards
/// (docs/design/010-cuda.md).
class ParamStore {
 public:
  enum class Purpose { inference, training };
  struct Options {
    DType dtype = DType::f32;  ///< that layers compute in
    Purpose purpose = Purpose::training;
    int zero = 0;
  };

  /// Allocates and binds value (and for training grad and zeroed moments) of every parameter.
  /// `mesh` outlives the store. A layout that leaves out an axis with several ranks is refused.
  ParamStore(std::span<Layer* const> units, const Options& options, const Mesh& mesh,
             Memory& memory);
  /// Everything on one rank.
  ParamStore(std::span<Layer* const> units, DType dtype, Purpose purpose, Memory& memory);
  ParamStore(const ParamStore&) = delete;

  /// Unit by unit, each once; within a unit as they lie in its buffer.
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  std::span<OptShard> shards() { return shards_; }
  std::span<const OptShard> shards() const { return shards_; }
  /// Elements of all parameters here, without padding.
  std::int64_t parameter_count() const { return parameter_count_; }

  /// Exchanges of gradients and values then overlap with computations (Communicator).
  void run_in_background(bool on);

  // Around the computations of a unit (numbered as given to the constructor):
  /// Makes the unit's values valid, and begins to fetch those of `next` (-1: none).
  void acquire(int unit, int next, Stream& stream);
  void release(int unit);
  /// Gives the unit's gradients a place.
  void begin_grads(int unit, Stream& stream);
  /// The gradients of one micro-batch are in; `is_last`: of all. Starts their sum over the ranks
  /// that see other tokens where the ZeRO stage wants it.
  void end_grads(int unit, bool is_last, Stream& stream);

  /// Ends the step's gradients: every one is defined, summed over all ranks that share it, and held
  /// by this rank as far as its shards go.
  void finish_grads(Stream& stream);
  /// Adds the sum of squares of the gradients that this rank counts to `sum` (f64, one element);
  /// over all ranks every element of the model is counted once. After finish_grads.
  void add_counted_squares(const Tensor& sum, Stream& stream) const;
  /// After the optimizer: makes the values whole where they are kept whole.
  void finish_step(Stream& stream);
  /// The gradients are used up.
  void retire_grads();

  /// The weights: of the masters, where there are any.
  std::vector<ParamPiece> value_pieces() const;
  /// To be called when value_pieces() were written from outside.
  void values_changed(Stream& stream);
  std::vector<ParamPiece> grad_pieces() const;
  std::vector<ParamPiece> moment_pieces(int moment) const;  ///< 1 or 2

 private:
  struct Range {
    std::int64_t begin = 0, end = 0;
    bool empty() const { return begin >= end; }
  };
  struct Placed {
    Parameter* parameter;
    std::int64_t at;  ///< in the flat buffer
  };
  /// The parameters of one unit whose gradients are summed over the same ranks.
  struct Bucket {
    int owner = 0;  ///< the unit that it belongs to
    Communicator* others =
        nullptr;   ///< those that see other tokens: gradients are summed over them
    int zero = 0;  ///< what they divide; 0 where there are none
    std::vector<Placed> placed;
    std::int64_t size = 0, matrices = 0;
    Range held;  ///< of moments and reduced gradients: all, or this rank's shard

    bool keeps_whole_values() const { return zero < 3; }
    bool keeps_whole_grads() const { return zero < 2; }
    Tensor values, grads, moment1, moment2;  ///< whole or `held`
    Tensor masters;                          ///< `held`, where values are of a lower precision
    Tensor gathered, whole_grads;            ///< while they are here for the unit's sake
    std::optional<Work> gathering;
    bool has_grads = false;  ///< the shard has a sum already
  };
  struct Reduction {
    Bucket* bucket;
    Tensor whole, shard;
    Work work;
  };

  ParamStore(std::span<Layer* const> units, const Options& options, std::unique_ptr<Mesh> own_mesh,
             const Mesh* mesh, Memory& memory);
  /// The ranks that the gradients of the parameter are summed over because they see other tokens.
  AxisSet divides(const Parameter& parameter) const;
  Bucket& place(int unit, AxisSet divides, std::vector<Parameter*> own);
  void allocate(Bucket& bucket);
  void add_shards(const Bucket& bucket);
  void fetch(Bucket& bucket, Stream& stream);
  void reduce(Bucket& bucket, Stream& stream);
  void finish_oldest_reduction(Stream& stream);
  /// The axes beside the bucket's own that the gradients of a region are summed over.
  AxisSet other_sums(const Layout& layout) const;
  void sum_over_others(const Bucket& bucket, Stream& stream) const;
  void sum_tied(Stream& stream) const;
  const Bucket* tied_bucket(Parameter::Tie end) const;
  /// `range` of a flat buffer that has the whole bucket or only what is held of it.
  static Tensor cut(const Bucket& bucket, const Tensor& flat, Range range);
  std::vector<Range> counted(const Bucket& bucket) const;
  /// The pieces of the bucket in `flat`, which has the whole of it or only what is held.
  void add_pieces(const Bucket& bucket, const Tensor& flat, std::vector<ParamPiece>& pieces) const;
  void add_pieces(const Bucket& bucket, const Placed& placed, const Tensor& flat, Range range,
                  std::vector<ParamPiece>& pieces) const;
  std::vector<ParamPiece> held_pieces(Tensor Bucket::*flat) const;
  bool has_masters() const {
    return options_.purpose == Purpose::training && options_.dtype != grad_dtype();
  }
  DType grad_dtype() const { return statistics_of(options_.dtype); }

  const std::unique_ptr<Mesh> own_mesh_;  // of a store that was given none
  const Mesh& mesh_;
  Memory& memory_;
  const Options options_;
  std::deque<Bucket> buckets_;               // addresses stay
  std::vector<std::vector<Bucket*>> needs_;  // by unit: its own and those it shares
  std::deque<Reduction> reductions_;         // under way, oldest first
  std::vector<Parameter*> parameters_;
  std::vector<OptShard> shards_;
  std::int64_t parameter_count_ = 0;
};

/// Fills every parameter by its Init rule: counter-based, keyed by (seed, part name, index in the
/// part), so that every mesh and every fusion of parts starts from the same weights.
void initialize(ParamStore& store, std::uint64_t seed, Stream& stream);

/// Lets `fill` write a tensor of the piece's shape in host memory, and puts it in the piece.
void fill_from_host(const ParamPiece& piece, Stream& stream,
                    const std::function<void(const Tensor&)>& fill);
/// The piece's data in host memory: itself, or a copy.
Tensor on_host(const ParamPiece& piece, Stream& stream);

}  // namespace heddle
