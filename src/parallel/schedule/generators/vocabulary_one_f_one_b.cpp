#include <algorithm>

#include "base/check.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/generators/placement.h"

namespace heddle::generators {
namespace {

/// One rank's list. A vocabulary pass of index i is T of micro-batch i - 1 and S of i, and takes
/// the input layer along: it looks up a micro-batch that the first rank will want one pass later,
/// and adds the gradients of one that the first rank has finished a pass before.
class VocabularyRank {
 public:
  VocabularyRank(const PipeShape& shape, int rank, int first_warm_up, std::vector<Action>& out)
      : shape_(shape),
        rank_(rank),
        barriers_(shape.vocabulary == 1 ? 2 : 1),
        first_warm_up_(first_warm_up),
        out_(out) {}

  void run(const VocabularyOffset& offset) {
    for (int i = 0; i < shape_.ranks - rank_; ++i) {
      // The first rank begins micro-batch x after x forwards, this rank its own after `rank` more.
      look_up_until(rank_ + i + 1);
      forward();
    }
    look_up_until(shape_.ranks + barriers_ - 1);
    for (int i = 0; i < barriers_; ++i) {
      pass();
      forward();
    }
    for (int i = 0; i < offset.warm_up; ++i) pass();
    for (int mb = 0; mb < shape_.microbatches; ++mb) {
      out_.push_back({Act::bw, rank_, mb});
      if (offset.passes_come_first) pass();
      forward();
      if (!offset.passes_come_first) pass();
    }
    while (gradients_ < shape_.microbatches) add_gradients();
  }

 private:
  void forward() {
    if (forwards_ < shape_.microbatches) out_.push_back({Act::f, rank_, forwards_++});
  }
  void look_up_until(int mb) {
    for (; lookups_ <= std::min(mb, shape_.microbatches - 1); ++lookups_) {
      out_.push_back({Act::embed_f, 0, lookups_});
    }
  }
  void add_gradients() { out_.push_back({Act::embed_b, 0, gradients_++}); }

  void pass() {
    const int i = passes_++;
    if (i > shape_.microbatches) return;
    // The first rank has finished backward x before its pass x + warm-up + barriers, and begins
    // forward x behind its pass x - ranks + warm-up.
    if (i - first_warm_up_ - barriers_ - 1 >= 0) add_gradients();
    look_up_until(i + shape_.ranks - first_warm_up_ + 1);
    if (i > 0) out_.push_back({Act::vocab_t, shape_.ranks - 1, i - 1});
    if (i < shape_.microbatches) out_.push_back({Act::vocab_s, shape_.ranks - 1, i});
  }

  const PipeShape& shape_;
  int rank_, barriers_, first_warm_up_;
  std::vector<Action>& out_;
  int forwards_ = 0, passes_ = 0, lookups_ = 0, gradients_ = 0;
};

}  // namespace

std::vector<VocabularyOffset> vocabulary_offsets(int ranks, double f, double b) {
  // From the last rank to the first: each is a forward earlier than the one behind it, until it is
  // a backward early; there a rank does its next forward before its passes.
  std::vector<VocabularyOffset> offsets = {{}};
  double ahead = 0.0;
  const auto add = [&](bool passes_come_first) {
    const VocabularyOffset& behind = offsets.back();
    const bool regains = !behind.passes_come_first && passes_come_first;
    offsets.push_back({behind.warm_up + (regains ? 0 : 1), passes_come_first});
  };
  while (static_cast<int>(offsets.size()) < ranks) {
    if (ahead + f <= b) {
      ahead += f;
      add(true);
    } else {
      add(false);
      ahead -= b - f;
      add(true);
    }
  }
  offsets.resize(static_cast<std::size_t>(ranks));
  std::ranges::reverse(offsets);
  return offsets;
}

Schedule vocabulary_one_f_one_b(const PipeShape& shape,
                                const std::vector<VocabularyOffset>& offsets) {
  HEDDLE_CHECK(offsets.size() == static_cast<std::size_t>(shape.ranks), "{} offsets for {} ranks",
               offsets.size(), shape.ranks);
  Schedule schedule = looped(shape);
  schedule.vocabulary = shape.vocabulary;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    VocabularyRank(shape, rank, offsets.front().warm_up, schedule.by_rank[index])
        .run(offsets[index]);
  }
  return schedule;
}

Schedule vocabulary_one_f_one_b(const PipeShape& shape) {
  return vocabulary_one_f_one_b(shape, vocabulary_offsets(shape.ranks, 1.0, 2.0));
}

}  // namespace heddle::generators
