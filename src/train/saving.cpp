#include "train/saving.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/json.h"
#include "checkpoint/adapter_folder.h"
#include "checkpoint/catalog.h"
#include "checkpoint/staging.h"
#include "comm/agree.h"
#include "train/residuals.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

Json to_json(const KeptTensor& tensor) {
  const auto sizes = tensor.shape.sizes();
  return Json::array({tensor.kind, tensor.name, static_cast<int>(tensor.dtype),
                      std::vector<std::int64_t>(sizes.begin(), sizes.end())});
}

KeptTensor kept_tensor(const Json& json) {
  const auto sizes = json.at(3).get<std::vector<std::int64_t>>();
  return {json.at(0), json.at(1), static_cast<DType>(json.at(2).get<int>()), Shape(sizes)};
}

std::uint64_t bytes_below(const fs::path& folder) {
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  return bytes;
}

// How far a rank is; the largest of all ranks is how far they are together.
constexpr int kDone = 0, kBusy = 1, kFailed = 2;

Error not_written(const Error& why, std::int64_t step) {
  return why.within(fmt::format("checkpoint {} was not written", checkpoint_name(step)));
}

}  // namespace

Saving::Saving(Options options, const Model& model, Keepers keepers)
    : options_(std::move(options)),
      model_(model),
      keepers_(std::move(keepers)),
      layout_(agree_on_layout()) {}

std::vector<StateKind> Saving::states() const {
  std::vector<StateKind> states = states_of(model_, options_.sites);
  for (StateKind& residuals :
       residual_states(model_.store(), own_prefix(model_.store(), options_.sites))) {
    states.push_back(std::move(residuals));
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    const StateKind& state = states[i];
    const bool is_rounded = state.kind == kWeightsKind && !state.pieces.empty() &&
                            state.pieces.front().data.dtype() != options_.weights;
    if (!is_rounded) continue;
    states.push_back({kMasterKind, state.pieces});
    break;
  }
  return states;
}

/// A rank knows its own tensors; together they know all.
std::shared_ptr<const CheckpointLayout> Saving::agree_on_layout() {
  Json own = Json::array();
  for (const KeptTensor& tensor : named_here(states())) own.push_back(to_json(tensor));
  std::vector<KeptTensor> tensors;
  for (const std::string& text : texts_of_all(keepers_.here(), own.dump())) {
    for (const Json& json : parse_json(text, "a rank's tensors")) {
      tensors.push_back(kept_tensor(json));
      if (tensors.back().kind == kWeightsKind) tensors.back().dtype = options_.weights;
    }
  }
  const auto names = tensor_names(model_.spec());
  std::ranges::stable_sort(tensors, {}, [&](const KeptTensor& tensor) {
    return std::ranges::find(names, tensor.name) - names.begin();
  });
  if (!model_.spec().tuning.lora) return std::make_shared<const CheckpointLayout>(tensors);
  return std::make_shared<const CheckpointLayout>(
      tensors, std::numeric_limits<std::uint64_t>::max(), kAdapterStem);
}

void Saving::resumed_from(const fs::path& folder, std::int64_t step) {
  newest_ = folder;
  newest_step_ = step;
}

void Saving::begin(const RunState& state) {
  begun_step_ = state.step;
  UnderWay save;
  save.state = state;
  save.skipped_by_site = skipped_by_site(state);
  fs::path staged;
  keepers_.decide([&] {
    std::uint64_t texts = 0;
    for (const TextFile& text : options_.companions) texts += text.content.size();
    try {
      staged = stage_checkpoint(*options_.files, options_.root, state.step, *layout_, texts);
    } catch (const Error& error) {
      throw not_written(error, state.step);
    }
  });
  save.staged = options_.root / text_of_first(keepers_.here(), staged.filename().string());
  save.boxes = std::make_unique<BackgroundSave>(
      BackgroundSave::Task{.files = options_.files,
                           .staged = save.staged,
                           .layout = layout_,
                           .boxes = own_boxes(states(), BackgroundSave::kBoxElements),
                           .writer = keepers_.here().rank()});
  under_way_ = std::move(save);
}

std::vector<std::int64_t> Saving::skipped_by_site(const RunState& state) const {
  std::vector<std::int64_t> skipped;
  const int sites = model_.mesh().size(Axis::site);
  for (int site = 0; site < sites; ++site) {
    const bool is_here = site == model_.mesh().coord(Axis::site);
    const auto own = static_cast<double>(is_here ? state.skipped_updates : 0);
    skipped.push_back(
        sites == 1 ? state.skipped_updates
                   : static_cast<std::int64_t>(keepers_.all().all().combine(own, ReduceOp::max)));
  }
  return skipped;
}

