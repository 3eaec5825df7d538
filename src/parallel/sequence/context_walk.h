#pragma once

#include <vector>

#include "comm/communicator.h"
#include "nn/context.h"
#include "ops/at_once.h"
#include "ops/attention.h"
#include "parallel/sequence/attention_meter.h"
#include "parallel/sequence/piece_tensors.h"

namespace heddle {

/// Carries out one pass of a rank's attention: sends, receives, calls kernels, adds up.
class ContextWalk {
 public:
  struct Setting {
    const ContextProgram& program;
    ContextPassKind pass = ContextPassKind::forward;
    std::int64_t head_dim = 0;
    ops::ScoreRule rule = 1.0;
    DType dtype = DType::f32;  ///< of activations; what is added up is statistics_of(dtype)
    Tensor output = {};        ///< backward: of the share, complete; [1, tokens, heads, K]
    int layer = 0;             ///< whose attention it is, for the meter
    AttentionMeter* meter = nullptr;
  };
  /// `own` are the tensors of the rank's own pieces and of what it holds, by the program's numbers.
  /// What those of results hold does not matter.
  ContextWalk(const Setting& setting, std::vector<PieceTensors> own, Communicator& ranks, Ctx& ctx);
  virtual ~ContextWalk() = default;

  void run();
  /// Only what brings q, k and v of the share here.
  void fill_share();

 protected:
  /// Calls the kernel; timings may wait in its place.
  virtual void compute(const TileCall& call);

 private:
  /// A message that was begun.
  struct UnderWay {
    const Transfer& transfer;
    PieceTensors tensors;
    std::vector<Work> works = {};
  };

  DType wide() const { return statistics_of(setting_.dtype); }
  const Piece& described(int index) const {
    return setting_.program.pieces[static_cast<std::size_t>(index)];
  }
  PieceTensors& piece(int index) { return pieces_[static_cast<std::size_t>(index)]; }
  PieceTensors box(const PieceRows& rows);
  /// Memory for a piece that begins here, or for what a message carries, laid out as it travels.
  PieceTensors allocate(PieceKind kind, std::int64_t tokens, std::int64_t heads, DType dtype) const;
  PieceTensors allocate(const Message& message, DType dtype) const;
  DType travels_as(const Message& message) const;

  /// Makes results those over no keys, unless their first call writes them.
  void clear(int index);
  void clear_rows(PieceTensors& results);
  /// dQ whose calls can be added up as sums begins with these; whether it does.
  bool begin_sums(int index);
  /// dQ from its sums, which end.
  void end_sums(int index);
  static void copy(const PieceTensors& from, const PieceTensors& to,
                   std::vector<ops::Copied>& copied);
  /// What is added to the same rows, one after the other.
  struct Added {
    PieceRows to;
    std::vector<PieceTensors> from;
  };
  /// Outputs are merged by lse where both have one, everything else is summed.
  void add(const std::vector<Added>& all);
  /// Calls visit(part of the message, the same rows of a piece) for all rows of the transfer.
  template <class Visit>
  void for_each_part(const Transfer& transfer, const PieceTensors& message, const Visit& visit);

  /// The rows of a message, of which the copies are still to be made.
  PieceTensors put_together(const Transfer& transfer, std::vector<ops::Copied>& copied);
  /// The same, or a piece as it is; `sent` are the round's messages so far.
  PieceTensors what_is_sent(const Transfer& transfer, const std::vector<UnderWay>& sent,
                            std::vector<ops::Copied>& copied);
  UnderWay receive(const Transfer& transfer);
  /// What has come becomes a piece, or goes into the rows of others: given rows at once, results
  /// when the round says so.
  void put_away(UnderWay& received);
  void put_waiting_away();
  /// The messages of a round, or only those that bring q, k and v of shares.
  struct Exchange {
    std::vector<UnderWay> received, sent;
  };
  Exchange begin(const ProgramRound& round, bool only_share);
  /// Waits for all of them, and puts away what has come.
  void end(Exchange& exchange, bool puts_away);
  void walk();
  using Seconds = std::array<double, 2> AttentionTimes::*;
  /// Does the work, and adds what it took where the meter is on.
  template <class Do>
  void timed(Seconds which, const Do& work);
  void join_keys(const ProgramRound& round);
  void take_own_key_grads(const ProgramRound& round);
  void play(const ProgramRound& round);
  /// The rank's own tokens from what it holds into its share, and results back.
  void take_own();
  void bring_own_home();

  const Setting setting_;
  Communicator& ranks_;
  Ctx& ctx_;
  std::vector<PieceTensors> pieces_;
  std::vector<UnderWay> waiting_;  // results that have come and are still to be added
};

}  // namespace heddle
