#pragma once

#include <string>

#include "common/config/config_reader.h"
#include "server/engine/etcd_options.h"

namespace psd {

/// The engine through which the daemons of a model agree on the cluster document. A value type.
struct EngineConfig {
  std::string prefix;  ///< the model's keys start with it and a '/', and no other model's do
  EtcdOptions etcd;
};

/// Reads the key `engine`; no file is read. `insecure`: passwords may cross a network unencrypted.
EngineConfig readEngine(ConfigReader in, bool insecure);

}  // namespace psd
