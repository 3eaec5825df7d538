#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "checkpoint/adapter_folder.h"
#include "checkpoint/convert.h"
#include "checkpoint/hf_folder.h"
#include "model/spec.h"
#include "observe/terminal.h"
#include "parallel/param_store.h"

namespace heddle {

/// A model as it lies on disk: a folder with all of its weights, and adapters on top of it.
struct StoredModel {
  std::filesystem::path base;            ///< config.json and weights
  std::optional<AdapterFolder> adapter;  ///< absent: none
  ModelSpec spec;                        ///< with the adapters

  /// That a tokenizer and generation_config.json are taken from: what was trained with, where the
  /// adapters brought it.
  std::filesystem::path texts() const;
};

/// `model`: what ModelSource takes. Where that is adapters they lead to their base; otherwise
/// `adapter` names adapters to use on top, if it is not empty. Error(usage or data) where the two
/// do not belong together, or the weights not to their config.json (check_weights).
StoredModel open_stored_model(const std::filesystem::path& model,
                              const std::filesystem::path& adapter);
/// Into a store of the model's spec.
void load_stored_model(const StoredModel& model, ParamStore& store, Stream& stream,
                       const observe::Terminal& terminal);

/// The newest checkpoint of a run folder, or the folder itself.
AdapterFolder open_adapters(const std::filesystem::path& path);
/// What adapters a model has with these. Error(data) names the first that does not fit `base`.
LoraSpec lora_of(const AdapterFolder& folder, const ModelSpec& base);
/// Fills the adapters of a store. Error(data) names a tensor that is missing, has another shape or
/// holds NaN.
void load_adapters(const AdapterFolder& folder, ParamStore& store, Stream& stream);
/// What PEFT has to know of the adapters of a model.
AdapterConfig adapter_config(const ModelSpec& spec, const std::string& base);

/// For `convert`: what merging the adapters adds to tensors of the base, by their names there.
std::map<std::string, LowRankUpdate> merged_updates(const StoredModel& model);

}  // namespace heddle
