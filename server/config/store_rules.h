#pragma once

#include <string_view>

#include "common/config/config_reader.h"
#include "common/status/status.h"

namespace psd {

/// The keys about a model and its training, which a store of versions (DaemonConfig::isStore()) does not
/// have.
bool isKeyOfTraining(std::string_view key);
/// Refuses these keys, in the configuration of a store.
void refuseKeysOfTraining(ConfigReader& in);
/// Why a store refuses a call about a model.
Error storeHasNoModel();

}  // namespace psd
