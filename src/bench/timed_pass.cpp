#include "bench/timed_pass.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "bench/timed_walk.h"

namespace heddle {
namespace {

void wait_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

class TimedBackend final : public CommBackend {
 public:
  TimedBackend(std::shared_ptr<CommBackend> inner, std::function<double(int)> seconds, CommOp op)
      : CommBackend(inner->rank(), inner->group()),
        inner_(std::move(inner)),
        seconds_(std::move(seconds)),
        op_(op) {}

  void run(const Collective& call) override {
    if (call.op == op_) {
      wake_in_time();
      wait_for(seconds_(made_++));
    }
    inner_->run(call);
  }
  void send(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) override {
    inner_->send(data, peer, tag, std::move(done));
  }
  void recv(const Tensor& data, int peer, int tag, std::shared_ptr<WorkState> done) override {
    inner_->recv(data, peer, tag, std::move(done));
  }
  std::shared_ptr<CommBackend> split(int color, int key, std::int64_t sequence) override {
    return inner_->split(color, key, sequence);
  }
  void abort(std::string_view why) noexcept override { inner_->abort(why); }
  std::shared_ptr<WorldFailure> failure() const override { return inner_->failure(); }

 private:
  const std::shared_ptr<CommBackend> inner_;
  const std::function<double(int)> seconds_;
  const CommOp op_;
  int made_ = 0;
};

}  // namespace

ExpertNodes::ExpertNodes(World& world, int per_node)
    : ep(world.all().split(world.rank() % per_node, world.rank(), "ep")),
      etp(world.all().split(world.rank() / per_node, world.rank(), "etp")) {}

void ExpertNodes::run_in_background() const {
  ep->run_in_background(true);
  etp->run_in_background(true);
}

TimedExpertsPass::TimedExpertsPass(const ExpertNodes& nodes, std::int64_t rows, std::int64_t width,
                                   const ExchangePlan& plan, int loads)
    : nodes_(nodes),
      rows_(rows),
      width_(width),
      loads_(loads),
      exchange_(
          {.ep = nodes.ep.get(),
           .etp = nodes.etp.get(),
           .choice = std::make_shared<ExchangeChoice>(ExchangeRequest(plan, nodes.etp->size()),
                                                      nodes.etp->size(), nodes.ep->size())},
          nodes.ep->size(), "timed experts") {
  const std::int64_t experts = nodes.ep->size();
  const Tensor offsets_E1 = ctx_.workspace({experts + 1}, DType::i32);
  for (std::int64_t e = 0; e <= experts; ++e) {
    offsets_E1.host<std::int32_t>()[static_cast<std::size_t>(e)] =
        static_cast<std::int32_t>(rows * e / experts);
  }
  ways_ = exchange_.ways(exchange_.decide(offsets_E1, rows, ctx_),
                         loads == 1 ? plan.degree_forward : plan.degree_backward, rows, ctx_);
}

void TimedExpertsPass::walk(const ExpertWaits& waits, IdleNetwork* idle) const {
  PassWalk::Loads there;
  const auto load = [&](std::int64_t width, ExpertExchange::Content content) {
    there.push_back({memory_.zeros({rows_, width}, DType::f32, MemoryTag::activations), content});
  };
  if (loads_ == 2) load(1, ExpertExchange::Content::numbers);
  load(width_, ExpertExchange::Content::rows);
  const auto expert = [&](std::size_t, const std::vector<Tensor>& arrived) {
    wait_for(waits.expert);
    PassWalk::Loads made;
    for (const Tensor& rows : arrived) {
      made.push_back({rows, rows.size(1) == 1 ? ExpertExchange::Content::numbers
                                              : ExpertExchange::Content::rows});
    }
    return made;
  };
  PassWalk::Computing computing{.expert = expert, .idle = idle};
  if (waits.weights > 0.0) {
    computing.weights = [&](const std::vector<Tensor>&) { wait_for(waits.weights); };
  }
  wake_in_time();
  PassWalk(exchange_, ways_, ctx_).run(std::move(there), true, computing);
}

double TimedExpertsPass::run(const ExpertWaits& waits, IdleNetwork* idle) const {
  wake_in_time();
  nodes_.etp->barrier();
  nodes_.ep->barrier();
  const Stopwatch watch;
  walk(waits, idle);
  return watch.seconds();
}

std::unique_ptr<Communicator> with_timed_exchanges(const Communicator& ranks,
                                                   std::function<double(int)> seconds, CommOp op) {
  return std::make_unique<Communicator>(
      std::make_shared<TimedBackend>(ranks.backend(), std::move(seconds), op),
      ranks.shared_flight(), ranks.name());
}

}  // namespace heddle
