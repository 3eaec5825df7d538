#include "train/epochs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "comm/agree.h"
#include "model/given_cut.h"
#include "model/parallel_plan.h"
#include "recover/neighbour_source.h"
#include "tensor/memory.h"
#include "train/rank_agreement.h"
#include "train/residuals.h"
#include "train/stage_recovery.h"

namespace heddle {
namespace {

constexpr int kEndTag = 2;
constexpr int kEndNumbers = 4;  // of Epochs::End

void refuse_if(bool is_asked, const std::string& what, const std::string& why,
               const std::string& hint) {
  if (!is_asked) return;
  throw Error(ErrorCode::usage,
              fmt::format("a run that outlives its ranks does not go with {}: {}", what, why),
              hint);
}

/// What goes with one site only, in a run that outlives its ranks.
void require_outliving_sites(const config::RunConfig& config) {
  if (config.parallel.sites == 1) return;
  const auto refuse = [&](bool is_asked, const std::string& what, const std::string& why,
                          const std::string& hint) {
    refuse_if(is_asked, fmt::format("parallel.sites = {} and {}", config.parallel.sites, what), why,
              hint);
  };
  refuse(config.recover.copies > 0, "recover.copies = 1",
         "copies follow by summed gradients, and sites change weights by each other's too",
         "set recover.copies = 0: replicas (parallel.dp) and other sites have what is lost");
  refuse(config.recover.stages != config::LostStages::none, "recover.stages",
         "a lost stage is taken from another site", "set recover.stages = \"none\"");
  refuse(config.recover.recut, "recover.recut = true", "each site would find a cut of its own",
         "leave recover.recut out");
  refuse(keeps_unsent(config),
         config.optim.name == planner::Updates::onebit_adam
             ? "optim.name = \"onebit-adam\""
             : "compress.gradients with error feedback",
         "what encodings have lost is each rank's own, of one site",
         "set compress.error_feedback = false, or use \"adamw\", \"sgd\" or \"muon\"");
}

}  // namespace

void require_outliving(const config::RunConfig& config, const ModelSpec& spec) {
  // What cannot be taken again, or be given to others.
  require_outliving_sites(config);
  const ParallelRequest& parallel = config.parallel;
  refuse_if(parallel.divides_experts() && keeps_unsent(config),
            fmt::format("parallel.{} = {} and {}", parallel.ep > 1 ? "ep" : "etp",
                        std::max(parallel.ep, parallel.etp),
                        config.optim.name == planner::Updates::onebit_adam
                            ? "optim.name = \"onebit-adam\""
                            : "compress.gradients with error feedback"),
            "gradients of experts are summed over other ranks than the rest, and so are residuals",
            "use dp, tp or pp: experts then lie as other layers do; or set "
            "compress.error_feedback = false");
  refuse_if(
      config.optim.name == planner::Updates::muon && (parallel.zero > 0 || parallel.tp > 1),
      fmt::format("optim.name = \"muon\" and parallel.{}",
                  parallel.tp > 1 ? fmt::format("tp = {}", parallel.tp)
                                  : fmt::format("zero = {}", parallel.zero)),
      "an update that brings divided matrices together needs ranks that may be lost meanwhile",
      "set parallel.zero = 0 and parallel.tp = 1, or use \"adamw\" or \"sgd\"");
  const bool sends_signs = config.optim.name == planner::Updates::onebit_adam;
  refuse_if(sends_signs && config.recover.copies > 0,
            "optim.name = \"onebit-adam\" and recover.copies = 1",
            "copies follow by summed gradients, which it does not make behind its warm-up",
            "set recover.copies = 0; with parallel.zero = 0 replicas have what is lost");
  refuse_if(sends_signs && config.recover.stages != config::LostStages::none,
            "optim.name = \"onebit-adam\" and recover.stages",
            "a stage that is made anew has no second moment to freeze",
            "set recover.stages = \"none\", or use \"adamw\" or \"sgd\"");
  check_stage_recovery(config, spec);
}

Epochs::Epochs(recover::Company& company, const RunBasis& basis)
    : company_(company), basis_(basis) {
  require_outliving(basis.config, basis.spec);
}

void Epochs::meet(const MemberNews& own) {
  meeting_.emplace(all(), own);
  // Before anything follows from the run file, which newcomers bring with them.
  if (meeting_->has_state()) require_same_as_run(all(), basis_.identity);
}

void Epochs::arrange(const std::function<bool()>& is_told_to_end) {
  const config::RunConfig& config = basis_.config;
  LostState lost;
  recover::FormerStages stages;
  if (meeting_->has_state()) {
    const MemberNews& teller = meeting_->teller();
    lost = lost_state(*meeting_, checkfree_of(config));
    lost.losses.own_things = unsent_text(config, *teller.state, teller.place->mesh);
  }
  if (skips_stages(config)) {
    stages = {.count = lost.losses.stages,
              .nobodys = recover::stages_nobody_has(lost.pieces, lost.losses)};
  }
  recovery_ = {};
  if (meeting_->has_state()) {
    recovery_.whole_sites = recover::whole_sites(lost.pieces, lost.losses);
  }
  find_mesh({.stages = stages, .whole_sites = recovery_.whole_sites}, is_told_to_end);
  choose_recovery(std::move(lost));
  const auto& by_place = arrangement_.by_place;
  const auto own = std::ranges::find(by_place, all().rank());
  is_spare_ = own == by_place.end();
  const int color = is_spare_ ? 1 : 0;
  const int place = is_spare_ ? all().rank() : static_cast<int>(own - by_place.begin());
  members_ = std::make_unique<World>(all().all().split(color, all().rank(), "members"));
  placed_ = std::make_unique<World>(all().all().split(color, place, "world"));
  if (!is_spare_ && place != all().rank()) {
    all().flight().set_place(fmt::format("rank {} of the mesh", place));
  }
  config_ = config;
  config_.parallel = arrangement_.request;
  config_.train.tokens_per_step = config.tokens_per_step();
  config_.stages.cut = cut_for_stages();
}

void Epochs::find_mesh(const recover::Former& former, const std::function<bool()>& is_told_to_end) {
  const config::RunConfig& config = basis_.config;
  const std::int64_t microbatches =
      config.tokens_per_step() / (config.train.microbatch * config.data.seq_len);
  const auto refusal = [&](const ParallelRequest& request) {
    const auto problems = problems_of(basis_.spec, request, static_cast<int>(request.ranks()));
    return problems.empty() ? std::string() : problems.front().message;
  };
  // Blank micro-batches would count in the balance of routers.
  const auto shares = basis_.spec.experts ? recover::Shares::even : recover::Shares::any;
  try {
    arrangement_ = recover::mesh_for(config.parallel, meeting_->places(), microbatches, refusal,
                                     shares, former);
  } catch (const Error& error) {
    if (!meeting_->has_state()) throw_on_all(all(), error);
    wait_for_others(error, is_told_to_end);
  }
  too_few_since_.reset();
}

/// With what they have: it is carried into the next epoch as it was into this one. All have to hear
/// of who comes: it could not stay otherwise.
void Epochs::wait_for_others(const Error& refusal, const std::function<bool()>& is_told_to_end) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kLook = std::chrono::milliseconds(50);
  const double limit = basis_.config.recover.timeout;
  if (!too_few_since_) {
    too_few_since_ = Clock::now();
    if (all().rank() == 0) {
      log_warn(
          "{}; {}; waiting up to {:.0f} s for ranks that come (heddle launch --restart, heddle "
          "train --join)",
          epoch_.cause, refusal.message(), limit);
    }
  }
  const auto is_on_any = [&](bool own) {
    return all().all().combine(own ? 1 : 0, ReduceOp::max) != 0;
  };
  while (is_on_any(!company_.wants_change())) {
    const std::chrono::duration<double> waited = Clock::now() - *too_few_since_;
    if (is_on_any(waited.count() > limit || is_told_to_end())) throw_on_all(all(), refusal);
    std::this_thread::sleep_for(kLook);
  }
  company_.change();
  fail(ErrorCode::peer, "epoch {} has ended: newcomers are let in", epoch_.number);
}

