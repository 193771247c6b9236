#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "server/checkpoint/store_state.h"

namespace psd {

/// Writes checkpoint `number`, with no log behind it, of a store that nobody uses meanwhile. `groups`: the
/// policies, as another manifest has them. `consistency`: what is known of the values. Blocks.
Status saveAtRest(Env& env, const std::string& folder, uint64_t number, ParameterStore& store,
                  const std::vector<ManifestGroup>& groups, Consistency consistency,
                  std::optional<SavedSamples> samples);

}  // namespace psd
