#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "server/checkpoint/store_state.h"

namespace psd {

/// Writes checkpoint `number`, without a log, of a store that is not in use. `groups`: the policies, as in
/// another manifest. `consistency`: the known consistency of the values. Blocks.
Status saveAtRest(Env& env, const std::string& folder, uint64_t number, ParameterStore& store,
                  const std::vector<ManifestGroup>& groups, Consistency consistency,
                  std::optional<SavedSamples> samples);

}  // namespace psd
