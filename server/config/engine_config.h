#pragma once

#include <string>

#include "common/config/object_reader.h"
#include "server/engine/etcd_options.h"

namespace psd {

/// The engine by which the daemons of a model agree. A value type.
struct EngineConfig {
  std::string prefix;  ///< keys of this model begin with it and a '/'; no other model's do
  EtcdOptions etcd;
};

/// Reads the key `engine`; `insecure`: passwords may go over a network in the clear. Problems go to the
/// reader; no file is read.
EngineConfig readEngine(ObjectReader in, bool insecure);

}  // namespace psd
