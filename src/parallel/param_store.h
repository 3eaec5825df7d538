#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "mesh/mesh.h"
#include "nn/layer.h"
#include "parallel/compression.h"
#include "parallel/earlier.h"
#include "parallel/exchange/bad_notes.h"
#include "parallel/exchange/coded_gather.h"
#include "parallel/exchange/compressed_sum.h"
#include "parallel/offered_sums.h"
#include "parallel/ownership.h"
#include "parallel/step/tell_step.h"
#include "tensor/memory.h"

namespace heddle {

/// What an optimizer keeps: a number, in the dtype of gradients, for every element of the
/// parameters that it is `of`. It lies as the gradients do, and is saved and resharded under its
/// name.
struct OptimizerState {
  enum class Of : std::uint8_t { all, inner_matrices, others };
  /// Among the ranks that gradients are summed over. Those that lie otherwise than gradients are of
  /// matrices (JointMatrix), and only where there are several such ranks.
  enum class Lies : std::uint8_t {
    as_gradients,
    by_rank,  ///< each rank has other values, of whole matrices; saved by rank: "NAME_RANK"
    by_chunk  ///< each has a chunk of every matrix (JointChunks)
  };
  std::string name;  ///< "exp_avg": the first word of the names in a checkpoint
  Of of = Of::all;
  Lies lies = Lies::as_gradients;
  bool is_common = false;  ///< all sites have the same: one may save it for all
};

/// A flat, local stretch of one kind of parameter, as the optimizer sees it: values, gradients and
/// states of equal length, contiguous, in the dtype of gradients (statistics_of).
struct OptShard {
  Tensor value, grad;
  std::vector<Tensor> states;  ///< as they were declared; absent where they are not of this kind
  Tensor low;           ///< the values as layers see them, where they compute in a lower precision
  bool decays = false;  ///< weight decay applies: matrices and embeddings only
  bool is_inner = false;  ///< of inner matrices (Parameter::is_inner_matrix)
  int unit = 0;           ///< that the parameters belong to
};

/// A box of a Hugging Face tensor as this rank holds it.
struct ParamPiece {
  const Parameter* parameter = nullptr;
  const Parameter::Part* part = nullptr;
  Shape begin;  ///< in the Hugging Face tensor
  Tensor data;
  WriteShare share;  ///< of the ranks of its site that hold this box, what this one saves of it

  /// Whether this rank stands for all that hold the box: the first that saves of it.
  bool is_first_writer() const { return share.count > 0 && share.index == 0; }
  /// The corner opposite of `begin`.
  Shape end() const;
};

/// Owns the memory of a rank's parameters: flat buffers per unit (a block), in which every
/// Parameter is a view. Frozen ones (Parameter::trains) have buffers of their own, with values and
/// nothing else: ZeRO divides them only where it divides values. A parameter that occurs in several
/// units (tied embeddings) belongs to the first. Who sums, divides, counts and writes follows from
/// each parameter's layout (ownership.h). What of a unit is here, and when it is exchanged with the
/// ranks that see other tokens, is the ZeRO stage (docs/design/008-ranks.md); nothing else knows of
/// it. Where layers compute in bf16, their values are copies of f32 masters, which lie with the
/// optimizer's shards (docs/design/010-cuda.md).
class ParamStore {
 public:
  enum class Purpose { inference, training };
  struct Options {
    DType dtype = DType::f32;  ///< that layers compute in
    Purpose purpose = Purpose::training;
    int zero = 0;
    Compression compress = {};
    /// Steps may be interrupted and taken again: what one changes before it is decided is there
    /// twice.
    bool retakes_steps = false;
    /// Of all encodings of the rank; absent: the store's own.
    std::shared_ptr<BadNotes> notes = {};
  };

  /// Allocates and binds value (and for training grad) of every parameter.
  /// `mesh` outlives the store. A layout that leaves out an axis with several ranks is refused.
  ParamStore(std::span<Layer* const> units, const Options& options, const Mesh& mesh,
             Memory& memory);
  /// Everything on one rank.
  ParamStore(std::span<Layer* const> units, DType dtype, Purpose purpose, Memory& memory);
  ParamStore(const ParamStore&) = delete;

  /// Unit by unit, each once; within a unit as they lie in its buffer.
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  /// Allocates an optimizer's states, zeroed. Once, by the optimizer, for a store that trains.
  void declare(std::vector<OptimizerState> states);
  /// Allocates further states, of every parameter, which the optimizer does not see.
  void keep(std::vector<OptimizerState> states);
  /// Empty before an optimizer has declared its states.
  std::span<const OptShard> shards() const { return shards_; }
  /// Elements of all parameters here, without padding.
  std::int64_t parameter_count() const { return parameter_count_; }