void Saving::before_update() {
  if (under_way_ && under_way_->boxes) under_way_->boxes->let_go();
}

int Saving::own_progress() const {
  if (!under_way_->is_committing) {
    const BackgroundSave::Status status = under_way_->boxes->status();
    return status == BackgroundSave::Status::durable ? kDone
           : status == BackgroundSave::Status::busy  ? kBusy
                                                     : kFailed;
  }
  const auto& commit = under_way_->commit;
  if (!commit.valid()) return kDone;
  if (commit.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return kBusy;
  return commit.get() ? kDone : kFailed;
}

std::optional<observe::CheckpointDurable> Saving::advance(bool waits) {
  while (under_way_) {
    UnderWay& save = *under_way_;
    if (waits && save.is_committing && save.commit.valid()) save.commit.wait();
    if (waits && !save.is_committing) save.boxes->wait();
    const auto progress =
        static_cast<int>(keepers_.all().all().combine(own_progress(), ReduceOp::max));
    if (progress == kFailed) give_up();
    if (progress == kBusy) return std::nullopt;
    if (!save.is_committing) {
      save.is_committing = true;
      peak_bytes_ = std::max(peak_bytes_, save.boxes->peak_bytes());
      save.boxes.reset();
      if (keepers_.is_first()) {
        save.commit = std::async(std::launch::async, [this, &save] { return commit(save); });
      }
      if (!waits) return std::nullopt;
      continue;
    }
    observe::CheckpointDurable durable;  // others than the first tell nobody
    if (save.commit.valid()) durable = save.commit.get().value();
    newest_ = options_.root / checkpoint_name(save.state.step);
    newest_step_ = save.state.step;
    under_way_.reset();
    return durable;
  }
  return std::nullopt;
}

Result<observe::CheckpointDurable> Saving::commit(const UnderWay& save) const {
  const RunState& state = save.state;
  Manifest manifest{.step = state.step,
                    .tokens = state.tokens,
                    .eval_loss = state.eval_loss,
                    .mesh = model_.plan().mesh.text(),
                    .trainer = nullptr,
                    .files = {}};
  Json trainer = {{"skipped_updates", state.skipped_updates},
                  {"seconds", state.seconds},
                  {"residuals", describe_residuals(model_.plan())},
                  {"identity", options_.identity.to_json()}};
  if (state.best_eval_loss) {
    trainer["best_eval_loss"] = *state.best_eval_loss;
    trainer["evaluations_since_best"] = state.evaluations_since_best;
  }
  if (!state.optimizer.empty()) trainer["optimizer"] = state.optimizer;
  if (!state.made_anew.empty()) trainer["made_anew"] = state.made_anew;
  if (!state.left_out.empty()) trainer["left_out"] = left_out_json(state.left_out);
  if (!state.expert_load.empty()) trainer["expert_load"] = state.expert_load;
  if (model_.plan().policy.outer.every > 0) {
    trainer["sites"] = options_.sites.all(model_.mesh().size(Axis::site));
    trainer["skipped_updates_by_site"] = save.skipped_by_site;
  }
  manifest.trainer = std::make_shared<const Json>(std::move(trainer));
  std::vector<TextFile> texts = options_.companions;
  if (!layout_->index().empty()) texts.push_back({kShardIndexFile, layout_->index()});
  try {
    const fs::path path = commit_checkpoint(*options_.files, save.staged, std::move(manifest),
                                            texts, keepers_.here().size());
    observe::CheckpointDurable durable{.step = state.step,
                                       .seconds = save.watch.seconds(),
                                       .bytes = bytes_below(path),
                                       .path = path.string()};
    RetentionPolicy retention = options_.retention;
    retention.run_step = state.step;
    // That this one is there is not known of others yet.
    if (keepers_.are_apart()) retention.keep_step = newest_step_;
    apply_retention(*options_.files, options_.root, retention);
    return durable;
  } catch (const Error& error) {
    return error;
  }
}

void Saving::give_up() {
  std::optional<Error> own;
  if (under_way_->boxes) own = under_way_->boxes->error();
  if (under_way_->commit.valid() && !under_way_->commit.get())
    own = under_way_->commit.get().error();
  under_way_->boxes.reset();
  keepers_.here().all().barrier();  // nobody writes there any more
  if (keepers_.is_first()) abandon_checkpoint(*options_.files, under_way_->staged);
  const std::int64_t step = under_way_->state.step;
  under_way_.reset();
  if (own) own = not_written(*own, step);
  throw_any(keepers_.all(), own);
  HEDDLE_CHECK(false, "a save failed for no reason");
}

}  // namespace heddle
