#pragma once

#include <string_view>

#include "common/config/config_reader.h"
#include "common/status/status.h"
#include "server/publish/publish_config.h"

namespace psd {

/// The keys about a model and its training, which a daemon that only has versions
/// (DaemonConfig::servesOnlyVersions()) does not have.
bool isKeyOfTraining(std::string_view key);
/// Refuses these keys, in the configuration of such a daemon.
void refuseKeysOfTraining(ConfigReader& in, PublishConfig::From from);
/// Why it refuses a call about a model.
Error storeHasNoModel();

}  // namespace psd