  /// Exchanges of gradients and values then overlap with computations (Communicator).
  void run_in_background(bool on);

  /// Units and buckets as a step sees them (numbered as given to the constructor), and a tied
  /// table; the caller adds stages.
  RankUnits units() const;
  /// Does what an op of a step (tell_step) asks of values and gradients.
  void perform(const StepOp& op, Stream& stream);
  /// What ops have offered to the next pass over a unit.
  OfferedSums& offered() { return offered_; }

  /// Adds the sum of squares of the gradients that this rank counts to `sum` (f64, one element);
  /// over all ranks every element of the model is counted once. When all sums of them are made.
  void add_counted_squares(const Tensor& sum, Stream& stream) const;
  /// The same for gradients that stay where they were made (StepPolicy::reduces): every rank that
  /// has other ones counts its own.
  void add_local_squares(const Tensor& sum, Stream& stream) const;
  /// Adds the sum of a state that lies as gradients do, of every matrix's element once.
  void add_counted_sum(std::size_t state, const Tensor& sum, Stream& stream) const;
  /// The gradients are used up.
  void retire_grads();

  /// What this rank has the state of, of one parameter: flat, and in the dtype of gradients.
  struct HeldStretch {
    const Parameter* parameter = nullptr;
    int unit = 0;
    std::int64_t begin = 0;      ///< the first element, in the parameter
    Tensor value;                ///< of the masters, where there are any
    Tensor low;                  ///< as layers see it, where that is another
    std::vector<Tensor> states;  ///< of states(); absent where they are not of this parameter
  };
  /// In the order of parameters().
  std::vector<HeldStretch> held() const;
  /// As boxes of its parameter's parts, what lies in `flat` as the stretch does in its own tensors.
  std::vector<ParamPiece> pieces_of(const HeldStretch& stretch, const Tensor& flat) const;
  /// To be called when values of held() were written: others than this rank may need them.
  void held_changed(Stream& stream);

  /// The weights: of the masters, where there are any.
  std::vector<ParamPiece> value_pieces() const;
  /// To be called when value_pieces() were written from outside.
  void values_changed(Stream& stream);
  /// Of the weights, what this rank has the state of: exact also where parts that others have were
  /// not gathered since the last update.
  std::vector<ParamPiece> held_value_pieces() const;
  std::vector<ParamPiece> grad_pieces() const;
  /// Summed gradients of what this rank has the state of, flat. When all sums of them are made.
  Tensor held_grads(int bucket) const;
  const std::vector<OptimizerState>& states() const { return states_; }
  /// Of the state `states()[index]`. `by_each_site`: every site saves what is common.
  std::vector<ParamPiece> state_pieces(std::size_t index, bool by_each_site = false) const;
  /// The first word of its names in a checkpoint, as this rank writes it.
  std::string state_kind(std::size_t index) const;

  /// What encoding has lost of gradients and not yet sent. Every rank of a group that sums them has
  /// its own, of whole parameters, and where sums are encoded too, that of its part of them.
  struct Residuals {
    std::string codec;
    int rank = 0, ranks = 0;                  ///< of the group
    std::vector<ParamPiece> own, of_the_sum;  ///< the latter only without ZeRO
  };
  /// What changed since the last call counts from here on. Where steps are taken again, pieces of
  /// residuals, and of states that lie by rank or by chunk, are until then those of before.
  void settle();
  /// Before a step changes what lies by rank or by chunk.
  void keep_earlier(std::size_t state, Stream& stream);
  /// Whether a step that is interrupted at any point before it is decided can be taken again.
  bool can_retake_steps() const;
  /// Whether sums of gradients change states.
  bool keeps_residuals() const { return gradient_codec_ && options_.compress.feeds_back(); }
  /// Nothing where no gradients are compressed, or without error feedback.
  std::optional<Residuals> residuals() const;
  /// Adds their sum of squares on this rank to `sum` (f64, one element).
  void add_residual_squares(const Tensor& sum, Stream& stream) const;

  const Mesh& mesh() const { return mesh_; }
  Memory& memory() const { return memory_; }
  DType dtype() const { return options_.dtype; }
  DType grad_dtype() const { return statistics_of(options_.dtype); }

  /// A box of an inner matrix, on some rank that holds one.
  struct MatrixSlice {
    int holder = 0;  ///< in the group
    Shape begin, extent;
    Tensor grad;  ///< this rank's, where it is the holder
  };
  /// An inner matrix of the Hugging Face model, and the ranks of whose gradient and state every one
  /// has a slice or nothing, the same on all of them.
  struct InnerMatrix {
    std::string name;
    Shape shape;
    int unit = 0;
    AxisSet group;
    std::vector<MatrixSlice> slices;  ///< by holder; together they cover it, maybe several times
  };
  /// Those of this rank's units, in their order.
  std::vector<InnerMatrix> inner_matrices() const;

