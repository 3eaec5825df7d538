#pragma once

#include <array>
#include <map>

#include "engine/model.h"
#include "parallel/schedule/schedule.h"

namespace heddle {

/// One rank's part in a vocabulary that is divided over the pipeline: the passes of its schedule
/// and the exchanges between them (docs/design/012-vocabulary-over-the-pipeline.md). Between two
/// steps it holds nothing.
class VocabularyPasses {
 public:
  explicit VocabularyPasses(Model& model);

  /// vocab_s, vocab_t, embed_f or embed_b. Returns the sum of the losses that this rank counts,
  /// where the pass makes any.
  Tensor pass(Act act, int microbatch, Ctx& ctx);
  /// Gives this rank's part; `given` is what the first or last stage has for the others, if it is
  /// here. Does not wait.
  void begin(Exchange exchange, int microbatch, const Tensor& given, Ctx& ctx);
  /// Waits. Returns what the first or last stage takes from it, if it is here.
  Tensor end(Exchange exchange, int microbatch, Ctx& ctx);

  bool empty() const { return batches_.empty(); }

 private:
  /// What is under way of one micro-batch.
  struct Batch {
    Saved saved;  // of the head
    Tensor x, looked_up, input_grad;
    SplitHead::Outgoing outgoing;
    Tensor statistics, targets;
    SplitHead::Merged merged;
    Tensor output_grad;
    std::array<Work, kExchanges> works;
    int done = 0;  // passes, and exchanges ended
  };

  /// One more pass is done or exchange ended; forgets the micro-batch with the last.
  void note_done(int microbatch);
  void start_pass(Batch& batch, Ctx& ctx);
  Tensor finish_pass(Batch& batch, Ctx& ctx);
  void exchange_statistics(Batch& batch, Ctx& ctx);
  void look_up(Batch& batch, Ctx& ctx);
  void add_gradients(Batch& batch, Ctx& ctx);
  /// Broadcasts from the rank of `stage`; returns the tensor that all then have.
  Tensor spread(Exchange exchange, int stage, const Tensor& given, Batch& batch, Ctx& ctx);
  Communicator& lane(Exchange exchange) const;
  Work& work(Batch& batch, Exchange exchange) const;
  bool is_here(int stage) const;

  Model& model_;
  std::map<int, Batch> batches_;  // by micro-batch
};

}  // namespace heddle
