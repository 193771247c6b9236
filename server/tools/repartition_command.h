#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "common/status/status.h"

namespace psd {

/// `psd repartition`: divides what the daemons of a model have saved in `folders` (the durability.path of
/// each) among `daemons` new daemons, which resume from the folders partition-N in `to`. Prints a summary to
/// standard output. The daemons must not be running. `together`: divides the checkpoint of the whole model
/// that psd checkpoint made. `published`: divides the model as it was at that published version, rebuilt from
/// checkpoints and log; `daemons` may then be their number. Blocks.
Status repartitionFolders(Env& env, std::vector<std::string> folders, uint32_t daemons, std::string to,
                          bool together, std::optional<uint64_t> published = {});

}  // namespace psd
