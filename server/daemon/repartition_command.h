#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "common/status/status.h"

namespace psd {

/// `psd repartition`: divides what the daemons of a model have left in `folders`, each one's durability.path,
/// for `daemons` others, which go on from the folders partition-N in `to`; to standard output. The daemons do
/// not run meanwhile. `together`: what is divided is the checkpoint of the whole model that psd checkpoint
/// made. Blocks.
Status repartitionFolders(Env& env, std::vector<std::string> folders, uint32_t daemons, std::string to,
                          bool together);

}  // namespace psd
