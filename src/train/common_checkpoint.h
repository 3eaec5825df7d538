#pragma once

#include <filesystem>
#include <optional>

#include "checkpoint/reader.h"
#include "train/keepers.h"

namespace heddle {

/// The newest checkpoint that the keepers of every folder have whole, to the last byte, on the
/// first of them; nothing where there is none at all. All ranks call it. A newer one that is
/// damaged, or that others do not have, is named in a line and stays. Error(usage) where a folder
/// has none and others have, or none is common: it names the sites and says what to copy;
/// Error(data) where a folder has some and none is whole. `site`: the number of this rank's, for
/// messages. `may_start_over`: nothing instead of a refusal, for a run that was interrupted in its
/// first save.
std::optional<CheckpointReader> open_common(const Keepers& keepers,
                                            const std::filesystem::path& root, int site,
                                            bool may_start_over = false);

}  // namespace heddle
