#include "train/recording.h"

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/quantile.h"
#include "base/strings.h"
#include "comm/agree.h"
#include "observe/machine.h"
#include "observe/sinks/console.h"
#include "observe/sinks/jsonl.h"
#include "observe/sinks/tensorboard.h"
#include "observe/starts.h"
#include "tensor/transfer.h"

namespace heddle {
namespace {

void add_traffic(MeshTraffic& sum, MeshTraffic more) {
  sum.with(more, [](const char*, CommCounts& a, const CommCounts& b) { a += b; });
}

bool has_lossless(const Compression& compression) {
  return std::ranges::any_of(kCompressionKinds, [&](Compression::Kind kind) {
    const auto codec = compression.codec(kind);
    return codec != nullptr && codec->is_lossless();
  });
}

}  // namespace

Recording::Recording(const RunSetup& setup, Session& session,
                     std::optional<std::int64_t> resumed_at)
    : setup_(setup),
      session_(session),
      attention_record_(setup, session),
      speeds_(rank_work(setup.config, setup.spec, setup.plan)) {
  if (setup.is_first) {
    const TrainOptions& options = setup.options;
    observe::record_start(setup.folder / "starts.jsonl", {.step = resumed_at.value_or(0),
                                                          .time = utc_time(),
                                                          .host = observe::host_name(),
                                                          .device = device_name(options.device),
                                                          .version = options.program_version,
                                                          .command = options.command,
                                                          .ranks = setup.world.size(),
                                                          .threads = options.threads});
    open_files(resumed_at);
  }
  open_trace(resumed_at);
}

Recording::Recording(const RunSetup& setup, Session& session, const RunState& state, Kept kept,
                     const std::optional<Step>& last)
    : setup_(setup),
      session_(session),
      kept_(std::move(kept)),
      attention_record_(setup, session),
      speeds_(rank_work(setup.config, setup.spec, setup.plan)) {
  if (setup.is_first) {
    open_files(state.step);
    const observe::Curve written = observe::read_history(setup.folder / "metrics.jsonl").loss;
    const std::int64_t newest = written.empty() ? 0 : written.back().step;
    if (last && newest + 1 == state.step) write_step(state, *last);
  }
  open_trace(state.step);
}

void Recording::open_trace(std::optional<std::int64_t> resumed_at) {
  const RunSetup& setup = setup_;
  step_time_.predicted = setup.predicted_seconds;
  has_residuals_ = session_.model.store().residuals().has_value();
  if (is_timed() && setup.plan.divides_experts()) exchanges_ = std::make_shared<ExchangeMeter>();
  if (!setup.config.observe.trace) return;
  trace_ = std::make_shared<StepTrace>(setup.keepers(), setup.placed.rank(), setup.step_schedule());
  if (!setup.is_first) return;
  trace_parts_.emplace(setup.folder / "trace", resumed_at.value_or(0),
                       static_cast<std::uint64_t>(setup.config.observe.trace_limit));
}

void Recording::open_files(std::optional<std::int64_t> resumed_at) {
  const TrainOptions& options = setup_.options;
  sinks_.add(std::make_unique<observe::ConsoleSink>(observe::ConsoleOptions{
      .terminal = options.terminal, .line_every = setup_.config.observe.console_every}));
  sinks_.add(std::make_unique<observe::JsonlSink>(setup_.folder / "metrics.jsonl", resumed_at));
  if (setup_.config.observe.tensorboard) {
    sinks_.add(std::make_unique<observe::TensorBoardSink>(setup_.folder, resumed_at));
  }
}

void Recording::watch(TrainStep& step) {
  step.observe([this](const Action& action, double begin, double end) {
    recorder_.add(action, begin, end);
    if (trace_) trace_->add(action, begin, end);
  });
  if (setup_.placed.size() == 1) return;
  const auto& given = setup_.options.block_clock;
  step.time_blocks(given ? make_host_clock(given) : make_stream_clock(session_.stream));
}

Recording::~Recording() { setup_.keepers().all().flight().set_observer({}); }

void Recording::watch_calls() {
  if (!exchanges_ && !trace_) return;
  setup_.keepers().all().flight().set_observer(
      [exchanges = exchanges_, trace = trace_](const CommCall& call) {
        if (exchanges) exchanges->add(call);
        if (trace) trace->add_call(call);
      });
}

void Recording::begin_step(std::int64_t step) {
  recorder_.begin_step();
  before_ = session_.mesh.traffic();
  session_.memory.reset_peak();  // what saving and evaluating take is not the step's
  if (trace_) trace_->begin_step(step);
  attention_record_.begin_step();
  watch_calls();
}

void Recording::end_step(const RunState& state, const Step& step) {
  setup_.keepers().all().flight().set_observer({});
  attention_record_.end_step();
  if (exchanges_) exchanges_->end_step();
  newest_step_ = state.step;
  add_traffic(kept_.counted, session_.mesh.traffic() - before_);
  MeshTraffic expected = expected_traffic(step.result);
  expected.on(Axis::site) = outer_traffic(setup_.plan, session_.model.units(), state.step);
  add_traffic(kept_.expected, expected);
  const MemoryStats stats = session_.memory.stats();
  if (stats.peak > kept_.largest_step.peak) kept_.largest_step = stats;
  kept_.step_seconds.push_back(step.seconds);
  pace_.add(step.seconds);
  const auto paces = speeds_.add(state.step, step.result.block_seconds, step.seconds);
  if (!setup_.is_first) return;
  write_step(state, step);
  if (!paces.empty()) sinks_.on_event(paces);
}

bool Recording::has_line(std::int64_t step) const {
  return step % std::max<std::int64_t>(1, setup_.config.observe.console_every) == 0;
}

void Recording::write_step(const RunState& state, const Step& step) {
  const config::RunConfig& config = setup_.config;
  const MemoryStats stats = session_.memory.stats();
  const std::vector<double>& times = step.result.block_seconds;
  const bool is_timed = std::ranges::any_of(times, [](double seconds) { return seconds > 0; });
  const bool has_targets = step.result.targets > 0;
  if (!has_targets && !std::exchange(has_said_no_targets_, true)) {
    log_warn(
        "step {}: none of its tokens is to be learnt, so it has no loss; later ones like it "
        "are not named",
        state.step);
  }
  sinks_.on_step(
      {.step = state.step,
       .steps_total = config.total_steps(),
       .tokens = state.tokens,
       .loss = has_targets ? step.result.loss : std::numeric_limits<double>::quiet_NaN(),
       .site = session_.outer ? setup_.sites.of(session_.mesh) : -1,
       .grad_norm = step.result.grad_norm,
       .lr = step.lr,
       .step_seconds = step.seconds,
       .tokens_per_second = static_cast<double>(setup_.tokens_per_step()) / step.seconds,
       .mfu = std::nullopt,
       .data_wait_seconds = step.data_wait_seconds,
       .memory_bytes = setup_.options.device.kind == Device::Kind::cpu
                           ? observe::process_resident_bytes()
                           : stats.reserved,
       .memory_limit_bytes = 0,
       .eta_seconds = pace_.eta_seconds(config.total_steps() - state.step),
       .residual = residual(state.step, step.result.grad_norm),
       .expert_load = expert_load(state.step, step.result),
       .block_seconds = has_line(state.step) && is_timed ? times : std::vector<double>()});
}

std::vector<observe::ExpertLoad> Recording::expert_load(std::int64_t step,
                                                        const StepResult& result) const {
  const ModelSpec& spec = setup_.spec;
  if (result.expert_load.empty() || (!has_line(step) && step != 1)) return {};
  std::vector<observe::ExpertLoad> layers;
  auto from = result.expert_load.begin();
  const auto next = [&] { return static_cast<std::int64_t>(*from++); };
  for (std::int64_t block = 0; block < spec.layers; ++block) {
    if (spec.expert_layers_before(block + 1) == spec.expert_layers_before(block)) continue;
    observe::ExpertLoad& layer = layers.emplace_back();
    layer.layer = block;
    for (std::int64_t e = 0; e < spec.experts->count; ++e) layer.counts.push_back(next());
    layer.dropped = next();
    layer.lost_tokens = next();
  }
  return layers;
}

std::optional<double> Recording::residual(std::int64_t step, double grad_norm) {
  const ParamStore& store = session_.model.store();
  if (!has_line(step) || !has_residuals_ || !(grad_norm > 0)) return std::nullopt;
  const Tensor squares = session_.memory.zeros({1}, DType::f64, MemoryTag::workspace);
  store.add_residual_squares(squares, session_.stream);
  return std::sqrt(to_host(squares, session_.stream).host<double>()[0]) / grad_norm;
}

const MeshTraffic& Recording::expected_traffic(const StepResult& result) {
  const StepPlan& plan = setup_.step_plan;
  if (result.is_warming_up) return plan.traffic;
  return std::exchange(was_warming_up_, false) ? plan.later->first : plan.later->traffic;
}

void Recording::update_skipped(std::int64_t step, const std::string& reason) {
  kept_.warnings.push_back(reason);
  sinks_.on_event(observe::UpdateSkipped{.step = step, .reason = reason});
}

void Recording::evaluated(const RunState& state, const EvalResult& result) {
  sinks_.on_eval({.step = state.step,
                  .tokens = state.tokens,
                  .loss = result.loss,
                  .perplexity = result.perplexity(),
                  .sources = result.source_losses()});
}

Recording::Kept Recording::take_kept() {
  if (session_.outer) {
    kept_.exchanges += session_.outer->exchanges();
    kept_.waited_seconds += session_.outer->waited_seconds();
  }
  return std::move(kept_);
}

void Recording::sampled(observe::SampleText sample) {
  kept_.samples.push_back(std::move(sample));
  sinks_.on_event(kept_.samples.back());
}

void Recording::sites_met(std::int64_t step, const std::vector<SiteNote>& notes) {
  observe::SitesMet met{.step = step,
                        .loss = 0.0,
                        .sites = setup_.sites.all(static_cast<int>(notes.size())),
                        .losses = {},
                        .waited = {}};
  for (const SiteNote& note : notes) {
    met.losses.push_back(note.loss);
    met.waited.push_back(note.waited);
    met.loss += note.loss / static_cast<double>(notes.size());
  }
  sinks_.on_event(met);
  name_slow_site(met);
}

void Recording::name_slow_site(const observe::SitesMet& met) {
  const double window = since_met_.seconds();
  since_met_.restart();
  std::vector<double> waited = met.waited;
  waited_before_.resize(waited.size());
  for (std::size_t i = 0; i < waited.size(); ++i) waited[i] -= waited_before_[i];
  waited_before_ = met.waited;
  const auto [least, most] = std::ranges::minmax_element(waited);
  constexpr double kMuch = 0.1, kNoticed = 0.1;  // of the window; seconds
  const double seconds = *most - *least;
  if (seconds <= std::max(kMuch * window, kNoticed)) return;
  sinks_.on_event(
      observe::SiteWasSlow{.step = met.step,
                           .site = met.sites[static_cast<std::size_t>(least - waited.begin())],
                           .seconds = seconds,
                           .window = window});
}

void Recording::event(const observe::RunEvent& event) { sinks_.on_event(event); }

void Recording::write_full_trace() {
  if (!trace_) return;
  const double is_full = trace_->is_part_full() ? 1 : 0;
  if (setup_.keepers().here().all().combine(is_full, ReduceOp::max) != 0) write_trace();
}

void Recording::write_trace() {
  const observe::Trace all = trace_->gather();
  if (!setup_.is_first) return;
  try {
    trace_parts_->add(all);
  } catch (const Error& error) {
    if (std::exchange(trace_has_failed_, true)) return;
    log_warn("the trace lacks steps before {}, training goes on: {}", newest_step_, error.what());
  }
}

void Recording::finish(const RunState& state) {
  collect_memory();
  compare_sites();
  attention_ = attention_record_.gather();
  if (exchanges_) expert_exchanges_ = exchanges_->gather(setup_.placed);
  if (setup_.plan.mesh.size(Axis::pp) > 1 && is_timed()) {
    timelines_ = step_timelines(recorder_, setup_.step_schedule(), session_.mesh.comm(Axis::pp),
                                session_.memory, session_.stream);
  }
  if (trace_) write_trace();
  if (!setup_.is_first) return;
  sinks_.close();
  compare_step();
  if (setup_.config.observe.report) write_report(state);
}

/// The peaks of all ranks, for the report.
void Recording::collect_memory() {
  World& world = setup_.placed;
  if (world.size() == 1) return;
  const std::array own = {static_cast<double>(setup_.step_plan.memory.peak),
                          static_cast<double>(kept_.largest_step.peak)};
  const std::vector<double> peaks = numbers_of_all(world, own);
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto at = static_cast<std::size_t>(2 * rank);
    ranks_.push_back({.rank = rank,
                      .predicted_bytes = static_cast<std::uint64_t>(peaks[at]),
                      .measured_bytes = static_cast<std::uint64_t>(peaks[at + 1])});
  }
}

