#pragma once

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "nn/context.h"

namespace heddle {

/// An all-to-all by rows in two levels (2DH): first within the nodes, where each neighbour gets
/// what goes to the ranks of its own place in all nodes, then between the ranks of one place. So a
/// rank sends to as many others as there are nodes and neighbours, in messages that are as many
/// times larger. Every row lies where a plain all_to_all would put it, whatever the shape of the
/// nodes.
class TwoLevel {
 public:
  /// `ranks` is a multiple of `node` and outlives it.
  TwoLevel(Communicator& ranks, int node);

  /// rows[from][to]: of all ranks, the same everywhere.
  using Counts = std::vector<std::vector<std::int64_t>>;

  /// Rows under way, with what is held until they are there.
  struct Arriving {
    Tensor rows;
    Work work;
    std::vector<Tensor> held;
  };
  /// As Communicator::all_to_all of `sent`, in the order of ranks: behind what the communicator was
  /// given before. `row_payload`: of a codec's bytes, those that a row stands for, for counts; 0:
  /// the row is the payload.
  Arriving exchange(const Tensor& sent, const Counts& rows, std::int64_t row_payload,
                    Ctx& ctx) const;

 private:
  /// Rows in the order of a list of (from, to), out of the order of another one with the same rows.
  struct Message {
    int from, to;
    bool operator==(const Message&) const = default;
  };
  Tensor regrouped(const Tensor& rows, const std::vector<Message>& have,
                   const std::vector<Message>& wanted, const Counts& counts, Ctx& ctx) const;

  Communicator& ranks_;
  const int node_, nodes_;
};

}  // namespace heddle