  /// A matrix of the Hugging Face model, or the slice of it that this rank has: for optimizers that
  /// let the ranks that gradients are summed over exchange something else (1-bit Adam).
  struct JointMatrix {
    Communicator* ranks = nullptr;
    int bucket = 0;
    std::int64_t begin = 0;  ///< in the bucket
    Tensor grad;             ///< flat, whole
    /// Of it, what this rank keeps state of: [held_begin, held_begin + held.value.count()). Without
    /// tensors where that is nothing.
    OptShard held;
    std::int64_t held_begin = 0;
    std::vector<Tensor> states;  ///< as declared: those that lie by rank, flat, and by chunk
  };
  /// Unit by unit; the same on all ranks of a group but for what they hold. With ZeRO 0 or 1.
  std::vector<JointMatrix> joint_matrices() const;
  std::int64_t bucket_elements(int bucket) const {
    return buckets_[static_cast<std::size_t>(bucket)].size;
  }
  /// whole (as long as the bucket) = the shards that all ranks have of a state that lies as
  /// gradients do. Waits.
  void gather_state(std::size_t state, int bucket, const Tensor& whole, Stream& stream) const;

 private:
  struct Range {
    std::int64_t begin = 0, end = 0;
    bool empty() const { return begin >= end; }
  };
  struct Placed {
    Parameter* parameter;
    std::int64_t at;  ///< in the flat buffer
  };
  /// Gradients that are summed over further axes.
  struct RestSum {
    AxisSet over;
    Range range;
  };
  /// What a rank has of one matrix of the Hugging Face model, in a bucket.
  struct JointSlice {
    const Placed* placed = nullptr;
    Range range;
    Range chunk;                ///< of it, this rank's (JointChunks), in the bucket
    std::int64_t chunk_at = 0;  ///< in states that lie by chunk
  };
  /// The parameters of one unit whose gradients are summed over the same ranks.
  struct Bucket {
    int owner = 0;  ///< the unit that it belongs to
    /// Those that see other tokens: gradients are summed over them.
    AxisSet over = {};
    Communicator* others = nullptr;
    int zero = 0;        ///< what they divide; 0 where there are none
    bool trains = true;  ///< whether there are gradients and states, in a store that trains
    std::vector<Placed> placed;
    std::int64_t size = 0;
    std::int64_t inner = 0, matrices = 0;  ///< where the inner matrices and all matrices end
    Range held;                      ///< of states and reduced gradients: all, or this rank's shard
    std::vector<RestSum> rest = {};  ///< of what is held
    std::vector<JointSlice> joint = {};

    bool keeps_whole_values() const { return zero < 3; }
    bool keeps_whole_grads() const { return zero < 2; }
    Tensor values, grads;        ///< whole or `held`
    std::vector<Tensor> states;  ///< what is held of their kind of parameter; may be absent
    std::vector<Earlier> states_before = {};  ///< of those that ranks exchange
    Tensor masters;                           ///< `held`, where values are of a lower precision
    Tensor gathered, whole_grads;             ///< while they are here for the unit's sake
    std::optional<Work> gathering;
    bool has_grads = false;  ///< the shard has a sum already

    // What travels as a codec's bytes; absent: plainly.
    std::unique_ptr<CompressedSum> coded_sum;
    EncodingBooks books, books_of_sum;
    Earlier residual_before, residual_of_sum_before;
    std::unique_ptr<CodedGather> coded_gather;
    std::optional<CodedGather::Pending> coded_gathering;
  };
  struct Reduction {
    Bucket* bucket;
    Tensor whole, shard;
    Work work;
    std::optional<CompressedSum::Pending> coded = {};
  };