void Recording::compare_sites() {
  if (!session_.outer) return;
  const int sites = session_.mesh.size(Axis::site);
  double exchanges = static_cast<double>(kept_.exchanges + session_.outer->exchanges()), most = 0.0;
  exchanges = setup_.world.all().combine(exchanges, ReduceOp::max);
  const double own = kept_.waited_seconds + session_.outer->waited_seconds();
  std::string text;
  for (int site = 0; site < sites; ++site) {
    const bool is_here = site == session_.mesh.coord(Axis::site);
    const double waited = setup_.world.all().combine(is_here ? own : 0.0, ReduceOp::max);
    text +=
        fmt::format("{}site {} {:.1f} s", text.empty() ? "" : ", ", setup_.sites.at(site), waited);
    most = std::max(most, waited);
  }
  if (!setup_.is_first) return;
  constexpr double kMuch = 0.1;
  const double seconds = std::accumulate(kept_.step_seconds.begin(), kept_.step_seconds.end(), 0.0);
  text = fmt::format("waited for other sites in {} exchanges during {:.1f} s: {}", exchanges,
                     seconds, text);
  log_info("{}", text);
  if (most > kMuch * seconds) kept_.warnings.push_back(text);
}

/// What codecs made of the first rank's traffic, where there are any.
void Recording::compare_traffic() const {
  const auto total = [](MeshTraffic traffic) {
    CommCounts::Entry sum;
    traffic.with(traffic, [&](const char*, const CommCounts& counts, const CommCounts&) {
      for (std::size_t op = 0; op < kCommOps; ++op) {
        if (static_cast<CommOp>(op) == CommOp::recv) continue;
        const auto& [calls, payload, wire] = counts.by_op[op];
        sum.add(calls, payload, wire);
      }
    });
    return sum;
  };
  const CommCounts::Entry counted = total(kept_.counted), predicted = total(kept_.expected);
  if (counted.wire_bytes == counted.payload_bytes) return;
  const auto steps = static_cast<double>(std::max<std::size_t>(1, kept_.step_seconds.size()));
  const auto text = [&](std::int64_t bytes) {
    return format_bytes(static_cast<double>(bytes) / steps);
  };
  log_info("a step sent {} for a payload of {}, {} for {} predicted", text(counted.wire_bytes),
           text(counted.payload_bytes), text(predicted.wire_bytes), text(predicted.payload_bytes));
}