/// The same on all members.
void Epochs::choose_recovery(LostState lost) {
  blocks_before_ = lost.losses.blocks;
  recovery_.left_out = lost.losses.left_out;
  recovery_.has_unsent = !lost.losses.own_things.empty();
  for (const int stage : arrangement_.left_out) {
    for (int i = 0; i < blocks_before_.count(stage); ++i) {
      recovery_.leaves_out.push_back(blocks_before_.begins[static_cast<std::size_t>(stage)] + i);
    }
  }
  lost.losses.leaves_out = arrangement_.left_out;
  lost.losses.sites_now = arrangement_.sites;
  const bool have_sites_come = meeting_->has_state() && lost.losses.sites_now != lost.losses.sites;
  if (!lost.is_anything_lost() && recovery_.left_out.empty() && !have_sites_come) return;
  try {
    recovery_.from = recover::choose_sources(lost.pieces, lost.losses);
  } catch (const Error& error) {
    // Of an epoch that begins the cause is told later.
    throw_on_all(all(), Error(error.code(), fmt::format("{}; {}", epoch_.cause, error.message()),
                              error.hint()));
  }
  if (recovery_.from.is_from_checkpoint()) recovery_.whole_sites.clear();
  recovery_.lost = recover::lost_blocks(recovery_.from.sources, blocks_before_);
}

