#pragma once

#include <vector>

#include "server/publish/version_part.h"
#include "server/publish/version_store.h"

namespace psd {

/// Whether a version has these parts, with the same bytes: reads those that are not whole tensors.
/// ErrorCode::invalidArgument names the first part that differs. Blocks.
Status checkPublished(VersionStore& versions, const VersionInfo& version,
                      const std::vector<VersionPart>& parts);

}  // namespace psd