/// What was predicted of a step, beside what came of it.
void Recording::compare_step() {
  if (kept_.step_seconds.empty()) return;
  compare_traffic();
  // The first one also takes its memory from the system.
  if (kept_.step_seconds.size() > 1) kept_.step_seconds.erase(kept_.step_seconds.begin());
  step_time_.measured = quantile(kept_.step_seconds, 0.5);
  step_time_.mean = mean_between_meetings();
  log_info("a step held {} at its peak, {} predicted",
           format_bytes(static_cast<double>(kept_.largest_step.peak)),
           format_bytes(static_cast<double>(setup_.step_plan.memory.peak)));
  if (attention_ && attention_->is_timed) log_info("{}", describe(*attention_));
  if (!step_time_.predicted) return;
  log_info("a step took {:.3g} s in the {}, {:.3g} s predicted ({:+.1f} %)", step_time_.compared(),
           step_time_.mean ? "mean" : "median", *step_time_.predicted,
           100 * (*step_time_.predicted / step_time_.compared() - 1));
}

/// Steps of sites take longer where they meet, which they do not in the first `every` of a run:
/// the mean over the last whole windows behind those. None where there are no sites, or too few
/// steps.
std::optional<double> Recording::mean_between_meetings() const {
  if (!session_.outer) return std::nullopt;
  const auto every = static_cast<std::size_t>(setup_.plan.policy.outer.every);
  const std::size_t windows = kept_.step_seconds.size() / every;
  if (windows < 2) return std::nullopt;
  const auto steps = static_cast<std::ptrdiff_t>((windows - 1) * every);
  return std::accumulate(kept_.step_seconds.end() - steps, kept_.step_seconds.end(), 0.0) /
         static_cast<double>(steps);
}