KeptStages Epochs::kept_stages() const {
  KeptStages kept{.left_out = recovery_.leaves_out};
  if (!arrangement_.keeps_stages) return kept;
  kept.cut = recover::cut_without(blocks_before_, arrangement_.left_out);
  // Where the head is a stage of its own, it comes last.
  kept.cut.resize(step_schedule(config_.parallel, 1).rank_of_stage.size(), 0);
  return kept;
}

/// What the run has found last, or the run file says; neither where there are fewer stages now.
std::string Epochs::cut_for_stages() const {
  const bool has_found = meeting_->has_state() && !meeting_->teller().cut.empty();
  const std::string cut = has_found ? meeting_->teller().cut : basis_.config.stages.cut;
  const auto stages = step_schedule(config_.parallel, 1).rank_of_stage.size();
  return parse_cut(cut).size() == stages ? cut : "";
}

void Epochs::leave() {
  placed_.reset();
  members_.reset();
}

/// A rank that has heard of a loss gives up what is under way on its GPU, and what others then get
/// from it is not what they wait for. Who comes here over the host had not: all it has given to
/// others is whole.
void Epochs::decide(std::int64_t step, bool must_meet) {
  if (has_sites()) {
    is_asked_ = members_->all().combine(asks_() ? 1 : 0, ReduceOp::max) != 0;
  } else if (must_meet || basis_.options.device.kind != Device::Kind::cpu) {
    members_->all().barrier();
  }
  if (company_.finished(epoch_.step + step - first_step_)) return;
  fail(ErrorCode::peer, "epoch {} ended before step {} was decided here", epoch_.number, step);
}

Epochs::End Epochs::wait_as_spare(const std::function<void()>& look) const {
  Memory memory;
  Stream host(1);
  const Tensor end = memory.alloc({kEndNumbers}, DType::i64, MemoryTag::communication);
  const int teller = *std::ranges::min_element(arrangement_.by_place);
  const Work told = all().all().recv(end, teller, host, kEndTag);
  // Nobody waits in a call that may stay open for as long as the run: it is looked at.
  constexpr auto kLook = std::chrono::milliseconds(20);
  while (!told.done()) {
    std::this_thread::sleep_for(kLook);
    look();
    all().all().check();
  }
  told.wait(host);
  const auto numbers = end.host<std::int64_t>();
  return {.step = numbers[0],
          .stopped_by = static_cast<int>(numbers[1]),
          .checkpoint = numbers[2],
          .loss = std::bit_cast<double>(numbers[3])};
}

void Epochs::tell_spares(const End& end) const {
  if (all().rank() != *std::ranges::min_element(arrangement_.by_place)) return;
  Memory memory;
  Stream host(1);
  const Tensor numbers = memory.alloc({kEndNumbers}, DType::i64, MemoryTag::communication);
  const std::array<std::int64_t, kEndNumbers> told = {end.step, end.stopped_by, end.checkpoint,
                                                      std::bit_cast<std::int64_t>(end.loss)};
  std::ranges::copy(told, numbers.host<std::int64_t>().begin());
  for (const int spare : arrangement_.spares) {
    all().all().send(numbers, spare, host, kEndTag).wait(host);
  }
}

}  // namespace heddle