  ParamStore(std::span<Layer* const> units, const Options& options, std::unique_ptr<Mesh> own_mesh,
             const Mesh* mesh, Memory& memory);
  /// The ranks that the gradients of the parameter are summed over because they see other tokens.
  AxisSet divides(const Parameter& parameter) const;
  /// What parameters of a unit have in common that share a bucket.
  struct Kind {
    AxisSet divides;
    bool is_frozen = false;
    bool may_be_coded = true;
    auto order() const { return std::tuple(divides, is_frozen, !may_be_coded); }
    bool operator<(const Kind& other) const { return order() < other.order(); }
  };
  void place(int unit, const Kind& kind, std::vector<Parameter*> own);
  void allocate(Bucket& bucket);
  /// Of parameters that may be coded and others there are buckets apart.
  bool may_be_coded(const Parameter& parameter) const;
  void choose_codecs(Bucket& bucket);
  void reduce_coded(Bucket& bucket, Stream& stream);
  /// Exact values of what is held, from which others are made.
  static const Tensor& exact_values(const Bucket& bucket) {
    return bucket.masters.defined() ? bucket.masters : bucket.values;
  }
  void add_shards(const Bucket& bucket);
  void fetch(Bucket& bucket, Stream& stream);
  void bind_values(Bucket& bucket, Stream& stream);
  static void drop_values(Bucket& bucket);
  /// Makes what layers see of the exact values that are held.
  void held_changed(Bucket& bucket, Stream& stream);
  void open_grads(Bucket& bucket, Stream& stream);
  void reduce(Bucket& bucket, Stream& stream);
  OfferedSums::Sum slice_sum(Bucket& bucket, const StepOp::Slice& slice, Stream& stream);
  void end_reduction(Bucket& bucket, Stream& stream);
  /// Makes values whole that were changed in parts.
  void gather(Bucket& bucket, Stream& stream) const;
  static void end_gather(Bucket& bucket, Stream& stream);
  /// The axes beside the bucket's own that the gradients of a region are summed over.
  AxisSet other_sums(const Layout& layout) const;
  std::vector<RestSum> rest_of(const Bucket& bucket, Range of) const;
  void sum_rest(const Bucket& bucket, const std::vector<RestSum>& rest, Stream& stream) const;
  enum class Grads : std::uint8_t { held, whole };
  void sum_tied(Grads grads, Stream& stream) const;
  /// What is done with gradients that are not summed over the bucket's ranks.
  void keep_local(Bucket& bucket, Stream& stream);
  /// Sums what is no matrix over the ranks that see other tokens, of all buckets at once.
  void sum_vectors(Stream& stream) const;
  std::vector<RankUnits::Joint> describe_joint() const;
  /// Finds the slices of matrices in a bucket.
  void cut_joint(Bucket& bucket) const;
  std::vector<ParamPiece> joint_pieces(std::size_t index) const;
  /// Elements of a state in a bucket.
  static std::int64_t state_elements(const Bucket& bucket, const OptimizerState& state);
  const Bucket* tied_bucket(Parameter::Tie end) const;
  /// `range` of a flat buffer that has the whole bucket or only what is held of it.
  static Tensor cut(const Bucket& bucket, const Tensor& flat, Range range);
  /// Of `of`, what this rank counts.
  std::vector<Range> counted(const Bucket& bucket, Range of, bool is_divided) const;
  /// The pieces of the bucket in `flat`, which has the whole of it or only what is held.
  void add_pieces(const Bucket& bucket, const Tensor& flat, std::vector<ParamPiece>& pieces) const;
  /// What of the bucket is held of one parameter.
  static Range held_of(const Bucket& bucket, const Placed& placed);
  /// Those of one parameter in `range`. `flat` begins `from` elements into the bucket.
  void add_pieces(const Placed& placed, const Tensor& flat, std::int64_t from, Range range,
                  bool is_divided, bool is_common, std::vector<ParamPiece>& pieces) const;
  /// What is held of the parameters that a state is of.
  static Range held_of(const Bucket& bucket, OptimizerState::Of of);
  void add_slices(const Bucket& bucket, const Placed& placed,
                  std::vector<InnerMatrix>& matrices) const;
  bool trains(const Bucket& bucket) const {
    return options_.purpose == Purpose::training && bucket.trains;
  }
  /// Where layers compute in a lower precision, and where all ranks use decoded values.
  bool needs_masters(const Bucket& bucket) const;

  const std::unique_ptr<Mesh> own_mesh_;  // of a store that was given none
  const Mesh& mesh_;
  Memory& memory_;
  const Options options_;
  // Null for none.
  std::shared_ptr<const codec::Codec> gradient_codec_, weight_codec_;
  std::shared_ptr<BadNotes> notes_;  // where there are codecs
  std::deque<Bucket> buckets_;       // addresses stay
  std::vector<RankUnits::Unit> units_;
  std::deque<Reduction> reductions_;  // under way, oldest first
  OfferedSums offered_;
  std::vector<Parameter*> parameters_;
  std::vector<OptimizerState> states_;
  std::vector<OptShard> shards_;
  std::int64_t parameter_count_ = 0;
};

enum class Initialized : std::uint8_t { all, adapters };
/// Fills every parameter, or those of adapters, by its Init rule: counter-based, keyed by (seed,
/// part name, index in the part), so that every mesh and every fusion of parts starts from the same
/// weights.
void initialize(ParamStore& store, std::uint64_t seed, Stream& stream,
                Initialized which = Initialized::all);

/// Lets `fill` write a tensor of the piece's shape in host memory, and puts it in the piece.
void fill_from_host(const ParamPiece& piece, Stream& stream,
                    const std::function<void(const Tensor&)>& fill);
/// The piece's data in host memory: itself, or a copy.
Tensor on_host(const ParamPiece& piece, Stream& stream);

}  // namespace heddle
