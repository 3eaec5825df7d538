// A pass over experts on other ranks is what its list says, in its order, and rows come back
// whichever lanes carry them.

#include "nn/experts/pass_walk.h"

#include <gtest/gtest.h>

#include <mutex>
#include <numeric>

#include "comm/threads/thread_world.h"
#include "nn/layer_testing.h"
#include "ops/elementwise.h"

namespace heddle {
namespace {

using Kind = ExpertsTask::Kind;

constexpr int kEp = 2, kEtp = 2;
constexpr std::int64_t kExperts = 4, kRows = 23, kWidth = 3;

/// One rank with the ways of its rows: each has other numbers of them for each expert.
class Walked {
 public:
  Walked(World& world, const ExchangePlan& plan, bool in_background)
      : ep_(world.all().split(world.rank() % kEtp, world.rank(), "ep")),
        etp_(world.all().split(world.rank() / kEtp, world.rank(), "etp")),
        exchange_(
            {.ep = ep_.get(),
             .etp = etp_.get(),
             .choice = std::make_shared<ExchangeChoice>(ExchangeRequest(plan, kEtp), kEtp, kEp)},
            kExperts, "block 0") {
    for (Communicator* const lane : {ep_.get(), etp_.get()}) lane->run_in_background(in_background);
    const Tensor offsets_E1 = ctx_.workspace({kExperts + 1}, DType::i32);
    const std::int32_t begins[] = {0, 5, 5 + world.rank(), 16, kRows};
    std::ranges::copy(begins, offsets_E1.host<std::int32_t>().begin());
    ways_ =
        exchange_.ways(exchange_.decide(offsets_E1, kRows, ctx_), plan.degree_forward, kRows, ctx_);
  }

  /// Rows of numbers that no two have in common, there and back; experts double them, and those
  /// that share one add up to the same.
  std::vector<double> pass(const std::function<void(std::size_t)>& computed = {}) {
    const Tensor rows = memory_.alloc({kRows, kWidth}, DType::f64, MemoryTag::activations);
    std::iota(rows.host<double>().begin(), rows.host<double>().end(), 1.0);
    const auto expert = [&](std::size_t piece, const std::vector<Tensor>& arrived) {
      if (computed) computed(piece);
      const Tensor made = ctx_.activation(arrived[0].shape(), DType::f64);
      ops::copy(arrived[0], made, stream_);
      for (double& value : made.host<double>()) value *= 2.0 / kEtp;
      return PassWalk::Loads{{made}};
    };
    return values_of(
        PassWalk(exchange_, ways_, ctx_).run({{rows}}, true, {.expert = expert}).home_R.front());
  }
  const ExpertExchange::Ways& ways() const { return ways_; }

 private:
  Memory memory_;
  Stream stream_{1};
  const MicroBatch none_;
  Ctx ctx_{.stream = stream_, .memory = memory_, .batch = none_};
  const std::unique_ptr<Communicator> ep_, etp_;
  const ExpertExchange exchange_;
  ExpertExchange::Ways ways_;
};

ExchangePlan plan_of(int degree, int networks) {
  return {.r = kEtp, .degree_forward = degree, .degree_backward = degree, .networks = networks};
}

struct Event {
  std::string what;
  std::int64_t rows;
  bool operator==(const Event&) const = default;
};
void PrintTo(const Event& event, std::ostream* out) { *out << event.what << " " << event.rows; }

/// What the list says that a rank does: calls by group and rows, and products by piece.
std::vector<Event> listed(const ExpertsPass& pass, const ExpertExchange::Ways& ways) {
  std::vector<Event> events;
  for (const ExpertsTask& task : pass) {
    const auto& piece = ways.pieces[static_cast<std::size_t>(task.chunk)];
    switch (task.kind) {
      case Kind::dispatch: events.push_back({"ep", piece.to - piece.from}); break;
      case Kind::gather: events.push_back({"etp", kEtp * piece.received_rows()}); break;
      case Kind::expert: events.push_back({"expert", task.chunk}); break;
      case Kind::scatter: events.push_back({"etp", piece.end - piece.begin}); break;
      case Kind::combine: events.push_back({"ep", piece.received_rows()}); break;
      case Kind::gradients:
      case Kind::weights: ADD_FAILURE() << "not in this pass";
    }
  }
  return events;
}

TEST(PassWalk, DoesTheTasksOfTheListInItsOrder) {
  for (const int networks : {1, 2}) {
    for (const int degree : {1, 2, 4}) {
      // With one network, what etp does is begun by the lane of ep, beside the rank's own thread.
      for (const bool in_background : {false, true}) {
        if (in_background && networks == 1) continue;
        run_ranks(kEp * kEtp, [&](World& world) {
          Walked walked(world, plan_of(degree, networks), in_background);
          std::vector<Event> done;
          FlightRecorder& flight = world.all().flight();
          flight.set_hook([&](const CommCall& call) {
            if (call.op == CommOp::all_to_all) done.push_back({call.group_name, call.shape[0]});
            return true;
          });
          walked.pass([&](std::size_t piece) {
            done.push_back({"expert", static_cast<std::int64_t>(piece)});
          });
          flight.set_hook({});
          const ExpertsPass pass =
              make_experts_pass({.degree = degree, .has_one_network = networks == 1});
          EXPECT_EQ(done, listed(pass, walked.ways())) << degree << " on " << networks;
        });
      }
    }
  }
}

TEST(PassWalk, BringsEveryRowBackOverAnyLanes) {
  std::vector<double> expected(kRows * kWidth);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = 2.0 * static_cast<double>(i + 1);
  for (const int networks : {1, 2}) {
    for (const int degree : {1, 3, 8}) {
      for (const int r : {1, kEtp}) {
        for (const int node : {1, 2}) {
          run_ranks(kEp * kEtp, [&](World& world) {
            ExchangePlan plan = plan_of(degree, networks);
            plan.r = r;
            plan.node = node;
            Walked walked(world, plan, true);
            // What the ranks of etp make of a row adds up; r = 1: one rank makes it.
            const std::vector<double> home = walked.pass();
            // Rows lie as the pieces take them, there and back.
            for (std::size_t i = 0; i < home.size(); ++i) {
              ASSERT_EQ(home[i] * kEtp / r, expected[i]) << degree << " on " << networks;
            }
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace heddle