void Recording::write_report(const RunState& state) const {
  RunSummary summary{.name = setup_.config.run.name,
                     .settings = setup_.options.settings,
                     .step_time = step_time_,
                     .predicted = setup_.step_plan.memory,
                     .measured = kept_.largest_step,
                     .best_possible_loss = std::nullopt,
                     .samples = kept_.samples,
                     .warnings = kept_.warnings,
                     .ranks = ranks_,
                     .timelines = timelines_,
                     .attention = attention_,
                     .expert_exchanges = expert_exchanges_,
                     .work = speeds_.work(),
                     .predicted_traffic = kept_.expected,
                     .counted_traffic = kept_.counted,
                     .masks_documents = setup_.config.data.documents == config::Documents::mask,
                     .has_lossless = has_lossless(setup_.plan.compress)};
  const auto& tokenizer = setup_.tokenizer.tokenizer;
  if (tokenizer && setup_.data.eval().eval_windows() > 0) {
    summary.best_possible_loss = best_demo_loss(setup_.data.eval(), *tokenizer);
  }
  if (summary.best_possible_loss && state.eval_loss) {
    log_info("held-out loss {:.4f}; the best possible on this text is {:.4f}", *state.eval_loss,
             *summary.best_possible_loss);
  }
  write_run_report(setup_.folder, setup_.spec, state, summary);
  log_info("report: {}", (setup_.folder / "report.html").string());
}

}  // namespace heddle
